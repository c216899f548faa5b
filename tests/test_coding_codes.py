"""Coded codebook indices and the seven-task codec: round trips, sizes, strictness."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinysubnets.coding.bits import huffman_encode, pack_codes
from tinysubnets.coding.codes import decode_codes, encode_codes
from tinysubnets.coding.seven_task_huffman import (
    code_lengths,
    decode_seven_tasks,
    encode_seven_tasks,
    seven_tasks_size,
)
from tinysubnets.errors import DamageError, SettingError


def skewed_codes(bits: int, count: int) -> np.ndarray:
    """Codes of a quantized bell curve, as k-means gives them."""
    values = np.random.default_rng(0).normal(size=count) / 5 + 0.5
    codes = (values * 2**bits).clip(0, 2**bits - 1)
    return codes.astype(np.uint8 if bits <= 8 else np.uint16)


@settings(deadline=None)
@given(st.data(), st.integers(1, 16), st.integers(0, 60))
def test_codes_round_trip(data, bits, count):
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=count, max_size=count))
    array = np.array(codes, np.uint8 if bits <= 8 else np.uint16)
    code = encode_codes(array, bits)
    assert code == encode_codes(array, bits)
    assert len(code) <= 1 + (count * bits + 7) // 8
    decoded = decode_codes(code, bits, count)
    assert decoded.dtype == array.dtype
    assert decoded.tolist() == codes


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("count", [0, 1, 5, 800, 30_001])
def test_codes_of_every_width_and_length(bits, count):
    for codes in (skewed_codes(bits, count), np.zeros(count, np.uint8)):
        assert np.array_equal(decode_codes(encode_codes(codes, bits), bits, count), codes)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_codes_are_near_their_entropy(bits):
    codes = skewed_codes(bits, 100_000)
    shares = np.bincount(codes) / codes.size
    shares = shares[shares > 0]
    entropy_bytes = float(-(shares * np.log2(shares)).sum()) * codes.size / 8
    assert len(encode_codes(codes, bits)) < 1.02 * entropy_bytes


def test_uniform_codes_stay_packed():
    codes = np.random.default_rng(0).integers(0, 16, 5000).astype(np.uint8)
    assert encode_codes(codes, 4) == b"\0" + pack_codes(codes, 4)


@pytest.mark.parametrize(
    ("data", "bits", "count", "message"),
    [
        (b"", 4, 2, "0 bytes"),
        (b"\0\0\0", 4, 2, "3 bytes"),
        (b"\0\0", 0, 2, "1 to 16"),
        (b"\0\0", 17, 2, "1 to 16"),
        (b"\0\x80", 7, 1, "padding"),
        (b"\3\0", 4, 2, "unknown coding 3"),
        (b"\2" + bytes(8), 5, 100, "unknown coding 2"),
        (b"\1" + bytes(8), 9, 100, "unknown coding 1"),
        (b"\1" + huffman_encode(b"\x10" * 50), 4, 99, "more than its codes"),
        (b"\2" + huffman_encode(b"\x10" * 99), 4, 99, "more than its codes"),
        (b"\1" + huffman_encode(b"\x40" * 50), 3, 100, "more than its codes"),
        (b"\1" + huffman_encode(bytes(51)), 4, 100, "more than the 50"),
        (b"\1" + huffman_encode(bytes(49)), 4, 100, "49 symbols"),
        (b"\1" + huffman_encode(bytes(50)) + b"\0", 4, 100, "follow"),
    ],
)
def test_damaged_codes_name_their_fault(data, bits, count, message):
    with pytest.raises(DamageError, match=message):
        decode_codes(data, bits, count)


def naive_huffman_bits(counts) -> int:
    """The size of a Huffman code: each merge of two nodes adds its count."""
    heap = [int(count) for count in counts if count]
    if len(heap) == 1:
        return heap[0]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=128))
def test_code_lengths_are_those_of_a_huffman_code(counts):
    lengths = code_lengths(np.array(counts, np.int64))
    size = sum(int(length) * count for length, count in zip(lengths, counts, strict=True))
    assert size == naive_huffman_bits(counts)


@settings(deadline=None)
@given(st.integers(0, 16), st.integers(0, 50), st.integers(0, 10**6))
def test_seven_tasks_round_trip(num_tasks, count, seed):
    rng = np.random.default_rng(seed)
    masks = [rng.random(count) < rng.random() for _ in range(num_tasks)]
    data = encode_seven_tasks(masks)
    assert len(data) == seven_tasks_size(masks)
    decoded = decode_seven_tasks(data, num_tasks, count)
    assert len(decoded) == num_tasks
    assert all(np.array_equal(a, b) for a, b in zip(decoded, masks, strict=True))


def test_seven_tasks_has_the_documented_bytes():
    # Symbols 0 0 0 1 2 3 3: lengths 1 3 3 2, codes 0, 110, 111, 10.
    masks = [np.array(bits, bool) for bits in ([0, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1])]
    stream = "000" + "110" + "111" + "10" + "10" + "000"
    payload = bytes(int(stream[i : i + 8][::-1], 2) for i in (0, 8))
    table = pack_codes(np.array([1, 3, 3, 2], np.uint8), 6)
    assert encode_seven_tasks(masks) == table + (2).to_bytes(4, "little") + payload


def test_long_masks_of_seven_tasks():
    rng = np.random.default_rng(0)
    masks = [rng.random(150_000) < density for density in (0.02, 0.3, 0.001, 0.5, 0.1, 0.1, 0.9)]
    symbols = sum(mask.astype(int) << task for task, mask in enumerate(masks))
    bits = naive_huffman_bits(np.bincount(symbols, minlength=128))
    data = encode_seven_tasks(masks)
    assert len(data) == 96 + 4 + (bits + 7) // 8
    assert all(map(np.array_equal, decode_seven_tasks(data, 7, 150_000), masks))


def test_seven_tasks_refuses_damage():
    masks = [np.arange(100) % 3 == 0, np.arange(100) % 5 == 0]
    good = encode_seven_tasks(masks)
    for size in range(len(good)):
        with pytest.raises(DamageError):
            decode_seven_tasks(good[:size], 2, 100)
    for bad in (good + b"\0", b"\0" * len(good), b"\xff" * len(good)):
        with pytest.raises(DamageError):
            decode_seven_tasks(bad, 2, 100)
    for count in (0, 1, 50, 120):
        with pytest.raises(DamageError):
            decode_seven_tasks(good, 2, count)
    with pytest.raises(DamageError):
        decode_seven_tasks(good, 10**6, 100)
    alone = encode_seven_tasks([np.zeros(8, bool)])
    with pytest.raises(DamageError, match="left over"):
        decode_seven_tasks(alone[:-1] + b"\1", 1, 8)
    with pytest.raises(SettingError, match="shapes"):
        encode_seven_tasks([np.zeros(8, bool), np.zeros(9, bool)])
