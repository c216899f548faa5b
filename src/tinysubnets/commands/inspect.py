"""The command `tsn inspect`, and what learning one more task prints: tables of a model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from tinysubnets.commands.model import as_json, command
from tinysubnets.experiments.tables import text_table
from tinysubnets.text import for_terminal

MAX_NAMES = 6  # classes of a task that are named
MAX_OVERLAPS = 12  # tasks of which every pair is shown
MAX_TENSORS = 30  # shared tensors that are shown one by one
PARTS = ("codes", "codebooks", "masks", "heads", "task_params", "memory", "routing", "metadata")


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    contents = "tasks, banks, sizes and overlaps of a model"
    inspect = command(subparsers, "inspect", contents, _inspect)
    inspect.add_argument("--json", action="store_true", help="print plain data instead of tables")


def _inspect(options: argparse.Namespace) -> int:
    from tinysubnets import format as artifact

    found = artifact.inspect(options.model)
    if options.json:
        print(as_json(found))
        return 0
    show_model(found)
    return 0


def show_report(report: Any) -> None:
    """Print what learning a task came to, rung by rung where it climbed a ladder."""
    from tinysubnets.model.subnet import NO_BANK

    if not report.rungs:
        where = report.reason if report.bank == NO_BANK else f"bank {report.bank} ({report.reason})"
        print(f"{for_terminal(where)}; {report.bits} bits")
        return
    rows = [
        (
            rung.name,
            "climbed" if rung.taken else "not worth it",
            _percent(rung.valid_accuracy),
            "" if not place else f"{rung.gain:+.2f}",
            f"{rung.extra_bytes:,}",
        )
        for place, rung in enumerate(report.rungs)
    ]
    print(text_table(rows, ("rung", "", "valid. acc.", "gain, points", "more bytes"), num_labels=2))
    kept = next(r for r in reversed(report.rungs) if r.taken)
    print(
        f"the task stands on {kept.name!r}: what costs more is tried while enough validation "
        "samples are wrong, and climbed where it gains more than luck and what its bytes cost"
    )


def show_model(found: Mapping[str, Any]) -> None:
    """Print what `format.inspect` found."""
    ledger, masks, room = found["ledger"], found["masks"], found["room"]
    network = found["network"]
    named = network.get("network", "not named") if isinstance(network, dict) else network
    print(
        f"{found['path']}: {ledger['file_bytes']:,} bytes, format {found['format']}, network "
        f"{for_terminal(str(named))}, {found['num_weights']:,} shared weights "
        f"({4 * found['num_weights']:,} bytes dense), one mask bit per {_block(found['block'])}"
    )
    if (base := found["base"]) is not None:
        held = "its weights are in the file" if base["embedded"] else "its weights are not in it"
        print(
            f"base {for_terminal(base['name'])} ({for_terminal(base['source'])}), SHA-256 "
            f"{base['sha256']}; {held}"
        )
    print(f"\ntasks\n{_tasks(found['tasks'])}")
    for text, names in _preprocessing(found["tasks"]).items():
        print(f"pictures of {names}: {text}")
    if len(found["tensors"]) <= MAX_TENSORS:
        print(f"\nshared tensors\n{_tensors(found['tensors'])}")
    print(f"\nledger, bytes\n{_ledger(ledger)}")
    if 1 < len(found["tasks"]) <= MAX_OVERLAPS and found["overlap"]:
        title = "overlap of masks: shared by both / held by either"
        print(f"\n{title}\n{_overlap(found['tasks'], found['overlap'])}")
    print(
        f"\n{_percent(ledger['file'])} of the dense network ({4 * found['num_weights']:,} bytes); "
        f"{_percent(ledger['paper'])} by the paper's way of counting: without heads, routing and "
        f"metadata ({_percent(ledger['printed'])} by the formula that it prints)"
    )
    print(
        f"masks: {masks['stored_bytes']:,} bytes stored, {masks['seven_task_huffman_bytes']:,} as "
        f"the paper's seven-task Huffman code, {masks['raw_bytes']:,} raw"
    )
    for number, bank in enumerate(found["banks"]):
        left = bank["nameless_weights"]
        kept = f", {left:,} weights of removed tasks in use" if left else ""
        many = f"{len(bank['tasks'])} task{'s' if len(bank['tasks']) != 1 else ''}"
        print(f"bank {number}: {many}, {_percent(bank['free_share'])} free{kept}")
    if room["bytes_per_task"] is not None:
        print(_room(room, found["free_share"]))


def _preprocessing(tasks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What is done to pictures, in words, and the names of the tasks that do it."""
    from tinysubnets.errors import DataError
    from tinysubnets.tasks.preprocessing import Preprocessing

    alike: dict[str, list[str]] = {}
    for task in (t for t in tasks if t["preprocessing"] is not None):
        try:
            text = str(Preprocessing.from_dict(task["preprocessing"]))
        except DataError:
            text = for_terminal(str(task["preprocessing"]))
        alike.setdefault(text, []).append(for_terminal(task["name"]))
    return {
        text: ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        for text, names in alike.items()
    }


