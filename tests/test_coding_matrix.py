"""Masks whose rows and columns differ in density: exact again, below the entropy, bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
import plain_reader
from tinysubnets.coding import matrix_codec
from tinysubnets.coding.masks import BY_MATRIX, decode_mask, encode_mask, entropy_bits
from tinysubnets.coding.matrix_codec import decode_matrix, encode_matrix, is_uneven
from tinysubnets.errors import DamageError, SettingError
from tinysubnets.model import store as store_module
from tinysubnets.model.mask_references import MAX_BY_MATRIX, MaskContext, is_by_matrix
from tinysubnets.model.mask_references import code_mask as usual_code
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import TensorSpec
from tinysubnets.nn.layout import Layout


def uneven(rows: int, columns: int, density: float, seed: int = 0) -> np.ndarray:
    """A matrix with much in some rows and columns, and little in others."""
    rng = np.random.default_rng(seed)
    left, right = rng.gamma(0.5, size=rows), rng.gamma(0.5, size=columns)
    return rng.random((rows, columns)) < density * np.outer(left, right) / 0.25


def ones(matrix: np.ndarray) -> np.ndarray:
    return np.flatnonzero(matrix.reshape(-1))


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.floats(0, 1), st.integers(0, 100), st.booleans())
def test_matrices_round_trip_and_as_the_specification_says(rows, columns, density, seed, even):
    rng = np.random.default_rng(seed)
    matrix = rng.random((rows, columns)) < density if even else uneven(rows, columns, density, seed)
    data = encode_matrix(ones(matrix), rows, columns)
    if data is None:  # more symbols than the bytes allow
        assert rows + matrix.sum() > 64
        return
    assert np.array_equal(decode_matrix(data, rows, columns), ones(matrix))
    plain = plain_reader.by_matrix(plain_reader.Bytes(data), rows, columns)
    assert np.array_equal(plain, matrix.reshape(-1))


@pytest.mark.parametrize(("shape", "density"), [((160, 784), 0.02), ((64, 64), 0.1)])
def test_uneven_matrices_are_far_below_the_entropy_of_their_density(shape, density):
    matrix = uneven(*shape, density)
    mask, count = matrix.reshape(-1), matrix.size
    assert is_uneven(*shape, ones(matrix))
    coded = encode_mask(mask, None, [count], [1], [shape[1]])
    assert coded[0] == BY_MATRIX
    assert len(coded) < 0.9 * len(encode_mask(mask, None, [count], [1]))
    assert 8 * len(coded) < 0.9 * entropy_bits(int(mask.sum()), count)
    assert np.array_equal(decode_mask(coded, count, None, [count], [1], [shape[1]]), mask)
    other = np.random.default_rng(1).random(count) < 0.3
    against = encode_mask(mask ^ other, other, [count], [1], [shape[1]])
    assert against[0] == BY_MATRIX
    assert np.array_equal(
        decode_mask(against, count, other, [count], [1], [shape[1]]), mask ^ other
    )


def test_even_masks_are_not_coded_by_matrix_and_segments_as_is_best_for_each():
    rng = np.random.default_rng(0)
    even = rng.random(6000) < 0.05
    assert not is_uneven(60, 100, np.flatnonzero(even))
    assert encode_mask(even, None, [6000], [1], [100])[0] != BY_MATRIX
    both = np.concatenate([even, uneven(60, 100, 0.05).reshape(-1)])
    coded = encode_mask(both, None, [6000, 6000], [1, 1], [100, 100])
    first = coded[2 + (coded[1] > 127)]
    assert coded[0] == BY_MATRIX and first & 7 != BY_MATRIX
    assert np.array_equal(decode_mask(coded, 12000, None, [6000] * 2, [1] * 2, [100] * 2), both)


GOOD = encode_matrix(ones(uneven(20, 30, 0.1)), 20, 30)


def test_other_bytes_are_damage_or_another_matrix_of_as_many_ones():
    num = decode_matrix(GOOD, 20, 30).size
    for place in range(3, len(GOOD)):
        for bit in (1, 16, 128):
            other = GOOD[:place] + bytes([GOOD[place] ^ bit]) + GOOD[place + 1 :]
            try:
                found = decode_matrix(other, 20, 30)
            except DamageError:
                continue
            assert found.size == num and (np.diff(found) > 0).all() and found[-1] < 600


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:1],
        GOOD[:2],
        GOOD[:1] + b"\0" + GOOD[2:],  # q = 0
        GOOD[:2] + b"\0" + GOOD[3:],  # a = 0
        GOOD + b"\0",
        GOOD + b"\1" * 8,
        b"\0\1",  # no ones, and more
        b"\x80\x08" + GOOD[1:],  # more ones than bytes may tell
        GOOD[:3] + b"\xff" * 40,  # no symbol has this
    ],
)
def test_damage(data):
    with pytest.raises(DamageError):
        decode_matrix(data, 20, 30)


def test_what_a_reader_does_is_bounded_by_the_bytes(monkeypatch):
    steps = 0
    find = matrix_codec._Row.find

    def counted(*args):
        nonlocal steps
        steps += 1
        return find(*args)

    monkeypatch.setattr(matrix_codec._Row, "find", counted)
    many = b"\xff\x01\1\1"  # 255 ones in four bytes
    with pytest.raises(DamageError):
        decode_matrix(many, 20, 30)
    assert not steps
    for data, rows, columns in ((b"\1\1\1", 1 << 13, 2), (b"\1\1\1\1", 1024, 1025)):
        with pytest.raises(DamageError):
            decode_matrix(data, rows, columns)
    assert not steps
    assert encode_matrix(np.arange(1 << 13), 1, 1 << 13) is None
    decode_matrix(GOOD, 20, 30)
    assert 0 < steps <= 4 * len(GOOD) + 64


def test_a_symbol_is_found_in_few_steps_wherever_it_is(monkeypatch):
    steps, columns = 0, 1 << 16
    below = matrix_codec._Row.below

    def counted(*args):
        nonlocal steps
        steps += 1
        return below(*args)

    # A row that is sure of its rate, and ones where nearly none are expected.
    places = np.array([15 * columns // 16, *range(columns - 59, columns)])
    monkeypatch.setattr(matrix_codec, "_fitted", lambda *_: (1, 255))
    data = encode_matrix(places, 1, columns)
    monkeypatch.setattr(matrix_codec._Row, "below", counted)
    assert np.array_equal(decode_matrix(data, 1, columns), places)
    assert steps < 25 * len(places)


def test_the_matrices_of_a_mask_are_bounded_together():
    part = uneven(64, 64, 0.1).reshape(-1)
    num = 1 + (1 << 13) // (64 + int(part.sum()))
    mask, lengths = np.tile(part, num), [part.size] * num
    coded = encode_mask(mask, None, lengths, [1] * num, [64] * num)
    assert coded[0] == BY_MATRIX
    assert np.array_equal(decode_mask(coded, mask.size, None, lengths, [1] * num, [64] * num), mask)
    one = bytes([BY_MATRIX]) + encode_matrix(np.flatnonzero(part), 64, 64)
    forged = bytes([BY_MATRIX]) + (bytes([len(one) & 127 | 128, len(one) >> 7]) + one) * (num - 1)
    with pytest.raises(DamageError, match="ones of a matrix"):
        decode_mask(forged + one, mask.size, None, lengths, [1] * num, [64] * num)


def test_rows_have_to_divide_their_segments_and_matrices_to_be_expected():
    mask = uneven(60, 100, 0.05).reshape(-1)
    for columns in ([0], [99], [100, 1]):
        with pytest.raises(SettingError, match="rows of"):
            encode_mask(mask, None, [6000], [1], columns)
    coded = encode_mask(mask, None, [6000], [1], [100])
    with pytest.raises(DamageError, match="unknown mask coding 7"):
        decode_mask(coded, 6000, None, [6000], [1])
    plain = bytes([BY_MATRIX]) + encode_mask(mask)
    with pytest.raises(DamageError, match="no segment is coded by matrix"):
        decode_mask(plain, 6000, None, [6000], [1], [100])


def test_a_model_has_only_so_many_masks_by_matrix(tmp_path, monkeypatch):
    made = models.matrix_store()
    assert MAX_BY_MATRIX == 64
    assert all(is_by_matrix(s.coded_mask) for s in made.entries())
    path = made.save(tmp_path / "all")
    monkeypatch.setattr("tinysubnets.format.io.MAX_BY_MATRIX", 2)
    with pytest.raises(DamageError, match="more than 2 masks are coded by matrix"):
        SubnetStore.load(path)
    monkeypatch.setattr(store_module, "MAX_BY_MATRIX", 2)
    fewer = models.matrix_store()
    assert [is_by_matrix(s.coded_mask) for s in fewer.entries()] == [True, True, False]
    again = SubnetStore.load(fewer.save(tmp_path / "fewer"))
    assert [again.digest(t) for t in again.tasks] == [made.digest(t) for t in made.tasks]


def test_isolated_tasks_count_however_their_masks_are_coded(monkeypatch):
    monkeypatch.setattr(store_module, "MAX_BY_MATRIX", 1)
    alone, usual = (models.store("named", 0) for _ in range(2))
    models.add_task(alone, 0, bank=0, isolated=True)
    models.add_task(usual, 0, bank=0)
    assert not any(is_by_matrix(s.coded_mask) for s in (*alone.entries(), *usual.entries()))
    allowed = []
    monkeypatch.setattr(
        store_module, "code_mask", lambda *args: allowed.append(args[-1]) or usual_code(*args)
    )
    models.add_task(alone, 2, bank=1)
    models.add_task(usual, 2, bank=1)
    assert allowed == [False, True]


def test_rows_of_every_shape():
    shapes = ((4, 6), (4, 3, 3, 3), (), (1, 7))
    layout = Layout([TensorSpec(f"{i}", s) for i, s in enumerate(shapes)], 1)
    context = MaskContext(layout, 0, 0, {}, np.zeros(0, np.uint8))
    assert context.columns() == [6, 27, 1, 7]
