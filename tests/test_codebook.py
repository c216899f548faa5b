"""Codebooks: near the exact optimum, exact codes; in training with kernels and without."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import kmeans1d
import numpy as np
import pytest
import torch
from torch import Tensor

from quick import mostly_slow
from tinysubnets.errors import SettingError
from tinysubnets.nn import codebook, kmeans

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ["gaussian", "laplace", "gapped"]


def draw(kind: str, n: int, seed: int = 0) -> Tensor:
    """Float32 data: Gaussian, Laplace, or a narrow core with heavy tails beyond a gap."""
    rng = np.random.default_rng(seed)
    if kind == "gaussian":
        data = rng.normal(size=n)
    elif kind == "laplace":
        data = rng.laplace(size=n)
    else:
        tail = rng.choice([-1, 1], size=n) * (1 + rng.pareto(1.5, size=n))
        data = np.where(rng.random(n) < 0.02, tail, 0.01 * rng.normal(size=n))
    return torch.from_numpy(data.astype(np.float32))


def error(values: Tensor, centroids: Tensor) -> float:
    """The squared error of the best assignment, by the slow way."""
    away = (values.double()[:, None] - centroids.double()).abs().amin(-1)
    return float(away.square().sum())


def excess(values: Tensor, k: int) -> float:
    """How far the error of `fit` is above the exact optimum, as a share of it."""
    exact = kmeans1d.cluster(values.double().numpy(), k).centroids
    return error(values, codebook.fit(values, k)) / error(values, torch.tensor(exact)) - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 4, 8, 16, 32])
def test_within_a_thousandth_of_the_optimum(kind: str, k: int) -> None:
    assert excess(draw(kind, 3000), k) < 1e-3
    assert excess(draw(kind, 20_000, seed=1), k) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_histogram_is_within_a_thousandth_too(kind: str) -> None:
    """More values than cells: the values themselves are no longer ranked."""
    assert excess(draw(kind, 80_000), 16) < 1e-3


@pytest.mark.parametrize("kind", mostly_slow(KINDS, ["gapped"]))
@pytest.mark.parametrize("k", mostly_slow([64, 128, 256], quick=[64]))
def test_large_codebooks_within_two_per_cent(kind: str, k: int) -> None:
    assert excess(draw(kind, 6000), k) < 2e-2


def test_far_from_zero_and_lumpy_data() -> None:
    assert excess(1000 + draw("gaussian", 5000), 16) < 1e-3
    lumps = (draw("gaussian", 70_000) * 3).round() + 1e-6 * draw("gaussian", 70_000, seed=1)
    assert excess(lumps, 8) < 1e-3


@pytest.mark.parametrize("n", [10, 100_000])
def test_few_distinct_values_are_kept_as_they_are(n: int) -> None:
    distinct = torch.tensor([-0.3576, 0.0, 1e-8, 0.25, 7.0])
    values = distinct[torch.arange(n) % 5]
    assert torch.equal(codebook.fit(values, 8), distinct)
    assert torch.equal(codebook.fit(values, 5), distinct)
    assert len(codebook.fit(values, 4)) == 4


def test_one_centroid_is_the_mean_and_one_value_is_itself() -> None:
    values = draw("laplace", 5000)
    assert torch.allclose(codebook.fit(values, 1), values.mean(), atol=1e-6)
    assert codebook.fit(torch.tensor([0.1]), 16).tolist() == [pytest.approx(0.1)]


def test_impossible_codebooks_are_refused() -> None:
    with pytest.raises(SettingError, match="at least one value"):
        codebook.fit(torch.zeros(0), 4)
    with pytest.raises(SettingError, match="k >= 1"):
        codebook.fit(torch.zeros(3), 0)
    with pytest.raises(SettingError, match="finite"):
        codebook.fit(torch.tensor([1.0, float("nan")]), 2)


def test_more_centroids_have_less_error() -> None:
    values = draw("laplace", 4000)
    books = {k: codebook.fit(values, k) for k in (2, 4, 8, 16, 32)}
    errors = [error(values, book) for book in books.values()]
    assert errors == sorted(errors, reverse=True)
    for k, book in books.items():
        assert len(book) == k and book.dtype == torch.float32
        assert torch.equal(book, book.sort().values)


def test_order_of_the_values_does_not_matter() -> None:
    values = draw("gaussian", 5000)
    assert torch.equal(codebook.fit(values, 16), codebook.fit(values.flip(0), 16))


def test_codes_are_nearest_and_ties_go_down() -> None:
    centroids = torch.tensor([-1.0, 0.0, 0.5])
    values = torch.tensor([-9.0, -0.5, -0.49, 0.25, 0.26, 9.0])
    assert codebook.assign(values, centroids).tolist() == [0, 0, 1, 1, 2, 2]
    assert codebook.assign(values, centroids[:1]).tolist() == [0] * 6


def test_codes_are_exact_beside_rounded_borders() -> None:
    """A border that float32 cannot hold still divides the floats around it rightly."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        centroids = torch.from_numpy(np.sort(rng.normal(size=2)).astype(np.float32))
        middle = ((centroids[0].double() + centroids[1].double()) / 2).float()
        up = torch.nextafter(middle, torch.tensor(torch.inf))
        down = torch.nextafter(middle, torch.tensor(-torch.inf))
        values = torch.stack([down, middle, up])
        gaps = (values.double()[:, None] - centroids.double()).abs()
        assert torch.equal(codebook.assign(values, centroids), (gaps[:, 1] < gaps[:, 0]).long())


