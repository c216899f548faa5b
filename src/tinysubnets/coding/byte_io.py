"""Numbers and bytes in a section: a writer, and a reader that never reads beyond what is there.

A varint is a number of at least 0 in groups of seven bits, the lowest first, one group to a byte.
The top bit of a byte says that another follows; the last byte of several is never 0, so there is
one way to write a number. Two bytes hold up to 16,383.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import DamageError

MAX_VARINT_BYTES = 10


def varint_bytes(value: int) -> int:
    """How many bytes a varint takes."""
    return max(1, -(-value.bit_length() // 7))


class Writer:
    """A growing sequence of bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def byte(self, value: int) -> None:
        """One byte."""
        self.parts.append(bytes([value]))

    def varint(self, value: int) -> None:
        """A number of at least 0, as a varint."""
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
        self.parts.append(bytes(out))

    def raw(self, data: bytes) -> None:
        """Some bytes as they are."""
        self.parts.append(data)

    def block(self, data: bytes) -> None:
        """Some bytes behind their length."""
        self.varint(len(data))
        self.parts.append(data)

    def floats(self, values: Tensor, bits: int) -> None:
        """Numbers in little-endian float16 or float32."""
        array = values.detach().float().cpu().numpy()
        self.parts.append(array.astype("<f2" if bits == 16 else "<f4").tobytes())

    def bytes(self) -> bytes:
        """Everything written so far."""
        return b"".join(self.parts)


class Reader:
    """A walk over the bytes of one section; anything missing or left over is damage."""

    def __init__(self, data: bytes, where: str) -> None:
        """`where` names the section in errors."""
        self.data, self.where, self.position = data, where, 0

    def damage(self, what: str) -> DamageError:
        """The error for something wrong in this section."""
        return DamageError(f"{self.where}: {what}")

    def raw(self, count: int) -> bytes:
        """The next bytes."""
        if count < 0 or count > len(self.data) - self.position:
            raise self.damage(
                f"{count} bytes are needed, {len(self.data) - self.position} are left."
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def byte(self) -> int:
        """The next byte."""
        return self.raw(1)[0]

    def peek(self) -> int | None:
        """The next byte, which stays the next; None at the end."""
        return self.data[self.position] if self.position < len(self.data) else None

    def varint(self, most: int) -> int:
        """The next varint, which must not exceed `most`."""
        value = 0
        for place in range(MAX_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                if value > most or (place and byte == 0):
                    raise self.damage(f"the number {value} is not valid here (at most {most}).")
                return value
        raise self.damage("a number is too long.")

    def block(self) -> bytes:
        """The next bytes that stand behind their length."""
        return self.raw(self.varint(len(self.data) - self.position))

    def floats(self, count: int, bits: int) -> Tensor:
        """The next numbers, as float32."""
        data = self.raw(count * bits // 8)
        array = np.frombuffer(data, "<f2" if bits == 16 else "<f4").astype(np.float32)
        return torch.from_numpy(array)

    def rest(self) -> bytes:
        """Everything up to the end of the section."""
        return self.raw(len(self.data) - self.position)

    def done(self) -> None:
        """Insist that nothing is left."""
        if self.position != len(self.data):
            raise self.damage(f"{len(self.data) - self.position} bytes are left over.")
