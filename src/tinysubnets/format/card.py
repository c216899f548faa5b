"""The model card: what a model folder says of itself to people and to the Hub."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tinysubnets.model.size import Entry, Ledger
from tinysubnets.text import for_markdown

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore


def model_card(store: SubnetStore, ledger: Ledger) -> str:
    """The README of a model folder: tasks, accuracies and the ledger."""
    lines = [
        "---",
        "library_name: tinysubnets",
        "tags:",
        "- continual-learning",
        "- tinysubnets",
        "---",
        "",
        f"# {len(store.tasks)} tasks in one network",
        "",
        f"{ledger.file_bytes:,} bytes in `model.safetensors`; the network has "
        f"{ledger.num_weights:,} shared weights, {4 * ledger.num_weights:,} bytes as float32. "
        f"So the file is {100 * (ledger.file or 0):.2f} % of one dense network.",
        *_about_base(store),
        "",
        "| task | classes | bank | bits | density | validation accuracy | bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, subnet in store.subnets.items():
        accuracy = subnet.valid_accuracy
        shown = f"{100 * accuracy:.2f} %" if accuracy == accuracy else "not recorded"
        lines.append(
            f"| {_cell(name)} | {_cell(', '.join(map(str, subnet.classes)))} | {subnet.bank} | "
            f"{subnet.bits} | {store.density(name):.4f} | {shown} | "
            f"{ledger.tasks[name].total / 8:,.0f} |"
        )
    lines += ["", "| part | bytes |", "|---|---|"]
    lines += [f"| {f.name} | {getattr(ledger.total, f.name) / 8:,.0f} |" for f in fields(Entry)]
    lines += [f"| file | {ledger.file_bytes:,} |", "", *_usage(store), ""]
    return "\n".join(lines)


def _about_base(store: SubnetStore) -> list[str]:
    """The base that tasks were learned over, where they need it."""
    base = store.base
    if base is None or not store.needs_base():
        return []
    held = "Its weights are in the file." if base.embedded else "Its weights are not in the file."
    name, source = _cell(base.name), _cell(base.source)
    return ["", f"Learned over the base {name} ({source}), SHA-256 {base.sha256}. {held}"]


def _usage(store: SubnetStore) -> list[str]:
    """How the model is used, for the first of its tasks; it runs in the model's own folder."""
    rebuild = store.architecture.rebuild
    is_rebuilt = rebuild is not None and ":" not in str(rebuild.get("network", ":"))
    lines = ["```python", "import torch", "", "from tinysubnets import SubnetStore", ""]
    lacks_base = store.needs_base() and store.base is not None and not store.base.embedded
    if is_rebuilt and lacks_base:
        lines += [
            "# `weights` is a file of the base's weights, or the network that has them.",
            'store = SubnetStore.load(".", base=weights)  # this folder',
        ]
    elif is_rebuilt:
        lines.append('store = SubnetStore.load(".")  # this folder')
    else:
        with_weights = ", with the weights of the base" if lacks_base else ""
        lines += [
            f"# `net` is your own network, as it was when the tasks were learned{with_weights}.",
            'store = SubnetStore.load(".", net)  # this folder',
        ]
    subnet = next(iter(store.subnets.values()), None)
    if subnet is None or subnet.sample is None:
        return [*lines, "print(store.tasks)", "```"]
    sample, name = subnet.sample, subnet.name
    shape = ", ".join(map(str, (2, *sample.shape)))
    return [
        *lines,
        f"inputs = torch.zeros(({shape}), dtype={sample.dtype})  # raw: normalized for you",
        f"print(store.predict({name!r}, inputs))",
        "```",
    ]


def _cell(text: str) -> str:
    """Text that cannot break out of a table cell, not too long."""
    return for_markdown(text if len(text) <= 200 else text[:200] + "…")
