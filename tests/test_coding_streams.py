"""Packing, Huffman, Rice and gap codes against slow references, and their strictness."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinysubnets.coding.bitmask_codecs import (
    best_gap_shift,
    best_rice_shift,
    gap_huffman_decode,
    gap_huffman_encode,
    gaps_of,
    position_chunks,
    rice_decode,
    rice_encode,
    rice_size,
)
from tinysubnets.coding.bits import (
    huffman_decode,
    huffman_decode_prefix,
    huffman_encode,
    pack_bits,
    pack_codes,
    packed_size,
    unpack_bits,
    unpack_codes,
)
from tinysubnets.errors import DamageError, SettingError

positions_strategy = st.lists(st.integers(0, 5000), unique=True, max_size=300).map(
    lambda values: np.array(sorted(values), np.int64)
)


def bytes_of(stream: str) -> bytes:
    """The bytes of a string of 0 and 1 in the package's bit order."""
    stream += "0" * (-len(stream) % 8)
    return bytes(int(stream[i : i + 8][::-1], 2) for i in range(0, len(stream), 8))


def joined(pieces) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *pieces])


def naive_rice(positions, shift: int) -> bytes:
    unary, gaps, last = "", [], -1
    for position in positions:
        gaps.append(int(position) - last - 1)
        last = int(position)
        unary += "0" * (gaps[-1] >> shift) + "1"
    planes = "".join(str(gap >> bit & 1) for bit in range(shift) for gap in gaps)
    return bytes_of(unary + planes + "1")


def test_worked_examples_of_the_layouts():
    assert pack_codes(np.array([1, 2, 7], np.uint8), 3) == bytes([0x35, 0x01])
    assert rice_encode(gaps_of(np.array([3, 4, 9])), 1) == bytes([0x66, 0x02])
    assert pack_bits(np.array([1, 0, 0, 0, 0, 0, 0, 0, 1, 1], bool)) == bytes([1, 3])


@settings(deadline=None)
@given(st.data(), st.integers(1, 16), st.integers(0, 70))
def test_packed_codes_equal_a_string_of_bits(data, bits, count):
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=count, max_size=count))
    array = np.array(codes, np.uint8 if bits <= 8 else np.uint16)
    packed = pack_codes(array, bits)
    assert packed == bytes_of("".join(str(c >> b & 1) for b in range(bits) for c in codes))
    assert len(packed) == packed_size(count, bits)
    unpacked = unpack_codes(packed, bits, count)
    assert unpacked.dtype == array.dtype
    assert unpacked.tolist() == codes


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=100))
def test_packed_bits_round_trip(values):
    packed = pack_bits(np.array(values, bool))
    assert packed == pack_codes(np.array(values, np.uint8), 1)
    assert unpack_bits(packed, len(values)).tolist() == values


@pytest.mark.parametrize("bits", [0, 17, -1])
def test_packing_refuses_odd_widths(bits):
    with pytest.raises(SettingError, match="1 to 16"):
        pack_codes(np.zeros(3, np.uint8), bits)
    with pytest.raises(SettingError, match="1 to 16"):
        unpack_codes(b"", bits, 0)


def test_packing_refuses_a_code_that_does_not_fit():
    with pytest.raises(SettingError, match="does not fit"):
        pack_codes(np.array([8], np.uint8), 3)


def test_unpacking_refuses_wrong_lengths_and_padding():
    packed = pack_codes(np.array([1, 2, 7], np.uint8), 3)
    for wrong in (packed[:-1], packed + b"\0", b""):
        with pytest.raises(DamageError, match="packed bytes"):
            unpack_codes(wrong, 3, 3)
    with pytest.raises(DamageError, match="padding"):
        unpack_codes(bytes([0x35, 0x03]), 3, 3)
    with pytest.raises(DamageError, match="padding"):
        unpack_bits(b"\x10", 4)


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_huffman_round_trip(symbols):
    data = huffman_encode(symbols)
    assert data == huffman_encode(symbols)
    assert huffman_decode(data, len(symbols)) == symbols
    assert huffman_decode_prefix(data + b"rest", len(symbols)) == (symbols, b"rest")


def test_huffman_is_near_the_entropy():
    symbols = np.random.default_rng(0).geometric(0.1, 30_000).clip(max=255).astype(np.uint8)
    shares = np.bincount(symbols) / symbols.size
    shares = shares[shares > 0]
    entropy_bytes = -(shares * np.log2(shares)).sum() * symbols.size / 8
    assert entropy_bytes < len(huffman_encode(symbols.tobytes())) < 1.02 * entropy_bytes


def test_huffman_refuses_more_fewer_cut_and_trailing():
    data = huffman_encode(b"a stream of symbols")
    for count in (0, 5, 18, 20, 1000):
        with pytest.raises(DamageError):
            huffman_decode(data, count)
    for size in range(len(data)):
        with pytest.raises(DamageError):
            huffman_decode(data[:size], 19)
    with pytest.raises(DamageError, match="follow"):
        huffman_decode(data + b"\0", 19)


