"""Masks: exact k under ties on every path, and blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tinysubnets.errors import SettingError
from tinysubnets.nn import topk
from tinysubnets.nn.architecture import TensorSpec
from tinysubnets.nn.layout import Layout, blocks_of

Bounds = list[tuple[int, int, int]]


def reference(values: Tensor, bounds: Bounds, allowed: Tensor | None = None) -> Tensor:
    """The slow mask: a stable sort of each segment."""
    if allowed is not None:
        values = torch.where(allowed, values, -1.0)
    mask = torch.zeros_like(values, dtype=torch.bool)
    for start, stop, k in bounds:
        order = values[..., start:stop].argsort(dim=-1, descending=True, stable=True)
        mask[..., start:stop].scatter_(-1, order[..., :k], True)
    return mask


def kinds(n: int) -> dict[str, Tensor]:
    """Vectors that are easy to rank wrongly."""
    noise = torch.rand(n)
    return {
        "uniform": noise,
        "ties": (noise * 7).floor(),
        "equal": torch.full((n,), 0.3),
        "zeros": torch.zeros(n),
        "half zeros": torch.where(noise < 0.5, 0.0, noise),
        "denormal": (noise * 50).floor() * 1e-45,
        "wide": torch.exp(80 * noise - 40),
        "one apart": torch.where(noise < 0.5, 1.0, 1.0 + 2.0**-23),
    }


def check(values: Tensor, bounds: Bounds, allowed: Tensor | None = None) -> None:
    """Both paths, with no last thresholds, good and wrong ones, against the slow mask."""
    expected = reference(values, bounds, allowed)
    mask, thresholds = topk.top_k_segments(values, bounds, allowed=allowed)
    assert torch.equal(mask, expected)
    for i, (start, stop, k) in enumerate(bounds):
        part = values[..., start:stop].where(mask[..., start:stop], torch.inf)
        if k:
            assert torch.equal(thresholds[..., i], part.amin(-1))
    for last in (thresholds, thresholds * 1.003, thresholds * 0, thresholds * 50 + 1e-3):
        again, level = topk.top_k_segments(values, bounds, last, allowed)
        assert torch.equal(again, expected)
        assert torch.equal(level, thresholds)
    plain, level = topk.top_k_reference(values, bounds, allowed)
    assert torch.equal(plain, expected)
    assert torch.equal(level, thresholds)


@pytest.mark.parametrize("name", list(kinds(1)))
def test_exactly_k_on_every_path(name: str) -> None:
    values = kinds(12_000)[name]
    for k in (1, 2, 1999, 6000, 11_999, 12_000):
        check(values, [(0, 12_000, k)])
    small = kinds(40)[name]
    for k in (0, 1, 7, 39, 40):
        check(small, [(0, 40, k)])


@pytest.mark.parametrize("name", list(kinds(1)))
def test_every_segment_has_a_top_k_of_its_own(name: str) -> None:
    bounds = [(0, 5, 2), (5, 6, 1), (6, 9000, 450), (9000, 9100, 0), (9100, 15_000, 5900)]
    rows = [kinds(15_000)[name] for _ in range(3)]
    for values in rows:
        check(values, bounds)
    masks, thresholds = topk.top_k_reference(torch.stack(rows), bounds)  # of several at once
    for row, values in enumerate(rows):
        mask, level = topk.top_k_segments(values, bounds)
        assert torch.equal(masks[row], mask) and torch.equal(thresholds[row], level)


@pytest.mark.parametrize("name", list(kinds(1)))
def test_only_allowed_blocks_are_selected(name: str) -> None:
    values = kinds(15_000)[name]
    for share in (0.9, 0.1):
        allowed = torch.rand(15_000) < share
        few = int(allowed[100:9000].sum())
        for k in (1, few // 2, few):
            check(values, [(100, 9000, k), (9000, 15_000, 3)], allowed)


def test_gaps_between_segments_stay_empty() -> None:
    values = torch.rand(6000)
    check(values, [(10, 4990, 100), (5000, 5990, 100)])


def test_many_segments() -> None:
    values = torch.rand(4000)
    check(values, [(i, i + 40, 1 + i % 40) for i in range(0, 4000, 40)])


def test_thresholds_follow_a_random_walk() -> None:
    values, last = torch.rand(50_000), None
    for _ in range(5):
        mask, last = topk.top_k_segments(values, [(0, 50_000, 5000)], last)
        assert torch.equal(mask, reference(values, [(0, 50_000, 5000)]))
        values = (values + 1e-3 * torch.randn(50_000)).abs()


def test_near_the_last_threshold_only_a_window_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = []
    take = topk._take
    monkeypatch.setattr(topk, "_take", lambda w, *rest: ranked.append(len(w)) or take(w, *rest))
    values = torch.rand(200_000)
    _, last = topk.top_k_segments(values, [(0, 200_000, 20_000)])
    topk.top_k_segments(values, [(0, 200_000, 20_000)], last)
    topk.top_k_segments(values, [(0, 200_000, 20_000)], last * 0.5)
    assert ranked[0] < 20_000 and ranked[1] < 4000 and ranked[2] < 20_000


@pytest.mark.parametrize("way", [topk.top_k_segments, topk.top_k_reference])
def test_ties_go_to_the_lower_index(way: Any) -> None:
    values = torch.tensor([3.0, 1.0, 3.0, 3.0])
    allowed = torch.tensor([False, True, True, True])
    assert way(values, [(0, 4, 2)])[0].tolist() == [True, False, True, False]
    assert way(values, [(0, 4, 2)], allowed=allowed)[0].tolist() == [False, False, True, True]
    assert way(torch.zeros(4), [(0, 4, 2)])[0].tolist() == [True, True, False, False]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(SettingError, match="select 5 of the 4"):
        topk.top_k_segments(torch.rand(4), [(0, 4, 5)])
    allowed = torch.tensor([True, True, False, False])
    with pytest.raises(SettingError, match="fewer are allowed"):
        topk.top_k_segments(torch.rand(4), [(0, 4, 3)], allowed=allowed)
    with pytest.raises(SettingError, match="NaN"):
        topk.top_k_segments(torch.tensor([1.0, float("nan")]), [(0, 2, 2)])
    with pytest.raises(SettingError, match="block = 0 is not allowed"):
        Layout([TensorSpec("weight", (3, 4))], 0)


def test_the_search_can_be_compiled_whole() -> None:
    """In one graph, so that no step waits for the host: it can be captured as well."""
    search = torch.compile(topk.top_k_segments, backend="eager", fullgraph=True)
    values, bounds = (torch.rand(9000) * 50).floor(), ((0, 5000, 70), (5000, 9000, 0))
    allowed = torch.rand(9000) < 0.5
    mask, thresholds = search(values, bounds, None, allowed)
    assert torch.equal(mask, reference(values, list(bounds), allowed))
    assert torch.equal(thresholds, topk.top_k_segments(values, bounds, None, allowed)[1])


def test_half_precision_and_double_scores() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        values = torch.rand(9000).to(dtype)
        mask, thresholds = topk.top_k_segments(values, [(0, 9000, 900)])
        assert torch.equal(mask, reference(values, [(0, 9000, 900)]))
        assert thresholds.dtype == dtype


def slow_blocks(shape: tuple[int, ...], block: int) -> list[list[int]]:
    """The elements of each block, by the words of the rule."""
    kernel = 1
    for size in shape[2:]:
        kernel *= size
    if block == 1:
        row, width = 1, 1
    elif 1 < kernel <= 64:
        row, width = kernel, kernel
    else:
        row, width = (shape[1] if kernel == 1 else shape[-1]), block
    numel = shape[0] * shape[1] * kernel
    cells = [list(range(start, start + row)) for start in range(0, numel, row)]
    return [cell[i : i + width] for cell in cells for i in range(0, row, width)]


SHAPES = [(4, 16), (5, 13), (3, 7, 1, 1), (3, 4, 3, 3), (2, 3, 5), (2, 2, 3, 3, 3), (2, 3, 5, 19)]


@pytest.mark.parametrize(("shape", "block"), [*itertools.product(SHAPES, (1, 2, 8, 100))])
def test_blocks_follow_the_rule(shape: tuple[int, ...], block: int) -> None:
    blocks = blocks_of(shape, block)
    cells = slow_blocks(shape, block)
    assert blocks.num == len(cells)
    assert blocks.numel == sum(map(len, cells))
    assert blocks.sizes().tolist() == [len(cell) for cell in cells]
    values = torch.randint(0, 9, (2, blocks.numel))
    sums = torch.stack([values[:, cell].sum(-1) for cell in cells], -1)
    assert torch.equal(blocks.sum(values), sums)
    wide = torch.empty(2, blocks.numel, dtype=torch.int64)
    for i, cell in enumerate(cells):
        wide[:, cell] = i
    assert torch.equal(blocks.expand(torch.arange(len(cells)).expand(2, -1)), wide)


def test_weights_follow_others_of_their_kernel() -> None:
    shapes = [(3, 4), (2, 3, 3, 3), (2, 3, 1, 1), (2, 2, 5), (2, 2, 9, 9), (3, 2, 2, 2)]
    layout = Layout([TensorSpec(f"w{i}", shape) for i, shape in enumerate(shapes)])
    assert layout.kernels == (1, 9, 1, 5, 1, 4)
    rng = np.random.default_rng(0)
    for share in (0.0, 0.1, 0.5, 1.0):
        positions = np.flatnonzero(rng.random(layout.num_weights) < share)
        kernels = []
        for (start, stop), width in zip(layout.segments, layout.kernels, strict=True):
            kernels += [(start, (p - start) // width) for p in positions if start <= p < stop]
        expected = [i > 0 and kernels[i] == kernels[i - 1] for i in range(len(kernels))]
        assert layout.follows_in_kernel(positions).tolist() == expected


def test_width_one_is_free() -> None:
    values = torch.rand(12)
    blocks = blocks_of((3, 4), 1)
    assert blocks.expand(values) is values
    assert blocks.sum(values) is values


def test_gradient_of_a_block_is_the_sum_over_its_elements() -> None:
    blocks = blocks_of((2, 5), 2)
    scores = torch.rand(blocks.num, requires_grad=True)
    slope = torch.rand(10)
    (blocks.expand(scores) * slope).sum().backward()
    assert scores.grad is not None
    assert torch.allclose(scores.grad, blocks.sum(slope))
