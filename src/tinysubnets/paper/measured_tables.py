"""Tables and figures whose numbers are measured on the saved models, or compare several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.experiments.metrics import MATRICES
from tinysubnets.experiments.results import Group, Run, Spread, grouped
from tinysubnets.files import friendly_os_errors
from tinysubnets.model.size import worked_example_bits
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.paper import measures, notes
from tinysubnets.paper import numbers as paper
from tinysubnets.paper.measures import Measured
from tinysubnets.paper.operations import Operations, paper_operations
from tinysubnets.paper.render import NOT_RUN, Table
from tinysubnets.paper.tables import (
    TSN,
    kilobytes,
    label,
    method_label,
    ours,
    pick,
    recipe_of,
    show,
)

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.report.drawing import Drawing

NO_DATA = "no model or data"
NOT_KEPT = "not kept"  # of runs from before results had it, whose models are gone


def post_pruning(runs: Sequence[Run]) -> Table:
    """Table 8: capacity without post-pruning, with it, and with replay memory."""
    groups, rows = grouped(runs), []
    kinds = (
        ("without post-pruning", ("tsn-wr-wpp", "tsn-wr")),
        ("with post-pruning", ("tsn-wr",)),
        ("with replay memory", ("tsn",)),
    )
    for scenario, values in paper.POST_PRUNING.items():
        for (item, methods), theirs in zip(kinds, values, strict=True):
            for group in ours(pick(groups, scenario, methods, _fits_variant(item))):
                rows.append(
                    (
                        label(scenario),
                        item,
                        theirs,
                        show(group, lambda r: r.capacity("paper")),
                        show(group, lambda r: r.capacity("file")),
                        kilobytes(group),
                        _iterations(group),
                        "" if group is None else str(group.runs[0].setting_of("tsn", "memory")),
                        recipe_of(group),
                    )
                )
    parts = ("paper", "ours, paper view", "ours, file", "ours, kB", "our iterations", "our memory")
    title = "Table 8: capacity in % by post-pruning and replay memory"
    heads = ("scenario", "variant", *parts, "recipe")
    return Table("post-pruning", title, heads, tuple(rows), notes.POST_PRUNING)


def _fits_variant(item: str) -> Callable[[Run], bool]:
    """Whether a run is of a line of Table 8 by its settings, not by its method's name alone."""
    if item == "without post-pruning":
        return lambda run: not measures.has_post_pruning(run)
    if item == "with post-pruning":
        return measures.has_post_pruning
    return lambda run: (
        measures.has_post_pruning(run) and run.setting_of("tsn", "memory") not in (None, "none")
    )


def _iterations(group: Group | None) -> str:
    if group is None:
        return ""
    run = group.runs[0]
    return str(run.setting_of("pruning", "iterations")) if measures.has_post_pruning(run) else "0"


def operations(runs: Sequence[Run], data: str | None = None) -> Table:
    """Table 9 and figure 4: operations by bit-width, with and without pruning."""
    groups, rows, uncounted = grouped(runs), [], set()
    for scenario, values in paper.OPERATIONS.items():
        for group in ours(pick(groups, scenario, TSN)):
            costs = None if group is None else _counted(group.runs, data)
            uncounted |= {f"{label(scenario)}: {name}" for c in costs or () for name in c.uncounted}
            for kind, theirs in zip(paper.OPERATION_KINDS, values, strict=True):
                cells = _operation_cells(group, costs, kind)
                name = kind if group is None else f"{kind}, {method_label(group)}"
                rows.append((label(scenario), name, f"{theirs:,g}", *cells, recipe_of(group)))
    heads = (
        "scenario",
        "operands",
        "paper, M",
        "ours, paper's convention",
        "ours, counted",
        "recipe",
    )
    title = "Table 9 and figure 4: operations of one sample, in millions"
    more = (f"Layers of a kind that cannot be counted: {', '.join(sorted(uncounted))}.",)
    footnotes = notes.OPERATIONS + (more if uncounted else ())
    return Table("operations", title, heads, tuple(rows), footnotes)


def _counted(runs: Sequence[Run], data: str | None) -> list[Operations] | None:
    """The operations of the first run whose model they were counted on, or can be."""
    found = (Measured(run, data).operations() for run in runs)
    return next((costs for costs in found if costs), None)


def _operation_cells(
    group: Group | None, costs: list[Operations] | None, kind: str
) -> tuple[str, str]:
    """Our count in the paper's convention, and counted in bit operations, in millions."""
    if group is None:
        return NOT_RUN, NOT_RUN
    if not costs:
        return NO_DATA, NO_DATA
    pruned = kind.endswith("+ p")
    free = measures.sparsity(group.runs[0])
    if kind == "float":
        macs = costs[0].macs
        return _millions(paper_operations(macs, None)), f"{_millions(macs)} multiply-adds"
    bits = int(kind.split()[0])
    counted = [c.bit_operations(bits, dense=not pruned) for c in costs]
    mean = _millions(sum(counted) / len(counted))
    if pruned and free is None:
        return "–", mean
    return _millions(paper_operations(costs[0].macs, bits, free or 0.0 if pruned else 0.0)), mean


def _millions(value: float) -> str:
    return f"{value / 1e6:,.2f}"


