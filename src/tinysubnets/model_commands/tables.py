"""Saved models as tables for people."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

MAX_OVERLAPS = 12  # tasks of which every pair is shown
MAX_TENSORS = 30  # shared tensors that are shown one by one
PARTS = ("codes", "codebooks", "masks", "heads", "private", "memory", "metadata")


def show_model(found: Mapping[str, Any]) -> None:
    """Print what `artifact.inspect` found."""
    console = _console()
    ledger, masks, room = found["ledger"], found["masks"], found["room"]
    network = found["network"]
    named = network["network"] if isinstance(network, dict) else network
    console.print(
        f"{found['path']}: {ledger['file_bytes']:,} bytes, format {found['format']}, network "
        f"{named}, {found['num_weights']:,} shared weights ({4 * found['num_weights']:,} bytes "
        f"dense), one mask bit per {_block(found['block'])}"
    )
    console.print(_tasks(found))
    if len(found["tensors"]) <= MAX_TENSORS:
        console.print(_tensors(found["tensors"]))
    console.print(_ledger(ledger))
    console.print(
        f"file {_percent(ledger['file'])} of the dense network; paper view "
        f"{_percent(ledger['paper'])} (codes, codebooks, coded masks; the paper's own formula "
        "counts prefix and bank bits and raw masks); worked-example view "
        f"{_percent(ledger['worked_example'])}"
    )
    console.print(
        f"masks: {masks['stored_bytes']:,} bytes stored, {masks['seven_task_huffman_bytes']:,} as "
        f"the paper's seven-task Huffman code, {masks['raw_bytes']:,} raw"
    )
    for number, bank in enumerate(found["banks"]):
        console.print(
            f"bank {number}: {len(bank['tasks'])} tasks, {_percent(bank['free_share'])} free"
        )
    if room["bytes_per_task"] is not None:
        console.print(_room(room, found["free_share"]))
    if 1 < len(found["tasks"]) <= MAX_OVERLAPS:
        console.print(_overlap(found["tasks"], found["overlap"]))


def show_predictions(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print predicted classes, one input to a row."""
    from rich.table import Table

    table = Table("input", "class", "probability", box=None)
    for row in rows:
        names = "\n".join(str(c["name"]) for c in row["classes"])
        shares = "\n".join(f"{c['probability']:.4f}" for c in row["classes"])
        table.add_row(row["input"], names, shares)
    _console().print(table)


def _tasks(found: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="tasks", title_justify="left")
    for column in ("task", "classes", "bank", "bits"):
        table.add_column(column)
    for column in ("density", "new weights", "valid. acc.", "bytes"):
        table.add_column(column, justify="right")
    table.add_column("mask coded against")
    for task in found["tasks"]:
        accuracy = task["valid_accuracy"]
        table.add_row(
            task["name"],
            _names(task["classes"]),
            str(task["bank"]),
            str(task["bits"]),
            f"{task['density']:.4f}",
            f"{task['new_weights']:,}",
            "" if accuracy is None else _percent(accuracy),
            f"{task['bytes']:,}",
            task["mask_against"],
        )
    return table


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("tensor", "shape", title="shared tensors", title_justify="left")
    for column in ("density, mean over tasks", "free, mean over banks"):
        table.add_column(column, justify="right")
    for tensor in tensors:
        shares = (tensor["densities"], tensor["free_shares"])
        means = [f"{sum(s) / len(s):.4f}" if s else "" for s in shares]
        table.add_row(tensor["name"], "x".join(map(str, tensor["shape"])), *means)
    return table


def _ledger(ledger: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table("task", title="ledger, bytes", title_justify="left")
    for part in (*PARTS, "total"):
        table.add_column(part, justify="right")
    rows = [*ledger["tasks"].items(), ("common", ledger["common"])]
    for name, entry in rows:
        total = sum(entry[p] for p in PARTS)
        table.add_row(name, *(_bytes(entry[p]) for p in PARTS), _bytes(total))
    total = ledger["total"]
    table.add_section()
    table.add_row("total", *(_bytes(total[p]) for p in PARTS), _bytes(total["total"]))
    return table


def _overlap(tasks: Sequence[Mapping[str, Any]], overlap: Sequence[Sequence[float]]) -> Any:
    from rich.table import Table

    title = "overlap of masks: shared by both / held by either"
    table = Table("", title=title, title_justify="left")
    for number in range(len(tasks)):
        table.add_column(str(number), justify="right")
    for number, (task, row) in enumerate(zip(tasks, overlap, strict=True)):
        table.add_row(f"{number} {task['name']}", *(f"{share:.2f}" for share in row))
    return table


def _room(room: Mapping[str, Any], free_share: float) -> str:
    left = room["until_no_free_weights"]
    weights = (
        "the last task took no new weights, so any number fit by mask alone"
        if left is None
        else f"{left} more until none is left, then by mask alone"
    )
    return (
        f"{_percent(free_share)} of all weights free. Tasks like the last one: {weights}; "
        f"{room['bytes_per_task']:,} bytes each, {room['until_dense_size']:,} more until the file "
        "is as large as one dense network"
    )


def _console() -> Any:
    from rich.console import Console

    width = max(shutil.get_terminal_size((120, 40)).columns, 100)
    return Console(width=width, highlight=False, markup=False, emoji=False)


def _names(classes: Sequence[Any], most: int = 6) -> str:
    shown = ", ".join(str(c) for c in classes[:most])
    return shown if len(classes) <= most else f"{shown}, … ({len(classes)})"


def _block(block: int) -> str:
    return "weight" if block == 1 else f"{block} weights of a row or one kernel"


def _bytes(bits: float) -> str:
    return f"{round(bits) // 8:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
