"""The Triton kernels against the plain forms, on a GPU or by Triton's interpreter on a CPU."""

from __future__ import annotations

import itertools
from importlib import import_module
from importlib.util import find_spec
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch

from tinysubnets.nn import codebook, kmeans
from tinysubnets.nn.topk import top_k_reference
from tinysubnets.training.optim import LONG, fused_update

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
pytestmark = pytest.mark.slow  # Triton's interpreter takes its time


@needs_triton
@pytest.mark.parametrize("kind", ["random", "few values", "equal", "zeros", "denormal"])
def test_kernels_select_exactly_k_with_ties_to_the_lower_index(kind: str) -> None:
    from tinysubnets import kernels

    bounds = [
        (0, 1, 1),
        (1, 5000, 700),
        (5000, 5003, 0),
        (5003, 40_000, 34_997),
        (40_000, 70_001, 9),
    ]
    values = torch.rand(2, 70_001, generator=torch.Generator().manual_seed(0))
    if kind == "few values":
        values = (values * 5).floor() / 5
    elif kind in ("equal", "zeros"):
        values = torch.full_like(values, 0.25 if kind == "equal" else 0.0)
    elif kind == "denormal":
        values = values * 1e-42
    mask, levels = kernels.top_k_segments(values.to(DEVICE), bounds)
    expected, thresholds = top_k_reference(values, bounds)
    assert torch.equal(mask.cpu(), expected)
    assert torch.equal(levels.cpu(), thresholds)


@needs_triton
def test_kernels_respect_what_is_allowed() -> None:
    from tinysubnets import kernels

    generator = torch.Generator().manual_seed(1)
    values = (torch.rand(1, 70_000, generator=generator) * 100).floor()
    allowed = torch.rand(1, 70_000, generator=generator) < 0.3
    bounds = [(0, 30_000, 2000), (30_000, 70_000, 5000)]
    mask, _ = kernels.top_k_segments(values.to(DEVICE), bounds, allowed.to(DEVICE))
    expected, _ = top_k_reference(values, bounds, allowed)
    assert torch.equal(mask.cpu(), expected)


@needs_triton
@pytest.mark.parametrize("kind", ["random", "few values", "equal", "denormal"])
@pytest.mark.parametrize("last", ["true", "near", "far", "zero", "not a number"])
def test_last_thresholds_never_change_what_is_selected(
    kind: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("tinysubnets.kernels.topk")  # not the function of that name

    monkeypatch.setattr(module, "LONG", 0)
    bounds = [(0, 1, 1), (1, 3000, 700), (3000, 3003, 0), (3003, 6000, 2997), (6000, 13_001, 9)]
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, 13_001, generator=generator) - 0.5
    if kind == "few values":
        values = (values * 9).floor() / 9
    elif kind == "equal":
        values = torch.full_like(values, -0.25)
    elif kind == "denormal":
        values = values * 1e-42
    allowed = torch.rand(2, 13_001, generator=generator) < 0.999
    allowed[:, :6000] = True
    expected, exact = top_k_reference(values.abs(), bounds, allowed)
    factor = {"true": 1.0, "near": 1.01, "far": 3.0, "zero": 0.0, "not a number": torch.nan}[last]
    thresholds = (exact.nan_to_num(posinf=0.0) * factor).to(DEVICE)
    for _ in range(2):  # the second time with the thresholds just found
        mask, _ = module.top_k_magnitudes(values.to(DEVICE), bounds, allowed.to(DEVICE), thresholds)
        assert torch.equal(mask.cpu(), expected)
    k = torch.tensor([b[2] for b in bounds])
    assert torch.equal(thresholds.cpu()[:, k > 0], exact[:, k > 0])


@needs_triton
def test_near_the_last_threshold_the_search_ends_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tinysubnets.kernels import topk_window

    module = import_module("tinysubnets.kernels.topk")  # not the function of that name

    monkeypatch.setattr(module, "LONG", 0)
    values = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(4))
    bounds = [(0, 20_000, 1000)]
    last = torch.full((1, 1), float(values.topk(1000).values[0, -1]) * 1.005).to(DEVICE)
    ended: list[int] = []
    search = topk_window.search_

    def spy(*args: object) -> None:
        search(*args)  # type: ignore[arg-type]
        ended.append(int(args[3][0, 3]))  # type: ignore[index]

    monkeypatch.setattr(topk_window, "search_", spy)
    mask, _ = module.top_k_magnitudes(values.to(DEVICE), bounds, None, last)
    assert ended == [1] and torch.equal(mask.cpu(), top_k_reference(values, bounds)[0])


