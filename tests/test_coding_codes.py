"""Coded codebook indices and the size of the seven-task code: round trips, sizes, strictness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinysubnets.coding.bits import huffman_encode, pack_codes
from tinysubnets.coding.codes import decode_codes, encode_codes
from tinysubnets.coding.seven_task_huffman import seven_tasks_size
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


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1)), max_size=80))
def test_codes_of_kernels_round_trip(drawn):
    follows = np.array([f and i > 0 for i, (f, _) in enumerate(drawn)], np.bool_)
    codes = np.array([code for _, code in drawn], np.uint8)
    data = encode_codes(codes, 1, follows)
    assert decode_codes(data, 1, len(codes), follows).tolist() == codes.tolist()
    assert len(data) <= len(encode_codes(codes, 1))


def test_signs_that_are_alike_in_a_kernel_take_little_more_than_one_bit_for_each():
    rng = np.random.default_rng(0)
    kernel = np.sort(rng.integers(0, 1200, 5500))
    follows = np.concatenate([[False], np.diff(kernel) == 0])
    codes = rng.integers(0, 2, 1200)[kernel].astype(np.uint8) ^ (rng.random(5500) < 0.03)
    data = encode_codes(codes, 1, follows)
    assert data[0] == 3 and len(data) < 0.7 * len(encode_codes(codes, 1))
    assert np.array_equal(decode_codes(data, 1, 5500, follows), codes)
    with pytest.raises(DamageError, match="unknown coding 3"):
        decode_codes(data, 1, 5500)
    for wrong in (data[:100], data[:-1] + b"\xff\xff", b"\x03"):
        with pytest.raises(DamageError):
            decode_codes(wrong, 1, 5500, follows)


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


def naive_code_lengths(counts: list[int]) -> list[int]:
    """The depth of each leaf of a Huffman tree, built by looking for the two rarest nodes."""
    nodes = [(count, [symbol]) for symbol, count in enumerate(counts) if count]
    lengths = [0] * len(counts)
    if len(nodes) == 1:
        lengths[nodes[0][1][0]] = 1
    while len(nodes) > 1:
        nodes.sort(key=lambda node: node[0], reverse=True)
        (count, members), (other_count, other_members) = nodes.pop(), nodes.pop()
        for symbol in members + other_members:
            lengths[symbol] += 1
        nodes.append((count + other_count, members + other_members))
    return lengths


def naive_size(masks: list[np.ndarray]) -> int:
    """The bytes of the seven-task code, weight by weight."""
    total = 0
    for first in range(0, len(masks), 7):
        group = masks[first : first + 7]
        symbols = [
            sum(int(bit) << j for j, bit in enumerate(bits)) for bits in zip(*group, strict=True)
        ]
        counts = [symbols.count(symbol) for symbol in range(2 ** len(group))]
        lengths = naive_code_lengths(counts)
        bits = sum(lengths[symbol] for symbol in symbols)
        total += -(-6 * len(counts) // 8) + 4 + -(-bits // 8)
    return total


@settings(deadline=None)
@given(st.integers(0, 16), st.integers(0, 50), st.integers(0, 10**6))
def test_the_size_of_seven_tasks_is_that_of_a_huffman_code(num_tasks, count, seed):
    rng = np.random.default_rng(seed)
    masks = [rng.random(count) < rng.random() for _ in range(num_tasks)]
    assert seven_tasks_size(masks) == naive_size(masks)


def test_a_worked_size_of_seven_tasks():
    # Symbols 0 0 0 1 2 3 3: code lengths 1 3 3 2, and so 13 bits behind a table of 24.
    masks = [np.array(bits, bool) for bits in ([0, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1])]
    assert seven_tasks_size(masks) == 3 + 4 + 2
    assert seven_tasks_size([np.zeros(17, bool)]) == 2 + 4 + 3  # one symbol takes a bit each
    with pytest.raises(SettingError, match="shapes"):
        seven_tasks_size([np.zeros(8, bool), np.zeros(9, bool)])
