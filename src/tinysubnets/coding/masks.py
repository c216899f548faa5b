"""Coding of one task's mask, by itself or against a reference mask that is like it.

Layout. A coded mask is one tag byte and a body; the number of places, the reference mask and the
lengths of the segments (the shared tensors, in order) are known from elsewhere. F is the mask XOR
the reference, or the mask itself where there is no reference. The codec is in bits 0-2 of the tag:

    0-3  F as `bitmask_codecs` codes it.
    4    dropped and added, tag byte 4, only with a reference: a length (below) and so many bytes
         that code, as `bitmask_codecs` does, for each place where the reference is 1, in order,
         whether the mask drops it; then, to the end, a code of all places that tells which ones
         the mask adds; these are 0 in the reference.
    5    by segment, tag byte 5, only for two or more segments: the codes 0-4 of the segments, each
         against the same part of the reference; before each but the last its length.
    6    by kernel, tag byte 6, only where a segment has kernels: F as `kernel_codec` codes it.
    7    by matrix, tag byte 7: as codec 5, also for a single segment, but that a segment's code may
         be the byte 7 and what `matrix_codec` makes of its part of F; at least one is.

A length is a varint (`byte_io`). A coded mask is never longer than 1 + ceil(places / 8) bytes.

Why codec 4: a mask has exactly k ones, so it drops as many ones of an alike reference as it adds,
and at density 0.1 a one flips nine times as often as a zero. On masks of permuted MNIST learned
with `score_init = "previous_mask"` it takes 10 % off codecs 0-3, which ends 9 % below the XOR
entropy; on random masks of density 0.05 to 0.1 it ends 7 to 15 % below. It decodes at 110 to
185 MB of packed mask per second; a third to a half of the time goes to finding the ones of the
reference. Why codec 5: layers flip at different rates; where these differ fivefold it takes 4 %
off, and next to nothing where they are alike. Why codecs 6 and 7: see there. Codec 4 is used only
where it saves 3 %, 5 and 6 where they save 1.5 %, and 6 where most places are in kernels. Codec 7
is a thousand times slower to decode: it has to save 3 %, and a file may have only so many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.bitmask_codecs import (
    bitmask_or_positions,
    decode_bitmask,
    encode_bitmask,
    position_chunks,
)
from tinysubnets.coding.bits import packed_size
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.coding.kernel_codec import MAX_WIDTH, decode_kernels, encode_kernels
from tinysubnets.coding.matrix_codec import (
    MAX_PLACES,
    MAX_SYMBOLS,
    decode_matrix,
    encode_matrix,
    is_uneven,
)
from tinysubnets.errors import DamageError, SettingError

Mask = NDArray[np.bool_]

_DROPPED_ADDED, _BY_SEGMENT, _BY_KERNEL, BY_MATRIX = 4, 5, 6, 7
# The shares of the bytes that codecs which are slower to decode may leave: 4 and 7, and 5 and 6.
_WORTH, _WORTH_PARTS = 0.97, 0.985
_CHUNK = 1 << 17  # small enough for the cache


def entropy_bits(ones: int, count: int) -> float:
    """The first-order entropy of `count` bits of which `ones` are set: count · H(ones / count)."""
    if not 0 < ones < count:
        return 0.0
    share = ones / count
    return -count * (share * math.log2(share) + (1 - share) * math.log2(1 - share))


def encode_mask(
    mask: Mask,
    reference: Mask | None = None,
    segments: Sequence[int] = (),
    kernels: Sequence[int] = (),
    columns: Sequence[int] = (),
) -> bytes:
    """The smallest code of a mask.

    - `mask`: flat booleans, one per block of weights.
    - `reference`: a mask of the same length that the reader will have, None to code without one.
    - `segments`: the lengths of the parts of the mask, one per shared tensor.
    - `kernels`: how many neighbors of each segment are a kernel, 1 where there are none.
    - `columns`: how many places of each segment are a row of its matrix; without them no segment is
      coded by matrix.
    """
    _check_arguments(mask.size, [mask, reference], segments, kernels, columns)
    best = _encode_part(mask, reference)
    parts = list(zip(segments, kernels, strict=True)) if kernels else []
    if 2 * sum(length for length, width in parts if width > 1) > mask.size:
        flips = mask if reference is None else mask ^ reference
        by_kernel = bytes([_BY_KERNEL]) + encode_kernels(flips, parts)
        best = by_kernel if len(by_kernel) < _WORTH_PARTS * len(best) else best
    if len(segments) < 2 and not columns:
        return best
    parts_of = _parts(mask, reference, segments)
    codes = [_encode_part(m, r) for m, r in parts_of]
    if len(codes) > 1:
        by_segment = _joined(_BY_SEGMENT, codes)
        best = by_segment if len(by_segment) < _WORTH_PARTS * len(best) else best
    if columns:
        flipped = [m if r is None else m ^ r for m, r in parts_of]
        matrices = _encode_matrices(flipped, columns, codes)
        by_matrix = _joined(BY_MATRIX, matrices)
        if matrices != codes and len(by_matrix) < _WORTH * len(best):
            best = by_matrix
    return best


def _parts(
    mask: Mask, reference: Mask | None, segments: Sequence[int]
) -> list[tuple[Mask, Mask | None]]:
    """The segments of a mask, each with its part of the reference."""
    stops = np.cumsum(segments).tolist()
    pieces = [slice(stop - length, stop) for stop, length in zip(stops, segments, strict=True)]
    return [(mask[p], None if reference is None else reference[p]) for p in pieces]


def _joined(tag: int, codes: Sequence[bytes]) -> bytes:
    """The codes of all segments behind a tag, before each but the last its length."""
    out = Writer()
    out.byte(tag)
    for code in codes[:-1]:
        out.block(code)
    out.raw(codes[-1])
    return out.bytes()


def _encode_matrices(
    parts: Sequence[Mask], columns: Sequence[int], codes: Sequence[bytes]
) -> list[bytes]:
    """Segments by matrix where that is worth it and within bounds, else the codes they have."""
    out, symbols, room = [], MAX_SYMBOLS, MAX_PLACES
    for flips, width, code in zip(parts, columns, codes, strict=True):
        rows, places, found = flips.size // width, np.flatnonzero(flips), None
        if flips.size <= room and is_uneven(rows, width, places):
            found = encode_matrix(places, rows, width, symbols)
        if found is not None and 1 + len(found) < _WORTH * len(code):
            symbols, room = symbols - rows - places.size, room - flips.size
            code = bytes([BY_MATRIX]) + found
        out.append(code)
    return out


def decode_mask(
    data: bytes,
    count: int,
    reference: Mask | None = None,
    segments: Sequence[int] = (),
    kernels: Sequence[int] = (),
    columns: Sequence[int] = (),
) -> Mask:
    """The mask of `count` places that `encode_mask` coded against `reference`."""
    _check_arguments(count, [reference], segments, kernels, columns)
    if len(data) > 1 + packed_size(count):
        raise DamageError(f"{len(data)} bytes of mask; {count} places take at most a bit each.")
    if data[:1] == bytes([_BY_KERNEL]) and any(width > 1 for width in kernels):
        parts = list(zip(segments, kernels, strict=True))
        flips = decode_kernels(Reader(data[1:], "a mask by kernel"), parts)
        return flips if reference is None else flips ^ reference
    by_matrix = data[:1] == bytes([BY_MATRIX]) and bool(columns)
    if data[:1] != bytes([_BY_SEGMENT]) and not by_matrix:
        return _decode_part(data, count, reference)
    if len(segments) < 2 and not by_matrix:
        raise DamageError("a mask is coded by segment, but there are not two segments.")
    mask, start = np.empty(count, np.bool_), 0
    symbols, room = MAX_SYMBOLS, MAX_PLACES
    reader = Reader(data, "a mask by segment")
    reader.byte()
    for number, length in enumerate(segments):
        part = slice(start, start + length)
        code = reader.rest() if number == len(segments) - 1 else reader.block()
        against = None if reference is None else reference[part]
        if by_matrix and code[:1] == bytes([BY_MATRIX]):
            rows, width = length // columns[number], columns[number]
            room -= length
            if room < 0:
                raise reader.damage(f"matrices of more than {MAX_PLACES} places.")
            places = decode_matrix(code[1:], rows, width, symbols)
            symbols -= rows + places.size
            flips = np.zeros(length, np.bool_)
            flips[places] = True
            mask[part] = flips if against is None else flips ^ against
        else:
            mask[part] = _decode_part(code, length, against)
        start += length
    if by_matrix and room == MAX_PLACES:
        raise reader.damage("no segment is coded by matrix.")
    return mask


def _encode_part(mask: Mask, reference: Mask | None) -> bytes:
    """The smallest code of a mask, or of a segment of one, by codecs 0 to 4."""
    if reference is None:
        return encode_bitmask(mask)
    plain = encode_bitmask(mask ^ reference)
    split = Writer()
    split.byte(_DROPPED_ADDED)
    split.block(encode_bitmask(~mask[reference]))
    split.raw(encode_bitmask(mask & ~reference))
    data = split.bytes()
    return data if len(data) < _WORTH * len(plain) else plain


def _decode_part(data: bytes, count: int, reference: Mask | None) -> Mask:
    """A mask, or a segment of one, by codecs 0 to 4."""
    if reference is None:
        return decode_bitmask(data, count)
    if data[:1] != bytes([_DROPPED_ADDED]):
        flips = decode_bitmask(data, count)
        np.not_equal(flips, reference, out=flips)
        return flips
    reader = Reader(data, "a mask by dropped and added")
    reader.byte()
    mask = reference.copy()
    _drop_(mask, reference, reader.block())
    for added in position_chunks(reader.rest(), count):
        if np.count_nonzero(reference[added]):  # sooner than any()
            raise DamageError("a mask adds a place that its reference holds already.")
        mask[added] = True
    return mask


def _drop_(mask: Mask, reference: Mask, data: bytes) -> None:
    """Take from a copy of the reference the ones that are coded by their ranks among all ones."""
    if mask.size <= _CHUNK:
        places = reference.nonzero()[0]
        _drop_ranks_(mask, places, bitmask_or_positions(data, places.size))
        return
    pieces = [slice(start, start + _CHUNK) for start in range(0, mask.size, _CHUNK)]
    counts = [int(np.count_nonzero(reference[piece])) for piece in pieces]
    dropped = bitmask_or_positions(data, sum(counts))
    buffer = np.ones(_CHUNK + _CHUNK // 8 + 1, np.bool_)
    below, used = 0, 0  # ones in the pieces so far, and positions among them
    for piece, count in zip(pieces, counts, strict=True):
        places = _find_ones(reference[piece], count, buffer)
        if dropped.dtype == np.bool_:
            here = dropped[below : below + count]
        else:
            stop = used + int(np.searchsorted(dropped[used:], below + count))
            here, used = dropped[used:stop] - below, stop
        _drop_ranks_(mask[piece], places, here)
        below += count


def _drop_ranks_(mask: Mask, places: NDArray[np.int64], dropped: NDArray[Any]) -> None:
    """Clear those of some places that are dropped: as booleans for all, or by their numbers."""
    if dropped.dtype == np.bool_:
        mask[places] = ~dropped
    else:
        mask[places[dropped]] = False


def _find_ones(piece: Mask, count: int, buffer: Mask) -> NDArray[np.int64]:
    """The positions of the `count` ones of a piece, as np.flatnonzero gives them, but sooner."""
    # numpy is three times slower where at most a tenth are ones. The first of the ones that fill
    # the end of the buffer, behind the piece, prevent it.
    lacking = (piece.size - 10 * count) // 9 + 1
    if lacking <= 0:
        return piece.nonzero()[0]
    first = _CHUNK - piece.size
    buffer[first:_CHUNK] = piece
    return buffer[first : _CHUNK + lacking].nonzero()[0][:count]


def _check_arguments(
    count: int,
    masks: Sequence[Mask | None],
    segments: Sequence[int],
    kernels: Sequence[int],
    columns: Sequence[int],
) -> None:
    for mask in masks:
        if mask is not None and (mask.dtype != np.bool_ or mask.shape != (count,)):
            raise SettingError(
                f"a mask is {mask.dtype} of shape {mask.shape}; needs {count} flat booleans."
            )
    if segments and sum(segments) != count:
        raise SettingError(f"the segments hold {sum(segments)} places; the mask has {count}.")
    for what, widths, most in (("kernels", kernels, MAX_WIDTH), ("rows", columns, count)):
        if widths and (
            len(widths) != len(segments)
            or not all(1 <= k <= most and n % k == 0 for n, k in zip(segments, widths, strict=True))
        ):
            raise SettingError(
                f"{what} of {list(widths)} places for segments of {list(segments)}; each needs a "
                f"width of 1 to {most} that divides it."
            )
