"""The paper's tables with ours beside them, built from runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tinysubnets.experiments.metrics import forward_transfer
from tinysubnets.experiments.results import Group, Run, grouped
from tinysubnets.paper import measures, notes
from tinysubnets.paper import numbers as paper
from tinysubnets.paper.render import NOT_RUN, Table
from tinysubnets.scenarios import SCENARIOS

Measure = Callable[[Run], float | None]
TSN = ("tsn-wr", "tsn")


def pick(
    groups: Sequence[Group],
    scenario: str,
    methods: Iterable[str],
    fits: Callable[[Run], bool] = lambda run: True,
) -> list[Group]:
    """The groups of a scenario and of some methods whose first run fits."""
    wanted = tuple(methods)
    return [g for g in groups if g.scenario == scenario and g.method in wanted and fits(g.runs[0])]


def show(group: Group | None, measure: Measure, digits: int = 2, factor: float = 100.0) -> str:
    """Mean ± deviation (n) of a measure; "not run" without a group, "–" where not defined."""
    return NOT_RUN if group is None else group.show(measure, digits, factor)


def ours(groups: list[Group]) -> Sequence[Group | None]:
    """The groups, or one empty line where nothing was run."""
    return groups or [None]


def recipe_of(group: Group | None) -> str:
    """The recipe of a group, what was changed in it, and which data stand in for others."""
    if group is None:
        return ""
    known = SCENARIOS[group.scenario].datasets if group.scenario in SCENARIOS else ()
    used = group.runs[0].setting_of("data", "datasets") or known
    others = [f"{new} for {old}" for new, old in zip(used, known, strict=False) if new != old]
    return f"{group.label}; STAND-INS: {', '.join(others)}" if others else group.label


def kilobytes(group: Group | None) -> str:
    """What the files of a group weigh."""
    return show(group, lambda run: run.size_bytes, 1, 1e-3)


def _acc(run: Run) -> float | None:
    return run.metric("average_accuracy")


def _routed(group: Group | None, *path: str) -> str:
    """A number of the same models without the task's name; empty where not measured."""
    shown = show(group, lambda r: r.routed(*path))
    return "" if group is None or shown == "–" else shown


def label(scenario: str) -> str:
    """The paper's name of a scenario."""
    return paper.SCENARIOS[scenario]


def accuracy(runs: Sequence[Run]) -> Table:
    """Table 2: accuracy of every method."""
    groups, rows = grouped(runs), []
    for scenario in list(paper.SCENARIOS)[:4]:
        for method, values in paper.ACCURACY.items():
            theirs = paper.scenario_type(method, scenario)
            without = "domain-IL" if scenario in paper.SAME_CLASSES else "class-IL"
            for group in ours(pick(groups, scenario, (method,))):
                known = "" if group is None else group.runs[0].scenario_type
                rows.append(
                    (
                        label(scenario),
                        paper.METHODS[method],
                        f"{values[scenario]:.2f}",
                        show(group, lambda r: r.metric("average_accuracy_over_time")),
                        show(group, _acc),
                        theirs,
                        known,
                        _routed(group, "class-IL", "average_accuracy"),
                        _routed(group, "domain-IL", "average_accuracy"),
                        _routed(group, "entropy_rule", without),
                        _routed(group, "unknown", "auroc"),
                        recipe_of(group),
                    )
                )
    heads = (
        "scenario",
        "method",
        "paper",
        "ours A",
        "ours ACC",
        "scenario type: paper",
        "ours",
        "ours without the task: class-IL",
        "domain-IL",
        "by entropy (SupSup)",
        "unknown inputs, AUROC",
        "recipe",
    )
    return Table("accuracy", "Table 2: accuracy in %", heads, tuple(rows), notes.ACCURACY)