def plain_nearest(values: torch.Tensor, lookup: codebook.LookupTable, segments: Any) -> Any:
    """The nearest centroids by the plain form, wherever the values are."""
    table = codebook.LookupTable(*(t.cpu() for t in lookup))
    return codebook.nearest_centroid(values.cpu(), table, segments).to(values.device)


@needs_triton
@pytest.mark.parametrize("k", [2, 16, 64])
def test_nearest_centroids_equal_the_plain_ones(k: int) -> None:
    from tinysubnets import kernels

    generator = torch.Generator().manual_seed(k)
    values = 2 * torch.randn(5000, generator=generator).to(DEVICE)
    values[[0, 999, 1000, 4999]] = torch.tensor([-inf, inf, nan, 0.0], device=DEVICE)
    segments = [(0, 1000), (1000, 1001), (1001, 5000)]
    lookup = codebook.lookup_table(torch.randn(3, k, generator=generator).sort(-1).values)
    lookup = codebook.LookupTable(*(t.to(DEVICE) for t in lookup))
    mine = kernels.nearest_centroid(values, lookup, segments)
    assert torch.equal(mine, plain_nearest(values, lookup, segments))


@needs_triton
@pytest.mark.parametrize("quantized", [True, False])
def test_fused_weights_and_gradients_equal_the_plain_ones(quantized: bool) -> None:
    from tinysubnets import kernels
    from tinysubnets.nn.architecture import TensorSpec
    from tinysubnets.nn.layout import Layout
    from tinysubnets.nn.masked import EffectiveWeights

    layout = Layout([TensorSpec("a", (70, 90)), TensorSpec("b", (50, 333))])
    generator = torch.Generator().manual_seed(0)
    size = layout.num_weights
    free, scores, bank, weight = (
        torch.randn(size, generator=generator).to(DEVICE) for _ in range(4)
    )
    mask, owned = (torch.rand(size, generator=generator).to(DEVICE) < 0.4 for _ in range(2))
    centroids = torch.randn(2, 16, generator=generator).sort(-1).values.to(DEVICE)
    lookup = codebook.lookup_table(centroids)
    near = plain_nearest(free, lookup, layout.segments) if quantized else free
    values = torch.where(owned, bank, near)
    results = []
    for fused in (True, False):
        f, s = free.clone().requires_grad_(), scores.clone().requires_grad_()
        out = (
            kernels.FusedWeights.apply(
                f, s, mask, owned, bank, lookup if quantized else None, layout.segments
            )
            if fused
            else EffectiveWeights.apply(f, s, layout, mask, owned, values)
        )
        (out * weight).sum().backward()
        results.append((out.detach(), f.grad, s.grad))
    for mine, plain in zip(*results, strict=True):
        assert torch.equal(mine, plain)


