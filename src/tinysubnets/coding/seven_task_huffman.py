"""The size of the paper's mask coding, to compare with: Huffman codes over seven tasks at a time.

Masks go in groups of seven in order, the last group may be smaller. A group of g masks takes

1. a table: the code lengths of the symbols 0 to 2^g - 1 at 6 bits each, 0 for one that is absent;
2. four bytes for the length of part 3;
3. for each weight the Huffman code of its symbol, whose bit j is the weight's bit in the j-th mask
   of the group. A symbol that is alone has a code of one bit.

Each part ends at a byte border. Nothing in the package stores masks like this, so that only sizes
are computed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.bits import packed_size
from tinysubnets.errors import SettingError

GROUP = 7
_LENGTH_BITS = 6
_LENGTH_BYTES = 4


def seven_tasks_size(masks: Sequence[NDArray[np.bool_]]) -> int:
    """The bytes that the masks of tasks in order take, flat and of equal length, in this code."""
    if len({mask.shape for mask in masks}) > 1:
        raise SettingError(f"masks of different shapes: {sorted({m.shape for m in masks})}.")
    total = 0
    for first in range(0, len(masks), GROUP):
        group = masks[first : first + GROUP]
        symbols = np.zeros(group[0].size, np.uint8)
        for task, mask in enumerate(group):
            symbols |= mask.astype(np.uint8) << task
        counts = np.bincount(symbols, minlength=1 << len(group))
        table = packed_size(1 << len(group), _LENGTH_BITS)
        total += table + _LENGTH_BYTES + packed_size(_huffman_bits(counts.tolist()))
    return total


def _huffman_bits(counts: Sequence[int]) -> int:
    """The bits that symbols which occur `counts` times take in a Huffman code."""
    heap = [count for count in counts if count]
    if len(heap) == 1:
        return heap[0]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:  # every merge of two nodes lengthens the codes below it by one bit
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total