def capacity(runs: Sequence[Run]) -> Table:
    """Table 1: capacity of pruning-based methods."""
    groups, rows = grouped(runs), []
    for scenario in list(paper.SCENARIOS)[:4]:
        for method, values in paper.CAPACITY.items():
            for group in ours(pick(groups, scenario, (method,))):
                star = "*" if (scenario, method) == ("permuted-mnist", "tsn") else ""
                rows.append(
                    (
                        label(scenario),
                        paper.METHODS[method],
                        f"{values[scenario]:.2f}{star}",
                        show(group, lambda r: r.capacity("paper")),
                        show(group, lambda r: r.capacity("printed")),
                        show(group, lambda r: r.capacity("file")),
                        kilobytes(group),
                        recipe_of(group),
                    )
                )
    views = ("ours, paper view", "ours, printed", "ours, file", "ours, kB")
    heads = ("scenario", "method", "paper", *views, "recipe")
    title = "Table 1: capacity in % of the dense float32 weights"
    return Table("capacity", title, heads, tuple(rows), notes.CAPACITY)


def imagenet100(runs: Sequence[Run]) -> Table:
    """Table 3: parameters and accuracy on ImageNet100."""
    groups, rows = grouped(runs), []
    for method, (params, theirs) in paper.IMAGENET100.items():
        quoted = method in ("dytox", "der")
        for group in ours(pick(groups, "imagenet100", (method,))):
            rows.append(
                (
                    paper.METHODS[method],
                    f"{params:.2f}",
                    "quoted" if quoted else show(group, measures.parameters, 2, 1.0),
                    f"{theirs:.2f}",
                    "quoted" if quoted else show(group, _acc),
                    recipe_of(group),
                )
            )
    heads = ("method", "parameters, M: paper", "ours", "accuracy: paper", "ours ACC", "recipe")
    title = "Table 3: ImageNet100, 10 × 10"
    return Table("imagenet100", title, heads, tuple(rows), notes.IMAGENET100, 1)


def memory(runs: Sequence[Run]) -> Table:
    """Table 4: memory by weights, codebooks and masks."""
    groups, rows = grouped(runs), []
    for scenario, theirs in paper.MEMORY.items():
        for group in ours(pick(groups, scenario, TSN)):
            cells = [
                cell
                for part, value in zip(("codes", "codebooks", "masks"), theirs, strict=True)
                for cell in (value, show(group, _share_of(part)))
            ]
            names = (label(scenario), method_label(group))
            rows.append((*names, *cells, kilobytes(group), recipe_of(group)))
    parts = ("weights: paper", "ours", "codebooks: paper", "ours", "masks: paper", "ours")
    title = "Table 4: memory in % of the dense float32 weights"
    heads = ("scenario", "method", *parts, "our file, kB", "recipe")
    return Table("memory", title, heads, tuple(rows), notes.MEMORY)


def _share_of(part: str) -> Measure:
    return lambda run: measures.ledger_share(run, part)


def method_label(group: Group | None) -> str:
    """The paper's name of a group's method."""
    return "TSN-wr" if group is None else paper.METHODS.get(group.method, group.method)


def sparsity(runs: Sequence[Run]) -> Table:
    """Table 5: sparsity before and after post-pruning, and bit-width."""
    groups, rows = grouped(runs), []
    for scenario, (before, after, bits) in paper.SPARSITY.items():
        for group in ours(pick(groups, scenario, TSN)):
            rows.append(
                (
                    label(scenario),
                    method_label(group),
                    f"{before:.2f}",
                    show(group, measures.sparsity_before),
                    f"{after:.2f}",
                    show(group, measures.sparsity),
                    str(bits),
                    show(group, measures.mean_bits, 1, 1.0),
                    recipe_of(group),
                )
            )
    parts = ("before: paper", "ours", "after: paper", "ours", "bits: paper", "ours")
    title = "Table 5: sparsity Υ in %, before and after post-pruning, and bit-width"
    heads = ("scenario", "method", *parts, "recipe")
    return Table("sparsity", title, heads, tuple(rows), notes.SPARSITY)