def test_centroids_are_rounded_only_where_it_costs_nothing() -> None:
    smooth = torch.linspace(-1, 1, 16)
    assert torch.equal(codebook.round_centroids(smooth), smooth.half().float())
    for kept in (
        torch.tensor([1.0, 1.0 + 2.0**-14]),  # would become one
        torch.tensor([1000.1, 1000.2]),  # error against a small spread
        torch.tensor([0.1, 1e6]),  # overflows
        torch.tensor([1e-9, 2e-9]),  # underflows
    ):
        assert torch.equal(codebook.round_centroids(kept), kept)
    both = torch.stack([torch.tensor([0.1, 0.7]), torch.tensor([1e-9, 2e-9])])
    rounded = codebook.round_centroids(both)
    assert torch.equal(rounded[0], both[0].half().float())
    assert torch.equal(rounded[1], both[1])
    assert codebook.round_centroids(smooth.double()).dtype == torch.float32


def flat_vector() -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """A flat vector with four segments, one of them empty and one very small."""
    values = draw("laplace", 24_000)
    values[12_000:] *= 0.01
    kept = torch.rand(24_000) < 0.3
    segments = [(0, 12_000), (12_000, 23_000), (23_000, 23_500), (23_500, 24_000)]
    kept[23_000:] = False
    kept[23_000:23_003] = True
    return values, kept, segments


def by_kernels(
    values: Tensor, kept: Tensor, segments: Any, k: int, previous: Tensor | None = None
) -> Tensor:
    """The kernels, on a GPU or by Triton's interpreter."""
    from tinysubnets import kernels

    last = None if previous is None else previous.to(DEVICE)
    return kernels.update_codebooks(values.to(DEVICE), kept.to(DEVICE), segments, k, last, 4).cpu()


has_triton = find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not has_triton, reason="Triton is not installed")
ways = pytest.mark.parametrize(
    "update",
    [codebook.update_codebooks, pytest.param(by_kernels, marks=[needs_triton, pytest.mark.slow])],
)


@ways
def test_training_centroids_are_near_the_final_ones(update: Any) -> None:
    values, kept, segments = flat_vector()
    centroids = update(values, kept, segments, 8)
    assert centroids.shape == (4, 8)
    for i, (start, stop) in enumerate(segments[:2]):
        own = values[start:stop][kept[start:stop]]
        assert error(own, centroids[i]) < 1.01 * error(own, codebook.fit(own, 8))
    few = codebook.round_centroids(values[23_000:23_003].sort().values)
    assert torch.allclose(centroids[2, :3], few, rtol=1e-3)
    assert torch.equal(centroids[2, 3:], centroids[2, 2:3].expand(5))
    assert torch.equal(centroids[3], torch.zeros(8))
    assert torch.equal(centroids, codebook.round_centroids(centroids))
    assert torch.equal(centroids, centroids.sort(-1).values)


@ways
def test_warm_centroids_follow_the_values(update: Any) -> None:
    values, kept, segments = flat_vector()
    centroids = update(values, kept, segments, 8)
    for _ in range(3):
        values = values * 1.05 + 0.001
        centroids = update(values, kept, segments, 8, centroids)
    assert torch.equal(centroids, centroids.sort(-1).values)
    for i, (start, stop) in enumerate(segments[:2]):
        own = values[start:stop][kept[start:stop]]
        assert error(own, centroids[i]) < 1.03 * error(own, codebook.fit(own, 8))
    assert torch.equal(centroids[3], torch.zeros(8))


