"""`python -m benchmarks`: one table of ratios, and its numbers as JSON.

Every ratio compares two things measured in this run on this machine. Absolute times are printed
beside them for whoever knows the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import codebooks, many_tasks, parallel, pruning, routing, runs, serving, steps

Row = dict[str, Any]


def rows(device: torch.device, quick: bool, data: str | None = None, only: str = "") -> list[Row]:
    """All benchmarks that make sense on the device and have `only` in their names, a row each."""
    console, out = Console(stderr=True), []
    for name, make in _all(device, quick, data).items():
        if only not in name:
            continue
        begin = time.perf_counter()
        try:
            row = make()
        except Exception as error:  # one broken benchmark must not hide the others
            row = {"what": name, "error": f"{type(error).__name__}: {error}"[:300]}
        row["took_s"] = time.perf_counter() - begin
        console.print(row)
        out.append(row)
    return out


def _all(device: torch.device, quick: bool, data: str | None) -> dict[str, Any]:
    gpu = device.type == "cuda"
    count = (lambda few, many: few) if quick else (lambda few, many: many)
    table: dict[str, Any] = {}
    for compiled in (False, True):
        engine = "compiled" if compiled else "plain"
        for network, batch, num in (
            ("mlp", 256, count(20, 211)),
            ("alexnet", 128, count(4, 35)),
            ("resnet18", 128, count(3, 35)),
            ("small-resnet", 128, count(3, 35)),
        ):
            if (not gpu and network == "resnet18") or (gpu and compiled and network == "mlp"):
                continue  # minutes on a CPU; nothing to win for launch-bound steps on a GPU
            rounds = 15 if network == "mlp" else 3
            table[f"{network} {engine}"] = partial(
                steps.compare, network, batch, num, device, compiled, rounds
            )
    table["epoch permuted-mnist"] = lambda: steps.mnist_epoch(device)
    table["codebook update"] = lambda: steps.codebook_update(device)
    table["codebook"] = codebooks.against_sklearn
    table["pruning mlp"] = lambda: pruning.share_of_training("mlp", 256, device)
    table["many tasks"] = lambda: many_tasks.thousandth_task(count(200, 1000))
    for network, num in (("mlp", count(20, 100)), ("alexnet", count(3, 15))):
        table[f"routing {network}"] = partial(routing.over_one_task, network, device, num)
    large = ("permuted-mnist", "split-cifar100", "tiny-imagenet")
    for scenario in large if gpu else ("permuted-digits",):
        table[f"run {scenario}"] = partial(runs.share_of_training, scenario, device.type, data)
    beside = "tiny-imagenet" if gpu else "permuted-digits"
    table[f"beside {beside}"] = lambda: runs.beside_training(beside, device.type, data, 5)
    if not gpu:
        table["pruning few images"] = lambda: pruning.few_images(data, count(1, 3))
        table["side by side"] = runs.side_by_side
        table["serving"] = lambda: serving.requests_per_second(count(0.5, 3.0))
        for network, batch, num, rounds in (("mlp", 256, 35, 20), ("alexnet", 128, 12, 2)):
            table[f"processes {network}"] = partial(
                parallel.processes, network, batch, num, count(1, rounds)
            )
    if gpu:
        table["pruning alexnet"] = lambda: pruning.share_of_training("alexnet", 128, device)
        table["memory"] = lambda: steps.peak_memory(device)
    return table


def show(table_rows: list[Row]) -> None:
    """The rows as a table on the terminal."""
    table = Table("what", "ratio", "target", "numbers")
    for row in table_rows:
        rest = {k: v for k, v in row.items() if k not in ("what", "ratio", "target", "took_s")}
        numbers = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rest.items()
        )
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else ""
        table.add_row(row["what"], ratio, str(row.get("target", "")), numbers)
    Console(width=150).print(table)


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, noisier numbers")
    parser.add_argument("--data", metavar="DIR", help="local folder of data sets")
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this in their names")
    options = parser.parse_args()
    device = torch.device(options.device)
    found = rows(device, options.quick, options.data, options.only)
    show(found)
    options.out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    facts = {
        "device": device.type,
        "name": name,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rows": found,
    }
    path = options.out / f"{device.type}.json"
    path.write_text(json.dumps(facts, indent=1))
    print(f"written to {path}")


if __name__ == "__main__":
    main()
