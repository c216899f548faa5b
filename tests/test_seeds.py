"""The portable generator against numbers written down: they must never change."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from tinysubnets import seeds

PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]

KEYS = [17335833232108410489, 1118343298891881178, 6919007823584603874]
FIRST = [7996164, 1919678, 2475285, 11537725]
DIGEST = "b75bdc883c36dfd2bfac8d2316aab2a16a6b65585d41360cc657204da5f626ac"


def test_published_splitmix64_vector() -> None:
    assert seeds.splitmix64(1234567, 5).tolist() == PUBLISHED
    assert seeds.splitmix64(1234567, 2, start=3).tolist() == PUBLISHED[3:]
    assert seeds.splitmix64(1234567 + 2**64, 5).tolist() == PUBLISHED


def test_keys_are_fixed() -> None:
    assert seeds.key() == 0
    assert seeds.key(0) == KEYS[0]
    assert seeds.key(7, "scores", 0, 3, "conv1.weight") == KEYS[1]
    assert seeds.key("größe", -1) == KEYS[2]


def test_uniform_numbers_are_fixed() -> None:
    values = seeds.uniform(100_000, 7, "scores", 0, 3, "conv1.weight")
    assert (values[:4] * 2**24).astype(int).tolist() == FIRST
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == DIGEST


def test_paths_that_look_alike_differ() -> None:
    paths = [(), (0,), ("",), ("0",), (0, 0), ("a", "b"), ("ab",), ("ab", ""), ("a\0", "b"), (1,)]
    paths += [("b", "a"), ("abcdefgh",), ("abcdefgh\0",), (1, "a"), ("a", 1), (-1,), (2**63,)]
    assert len({seeds.key(*path) for path in paths}) == len(paths)


def test_uniform_numbers_are_24_bit_fractions() -> None:
    values = seeds.uniform(200_000, 1)
    assert values.dtype == np.float32
    assert values.min() >= 0 and values.max() < 1
    assert np.array_equal(values * 2**24, np.floor(values * 2**24))
    assert abs(float(values.mean(dtype=np.float64)) - 0.5) < 3e-3
    counts = np.histogram(values, 16, (0, 1))[0]
    assert np.abs(counts - 12_500).max() < 500


@pytest.mark.parametrize("count", [0, 1, 32_767, 32_768, 32_769])
def test_a_longer_draw_begins_with_the_shorter(count: int) -> None:
    assert np.array_equal(seeds.uniform(count, 5), seeds.uniform(70_000, 5)[:count])


def test_torch_generators_follow_the_path() -> None:
    draws = [torch.rand(3, generator=seeds.generator("cpu", 1, what)) for what in "aab"]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