@ways
def test_an_empty_codebook_finds_values_that_come_later(update: Any) -> None:
    values, kept, segments = flat_vector()
    kept[12_000:23_000] = False
    centroids = update(values, kept, segments, 4)
    assert torch.equal(centroids[1], torch.zeros(4))
    kept[12_000:23_000] = True
    for _ in range(2):
        centroids = update(values, kept, segments, 4, centroids)
    own = values[12_000:23_000]
    assert error(own, centroids[1]) < 1.1 * error(own, codebook.fit(own, 4))


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 8])
def test_kernels_are_as_good_as_the_reference(k: int) -> None:
    values, kept, segments = flat_vector()
    own = values[:12_000][kept[:12_000]]
    for previous in (None, codebook.update_codebooks(values * 0.9, kept, segments, k)):
        plain, fast = (
            way(values, kept, segments, k, previous)
            for way in (codebook.update_codebooks, by_kernels)
        )
        assert plain.shape == fast.shape == (4, k)
        assert error(own, fast[0]) == pytest.approx(error(own, plain[0]), rel=0.1)


@ways
def test_only_chosen_values_count(update: Any) -> None:
    values, kept, segments = flat_vector()
    other = torch.where(kept, values, 99.0)
    one = update(values, kept, segments, 4)
    assert torch.equal(one, update(other, kept, segments, 4))


def test_a_useless_start_is_given_up() -> None:
    values, kept, segments = flat_vector()
    lost = torch.full((4, 8), 50.0) + torch.arange(8)
    cold = codebook.update_codebooks(values, kept, segments, 8)
    assert torch.equal(codebook.update_codebooks(values, kept, segments, 8, lost), cold)


@pytest.mark.parametrize("k", [1, 2, 16, 64])
def test_values_are_rounded_to_a_centroid_within_the_bound(k: int) -> None:
    values, kept, segments = flat_vector()
    values[:3] = torch.tensor([1e30, -1e30, 0.0])
    centroids = codebook.update_codebooks(values, kept, segments, k)
    out = codebook.nearest_centroid(values, codebook.lookup_table(centroids), segments)
    steps = codebook.num_steps(k)
    for i, (start, stop) in enumerate(segments):
        book, part = centroids[i], values[start:stop]
        assert torch.isin(out[start:stop], book).all()
        gap = (part[:, None] - book).abs().amin(-1)
        spread = float(book[-1] - book[0])
        far = (part - out[start:stop]).abs() - gap
        assert float(far[3:].max()) <= spread / steps * 1.01 + 1e-7
    assert float(out[0]) == float(centroids[0, -1])
    assert float(out[1]) == float(centroids[0, 0])


def test_rounding_can_be_compiled_whole() -> None:
    values, kept, segments = flat_vector()
    table = codebook.lookup_table(codebook.update_codebooks(values, kept, segments, 16))
    compiled = torch.compile(codebook.nearest_centroid, backend="eager", fullgraph=True)
    out = codebook.nearest_centroid(values, table, segments)
    assert torch.equal(compiled(values, table, segments), out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_rounding_takes_any_numbers_and_leaves_those_given_alone(dtype: torch.dtype) -> None:
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.9, 5.6, -7.0], dtype=dtype)
    before = values.clone()
    table = codebook.lookup_table(torch.tensor([[-1.0, 1.0], [3.0, 4.0], [5.0, 6.0]]))
    segments = [(0, 4), (4, 4), (4, 6)]  # the second holds nothing
    out = codebook.nearest_centroid(values, table, segments)
    assert out.dtype == dtype and out.tolist() == [-1.0, 1.0, -1.0, 1.0, 6.0, 5.0]
    torch.testing.assert_close(values, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("k", [4, 16, 64])
def test_short_vectors_are_split_as_long_ones_are(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(k)
    for count in (k + 1, 100, 190):
        for values in (generator.normal(size=count), np.round(generator.normal(size=count), 1)):
            cells = kmeans.histogram(values.astype(np.float32), 1 << 16, k)
            at_once = kmeans.optimal_split(cells, k, 512)
            with monkeypatch.context() as patched:
                patched.setattr(kmeans, "_FEW_EDGES", 0)
                assert np.array_equal(kmeans.optimal_split(cells, k, 512), at_once)