def _tasks(tasks: Sequence[Mapping[str, Any]]) -> str:
    columns: dict[str, list[str]] = {
        "task": [t["name"] for t in tasks],
        "classes": [_names(t["classes"]) for t in tasks],
        "mask coded against": [t["mask_against"] for t in tasks],
    }
    if any(t["added_to"] for t in tasks):
        columns["added to"] = [t["added_to"] or "" for t in tasks]
    num_labels = len(columns)
    columns |= {
        "bank": ["" if t["bank"] < 0 else str(t["bank"]) for t in tasks],
        "bits": [str(t["bits"]) for t in tasks],
        "density": [f"rank {t['rank']}" if t["rank"] else f"{t['density']:.4f}" for t in tasks],
        "new weights": [f"{t['new_weights']:,}" for t in tasks],
        "valid. acc.": [
            "" if t["valid_accuracy"] is None else _percent(t["valid_accuracy"]) for t in tasks
        ],
        "bytes": [f"{t['bytes']:,}" for t in tasks],
    }
    rows = list(zip(*columns.values(), strict=True))
    return text_table(rows, tuple(columns), num_labels=num_labels)


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> str:
    headings = ("tensor", "shape", "density, mean over tasks", "free, mean over banks")
    rows = []
    for tensor in tensors:
        shares = (tensor["densities"], tensor["free_shares"])
        means = [f"{sum(s) / len(s):.4f}" if s else "" for s in shares]
        rows.append((tensor["name"], "x".join(map(str, tensor["shape"])), *means))
    return text_table(rows, headings, num_labels=2)


def _ledger(ledger: Mapping[str, Any]) -> str:
    def row(name: str, entry: Mapping[str, float]) -> tuple[str, ...]:
        bits = [entry[part] for part in PARTS]
        return (name, *(f"{round(b) // 8:,}" for b in (*bits, sum(bits))))

    entries = [*ledger["tasks"].items(), ("common", ledger["common"])]
    rows = [row(name, entry) for name, entry in entries]
    return text_table([*rows, (), row("total", ledger["total"])], ("task", *PARTS, "total"))


def _overlap(tasks: Sequence[Mapping[str, Any]], overlap: Sequence[Sequence[float]]) -> str:
    rows = [
        (f"{number} {task['name']}", *(f"{share:.2f}" for share in row))
        for number, (task, row) in enumerate(zip(tasks, overlap, strict=True))
    ]
    return text_table(rows, ("", *map(str, range(len(tasks)))))


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


def _names(classes: Sequence[Any]) -> str:
    shown = ", ".join(map(str, classes[:MAX_NAMES]))
    return shown if len(classes) <= MAX_NAMES else f"{shown}, … ({len(classes)})"


def _block(block: int) -> str:
    return "weight" if block == 1 else f"{block} weights of a row or one kernel"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
