"""Tables of the rows that `benchmarks.pretrained` writes; no torch is needed to make them.

Only what every method of a stream has done is in its table: where a run was stopped, methods that
came first have more tasks, or seeds, than the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Row = Mapping[str, Any]

STREAMS = {
    "near": "**Near** the pretraining, split CIFAR-100",
    "far": "**Far** from the pretraining, digits, clothes and letters as color images",
}
# What a table has to have; one of less is marked. Real digits and letters have 28 px.
SEEDS, NUM_TASKS, PIXELS = 3, {"near": 10, "far": 4}, {"near": 96, "far": 64}
HEADINGS = ("method", "test %", "validation %", "kB a task", "% of the backbone", "seconds", "lr")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows in a file, one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def published(folder: Path) -> str:
    """The tables of all files of rows in a folder, or that there are none."""
    files = sorted(folder.glob("*.jsonl"))
    made = [f"{tables(read_rows(f))}\n\nRows: `results/{folder.name}/{f.name}`." for f in files]
    return "\n\n".join(made) or "Not measured yet: no rows are published."


def summary(folder: Path) -> str:
    """All streams side by side: accuracy and kilobytes of every method that each of them has."""
    rows = [row for f in sorted(folder.glob("*.jsonl")) for row in read_rows(f)]
    names = sorted({r["stream"] for r in rows}, key=[*STREAMS].index)
    groups = [by_method(r for r in rows if r["stream"] == name) for name in names]
    heads = ["method", *(f"{name}: {what}" for name in names for what in ("test %", "kB a task"))]
    lines = [heads, ["---"] * len(heads)]
    for method in groups[0] if groups else ():
        if all(method in found for found in groups):
            cells = [_line(method, found[method]) for found in groups]
            lines.append([method, *(cell[place] for cell in cells for place in (1, 3))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rows: Sequence[Row]) -> str:
    """Markdown: what was measured, and a table, of each stream."""
    names = sorted({r["stream"] for r in rows}, key=[*STREAMS].index)
    return "\n\n".join(stream_table([r for r in rows if r["stream"] == name]) for name in names)


def stream_table(rows: Sequence[Row]) -> str:
    """The table of one stream: means over tasks, with their deviation over seeds."""
    stream, groups = rows[0]["stream"], by_method(rows)
    shared = set.intersection(*({_pair(r) for r in found} for found in groups.values()))
    kept = [r for r in rows if _pair(r) in shared]
    if not kept:
        return f"{STREAMS[stream]}: no task has been learned by every method yet."
    lines = [HEADINGS, ("---",) * len(HEADINGS)]
    lines += [_line(name, found) for name, found in by_method(kept).items()]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_described(stream, kept)}\n\n{text}"


def by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by what they are called in a table; those of ours tell in `note` how they decided."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        form = "" if row["ours"] or not row["note"] else f", {row['note']}"
        groups.setdefault(row["method"] + form, []).append(row)
    return groups


def _pair(row: Row) -> tuple[int, str]:
    return row["seed"], row["task"]


def _line(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    seeds = sorted({r["seed"] for r in rows})
    tests = [mean(r["test"] for r in rows if r["seed"] == seed) for seed in seeds]
    spread = f" ± {stdev(tests):.2f}" if len(tests) > 1 else ""
    valid, size, seconds = (mean(r[k] for r in rows) for k in ("valid", "size_bytes", "seconds"))
    return (
        name,
        f"{mean(tests):.2f}{spread}",
        f"{valid:.2f}",
        f"{size / 1000:.1f}",
        f"{100 * size / rows[0]['backbone_bytes']:.2f}",
        f"{seconds:.0f}",
        ", ".join(f"{lr:g}" for lr in sorted({r["lr"] for r in rows})),
    )


def _described(stream: str, rows: Sequence[Row]) -> str:
    """What a table was measured with, and where that is less than it should be."""
    seeds, names = sorted({r["seed"] for r in rows}), {r["task"] for r in rows}
    first = rows[0]
    own = {"seeds": (len(seeds), SEEDS), "tasks": (len(names), NUM_TASKS[stream])}
    own["px"] = first["pixels"], PIXELS[stream]
    less = [f"{has} of {most} {key}" for key, (has, most) in own.items() if has < most]
    small = f" **Small: {', '.join(less)}; a first look, no verdict.**" if less else ""
    train, valid, test = (_span({r[f"num_{k}"] for r in rows}) for k in ("train", "valid", "test"))
    return (
        f"{STREAMS[stream]}: {len(names)} task{'s' * (len(names) > 1)} of "
        f"{first['num_classes']} classes over `{first['base']}`, images of {first['pixels']} px, "
        f"{train} to train, {valid} to validate and {test} to test a task with, {first['epochs']} "
        f"epochs, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, on "
        f"{first['device']}.{small}"
    )


def _span(values: set[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
