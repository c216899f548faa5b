"""Coded masks: round trips, the choice of the smallest, sizes against the entropy, strictness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinysubnets.coding.bitmask_codecs import (
    best_gap_shift,
    bitmask_or_positions,
    decode_bitmask,
    encode_bitmask,
    gap_huffman_encode,
    gaps_of,
    position_chunks,
    rice_encode,
)
from tinysubnets.coding.bits import huffman_encode, pack_bits
from tinysubnets.coding.byte_io import Writer
from tinysubnets.coding.masks import decode_mask, encode_mask, entropy_bits
from tinysubnets.errors import DamageError, SettingError

masks_strategy = st.lists(st.booleans(), max_size=200).map(lambda values: np.array(values, bool))


def random_mask(count: int, density: float, seed: int = 0) -> np.ndarray:
    """A mask with exactly the given share of ones."""
    mask = np.zeros(count, bool)
    mask[np.random.default_rng(seed).permutation(count)[: round(count * density)]] = True
    return mask


def xor_entropy_bits(mask: np.ndarray, reference: np.ndarray) -> float:
    return entropy_bits(int(np.count_nonzero(mask != reference)), mask.size)


def exchanged(mask: np.ndarray, flips: float, seed: int = 1) -> np.ndarray:
    """A mask of the same density that differs in a share of `flips` of its places."""
    rng = np.random.default_rng(seed)
    half = round(mask.size * flips / 2)
    new = mask.copy()
    new[rng.permutation(np.flatnonzero(mask))[:half]] = False
    new[rng.permutation(np.flatnonzero(~mask))[:half]] = True
    return new


@settings(deadline=None)
@given(masks_strategy)
def test_bitmasks_round_trip(mask):
    data = encode_bitmask(mask)
    assert data == encode_bitmask(mask)
    assert len(data) <= 1 + (mask.size + 7) // 8
    assert np.array_equal(decode_bitmask(data, mask.size), mask)
    positions = [p for chunk in position_chunks(data, mask.size) for p in chunk]
    assert positions == np.flatnonzero(mask).tolist()
    either = bitmask_or_positions(data, mask.size)
    assert np.array_equal(either, mask if either.dtype == bool else positions)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000, 100_000])
@pytest.mark.parametrize("value", [False, True])
def test_constant_masks_cost_two_bytes(count, value):
    data = encode_bitmask(np.full(count, value))
    assert len(data) <= 2
    assert np.array_equal(decode_bitmask(data, count), np.full(count, value))


@pytest.mark.parametrize("density", [0.001, 0.01, 0.03, 0.07, 0.12, 0.2, 0.3, 0.38, 0.5, 0.9, 0.98])
def test_every_codec_reads_back_and_the_smallest_is_kept(density):
    flips = random_mask(60_000, density)
    inverted = density > 0.5
    positions = np.flatnonzero(flips != inverted)
    packed = pack_bits(flips)
    codes = [bytes([0]) + packed, bytes([1]) + huffman_encode(packed)]
    for shift in range(16):
        tag = 8 * inverted | shift << 4
        codes.append(bytes([2 | tag]) + gap_huffman_encode(gaps_of(positions), shift))
        codes.append(bytes([3 | tag]) + rice_encode(gaps_of(positions), shift))
    for code in codes:
        if len(code) <= len(codes[0]):
            assert np.array_equal(decode_bitmask(code, flips.size), flips)
    # Dense gaps are left aside for less than 1 %, the best shift of gap-Huffman is estimated.
    assert len(encode_bitmask(flips)) <= 1.02 * min(map(len, codes))


@pytest.mark.parametrize("count", [50_000, 300_000])
@pytest.mark.parametrize("density", [0.001, 0.003, 0.01, 0.03, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
def test_masks_take_at_most_three_per_cent_more_than_the_entropy(count, density):
    reference = random_mask(count, 0.5)
    mask = exchanged(reference, density)
    data = encode_mask(mask, reference)
    assert len(data) * 8 <= 1.03 * xor_entropy_bits(mask, reference)
    assert np.array_equal(decode_mask(data, count, reference), mask)


def test_entropy_is_that_of_the_share_of_ones():
    assert entropy_bits(1, 4) == pytest.approx(4 * (0.5 + 0.75 * np.log2(4 / 3)))
    assert entropy_bits(11, 100) == pytest.approx(entropy_bits(89, 100))
    assert entropy_bits(8, 16) == 16.0
    assert entropy_bits(0, 9) == entropy_bits(9, 9) == entropy_bits(0, 0) == 0.0


@settings(deadline=None)
@given(st.data(), st.integers(0, 80))
def test_masks_round_trip_against_any_reference(data, count):
    draw = st.lists(st.booleans(), min_size=count, max_size=count).map(lambda v: np.array(v, bool))
    mask = data.draw(draw)
    reference = data.draw(st.one_of(st.none(), draw))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    segments = np.diff([0, *cuts, count]).tolist()
    code = encode_mask(mask, reference, segments)
    assert code == encode_mask(mask, reference, segments)
    assert np.array_equal(decode_mask(code, count, reference, segments), mask)


def test_dropped_and_added_beat_the_xor_entropy_where_masks_are_sparse():
    reference = random_mask(100_000, 0.1)
    mask = exchanged(reference, 0.03)
    data = encode_mask(mask, reference)
    assert data[0] == 4
    assert len(data) * 8 < 0.92 * xor_entropy_bits(mask, reference)
    assert np.array_equal(decode_mask(data, mask.size, reference), mask)


def test_segments_of_different_rates_are_coded_apart():
    parts = [random_mask(50_000, density) for density in (0.01, 0.3, 0.01, 0.3)]
    mask, segments = np.concatenate(parts), [50_000] * 4
    data = encode_mask(mask, None, segments)
    assert data[0] == 5
    assert len(data) < 0.97 * len(encode_mask(mask))
    assert np.array_equal(decode_mask(data, mask.size, None, segments), mask)
    with pytest.raises(DamageError, match="segment"):
        decode_mask(data, mask.size)


def test_arguments_that_do_not_fit_are_refused():
    mask = random_mask(100, 0.5)
    with pytest.raises(SettingError, match="needs 100 flat"):
        encode_mask(mask, mask[:99])
    with pytest.raises(SettingError, match="needs 100 flat"):
        encode_mask(mask.reshape(10, 10))
    with pytest.raises(SettingError, match="uint8"):
        encode_mask(mask, mask.astype(np.uint8))
    with pytest.raises(SettingError, match="segments hold 99"):
        encode_mask(mask, None, [50, 49])
    with pytest.raises(SettingError, match="needs 100 flat"):
        decode_mask(b"\0", 100, mask[:50])


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", 8, "0 bytes"),
        (b"\0\0\0", 8, "3 bytes"),
        (b"\0", 8, "packed bytes"),
        (b"\0\x80", 7, "padding"),
        (b"\x08\0", 8, "unknown mask coding 8"),
        (b"\x11\0", 8, "unknown mask coding 17"),
        (b"\x06\0", 8, "unknown mask coding 6"),
        (b"\x04\0", 8, "unknown mask coding 4"),
        (b"\x03\x18", 3, "place 3 of a mask of 3"),
        (b"\x03\x0f", 4, "inverted"),
        (b"\x03", 4, "ends it"),
    ],
)
def test_damaged_masks_name_their_fault(data, count, message):
    with pytest.raises(DamageError, match=message):
        decode_mask(data, count)


@pytest.mark.parametrize("count", [131_072, 131_073, 300_001])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("dropped_share", [0.0, 0.05, 0.5, 0.9])
def test_large_masks_drop_ones_piece_by_piece(count, density, dropped_share):
    reference = random_mask(count, density)
    rng = np.random.default_rng(2)
    mask = (reference & (rng.random(count) >= dropped_share)) | (rng.random(count) < 0.01)
    dropped, added = encode_bitmask(~mask[reference]), encode_bitmask(mask & ~reference)
    code = Writer()
    code.byte(4)
    code.block(dropped)
    code.raw(added)
    if len(code.bytes()) <= 1 + count // 8:  # what a reader takes
        assert np.array_equal(decode_mask(code.bytes(), count, reference), mask)


def test_dropped_and_added_are_strict():
    reference = np.zeros(80, bool)
    reference[[1, 5, 9]] = True

    def code(dropped: bytes, added: bytes) -> bytes:
        return bytes([4, len(dropped)]) + dropped + added

    dropped, added = b"\0\2", encode_bitmask(np.arange(80) == 7)
    mask = decode_mask(code(dropped, added), 80, reference)
    assert np.flatnonzero(mask).tolist() == [1, 7, 9]
    with pytest.raises(DamageError, match="holds already"):
        decode_mask(code(dropped, encode_bitmask(np.arange(80) == 9)), 80, reference)
    for bad in (b"\x04", b"\x04\x80\x00", b"\x04\x09\x00", b"\x04\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(DamageError, match="dropped and added"):
            decode_mask(bad, 80, reference)
    with pytest.raises(DamageError):
        decode_mask(bytes([0x14]) + code(dropped, added)[1:], 80, reference)


def test_dense_gap_codes_are_avoided_for_small_gains():
    mask, short = random_mask(1_000_000, 0.2), random_mask(50_000, 0.2)
    data, gaps = encode_bitmask(mask), gaps_of(np.flatnonzero(mask))
    assert data[0] == 1
    assert 0.98 * len(data) < len(gap_huffman_encode(gaps, best_gap_shift(gaps))) < len(data)
    assert encode_bitmask(short)[0] & 7 == 3  # its byte-Huffman table is too large
    assert encode_bitmask(random_mask(50_000, 0.3))[0] == 1