def bits(runs: Sequence[Run]) -> Table:
    """Table 6: accuracy by the bit-width of weights."""
    groups, rows = grouped(runs), []
    for scenario, values in paper.BIT_WIDTHS.items():
        for width, theirs in values.items():
            chosen = pick(groups, scenario, TSN, lambda r, w=width: _fixed_bits(r) == w)  # type: ignore[misc]
            for group in ours(chosen):
                name = f"{width} bits" if group is None else f"{width} bits, {method_label(group)}"
                rows.append(
                    (label(scenario), name, f"{theirs:.2f}", show(group, _acc), recipe_of(group))
                )
    heads = ("scenario", "weights", "paper", "ours ACC", "recipe")
    title = "Table 6: accuracy in % by the bit-width of weights"
    return Table("bits", title, heads, tuple(rows), notes.BITS)


def _fixed_bits(run: Run) -> int | None:
    value = run.setting_of("tsn", "bits")
    return value if isinstance(value, int) else None


def times(runs: Sequence[Run]) -> Table:
    """Table 7: seconds of training and of post-pruning."""
    groups, rows = grouped(runs), []
    for scenario, (training, pruning) in paper.TIMES.items():
        for group in ours(pick(groups, scenario, (*TSN, "tsn-wr-wpp"))):
            device = "" if group is None else _device(group)
            epochs = "" if group is None else str(group.runs[0].setting_of("training", "epochs"))
            rows.append(
                (
                    label(scenario),
                    method_label(group),
                    f"{training:.0f}",
                    show(group, _seconds_of("training_seconds"), 1, 1.0),
                    f"{pruning:.2f}",
                    show(group, _seconds_of("pruning_seconds"), 1, 1.0),
                    epochs,
                    device,
                    recipe_of(group),
                )
            )
    parts = ("training: paper", "ours", "post-pruning: paper", "ours", "our epochs", "our device")
    title = "Table 7: seconds for all tasks"
    heads = ("scenario", "method", *parts, "recipe")
    return Table("times", title, heads, tuple(rows), notes.TIMES)


def _device(group: Group) -> str:
    """The device of a group, and how many runs shared its machine, where that was recorded."""
    found = group.runs[0].result.get("environment") or {}
    jobs = found.get("jobs", 1)
    return f"{found.get('device', '')}{f', {jobs} runs at once' if jobs > 1 else ''}"


def _seconds_of(key: str) -> Measure:
    return lambda run: measures.total_seconds(run, key)


def _forward(run: Run) -> float | None:
    """FWT as the paper has it: tasks of other classes count too, class index against index."""
    return forward_transfer(run.matrix)


def _forward_minus_chance(run: Run) -> float | None:
    recorded = run.metric("forward_transfer_minus_chance")
    classes = [len(task.get("classes") or ()) for task in run.tasks]
    return forward_transfer(run.matrix, classes) if all(classes) else recorded


def transfer(runs: Sequence[Run]) -> Table:
    """Table 11: forward and backward transfer."""
    groups, rows = grouped(runs), []
    for scenario, (backward, forward) in paper.TRANSFER.items():
        for group in ours(pick(groups, scenario, TSN)):
            rows.append(
                (
                    label(scenario),
                    method_label(group),
                    f"{backward:.1f}",
                    show(group, lambda r: r.metric("backward_transfer"), 4, 1.0),
                    "–" if forward is None else f"{forward:.3f}",
                    show(group, _forward, 3, 1.0),
                    show(group, _forward_minus_chance, 3, 1.0),
                    recipe_of(group),
                )
            )
    parts = ("BWT: paper", "ours", "FWT: paper", "ours", "ours − chance")
    title = "Table 11: backward and forward transfer, as fractions of 1"
    heads = ("scenario", "method", *parts, "recipe")
    return Table("transfer", title, heads, tuple(rows), notes.TRANSFER)
