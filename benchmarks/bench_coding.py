"""Size and speed of the mask and code codecs on random arrays, as tables.

    python benchmarks/bench_coding.py [--count 1000000] [--json PATH]

Speeds are MB of packed mask (or of packed codes) per second on one core, of the best call. Three
tables: masks whose XOR with the reference has a given density, both parts flipping alike; masks of
a fixed density that exchange a share of their places with the mask before, ten in a row, with the
seven-task Huffman code beside; and codes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tinysubnets.coding.bits import packed_size
from tinysubnets.coding.codes import decode_codes, encode_codes
from tinysubnets.coding.masks import decode_mask, encode_mask, entropy_bits
from tinysubnets.coding.seven_task_huffman import seven_tasks_size
from tinysubnets.experiments.tables import text_table

DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
CHAINS = ((0.05, 0.02), (0.1, 0.03), (0.1, 0.1), (0.3, 0.05), (0.5, 0.1), (0.5, 0.5))
CODECS = ("raw", "byte-Huffman", "gap-Huffman", "Rice", "dropped+added", "by segment")


def seconds_of(action: Callable[[], Any], budget_s: float = 0.2) -> float:
    """The least time of one call; repeated, because other processes disturb it."""
    best, spent = float("inf"), 0.0
    while spent < budget_s:
        start = time.perf_counter_ns()
        action()
        seconds = (time.perf_counter_ns() - start) / 1e9
        best = min(best, seconds)
        spent += seconds
    return best


def exact_mask(count: int, density: float, rng: np.random.Generator) -> np.ndarray:
    """A mask with exactly the given share of ones."""
    mask = np.zeros(count, bool)
    mask[rng.permutation(count)[: round(count * density)]] = True
    return mask


def exchanged(mask: np.ndarray, flips: float, rng: np.random.Generator) -> np.ndarray:
    """A mask with as many ones that differs from the given one in a share of `flips` places."""
    half = round(mask.size * flips / 2)
    new = mask.copy()
    new[rng.permutation(np.flatnonzero(mask))[:half]] = False
    new[rng.permutation(np.flatnonzero(~mask))[:half]] = True
    return new


def xor_entropy_bits(mask: np.ndarray, reference: np.ndarray | None) -> float:
    """The entropy of the places where a mask differs from a reference, or from nothing."""
    differs = mask if reference is None else mask != reference
    return entropy_bits(int(np.count_nonzero(differs)), mask.size)


def measure_density(count: int, density: float, rng: np.random.Generator) -> dict[str, Any]:
    """Size and speed of a mask that differs from its reference in a share of its places."""
    reference = exact_mask(count, 0.5, rng)
    mask = reference ^ exact_mask(count, density, rng)
    data = encode_mask(mask, reference)
    seconds = seconds_of(lambda: decode_mask(data, count, reference))
    return {
        "count": count,
        "flip_density": density,
        "codec": CODECS[data[0] & 7],
        "bytes": len(data),
        "over_xor_entropy_percent": 100 * (8 * len(data) / xor_entropy_bits(mask, reference) - 1),
        "decode_mb_per_s": packed_size(count) / 1e6 / seconds,
    }


def measure_chain(count: int, density: float, flips: float, tasks: int = 10) -> dict[str, Any]:
    """Size and speed of the masks of tasks in a row, each against all earlier ones."""
    rng = np.random.default_rng(0)
    masks = [exact_mask(count, density, rng)]
    while len(masks) < tasks:
        masks.append(exchanged(masks[-1], flips, rng))
    size, entropy, seconds, codecs = 0, 0.0, 0.0, set()
    for task, mask in enumerate(masks):
        codes = [(encode_mask(mask, other), other) for other in (None, *masks[:task])]
        data, used = min(codes, key=lambda code: len(code[0]))
        size += len(data)
        entropy += min(xor_entropy_bits(mask, other) for _, other in codes)
        seconds += seconds_of(lambda data=data, used=used: decode_mask(data, count, used), 0.05)
        codecs.add(CODECS[data[0] & 7])
    seven = seven_tasks_size(masks)
    return {
        "count": count,
        "density": density,
        "flips": flips,
        "codecs": sorted(codecs),
        "bits_per_weight_and_task": 8 * size / count / tasks,
        "over_xor_entropy_percent": 100 * (8 * size / entropy - 1),
        "seven_task_bits_per_weight_and_task": 8 * seven / count / tasks,
        "smaller_than_seven_task_percent": 100 * (1 - size / seven),
        "decode_mb_per_s": tasks * packed_size(count) / 1e6 / seconds,
    }


def measure_codes(count: int, bits: int) -> dict[str, Any]:
    """Size and speed of codes that are distributed like a quantized bell curve."""
    values = np.random.default_rng(0).normal(size=count) / 5 + 0.5
    codes = (values * 2**bits).clip(0, 2**bits - 1).astype(np.uint8)
    data = encode_codes(codes, bits)
    shares = np.bincount(codes) / count
    entropy = -count * float((shares[shares > 0] * np.log2(shares[shares > 0])).sum())
    seconds = seconds_of(lambda: decode_codes(data, bits, count))
    return {
        "count": count,
        "bits": bits,
        "bits_per_code": 8 * len(data) / count,
        "over_entropy_percent": 100 * (8 * len(data) / entropy - 1),
        "decode_mb_per_s": packed_size(count, bits) / 1e6 / seconds,
    }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table under a title."""
    cells = [[_cell(value) for value in row.values()] for row in rows]
    names = [name.replace("_", " ") for name in rows[0]]
    print(f"\n{title}\n{text_table(cells, names, num_labels=0)}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(value) if isinstance(value, list) else str(value)


def main() -> None:
    """Measure, print, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description="Size and speed of the mask and code codecs.")
    parser.add_argument("--count", type=int, default=1_000_000, help="weights of the large masks")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    counts = (50_000, arguments.count)
    result = {
        "densities": [measure_density(count, d, rng) for count in counts for d in DENSITIES],
        "chains": [measure_chain(n, *chain) for n in (88_400, arguments.count) for chain in CHAINS],
        "codes": [measure_codes(arguments.count, bits) for bits in range(1, 9)],
    }
    show("Masks against a reference", result["densities"])
    show("Ten masks in a row, each from the one before", result["chains"])
    show("Codes", result["codes"])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
