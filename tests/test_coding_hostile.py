"""Every reader, given arbitrary bytes, returns an array of the right size or a DamageError."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinysubnets.coding.bitmask_codecs import (
    decode_bitmask,
    encode_bitmask,
    gap_huffman_encode,
    gaps_of,
    position_chunks,
    rice_encode,
)
from tinysubnets.coding.bits import (
    huffman_decode,
    huffman_encode,
    pack_codes,
    unpack_bits,
    unpack_codes,
)
from tinysubnets.coding.codes import decode_codes, encode_codes
from tinysubnets.coding.masks import decode_mask, encode_mask
from tinysubnets.errors import DamageError

COUNT = 600
RNG = np.random.default_rng(3)
SPARSE = RNG.random(COUNT) < 0.04
DENSE = RNG.random(COUNT) < 0.4
REFERENCE = SPARSE ^ (RNG.random(COUNT) < 0.02)
SEGMENTS = [100, 0, 450, 50]
CODES = RNG.normal(8, 2, COUNT).clip(0, 15).astype(np.uint8)
GAPS = gaps_of(np.flatnonzero(SPARSE))


def joined_parts() -> bytes:
    dropped, added = encode_bitmask(~SPARSE[REFERENCE]), encode_bitmask(SPARSE & ~REFERENCE)
    return bytes([4, len(dropped)]) + dropped + added


def joined_segments() -> bytes:
    parts = [
        encode_bitmask(part) for part in np.split(SPARSE ^ REFERENCE, np.cumsum(SEGMENTS)[:-1])
    ]
    framed = [bytes([len(part)]) + part for part in parts[:-1]]
    return b"".join([b"\5", *framed, parts[-1]])


def as_mask(data: bytes) -> np.ndarray:
    return decode_mask(data, COUNT, REFERENCE, SEGMENTS)


READERS: dict[str, tuple[Callable[[bytes], np.ndarray], list[bytes]]] = {
    "mask": (as_mask, [encode_mask(SPARSE, REFERENCE), joined_parts(), joined_segments()]),
    "bitmask": (
        lambda data: decode_bitmask(data, COUNT),
        [
            encode_bitmask(SPARSE),
            encode_bitmask(~SPARSE),
            encode_bitmask(DENSE),
            b"\2" + gap_huffman_encode(GAPS, 0),
            b"\x32" + gap_huffman_encode(GAPS, 3),
            b"\x43" + rice_encode(GAPS, 4),
        ],
    ),
    "codes": (
        lambda data: decode_codes(data, 4, COUNT),
        [encode_codes(CODES, 4), b"\2" + huffman_encode(CODES), b"\0" + pack_codes(CODES, 4)],
    ),
    "bits": (lambda data: unpack_bits(data, COUNT), [bytes(75)]),
    "packed": (lambda data: unpack_codes(data, 11, COUNT), [bytes(825)]),
    "huffman": (
        lambda data: np.frombuffer(huffman_decode(data, COUNT), np.uint8),
        [huffman_encode(CODES)],
    ),
}
SAMPLES = [(name, index) for name, (_, codes) in READERS.items() for index in range(len(codes))]


def check(name: str, data: bytes) -> np.ndarray | None:
    """What a reader makes of some bytes, which has the right size, or None where it refuses."""
    try:
        array = READERS[name][0](data)
    except DamageError as error:
        assert len(str(error)) > 20
        return None
    assert array.shape == (COUNT,)
    return array


@pytest.mark.parametrize(("name", "index"), SAMPLES)
def test_damaged_streams(name, index):
    good = READERS[name][1][index]
    original = check(name, good)
    assert original is not None
    for tail in (b"\0", bytes(1000)):
        assert check(name, good + tail) is None
    # A Rice stream ends with its data, so that another end can be another stream; never the same.
    shortened = [good[:size] for size in range(len(good))]
    for bad in [*shortened, good + b"\1", good + b"\xff"]:
        array = check(name, bad)
        assert array is None or not np.array_equal(array, original)
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        check(name, bytes(flipped))


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None, max_examples=60)
@given(body=st.binary(max_size=90), tag=st.integers(0, 255))
@example(body=b"", tag=0)
def test_arbitrary_bytes(name, body, tag):
    check(name, body)
    check(name, bytes([tag]) + body)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "index"), SAMPLES)
def test_several_bytes_replaced(name, index, seed):
    good = np.frombuffer(READERS[name][1][index], np.uint8)
    rng = np.random.default_rng(seed)
    for _ in range(60):
        bad = good.copy()
        bad[rng.integers(0, good.size, 1 + rng.integers(4))] = rng.integers(0, 256)
        check(name, bad.tobytes())


def bombs(count: int) -> list[bytes]:
    """Streams that fit the size limit of a mask and unpack to fifty times its places."""
    codes = []
    for value in (0, 1, 254, 255):
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        codes.append(coder.compress(bytes([value]) * (50 * count)) + coder.flush())
    return codes


def test_bombs_cost_little_memory():
    count = 200_000
    reference = np.arange(count) % 2 == 0
    unpacking = bombs(count)
    streams = [bytes([tag]) + bomb for tag in (1, 2, 0x32, 0xF2, 3) for bomb in unpacking]
    for tag in (2, 3, 0xF3):
        streams += [bytes([tag]) + bytes([fill]) * (count // 8) for fill in (1, 85, 255)]
    streams += [b"\4\2\3\1\2" + bomb for bomb in unpacking]
    for stream in streams:
        assert len(stream) <= 1 + count // 8
        for reader in (
            lambda data: decode_bitmask(data, count),
            lambda data: np.concatenate([np.empty(0), *position_chunks(data, count)]),
            lambda data: decode_mask(data, count, reference),
            lambda data: decode_codes(data, 1, count),
        ):
            tracemalloc.start()
            try:
                assert len(reader(stream)) <= count
            except DamageError:
                pass
            finally:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            assert peak < 12 * count
