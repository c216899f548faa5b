"""The paper's tables and figures, by name, each with our value beside the paper's.

print(listing())
print(show("accuracy", ["runs/compare"], form="markdown"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinysubnets.errors import SettingError, unknown
from tinysubnets.experiments.tables import text_table

if TYPE_CHECKING:
    from tinysubnets.experiments.results import Run
    from tinysubnets.paper.render import Table

__all__ = ["ENTRIES", "listing", "show", "table"]

ENTRIES: dict[str, tuple[str, str]] = {
    "capacity": ("Table 1", "capacity of pruning-based methods"),
    "accuracy": ("Table 2", "accuracy of all methods, A and ACC"),
    "imagenet100": ("Table 3", "parameters and accuracy on ImageNet100"),
    "memory": ("Table 4", "memory by codes, codebooks and masks"),
    "sparsity": ("Table 5", "sparsity before and after post-pruning, bit-width"),
    "bits": ("Table 6", "accuracy with weights of 3, 4 and 5 bits"),
    "times": ("Table 7", "seconds of training and of post-pruning"),
    "post-pruning": ("Table 8", "capacity without and with post-pruning, with replay memory"),
    "operations": ("Table 9, figure 4", "operations by bit-width, with and without pruning"),
    "fixed-point": ("Table 10", "accuracy with 4, 8 and 16-bit activations and centroids"),
    "transfer": ("Table 11", "backward and forward transfer"),
    "case-study": ("Figure 2", "bits of the worked example"),
    "masks": ("Figure 3", "masks: which task owns and uses which weights"),
    "matrix-permuted-mnist": ("Figure 5", "accuracy matrix, p-MNIST"),
    "matrix-split-cifar100": ("Figure 6", "accuracy matrix, CIFAR100"),
    "matrix-imagenet100": ("Figure 7", "accuracy matrix, Imagenet-100"),
    "matrix-five-datasets": ("Figure 8", "accuracy matrix, 5 datasets"),
    "matrix-tiny-imagenet": ("Figure 9", "accuracy matrix, TinyImagenet"),
}
"""Every table and figure with numbers: where it stands in the paper, and what it shows."""


def listing() -> str:
    """All tables and figures, one to a line."""
    rows = [(name, where, what) for name, (where, what) in ENTRIES.items()]
    return text_table([*rows, ("–", "Figure 1", "a drawing without numbers")], num_labels=3)


def table(
    name: str,
    run_dirs: Sequence[str | Path] = (),
    *,
    data: str | None = None,
    out: str | Path | None = None,
) -> Table:
    """A table or figure of the paper with the values of the runs in or below the folders.

    Without folders they are the published ones, see `experiments.published`. `data` is the local
    folder of data sets, for what is measured anew on saved models; `out` a folder for pictures.
    """
    if name not in ENTRIES:
        raise SettingError(unknown("table or figure", name, ENTRIES))
    from tinysubnets.experiments.published import final_runs, results_folder
    from tinysubnets.experiments.results import find_runs

    folder = None if run_dirs else results_folder()
    varied = ("tsn.bits",) if name == "bits" else ()
    runs = find_runs(run_dirs) if folder is None else final_runs(folder, varied)
    return _without_data(_filled(name, runs, data, out))


def _without_data(found: Table) -> Table:
    """The table with cells of scenarios whose data nobody here has marked as such."""
    from tinysubnets.paper.numbers import NO_DATA, SCENARIOS
    from tinysubnets.paper.render import NOT_RUN

    def marked(row: tuple[str, ...]) -> tuple[str, ...]:
        for scenario, missing in NO_DATA.items():
            if row[0] == SCENARIOS[scenario] or found.name in (scenario, f"matrix-{scenario}"):
                return tuple(f"no data: {missing}" if c == NOT_RUN else c for c in row)
        return row

    return replace(found, rows=tuple(marked(row) for row in found.rows))


def _filled(name: str, runs: list[Run], data: str | None, out: str | Path | None) -> Table:
    """The table or figure of that name with the values of the runs."""
    from tinysubnets.paper import measured_tables, tables

    if name.startswith("matrix-"):
        scenario = name.removeprefix("matrix-")
        return measured_tables.matrix(runs, scenario, ENTRIES[name][0], out)
    if name == "case-study":
        return measured_tables.case_study()
    if name == "masks":
        return measured_tables.masks(runs, out)
    if name == "post-pruning":
        return measured_tables.post_pruning(runs)
    if name == "operations":
        return measured_tables.operations(runs, data)
    if name == "fixed-point":
        return measured_tables.fixed_point(runs, data)
    from_results = {
        "capacity": tables.capacity,
        "accuracy": tables.accuracy,
        "imagenet100": tables.imagenet100,
        "memory": tables.memory,
        "sparsity": tables.sparsity,
        "bits": tables.bits,
        "times": tables.times,
        "transfer": tables.transfer,
    }
    return from_results[name](runs)


def show(
    name: str,
    run_dirs: Sequence[str | Path] = (),
    *,
    form: str = "text",
    data: str | None = None,
    out: str | Path | None = None,
) -> str:
    """The table as text, Markdown or LaTeX; the name "all" gives every one of them."""
    from tinysubnets.paper.render import render

    names = list(ENTRIES) if name == "all" else [name]
    return "\n".join(render(table(n, run_dirs, data=data, out=out), form) for n in names)
