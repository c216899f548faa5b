"""The Triton kernels against the plain forms, on a GPU or by Triton's interpreter on a CPU."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tinysubnets.errors import SettingError
from tinysubnets.nn import topk as masks
from tinysubnets.training.optim import LONG, fused_update

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
@pytest.mark.parametrize("kind", ["random", "few values", "equal", "denormal"])
@pytest.mark.parametrize("hint", ["true", "near", "far", "zero", "not a number"])
def test_hints_never_change_what_is_selected(
    kind: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("tinysubnets.kernels.topk")  # not the function of that name

    monkeypatch.setattr(module, "LONG", 0)
    bounds = [(0, 1, 1), (1, 3000, 700), (3000, 3003, 0), (3003, 9000, 5997), (9000, 30_001, 9)]
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(2, 30_001, generator=generator) - 0.5
    if kind == "few values":
        values = (values * 9).floor() / 9
    elif kind == "equal":
        values = torch.full_like(values, -0.25)
    elif kind == "denormal":
        values = values * 1e-42
    allowed = torch.rand(2, 30_001, generator=generator) < 0.999
    allowed[:, :9000] = True
    _, exact = masks._select_near(values.abs(), bounds, None, allowed)
    factor = {"true": 1.0, "near": 1.01, "far": 3.0, "zero": 0.0, "not a number": torch.nan}[hint]
    hints = (exact.nan_to_num(posinf=0.0) * factor).to(DEVICE)
    expected = reference(torch.where(allowed, values.abs(), -1.0), bounds)
    for _ in range(2):  # the second time with the thresholds just found
        mask, _ = module.select(values.to(DEVICE), bounds, allowed.to(DEVICE), hints)
        assert torch.equal(mask.cpu(), expected)
    k = torch.tensor([b[2] for b in bounds])
    assert torch.equal(hints.cpu()[:, k > 0], exact[:, k > 0])


@needs_triton
def test_a_good_hint_ends_the_search_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinysubnets.kernels import topk_window

    module = import_module("tinysubnets.kernels.topk")  # not the function of that name

    monkeypatch.setattr(module, "LONG", 0)
    values = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(4))
    bounds = [(0, 20_000, 1000)]
    hints = torch.full((1, 1), float(values.topk(1000).values[0, -1]) * 1.005).to(DEVICE)
    ended: list[int] = []
    search = topk_window.search_

    def spy(*args: object) -> None:
        search(*args)  # type: ignore[arg-type]
        ended.append(int(args[3][0, 3]))  # type: ignore[index]

    monkeypatch.setattr(topk_window, "search_", spy)
    mask, _ = module.select(values.to(DEVICE), bounds, None, hints)
    assert ended == [1] and torch.equal(mask.cpu(), reference(values, bounds))


@needs_triton
@pytest.mark.parametrize("quantized", [True, False])
def test_fused_weights_and_gradients_equal_the_plain_ones(quantized: bool) -> None:
    from tinysubnets import kernels
    from tinysubnets.nn.architecture import TensorSpec
    from tinysubnets.nn.codebook import lookup_of, nearest_centroid
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
    lookup = lookup_of(centroids)
    near = nearest_centroid(free, centroids, layout.segments, lookup) if quantized else free
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


def bins_of_three_codebooks() -> tuple:
    """Values, what is kept, segments, extent, counts and sums; one codebook has no value."""
    from tinysubnets.nn import codebook as update_codebooks

    generator = torch.Generator().manual_seed(5)
    segments = [(0, 5000), (5000, 5010), (5010, 30_000)]
    flat = torch.randn(2, 30_000, generator=generator).to(DEVICE) ** 3
    keep = torch.rand(2, 30_000, generator=generator).to(DEVICE) < 0.2
    keep[0, 5000:5010] = False
    extent = update_codebooks._extent(flat, keep, segments)
    return (
        flat,
        keep,
        segments,
        extent,
        *update_codebooks._histogram(flat, keep, segments, 256, extent),
    )


@needs_triton
def test_histograms_by_kernels_equal_the_plain_ones() -> None:
    from tinysubnets import kernels
    from tinysubnets.nn import codebook as update_codebooks

    flat, keep, segments, extent, count, total = bins_of_three_codebooks()
    for mine, plain in zip(kernels.extent(flat, keep, segments), extent, strict=True):
        torch.testing.assert_close(mine, plain)
    mine = kernels.count_cells(flat, keep, segments, 2048, extent)
    plain = update_codebooks._count_cells(flat, keep, segments, 2048, extent)
    assert torch.equal(mine.sum(-1), plain.sum(-1))
    # Logarithms round differently: one value in a thousand may be in the next cell.
    assert (mine - plain).abs().sum() <= 2e-3 * plain.sum()
    my_count, my_total = kernels.histogram(flat, keep, segments, 256, extent)
    assert torch.equal(my_count.sum(-1), count.sum(-1))
    assert (my_count - count).abs().sum() <= 2e-3 * count.sum()
    same = my_count == count
    torch.testing.assert_close(my_total[same], total[same], rtol=1e-3, atol=1e-9)
    assert ((my_total - total).sum(-1).abs() <= 1e-5 * total.abs().sum(-1)).all()


@needs_triton
def test_the_extent_of_many_tiles_and_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinysubnets.kernels import histograms

    flat, keep, segments, extent, *_ = bins_of_three_codebooks()
    monkeypatch.setattr(histograms, "WIDE", 128)
    monkeypatch.setattr(histograms, "TILE", 8)  # of 196 tiles of the last segment
    histograms._wide.cache_clear()
    found = histograms.extent(flat, keep, [*segments[:2], (5010, 5010), segments[2]])
    histograms._wide.cache_clear()
    for mine, plain in zip(found, extent, strict=True):
        torch.testing.assert_close(mine[:, [0, 1, 3]], plain)
        assert (mine[:, 2] == 1e-30).all()


@needs_triton
def test_lloyd_steps_by_a_kernel_equal_the_plain_ones() -> None:
    from tinysubnets import kernels
    from tinysubnets.nn import codebook as update_codebooks

    *_, count, total = bins_of_three_codebooks()
    old = update_codebooks._divide(count, total, 16) * 1.1
    mine = kernels.settle(count, total, old, 4)
    torch.testing.assert_close(
        mine, update_codebooks._settle(count, total, old, 4), rtol=1e-3, atol=1e-7
    )
    assert (mine[0, 1] == 0).all()  # no value, no centroid


@needs_triton
@pytest.mark.parametrize("k", [2, 16, 32])
def test_the_best_division_by_a_kernel_is_as_good_as_the_plain_one(k: int) -> None:
    from tinysubnets import kernels
    from tinysubnets.nn import codebook as update_codebooks

    *_, count, total = bins_of_three_codebooks()
    mine, plain = kernels.divide(count, total, k), update_codebooks._divide(count, total, k)
    place = (total / count.clamp_min(1))[..., None]

    def error(centroids: torch.Tensor) -> torch.Tensor:
        return ((place - centroids[..., None, :]).square().amin(-1) * count).sum(-1)

    torch.testing.assert_close(error(mine), error(plain), rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(mine[:, 1], plain[:, 1])  # few values have one best division
    assert (mine[0, 1] == 0).all()
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
def test_kernels_round_centres_as_the_plain_form_does(
    places: list[float], is_rounded: bool
) -> None:
    from tinysubnets import kernels
    from tinysubnets.nn import codebook as update_codebooks

    count, total = torch.zeros(2, 1, 256, dtype=torch.float64, device=DEVICE)
    count[0, 10 : 10 + len(places)] = 3
    total[0, 10 : 10 + len(places)] = 3 * torch.tensor(places, dtype=torch.float64).to(DEVICE)
    old = torch.tensor([*places, 9e9][:4], device=DEVICE)[None]
    mine, plain = (
        kernels.settle(count, total, old, 2),
        update_codebooks._settle(count, total, old, 2),
    )
    assert torch.equal(mine, plain)
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
    from tinysubnets.nn import codebook

    centroids = torch.randn(2, 3, k, generator=torch.Generator().manual_seed(6)).sort(-1).values
    centroids[0, 1] = 0.0  # no codebook yet
    centroids[1, 2, k // 2 :] = centroids[1, 2, k // 2]  # fewer values than centroids
    centroids = centroids.to(DEVICE)
    expected = codebook.lookup_of(centroids)
    mine = tuple(torch.full_like(t, -9.0) for t in expected)
    kernels.tabulate_(centroids, *mine)
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
    for _ in range(5):
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator).to(DEVICE)
            b.grad = a.grad.clone()
        update()
        optimizer.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("optimizer", "word"),
    [
        (lambda p: torch.optim.RMSprop(p), "RMSprop.*SGD"),
        (lambda p: torch.optim.NAdam(p), "NAdam"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True), "nesterov"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), "dampening"),
    ],
)
def test_an_update_that_no_kernel_knows_is_refused(optimizer: Any, word: str) -> None:
    with pytest.raises(SettingError, match=word):
        fused_update(optimizer([torch.zeros(LONG, requires_grad=True)]))