def plain_histogram(
    flat: torch.Tensor, keep: torch.Tensor, segments: Any, num_cells: int, extent: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts and sums [rows, segments, cells], a value counting as the middle of its cell.

    In float32 up to the cell, as the kernels: many values are so small that this decides.
    """
    counts = torch.zeros(len(flat), len(segments), num_cells, dtype=torch.float64)
    sums = torch.zeros_like(counts)
    for row, i in itertools.product(range(len(flat)), range(len(segments))):
        scale, reach = (float(e[row, i]) for e in extent)
        start, stop = segments[i]
        own = flat[row, start:stop][keep[row, start:stop]].cpu().numpy()
        rate = num_cells / 2 / np.arcsinh(reach / scale)
        cell = np.arcsinh(own / np.float32(scale)) * np.float32(rate) + np.float32(num_cells / 2)
        cell = np.clip(cell, 0, num_cells - 1)
        count = np.bincount(cell.astype(int), minlength=num_cells)
        middles = scale * np.sinh((np.arange(num_cells) + 0.5 - num_cells / 2) / rate)
        counts[row, i] = torch.from_numpy(count)
        sums[row, i] = torch.from_numpy(count * middles)
    return counts, sums


def three_codebooks() -> tuple:
    """Values and what is kept [2, N] of three segments, and their extent; one has no value."""
    generator = torch.Generator().manual_seed(5)
    segments = [(0, 5000), (5000, 5010), (5010, 30_000)]
    flat = torch.randn(2, 30_000, generator=generator) ** 3
    keep = torch.rand(2, 30_000, generator=generator) < 0.2
    keep[0, 5000:5010] = False
    sizes = torch.where(keep, flat.abs(), 0.0)
    parts = [(sizes[:, i:j], keep[:, i:j].sum(-1)) for i, j in segments]
    scale = torch.stack([size.sum(-1) / num.clamp_min(1) for size, num in parts], -1)
    reach = torch.stack([size.amax(-1) for size, _ in parts], -1)
    extent = (scale.clamp_min(1e-30).to(DEVICE), reach.clamp_min(1e-30).to(DEVICE))
    return flat.to(DEVICE), keep.to(DEVICE), segments, extent


def bins_of_three_codebooks() -> tuple[torch.Tensor, torch.Tensor]:
    """Counts and sums [2, 3, 256] of what `three_codebooks` gives."""
    counts, sums = plain_histogram(*three_codebooks()[:3], 64 * 256, three_codebooks()[3])
    return tuple(x.unflatten(-1, (256, 64)).sum(-1).to(DEVICE) for x in (counts, sums))


def cells_of(count: torch.Tensor, total: torch.Tensor) -> kmeans.Histogram:
    """The bins [256] of one codebook as the reference takes them."""
    used = count.cpu() > 0
    number, sums = count.cpu()[used].numpy(), total.cpu()[used].numpy()
    before = [np.concatenate([[0.0], np.cumsum(x)]) for x in (number, sums)]
    return kmeans.Histogram(sums / number, *before)


@needs_triton
def test_histograms_by_kernels_equal_the_plain_ones() -> None:
    from tinysubnets import kernels

    flat, keep, segments, extent = three_codebooks()
    for mine, plain in zip(kernels.extent(flat, keep, segments), extent, strict=True):
        torch.testing.assert_close(mine, plain)
    mine = kernels.count_cells(flat, keep, segments, 2048, extent).cpu()
    plain, _ = plain_histogram(flat, keep, segments, 2048, extent)
    assert torch.equal(mine.sum(-1), plain.sum(-1).int())
    # Logarithms round differently: one value in a thousand may be in the next cell.
    assert (mine - plain).abs().sum() <= 2e-3 * plain.sum()
    count, total = bins_of_three_codebooks()
    my_count, my_total = kernels.histogram(flat, keep, segments, 256, extent)
    assert torch.equal(my_count.sum(-1), count.sum(-1))
    assert (my_count - count).abs().sum() <= 2e-3 * count.sum()
    same = my_count == count
    torch.testing.assert_close(my_total[same], total[same], rtol=1e-3, atol=1e-9)
    assert ((my_total - total).sum(-1).abs() <= 1e-5 * total.abs().sum(-1)).all()


@needs_triton
def test_the_extent_of_many_tiles_and_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinysubnets.kernels import histograms

    flat, keep, segments, extent = three_codebooks()
    monkeypatch.setattr(histograms, "WIDE", 128)
    monkeypatch.setattr(histograms, "TILE", 8)  # of 196 tiles of the last segment
    histograms._wide.cache_clear()
    found = histograms.extent(flat, keep, [*segments[:2], (5010, 5010), segments[2]])
    histograms._wide.cache_clear()
    for mine, plain in zip(found, extent, strict=True):
        torch.testing.assert_close(mine[:, [0, 1, 3]], plain)
        assert (mine[:, 2] == 1e-30).all()


@needs_triton
def test_lloyd_steps_by_a_kernel_equal_those_of_the_reference() -> None:
    from tinysubnets import kernels

    count, total = bins_of_three_codebooks()
    old = torch.zeros(2, 3, 16)
    for row, i in itertools.product(range(2), (0, 2)):  # the other has fewer values than centroids
        cells = cells_of(count[row, i], total[row, i])
        old[row, i] = torch.from_numpy(kmeans.optimal_split(cells, 16, 256)).float() * 1.01
    mine = kernels.lloyd(count, total, old.to(DEVICE), 4).cpu()
    for row, i in itertools.product(range(2), (0, 2)):
        cells = cells_of(count[row, i], total[row, i])
        plain = kmeans.lloyd(cells, old[row, i].double().numpy(), 4)
        wanted = codebook.round_centroids(torch.from_numpy(plain))
        torch.testing.assert_close(mine[row, i], wanted, rtol=1e-3, atol=1e-7)
    assert (mine[0, 1] == 0).all()  # no value, no centroid


@needs_triton
@pytest.mark.parametrize("k", [2, 16, 32])
def test_the_optimal_split_by_a_kernel_is_as_good_as_the_reference(k: int) -> None:
    from tinysubnets import kernels

    count, total = bins_of_three_codebooks()
    mine = kernels.optimal_split(count, total, k).cpu()

    def error(cells: kmeans.Histogram, centroids: np.ndarray) -> float:
        away = np.abs(cells.means[:, None] - centroids).min(1)
        return float((away**2 * np.diff(cells.counts)).sum())

    for row, i in itertools.product(range(2), range(3)):
        cells = cells_of(count[row, i], total[row, i])
        if len(cells) > k:
            plain = kmeans.optimal_split(cells, k, 256)
            assert error(cells, mine[row, i].numpy()) == pytest.approx(
                error(cells, plain), rel=1e-3
            )
        else:  # few values are kept as they are, and the last of them repeated
            wanted = np.pad(cells.means, (0, k - len(cells)), "edge") if len(cells) else np.zeros(k)
            rounded = codebook.round_centroids(torch.from_numpy(wanted))
            torch.testing.assert_close(mine[row, i], rounded)
    assert (mine.diff(dim=-1) >= 0).all()


@needs_triton
@pytest.mark.parametrize(
    ("places", "is_rounded"),
    [
        ([-0.3, 0.1, 0.7, 1.1], True),
        ([1000.1, 1000.2, 1000.3, 1000.4], False),  # halves would merge
        ([0.1, 0.2, 0.3, 70_000.0], False),  # beyond the largest half
        ([-65_000.0, 0.0, 100.0, 65_530.0], False),  # so little that the largest is near
        ([0.1, 0.100001, 500.0, 1000.0], False),  # two would merge, though near for the spread
        ([1e-9, 2e-9, 3e-9, 5e-9], False),  # below the smallest
        ([-0.3, 0.1, 0.7], True),  # fewer values than centroids
    ],
)
def test_kernels_round_centroids_as_the_reference_does(
    places: list[float], is_rounded: bool
) -> None:
    from tinysubnets import kernels

    count, total = torch.zeros(2, 1, 256, dtype=torch.float64, device=DEVICE)
    count[0, 10 : 10 + len(places)] = 3
    total[0, 10 : 10 + len(places)] = 3 * torch.tensor(places, dtype=torch.float64).to(DEVICE)
    old = torch.tensor([*places, 9e9][:4], device=DEVICE)[None]
    mine = kernels.lloyd(count, total, old, 2).cpu()
    assert torch.equal(mine[0], codebook.round_centroids(torch.tensor([*places, places[-1]][:4])))
    assert torch.equal(mine, mine.half().float()) == is_rounded


@needs_triton
def test_long_segments_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinysubnets.kernels import histograms

    monkeypatch.setattr(histograms, "ENOUGH", 10_000)
    values, kept = torch.ones(1, 40_960), torch.ones(1, 40_960, dtype=torch.bool)
    extent = (torch.ones(1, 2), torch.ones(1, 2))
    segments = ((0, 8192), (8192, 40_960))
    histograms._sample.cache_clear()
    counts = histograms.count_cells(
        values.to(DEVICE), kept.to(DEVICE), segments, 64, tuple(x.to(DEVICE) for x in extent)
    )
    histograms._sample.cache_clear()
    assert counts.sum(-1).tolist() == [[8192, 11 * 1024]]  # all, and every third of 32 tiles


@needs_triton
@pytest.mark.parametrize("k", [4, 16, 64])
def test_lookup_tables_by_the_kernel_equal_the_plain_ones(k: int) -> None:
    from tinysubnets import kernels

    centroids = torch.randn(3, k, generator=torch.Generator().manual_seed(6)).sort(-1).values
    centroids[1] = 0.0  # no codebook yet
    centroids[2, k // 2 :] = centroids[2, k // 2]  # fewer values than centroids
    centroids = centroids.to(DEVICE)
    expected = codebook.lookup_table(centroids)
    mine = tuple(torch.full_like(t, -9.0) for t in expected)
    kernels.lookup_table_(centroids, *mine)
    for one, two in zip(mine[:2], expected[:2], strict=True):
        torch.testing.assert_close(one, two)
    assert (mine[2] != expected[2]).float().mean() <= 1e-3  # a border may round to the next step


@needs_triton
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw"])
def test_updates_by_kernels_equal_those_of_torch(kind: str) -> None:
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
    start = [torch.randn(n, generator=generator).to(DEVICE) for n in (LONG + 77, 10)]
    mine, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    my_optimizer, optimizer = make(mine), make(theirs)
    update = fused_update(my_optimizer)
    assert update is not None
    for _ in range(5):
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator).to(DEVICE)
            b.grad = a.grad.clone()
        update()
        optimizer.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.RMSprop(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    ],
)
def test_an_update_that_no_kernel_knows_is_left_to_torch(optimizer: Any) -> None:
    assert fused_update(optimizer([torch.zeros(LONG, requires_grad=True)])) is None