def test_a_deflate_bomb_is_not_unpacked(monkeypatch):
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = coder.compress(bytes(50_000_000)) + coder.flush()
    asked = []

    class Watched:
        def __init__(self, *args):
            self.inner = real(*args)

        def decompress(self, data, max_length):
            asked.append(max_length)
            return self.inner.decompress(data, max_length)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    real = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Watched)
    for decode in (huffman_decode, huffman_decode_prefix):
        with pytest.raises(DamageError, match="1000"):
            decode(bomb, 1000)
    assert asked == [1001, 1001]


@settings(deadline=None)
@given(positions_strategy, st.integers(0, 15))
def test_rice_equals_the_string_of_bits(positions, shift):
    data = rice_encode(gaps_of(positions), shift)
    assert data == naive_rice(positions, shift)
    assert len(data) == rice_size(gaps_of(positions), shift)
    assert joined(rice_decode(data, shift)).tolist() == positions.tolist()


@pytest.mark.parametrize("density", [0.002, 0.02, 0.2, 0.5])
def test_long_streams_are_decoded_in_pieces(density):
    positions = np.flatnonzero(np.random.default_rng(1).random(200_000) < density)
    gaps = gaps_of(positions)
    for shift in (0, 1, 5, 9):
        decoded = joined(rice_decode(rice_encode(gaps, shift), shift))
        assert np.array_equal(decoded, positions)
        decoded = joined(gap_huffman_decode(gap_huffman_encode(gaps, shift), shift, 200_000))
        assert np.array_equal(decoded, positions)


@pytest.mark.parametrize("density", [0.0003, 0.004, 0.03, 0.1, 0.3, 0.49])
def test_the_chosen_shifts_are_the_best(density):
    gaps = gaps_of(np.flatnonzero(np.random.default_rng(2).random(300_000) < density))
    sizes = [rice_size(gaps, shift) for shift in range(16)]
    assert sizes[best_rice_shift(gaps)] == min(sizes)
    sizes = [len(gap_huffman_encode(gaps, shift)) for shift in range(16)]
    assert sizes[best_gap_shift(gaps)] <= 1.02 * min(sizes) + 8


def test_rice_refuses_damage():
    good = rice_encode(gaps_of(np.array([3, 40, 41, 300])), 4)
    for bad in (b"", b"\0", good + b"\0"):
        with pytest.raises(DamageError, match="ends it"):
            joined(rice_decode(bad, 4))
    with pytest.raises(DamageError, match="planes"):
        joined(rice_decode(good + b"\1", 4))
    assert joined(rice_decode(b"\1", 4)).size == 0
    with pytest.raises(DamageError, match="planes"):
        joined(rice_decode(b"\2", 4))


@settings(deadline=None)
@given(positions_strategy, st.integers(0, 15))
def test_gap_huffman_round_trip(positions, shift):
    data = gap_huffman_encode(gaps_of(positions), shift)
    assert joined(gap_huffman_decode(data, shift, 5001)).tolist() == positions.tolist()


def test_gap_huffman_symbols_are_the_documented_ones():
    stream = huffman_encode(bytes([0, 255, 255, 3, 254, 255, 0]))
    positions = np.array([0, 514, 769, 1025])  # gaps 0, 513, 254, 255
    assert gap_huffman_encode(gaps_of(positions), 0) == stream
    assert joined(gap_huffman_decode(stream, 0, 2000)).tolist() == positions.tolist()


def test_a_gap_may_be_longer_than_a_piece():
    gaps = np.array([5, 255 * 40_000 + 7, 1], np.int64)
    positions = np.cumsum(gaps + 1) - 1
    pieces = list(gap_huffman_decode(gap_huffman_encode(gaps, 0), 0, 11_000_000))
    assert all(piece.size for piece in pieces)
    assert joined(pieces).tolist() == positions.tolist()
    code = b"\2" + gap_huffman_encode(gaps, 0)
    assert joined(position_chunks(code, 11_000_000)).tolist() == positions.tolist()
    with pytest.raises(DamageError, match="of a mask of 500000"):
        joined(position_chunks(code, 500_000))


def test_gap_huffman_refuses_damage():
    with pytest.raises(DamageError, match="inside a gap"):
        joined(gap_huffman_decode(huffman_encode(bytes([1, 255])), 0, 500))
    with pytest.raises(DamageError, match="no remainders"):
        joined(gap_huffman_decode(huffman_encode(bytes([1, 2])) + b"\0", 0, 500))
    with pytest.raises(DamageError, match="packed bytes"):
        joined(gap_huffman_decode(huffman_encode(bytes([1, 2])) + b"\0\0", 3, 500))
    with pytest.raises(DamageError, match="more than the 10"):
        joined(gap_huffman_decode(huffman_encode(bytes(11)), 0, 10))
