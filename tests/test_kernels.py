"""The Triton kernels against the plain forms, on a GPU or by Triton's interpreter on a CPU."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tinysubnets import masks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def reference(values: torch.Tensor, bounds: list[tuple[int, int, int]]) -> torch.Tensor:
    mask = torch.zeros_like(values, dtype=torch.bool)
    for start, stop, k in bounds:
        order = torch.argsort(values[..., start:stop], dim=-1, descending=True, stable=True)
        mask[..., start:stop].scatter_(-1, order[..., :k], True)
    return mask


@needs_triton
@pytest.mark.parametrize("kind", ["random", "few values", "equal", "zeros", "denormal"])
def test_kernels_select_exactly_k_with_ties_to_the_lower_index(kind: str) -> None:
    from tinysubnets import kernels

    bounds = [
        (0, 1, 1),
        (1, 5000, 700),
        (5000, 5003, 0),
        (5003, 90_000, 84_997),
        (90_000, 200_001, 9),
    ]
    values = torch.rand(2, 200_001, generator=torch.Generator().manual_seed(0))
    if kind == "few values":
        values = (values * 5).floor() / 5
    elif kind in ("equal", "zeros"):
        values = torch.full_like(values, 0.25 if kind == "equal" else 0.0)
    elif kind == "denormal":
        values = values * 1e-42
    mask, levels = kernels.top_k_segments(values.to(DEVICE), bounds)
    assert torch.equal(mask.cpu(), reference(values, bounds))
    _, expected = masks._select_near(values, bounds, None, None)
    assert torch.equal(levels.cpu(), expected)


@needs_triton
def test_kernels_respect_what_is_allowed() -> None:
    from tinysubnets import kernels

    generator = torch.Generator().manual_seed(1)
    values = (torch.rand(1, 70_000, generator=generator) * 100).floor()
    allowed = torch.rand(1, 70_000, generator=generator) < 0.3
    bounds = [(0, 30_000, 2000), (30_000, 70_000, 5000)]
    mask, _ = kernels.top_k_segments(values.to(DEVICE), bounds, allowed.to(DEVICE))
    expected, _ = masks._select_near(values, bounds, None, allowed)
    assert torch.equal(mask.cpu(), expected)


@needs_triton
def test_fused_weights_and_gradients_equal_the_plain_ones() -> None:
    from tinysubnets import kernels
    from tinysubnets.architecture import Specification
    from tinysubnets.codebook import lookup_of, snap
    from tinysubnets.layout import Layout
    from tinysubnets.task_module import EffectiveWeights

    layout = Layout([Specification("a", (70, 90)), Specification("b", (50, 333))])
    generator = torch.Generator().manual_seed(0)
    size = layout.num_weights
    free, scores, bank, weight = (
        torch.randn(size, generator=generator).to(DEVICE) for _ in range(4)
    )
    mask, owned = (torch.rand(size, generator=generator).to(DEVICE) < 0.4 for _ in range(2))
    centres = torch.randn(2, 16, generator=generator).sort(-1).values.to(DEVICE)
    lookup = lookup_of(centres)
    values = torch.where(owned, bank, snap(free, centres, layout.segments, lookup))
    results = []
    for fused in (True, False):
        f, s = free.clone().requires_grad_(), scores.clone().requires_grad_()
        out = (
            kernels.FusedWeights.apply(f, s, mask, owned, bank, lookup, layout.segments)
            if fused
            else EffectiveWeights.apply(f, s, layout, mask, owned, values)
        )
        (out * weight).sum().backward()
        results.append((out.detach(), f.grad, s.grad))
    for mine, plain in zip(*results, strict=True):
        assert torch.equal(mine, plain)


@needs_triton
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw"])
def test_updates_by_kernels_equal_those_of_torch(kind: str) -> None:
    from tinysubnets.updates import LARGE, flat_update

    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1).to(DEVICE), fused=True),
        "momentum": lambda p: torch.optim.SGD(
            p, lr=torch.tensor(0.1).to(DEVICE), momentum=0.9, weight_decay=0.01, fused=True
        ),
        "adam": lambda p: torch.optim.Adam(
            p,
            lr=torch.tensor(0.01).to(DEVICE),
            weight_decay=0.01,
            fused=True,
            capturable=DEVICE == "cuda",
        ),
        "adamw": lambda p: torch.optim.AdamW(
            p,
            lr=torch.tensor(0.01).to(DEVICE),
            weight_decay=0.1,
            fused=True,
            capturable=DEVICE == "cuda",
        ),
    }[kind]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(n, generator=generator).to(DEVICE) for n in (LARGE + 77, 10)]
    mine, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    my_optimizer, optimizer = make(mine), make(theirs)
    update = flat_update(my_optimizer)
    for _ in range(5):
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator).to(DEVICE)
            b.grad = a.grad.clone()
        update()
        optimizer.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
