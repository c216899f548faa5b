"""The paper's word for one weight: its bank, its owner's number there, its code.

The model file needs no such words: a weight's owner is the first task of the bank whose mask holds
it, so prefix and bank cost nothing. They are here to read and check the paper's examples.

    >>> codebooks = {(0, 0): (0.1211, -0.0842, 0.2953, -0.3576)}
    >>> decode("0 00 11", codebooks)
    -0.3576
    >>> encode(0, 0, 3)
    '0 00 11'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tinysubnets.errors import FormatError

Codebooks = Mapping[tuple[int, int], Sequence[float]]  # by bank and owner's number in the bank


def encode(bank: int, owner: int, code: int, widths: tuple[int, int, int] = (1, 2, 2)) -> str:
    """The word of a weight: bank, owner's number in the bank and code, in so many bits each."""
    parts = []
    for name, number, width in zip(
        ("bank", "owner", "code"), (bank, owner, code), widths, strict=True
    ):
        if not 0 <= number < 2**width:
            raise FormatError(f"{name} {number} does not fit into {width} bits.")
        parts.append(f"{number:0{width}b}")
    return " ".join(parts)


def decode(word: str, codebooks: Codebooks) -> float:
    """The value that a word stands for: its code's centroid in the codebook of its owner."""
    parts = word.split()
    if len(parts) != 3 or any(set(p) - {"0", "1"} for p in parts):
        raise FormatError(f"{word!r} is no word; three binary numbers are needed, as in '0 00 11'.")
    bank, owner, code = (int(p, 2) for p in parts)
    if (bank, owner) not in codebooks:
        raise FormatError(f"{word!r}: no task has number {owner} in bank {bank}.")
    centroids = codebooks[bank, owner]
    if code >= len(centroids):
        raise FormatError(f"{word!r}: code {code} is beyond the {len(centroids)} centroids.")
    return float(centroids[code])


def owners(masks: Tensor) -> Tensor:
    """The number of each weight's owner, int64 [n], from the masks of a bank in order [tasks, n].

    The first task whose mask holds a weight owns it; -1 where none does.

    >>> owners(torch.tensor([[True, False, False], [True, True, False]]))
    tensor([ 0,  1, -1])
    """
    if len(masks) == 0:
        return torch.full(masks.shape[1:], -1)
    first = masks.to(torch.uint8).argmax(0)
    return torch.where(masks.any(0), first, -1)
