"""Masks whose ones come in kernels: exact again, near the entropy, strict about bytes."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinysubnets.coding.byte_io import Reader
from tinysubnets.coding.kernel_codec import decode_kernels, encode_kernels
from tinysubnets.coding.masks import decode_mask, encode_mask, entropy_bits
from tinysubnets.errors import DamageError, SettingError

RESNET = [(432, 9), *[(2304, 9)] * 6, (4608, 9), *[(9216, 9)] * 5, (18432, 9), *[(36864, 9)] * 5]


def crowded(segments: list[tuple[int, int]], share: float, inside: float, seed: int) -> np.ndarray:
    """A mask that holds most of few kernels."""
    rng = np.random.default_rng(seed)
    parts = [np.repeat(rng.random(n // k) < share, k) for n, k in segments]
    mask = np.concatenate(parts)
    return mask & (rng.random(mask.size) < inside)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 3, 9, 25, 64])), min_size=1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 100),
)
def test_masks_round_trip(drawn, share, inside, seed):
    segments = [(number * width, width) for number, width in [*drawn, (2, 4)]]
    mask = crowded(segments, share, inside, seed)
    data = encode_kernels(mask, segments)
    assert np.array_equal(decode_kernels(Reader(data, "mask"), segments), mask)
    lengths, widths = zip(*segments, strict=True)
    rng = np.random.default_rng(seed)
    for reference in (None, rng.random(mask.size) < 0.1):
        coded = encode_mask(mask, reference, lengths, widths)
        assert len(coded) <= 1 + -(-mask.size // 8)
        found = decode_mask(coded, mask.size, reference, lengths, widths)
        assert np.array_equal(found, mask)


@pytest.mark.parametrize("width", [2, 3, 9, 49, 64])
def test_every_arrangement_of_ones_has_a_number(width):
    rng = np.random.default_rng(width)
    rows = np.array([rng.permutation(width) < count for count in range(width + 1) for _ in (0, 1)])
    segments = [(rows.size, width)]
    data = encode_kernels(rows.reshape(-1), segments)
    found = decode_kernels(Reader(data, "mask"), segments)
    assert np.array_equal(found.reshape(rows.shape), rows)
    least = sum(comb(width, int(row.sum())).bit_length() - 1 for row in rows) / 8
    assert len(data) > least  # no arrangement is left out


def test_masks_that_crowd_in_kernels_are_far_below_the_entropy_of_their_density():
    lengths, widths = zip(*RESNET, strict=True)
    mask = crowded(RESNET, 0.04, 0.6, 0)
    coded = encode_mask(mask, None, lengths, widths)
    assert coded[0] == 6
    assert 8 * len(coded) < 0.6 * entropy_bits(int(mask.sum()), mask.size)
    assert len(coded) < 0.9 * len(encode_mask(mask, None, lengths))


@pytest.mark.parametrize("density", [0.02, 0.05, 0.2])
def test_random_masks_stay_near_the_entropy_of_each_tensor(density):
    lengths, widths = zip(*RESNET, strict=True)
    rng = np.random.default_rng(1)
    shares = [min(1.0, density * (36864 / n) ** 0.2) for n in lengths]
    parts = [rng.random(n) < p for n, p in zip(lengths, shares, strict=True)]
    least = sum(entropy_bits(int(p.sum()), p.size) for p in parts) / 8
    mask = np.concatenate(parts)
    coded = encode_mask(mask, None, lengths, widths)
    assert len(coded) < 1.025 * least
    assert np.array_equal(decode_mask(coded, mask.size, None, lengths, widths), mask)


SEGMENTS = [(6, 1), (27, 9)]
GOOD = encode_kernels(np.arange(33) % 7 < 2, SEGMENTS)


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_cut_masks_are_damage(place):
    with pytest.raises(DamageError):
        decode_kernels(Reader(GOOD[:place], "mask"), SEGMENTS)


@pytest.mark.parametrize(
    "data",
    [
        GOOD + b"\0",
        GOOD[:-1] + bytes([GOOD[-1] | 128]),  # a bit behind the last kernel
        b"\x02\0\0\x02\0\x01\x02\0\x09",  # ten ones in a kernel of nine
        b"\x02\0\0\x02\0\x01\x02\0\x00\x0f",  # one of nine places, the sixteenth
        b"\x02\0\0\x02\0\x01\xff\xff\xff\x0f",
    ],
)
def test_other_bytes_are_damage(data):
    with pytest.raises(DamageError):
        decode_kernels(Reader(data, "mask"), SEGMENTS)


def test_kernels_have_to_divide_their_segments():
    mask = np.zeros(33, np.bool_)
    for widths in ([1], [1, 8], [0, 9], [1, 65]):
        with pytest.raises(SettingError, match="kernels of"):
            encode_mask(mask, None, [6, 27], widths)
    with pytest.raises(DamageError, match="unknown mask coding 6"):
        decode_mask(b"\x06" + GOOD[:3], 33, None, [6, 27], [1, 1])
