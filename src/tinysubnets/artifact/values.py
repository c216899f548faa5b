"""Coded values in bytes: the codes and codebooks of shared weights, and private tensors.

A form byte says how a list of values is stored: bits 1-5 hold the width of a code, 0 where the
values stand as themselves; bit 0 is set where centres or values take 32 bits instead of 16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tinysubnets.artifact.wire import Reader, Writer
from tinysubnets.coding.codes import decode_codes, encode_codes
from tinysubnets.errors import ArtifactError, DamageError
from tinysubnets.subnet import Coded

MAX_CODE_BITS = 16


def write_own(own: Sequence[Coded]) -> tuple[bytes, bytes]:
    """The codes and the codebooks of a task's own shared weights, a section each."""
    codes, books = Writer(), Writer()
    for coded in own:
        write_form(books, coded)
        write_codes(codes, coded)
    if not any(len(c) for c in own):  # a task that adds nothing stores nothing
        return b"", b""
    return codes.bytes(), books.bytes()


def read_own(data: tuple[bytes, bytes], counts: Sequence[int]) -> tuple[Coded, ...]:
    """The own weights of a task, `counts` of them per codebook."""
    if not any(counts):
        if data[0] or data[1]:
            raise DamageError("codes for a task that owns no weight.")
        return tuple(Coded(torch.zeros(0)) for _ in counts)
    codes, books = Reader(data[0], "codes"), Reader(data[1], "codebooks")
    out = [read_codes(codes, read_form(books), count) for count in counts]
    codes.done()
    books.done()
    return tuple(out)


def write_tensor(out: Writer, coded: Coded) -> None:
    """A private tensor: its form, its centres, its codes or values."""
    write_form(out, coded)
    write_codes(out, coded)


def read_tensor(data: Reader, count: int) -> Coded:
    """A private tensor of `count` values."""
    return read_codes(data, read_form(data), count)


def write_form(out: Writer, coded: Coded) -> None:
    """The form byte, and for codes the number of centres less one and the centres."""
    width = 0 if coded.codes is None else coded.bits
    if coded.codes is not None and not 1 <= len(coded.values) <= 2**width <= 2**MAX_CODE_BITS:
        raise ArtifactError(f"{len(coded.values)} centres for codes of {width} bits.")
    out.byte(width << 1 | (coded.value_bits == 32))
    if width:
        out.varint(len(coded.values) - 1)
        out.floats(coded.values, coded.value_bits)


def read_form(data: Reader) -> tuple[int, int, torch.Tensor | None]:
    """The width of codes (0 for none), the bits of a value, and the centres of a codebook."""
    form = data.byte()
    width, bits = form >> 1, 32 if form & 1 else 16
    if width > MAX_CODE_BITS:
        raise data.damage(f"codes of {width} bits; at most {MAX_CODE_BITS} are allowed.")
    centres = data.floats(1 + data.varint(2**width - 1), bits) if width else None
    return width, bits, centres


def write_codes(out: Writer, coded: Coded) -> None:
    """The codes behind their length, or the values themselves."""
    if coded.codes is None:
        out.floats(coded.values, coded.value_bits)
    else:
        out.block(encode_codes(coded.codes.numpy(), coded.bits))


def read_codes(data: Reader, form: tuple[int, int, torch.Tensor | None], count: int) -> Coded:
    """`count` values of a form that was read before."""
    width, bits, centres = form
    if centres is None:
        return Coded(data.floats(count, bits))
    codes = decode_codes(data.block(), width, count)
    if count and int(codes.max()) >= len(centres):
        raise data.damage(f"code {int(codes.max())} of a codebook with {len(centres)} centres.")
    kind = np.uint8 if width <= 8 else np.int32
    return Coded(centres, torch.from_numpy(codes.astype(kind, copy=False)), width)