def fixed_point(runs: Sequence[Run], data: str | None = None) -> Table:
    """Table 10: accuracy with few bits for activations and centroids."""
    groups, rows = grouped(runs), []
    for scenario, values in paper.FIXED_POINT.items():
        for group in ours(pick(groups, scenario, TSN)):
            opened = [] if group is None else [Measured(r, data) for r in group.runs]
            for bits, theirs in values.items():
                cell = NOT_RUN if group is None else _fixed(opened, bits)
                name = f"{bits} bit" if group is None else f"{bits} bit, {method_label(group)}"
                full = show(group, lambda r: r.metric("average_accuracy"))
                rows.append((label(scenario), name, f"{theirs:.2f}", cell, full, recipe_of(group)))
    heads = ("scenario", "operands", "paper", "ours", "ours, float", "recipe")
    title = "Table 10: accuracy in % with activations and centroids in fixed point"
    return Table("fixed-point", title, heads, tuple(rows), notes.FIXED_POINT)


def _fixed(opened: Sequence[Measured], bits: int) -> str:
    known = [v for v in (m.fixed_point(bits) for m in opened) if v is not None]
    return Spread.of(known).show(2, 100) if known else NO_DATA


def matrix(runs: Sequence[Run], scenario: str, where: str, out: str | Path | None = None) -> Table:
    """An accuracy matrix of ours, in place of one of the paper's pictures."""
    name = f"matrix-{scenario}"
    title = f"{where}: accuracy matrix in %, {label(scenario)}"
    groups = pick(grouped(runs), scenario, TSN)
    if not groups:
        return Table(name, title, ("after task", "accuracy"), (("–", NOT_RUN),), notes.MATRIX, 1)
    run = groups[0].runs[0]
    title += f" ({method_label(groups[0])}, {run.recipe}, seed {run.seed})"
    if run.matrix_kind != "full":
        title += f"; measured: {MATRICES.get(run.matrix_kind, 'some cells')}"
    if out is not None:
        from tinysubnets.report.figures import accuracy_matrix

        if (figure := accuracy_matrix(run)) is not None:
            _save(figure.drawing, Path(out), f"{scenario}-{run.method}-matrix")
    heads = ("after task", *(str(i + 1) for i in range(len(run.matrix))))
    rows = tuple(
        (str(i), *("–" if v is None else f"{v * 100:.1f}" for v in row))
        for i, row in enumerate(run.defined_matrix, 1)
    )
    return Table(name, title, heads, rows, notes.MATRIX, 1)


def masks(runs: Sequence[Run], out: str | Path | None = None) -> Table:
    """Figure 3: what each task uses, owns and reuses; pictures go to a folder if one is given."""
    rows: list[tuple[str, ...]] = []
    for group in [g for g in grouped(runs) if g.method in (*TSN, "tsn-wr-wpp")]:
        run = group.runs[0]
        place = f"{run.scenario}, {group.method}, {recipe_of(group)}"
        store = Measured(run).store
        for task in run.tasks:
            bank = "–" if task.get("bank") == NO_BANK else str(task.get("bank"))
            rows.append((place, task["name"], bank, *_shares(task, store)))
        if out is not None and store is not None:
            _save_masks(run, store, Path(out))
    heads = ("run", "task", "bank", "used", "new", "reused")
    title = "Figure 3: masks, shares in %"
    table = tuple(rows) or (("–", NOT_RUN, "", "", "", ""),)
    return Table("masks", title, heads, table, notes.MASKS)


def _shares(task: Mapping[str, Any], store: SubnetStore | None) -> tuple[str, str, str]:
    """What a task uses, has of its own and reuses, in %."""
    used, new = float(task.get("density") or 0.0), task.get("new_share")
    if new is None and store is not None and task["name"] in store.subnets:
        new = store.subnets[task["name"]].num_new / store.layout.num_weights
    if new is None:
        return f"{100 * used:.1f}", NOT_KEPT, NOT_KEPT
    reused = max(0.0, 1 - new / used) if used else 0.0
    return f"{100 * used:.1f}", f"{100 * new:.1f}", f"{100 * reused:.1f}"


def _save_masks(run: Run, store: SubnetStore, out: Path) -> None:
    from tinysubnets.report.model_figures import ownership, task_masks

    stem = f"{run.scenario}-{run.method}"
    for figure in (ownership(store), task_masks(store)):
        if figure is not None:
            _save(figure.drawing, out, f"{stem}-{figure.key}")


def _save(drawing: Drawing, out: Path, stem: str) -> None:
    """Write a picture as SVG."""
    with friendly_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        drawing.save(out / f"{stem}.svg")


def case_study() -> Table:
    """The worked example of the appendix, by our ledger."""
    steps = [32 * 12, *(worked_example_bits(t) for t in ([(8, 2)], [(8, 2), (2, 1)]))]
    counted = [*steps, worked_example_bits([(8, 2), (2, 1), (0, 1)])]
    rows = tuple(
        (name, str(theirs), str(mine))
        for (name, theirs), mine in zip(paper.CASE_STUDY, counted, strict=True)
    )
    title = "Figure 2 and the case study: bits of the worked example"
    return Table("case-study", title, ("step", "paper", "ours"), rows, notes.CASE_STUDY, 1)
