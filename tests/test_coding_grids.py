"""Numbers on grids: the nearest one, exact again, near their entropy, and strict about bytes."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinysubnets.coding.bits import huffman_encode, pack_bits, pack_codes
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.coding.grids import (
    Grid,
    check_grid,
    decode_integers,
    encode_integers,
    grid_values,
    round_to_grid,
)
from tinysubnets.errors import DamageError, SettingError

GRIDS = [Grid(0, 0), Grid(1, -3), Grid(3, -2), Grid(4, -14), Grid(10, 5), Grid(2, -128)]


def numbers_of(grid: Grid, count: int) -> list[float]:
    """The first numbers of a grid, by what a float of few bits is."""
    step = 2.0 ** (grid.floor - grid.mantissa)
    below = [step * c for c in range(2**grid.mantissa)]
    above = (
        (1 + fraction / 2**grid.mantissa) * 2.0 ** (grid.floor + octave)
        for octave in itertools.count()
        for fraction in range(2**grid.mantissa)
    )
    return [*below, *itertools.islice(above, count)][:count]


@pytest.mark.parametrize("grid", GRIDS)
def test_integers_count_the_numbers_of_a_grid(grid: Grid) -> None:
    expected = numbers_of(grid, 100)
    found = grid_values(np.arange(100), grid)
    assert found.tolist() == expected
    assert round_to_grid(found, grid).tolist() == list(range(100))
    assert round_to_grid(-found, grid).tolist() == [-i for i in range(100)]


@settings(deadline=None)
@given(st.sampled_from(GRIDS[:5]), st.lists(st.floats(-(2.0**40), 2.0**40, width=32), max_size=20))
def test_values_go_to_the_nearest_number(grid: Grid, values: list[float]) -> None:
    array = np.array(values, np.float32)
    integers = round_to_grid(array, grid)
    rounded = grid_values(integers, grid)
    for one, integer, number in zip(
        array.tolist(), integers.tolist(), rounded.tolist(), strict=True
    ):
        near = grid_values(np.array([integer - 1, integer + 1]), grid).tolist()
        assert abs(one - number) <= min(abs(one - other) for other in near)
    assert np.array_equal(round_to_grid(rounded, grid), integers)


def test_no_number_is_lost_at_the_ends_of_float32() -> None:
    ends = np.array([3.4e38, -3.4e38, 1e-45, 0.0, -0.0], np.float32)
    for grid in (Grid(3, -128), Grid(10, 127), Grid(0, 127)):
        found = grid_values(round_to_grid(ends, grid), grid)
        assert np.isfinite(found).all() and found[4] == 0 and not np.signbit(found[4])
        assert 1.6e38 < found[0] == -found[1]
    with pytest.raises(DamageError, match="too large"):
        grid_values(np.array([257 << 3]), Grid(3, -128))


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.integers(-(2**23) + 1, 2**23 - 1), max_size=60) | st.lists(st.integers(-3, 3)))
def test_integers_round_trip(values: list[int]) -> None:
    array = np.array(values, np.int64)
    code = encode_integers(array)
    assert code == encode_integers(array)
    reader = Reader(code + b"rest", "integers")
    assert decode_integers(reader, len(array)).tolist() == values
    assert reader.rest() == b"rest"


def test_integers_are_near_their_entropy() -> None:
    rng = np.random.default_rng(0)
    for spread in (0.7, 5, 200):
        array = np.rint(rng.normal(size=20_000) * spread).astype(np.int64)
        shares = np.unique(array, return_counts=True)[1] / array.size
        entropy_bytes = float(-(shares * np.log2(shares)).sum()) * array.size / 8
        assert len(encode_integers(array)) < 1.04 * entropy_bytes
    gains = np.exp(rng.normal(size=700) * 0.5).astype(np.float32)
    data = encode_integers(round_to_grid(gains, Grid(4, -4)))
    assert len(data) < 700 * 6.2 / 8  # a gain of a norm in 6 bits
    assert len(encode_integers(np.zeros(700, np.int64))) < 100


def test_integers_and_grids_that_cannot_be() -> None:
    with pytest.raises(SettingError, match="too large"):
        encode_integers(np.array([1 << 23]))
    for grid in (Grid(11, 0), Grid(-1, 0), Grid(3, 128), Grid(3, -129)):
        with pytest.raises(SettingError, match="grid"):
            check_grid(grid)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\x01\x00",  # no symbols behind the tag
        b"\x00\x02\x00\xff",  # a bit behind the last symbol
        b"\x01\x02\x00\x00",  # no remainders
        b"\x10\x02\x00\x07",  # no signs
        b"\x10\x02\x00\x07\xf8",  # a bit behind the last sign
        b"\xe0\x04\x01\xff\xff\xff",  # no Huffman stream
        b"\x00\xff\xff\xff\xff\x0f",
    ],
)
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamageError):
        reader = Reader(data, "integers")
        decode_integers(reader, 3)
        reader.done()


def test_rounding_keeps_shares_above_the_floor_and_steps_below() -> None:
    values = np.abs(np.random.default_rng(1).normal(size=5000)).astype(np.float32)
    found = grid_values(round_to_grid(values, Grid(4, -3)), Grid(4, -3))
    above = values >= 2.0**-3
    assert (np.abs(found / values - 1)[above] <= 2.0**-5).all()
    assert (np.abs(found - values)[~above] <= 2.0**-8).all()
    assert np.isfinite(found).all() and found.max() < inf


def every_code(integers: np.ndarray) -> list[bytes]:
    """What the layout allows for integers, shift after shift, made by writing it down."""
    sizes, out = np.abs(integers), []
    bits = int(sizes.max()).bit_length()
    first = max(0, bits - 8)
    for shift in range(first, min(15, max(first, min(bits, first + 8))) + 1):
        symbols = (sizes >> shift).astype(np.uint8)
        width = max(1, int(symbols.max()).bit_length())
        negative = integers[sizes > 0] < 0
        codes = min(every_form(symbols, width), key=len)
        writer = Writer()
        writer.byte(shift | bool(negative.any()) << 4 | width - 1 << 5)
        writer.block(codes)
        rest = pack_codes((sizes & (1 << shift) - 1).astype(np.uint16), shift) if shift else b""
        signs = pack_bits(negative) if negative.any() else b""
        out.append(writer.bytes() + rest + signs)
    return out


def every_form(codes: np.ndarray, bits: int) -> list[bytes]:
    """Codes packed, and Huffman-coded with several or one to a symbol."""
    forms, per = [b"\0" + pack_codes(codes, bits)], 8 // bits
    padded = np.concatenate([codes, np.zeros(-len(codes) % per, np.uint8)]).reshape(-1, per)
    joined = (padded.astype(np.int64) << bits * np.arange(per)).sum(1).astype(np.uint8)
    forms.append(b"\1" + huffman_encode(joined.tobytes()))
    return [*forms, b"\2" + huffman_encode(codes.tobytes())] if bits <= 4 else forms


@pytest.mark.parametrize("spread", [0.3, 2.0, 9.0, 60.0, 5000.0])
def test_what_is_not_tried_is_never_the_smallest(spread: float) -> None:
    """Shifts and Huffman codes are left out where they cannot win: bytes are as if all were."""
    rng = np.random.default_rng(int(10 * spread))
    for count in [*range(1, 60), 100, 300, 2000, 40_000]:
        for drawn in (rng.normal(size=count), rng.laplace(size=count) ** 3):
            integers = np.rint(spread * drawn).clip(-(2**22), 2**22).astype(np.int64)
            assert encode_integers(integers) == min(every_code(integers), key=len), count
