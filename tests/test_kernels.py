"""The Triton selection against the plain one; runs where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from tinysubnets import masks

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def reference(values: torch.Tensor, bounds: list[tuple[int, int, int]]) -> torch.Tensor:
    mask = torch.zeros_like(values, dtype=torch.bool)
    for start, stop, k in bounds:
        order = torch.argsort(values[..., start:stop], dim=-1, descending=True, stable=True)
        mask[..., start:stop].scatter_(-1, order[..., :k], True)
    return mask


@needs_gpu
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
    mask, levels = kernels.top_k_segments(values.cuda(), bounds)
    assert torch.equal(mask.cpu(), reference(values, bounds))
    _, expected = masks._select_near(values, bounds, None, None)
    assert torch.equal(levels.cpu(), expected)


@needs_gpu
def test_kernels_respect_what_is_allowed() -> None:
    from tinysubnets import kernels

    generator = torch.Generator().manual_seed(1)
    values = (torch.rand(1, 70_000, generator=generator) * 100).floor()
    allowed = torch.rand(1, 70_000, generator=generator) < 0.3
    bounds = [(0, 30_000, 2000), (30_000, 70_000, 5000)]
    mask, _ = kernels.top_k_segments(values.cuda(), bounds, allowed.cuda())
    expected, _ = masks._select_near(values, bounds, None, allowed)
    assert torch.equal(mask.cpu(), expected)
