"""The plain form of the compiled updates against torch's own optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tinysubnets import updates

CASES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_updates_equal_those_of_torch(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "_compiled", lambda sgd: updates.sgd_ if sgd else updates.adam_)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(5, generator=generator), torch.randn(2, 3, generator=generator)]
    mine, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    my_optimizer, optimizer = kind(mine, **options), kind(theirs, **options)
    update = updates.compiled_update(my_optimizer)
    for _ in range(4):
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        update()
        optimizer.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    if kind is not torch.optim.SGD:
        keys = {k for s in my_optimizer.state.values() for k in s}
        assert keys == {k for s in optimizer.state.values() for k in s}
