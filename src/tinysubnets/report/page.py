"""The page: numbers, pictures and tables of some runs, put into one HTML text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import jinja2

from tinysubnets import __version__
from tinysubnets.experiments.metrics import parts_told, where_not_test
from tinysubnets.experiments.results import Group, Run, flat, grouped
from tinysubnets.experiments.tables import size_text
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.report import figures, theme
from tinysubnets.report.drawing import Drawing, Figure
from tinysubnets.text import for_terminal

DETAILED = 8  # at most so many groups get pictures of their own
MAX_LISTED = 6  # classes of a task that its line of the table names

Measure = Callable[[Run], float | None]


class Column(NamedTuple):
    """A column of a table: its heading, the CSS classes of its cells, and what stands in them."""

    heading: str
    kind: str
    show: Callable[[Any], str]


def build(runs: Sequence[Run]) -> tuple[str, dict[str, Drawing]]:
    """The page as text, and all its drawings by the names of their files."""
    groups = grouped(runs)
    overview = figures.of_all(runs)
    sections = [_section(group) for group in groups[:DETAILED]]
    for number, section in enumerate(sections):
        # Groups that differ in settings alone must not overwrite each other's pictures.
        if section["slug"] in {s["slug"] for s in sections[:number]}:
            section["slug"] += f"-{number + 1}"
    drawings = {f.key: f.drawing for f in overview}
    for section in sections:
        prefix = "" if len(sections) == 1 else f"{section['slug']}-"
        shown = [*section["figures"], *section["classes"]]
        drawings |= {f"{prefix}{f.key}": f.drawing for f in shown}
    style = _file("page.css").replace("/*light*/", theme.variables(theme.LIGHT))
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.from_string(_file("page.html.j2")).render(
        title=title(runs),
        lead=lead(runs, groups),
        tiles=tiles(groups[0]) if len(groups) == 1 else [],
        groups=groups if len(runs) > 1 else [],
        hint=hint(groups),
        group_columns=(*GROUP_COLUMNS, *([MEASURED_ON] if any(map(_where, groups)) else [])),
        routed=[g for g in groups if g.spread(lambda r: r.routed("class-IL", "average_accuracy"))],
        routed_columns=ROUTED_COLUMNS,
        task_columns=TASK_COLUMNS,
        rung_columns=RUNG_COLUMNS,
        overview=overview,
        sections=sections,
        balanced=balanced,
        omitted=max(0, len(groups) - DETAILED),
        version=__version__,
        style=style.replace("/*dark*/", theme.variables(theme.DARK)),
    )
    return text, drawings


def _harmless(value: Any) -> Any:
    """Text without controls and turned writing, which escaping leaves; markup as it is."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return for_terminal(value, keep="\n") if is_text else value


def _file(name: str) -> str:
    return resources.files("tinysubnets.report").joinpath(name).read_text(encoding="utf-8")


def title(runs: Sequence[Run]) -> str:
    """The run's own name, or what several runs have learned."""
    if len(runs) == 1:
        return runs[0].name
    return ", ".join(dict.fromkeys(run.subject for run in runs))


def balanced(shown: Sequence[Figure]) -> tuple[Sequence[Figure], Sequence[Figure]]:
    """Figures for two columns that end about together, in their order."""
    heights = [_height(figure) for figure in shown]
    split = min(
        range(len(shown) + 1), key=lambda i: abs(sum(heights[:i]) - sum(heights[i:])), default=0
    )
    return shown[:split], shown[split:]


def _height(figure: Figure) -> float:
    """About how tall a figure's card is on a desk: its picture, its caption, and the rest."""
    lines = -(-len(figure.caption) // 78)
    return 1.3 * figure.drawing.height + 21 * lines + 112


def lead(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """One sentence that says what was run and what came of it."""
    first = runs[0]
    if len(groups) > 1:
        methods = len({g.method for g in groups})
        kinds = f"{methods} methods" if methods > 1 else f"{len(groups)} recipes"
        settings = ", ".join(dict.fromkeys(run.scenario_type for run in runs))
        least, most = min(len(r.tasks) for r in runs), max(len(r.tasks) for r in runs)
        tasks = f"{least} to {most} tasks" if least < most else _tasks(most)
        return f"{kinds} compared in {len(runs)} runs of {tasks}, {settings}."
    accuracy = groups[0].spread(lambda r: r.metric("average_accuracy"))
    shown = f"{accuracy.mean * 100:.1f} % mean accuracy" if accuracy else "no accuracy"
    shown += _where(groups[0]) if accuracy else ""
    lost = groups[0].spread(lambda r: r.metric("forgetting"))
    kept = f"{lost.mean * 100:.1f} points forgotten" if lost and lost.mean else "nothing forgotten"
    if any(run.matrix_kind != "full" for run in runs):
        kept = "forgetting not measured"
    size = groups[0].spread(lambda r: r.size_bytes)
    weighs = f" in {size_text(size.mean)}" if size else " in one network"
    dense = dense_bytes(first)
    if size and dense:
        weighs += f" instead of {size_text(dense)} for one dense network"
    tasks = _tasks(len(first.tasks)).capitalize()
    told = shown if len(first.tasks) == 1 else f"{shown}, {kept}"  # one task forgets nothing
    return f"{tasks}{weighs}, by {first.method}: {told}."


def _tasks(count: int) -> str:
    return f"{count} tasks" if count != 1 else "one task"


def hint(groups: Sequence[Group]) -> str:
    """How to read the numbers of a comparison; empty where they need no explanation."""
    told = []
    if any(len(group.runs) > 1 for group in groups):
        told.append("Mean ± standard deviation over seeds.")
    if any(_where(group) for group in groups):
        told.append("Not all accuracies are of test data: see the column “measured on”.")
    return " ".join(told)


def _where(group: Group) -> str:
    """What is to be said behind a group's accuracy where it is not of test data alone."""
    return where_not_test(_parts(group))


def _parts(group: Group) -> list[str]:
    return sorted({part for run in group.runs for part in run.measured_on})


def dense_bytes(run: Run) -> float | None:
    """What the shared weights of one dense network take as 32-bit numbers."""
    weights = (run.result.get("ledger") or {}).get("num_weights")
    return 4.0 * weights if weights else None


def tiles(group: Group) -> list[dict[str, str]]:
    """The few numbers that stand at the top."""
    out = []
    for label, unit, digits, measure in (
        (f"mean accuracy (ACC){_where(group)}", "%", 1, lambda r: r.metric("average_accuracy")),
        ("backward transfer (BWT)", "pts", 2, lambda r: r.metric("backward_transfer")),
        ("file size, of a dense network", "%", 1, lambda r: r.capacity("file")),
    ):
        spread = group.spread(measure)
        if spread:
            deviation = f"± {spread.std * 100:.{digits}f}, {spread.count} runs"
            detail = deviation if spread.count > 1 else ""
            out.append(_tile(label, f"{spread.mean * 100:.{digits}f}", unit, detail))
    out += _without_task(group)
    size, dense = group.spread(lambda r: r.size_bytes), dense_bytes(group.runs[0])
    if size:
        instead = f"instead of {size_text(dense)}" if dense else ""
        value, unit = size_text(size.mean).split(" ")
        out.insert(0, _tile("file", value, unit, instead))
    tasks = group.runs[0].tasks
    banks = len({t.get("bank") for t in tasks} - {None, NO_BANK})
    many = f"{banks} bank{'s' if banks != 1 else ''}" if banks else ""
    return [*out, _tile("tasks", str(len(tasks)), "", many)]


def _without_task(group: Group) -> list[dict[str, str]]:
    """The tile of what the models are worth without the task's name, where that was measured."""
    found = group.spread(lambda r: r.routed("task_accuracy"))
    shares = {
        "domain-IL": group.spread(lambda r: r.routed("domain-IL", "average_accuracy")),
        "class-IL": group.spread(lambda r: r.routed("class-IL", "average_accuracy")),
    }
    run = group.runs[0]
    if found is None or run.scenario_type != "task-IL" or len(run.tasks) < 2:
        return []
    for kind, share in shares.items():
        if share is not None:
            price = f", passes: {group.passes}" if group.passes else ""
            detail = f"{kind}, task found {found.mean * 100:.1f} %{price}"
            return [_tile("without the task's name", f"{share.mean * 100:.1f}", "%", detail)]
    return []


def _tile(label: str, value: str, unit: str = "", detail: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "unit": unit, "detail": detail}


def _mean(measure: Measure, digits: int, factor: float = 1.0) -> Callable[[Group], str]:
    """What shows a group's mean ± deviation over its seeds."""

    return lambda group: group.show(measure, digits, factor).partition(" (")[0]


def _size(group: Group) -> str:
    size = group.spread(lambda r: r.size_bytes)
    return size_text(size.mean) if size else "–"


GROUP_COLUMNS = (  # what matters stands first: a phone shows the first columns only
    Column("method", "name", lambda g: g.method),
    Column("accuracy, %", "n strong", _mean(lambda r: r.metric("average_accuracy"), 2, 100)),
    Column("size", "n", _size),
    Column("file, % of dense", "n", _mean(lambda r: r.capacity("file"), 1, 100)),
    Column(
        "backward transfer, points", "n", _mean(lambda r: r.metric("backward_transfer"), 2, 100)
    ),
    Column("seconds", "n", _mean(lambda r: r.result.get("seconds"), 0)),
    Column("runs", "n", lambda g: str(len(g.runs))),
    Column("setting", "", lambda g: g.runs[0].scenario_type),
    Column("recipe", "long", lambda g: g.label),
)

ROUTED_COLUMNS = (  # what is measured without the task's name
    Column("method", "name", lambda g: g.method),
    Column("class-IL, %", "n", _mean(lambda r: r.routed("class-IL", "average_accuracy"), 2, 100)),
    Column(
        "class-IL BWT, points",
        "n",
        _mean(lambda r: r.routed("class-IL", "backward_transfer"), 2, 100),
    ),
    Column("domain-IL, %", "n", _mean(lambda r: r.routed("domain-IL", "average_accuracy"), 2, 100)),
    Column(
        "domain-IL BWT, points",
        "n",
        _mean(lambda r: r.routed("domain-IL", "backward_transfer"), 2, 100),
    ),
    Column(
        "class-IL by entropy (SupSup), %",
        "n",
        _mean(lambda r: r.routed("entropy_rule", "class-IL"), 2, 100),
    ),
    Column("unknown inputs, AUROC %", "n", _mean(lambda r: r.routed("unknown", "auroc"), 2, 100)),
    Column("passes of networks", "n", lambda g: g.passes or "–"),
    Column("recipe", "long", lambda g: g.label),
)


MEASURED_ON = Column("measured on", "", lambda g: f"{parts_told(_parts(g))} data")


def _field(key: str, form: str = "{}", factor: float = 1) -> Callable[[Mapping[str, Any]], str]:
    """What shows something recorded of a task."""
    return lambda task: "–" if task.get(key) is None else form.format(task[key] * factor)


def _percent(key: str) -> Callable[[Mapping[str, Any]], str]:
    return _field(key, "{:.1f} %", 100)


def _accuracy(task: Mapping[str, Any]) -> str:
    return _percent("final_accuracy" if "final_accuracy" in task else "accuracy")(task)


def _owned(task: Mapping[str, Any]) -> str:
    return " → ".join(_percent(f"owned_{when}_pruning")(task) for when in ("before", "after"))


def _listed(classes: Sequence[Any]) -> str:
    """The first names of some classes, and how many more there are."""
    more = len(classes) - MAX_LISTED
    names = ", ".join(map(str, classes[:MAX_LISTED] if more > 1 else classes))
    return f"{names} and {more} more" if more > 1 else names


TASK_COLUMNS = (
    Column("#", "n", _field("number")),
    Column("task", "name", _field("name")),
    Column("accuracy", "n strong", _accuracy),
    Column("classes", "long", lambda task: _listed(task.get("classes") or [])),
    Column("bank", "n", _field("bank")),
    Column("bits", "n", _field("bits")),
    Column("density", "n", _percent("density")),
    Column("owned, before → after pruning", "n", _owned),
    Column("training,\u00a0s", "n", _field("training_seconds", "{:.1f}")),
    Column("pruning,\u00a0s", "n", _field("pruning_seconds", "{:.1f}")),
    Column("bank decision", "reason", lambda task: task.get("reason") or ""),
)


def _gain(rung: Mapping[str, Any]) -> str:
    return "–" if rung["first"] else _field("gain", "{:+.2f}")(rung)


RUNG_COLUMNS = (
    Column("task", "name", _field("task")),
    Column("rung", "", _field("name")),
    Column("validation accuracy", "n", _percent("valid_accuracy")),
    Column("gain, points", "n", _gain),
    Column("more bytes", "n", _field("extra_bytes", "{:,}")),
    Column("climbed", "", lambda rung: "yes" if rung.get("taken") else "no"),
    Column("training,\u00a0s", "n", _field("seconds", "{:.1f}")),
)


def _rungs(tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each rung gave that tasks tried, in the order of trying."""
    return [
        dict(rung) | {"task": task["name"] if not place else "", "first": not place}
        for task in tasks
        for place, rung in enumerate(task.get("rungs") or ())
    ]


def _slug(text: str) -> str:
    """The text as the beginning of a file's name: a result may have anything in its names."""
    return re.sub(r"[^\w.]+", "-", text, flags=re.ASCII)[:100]


def _section(group: Group) -> dict[str, Any]:
    """One group's part of the page, shown by its run with the lowest seed."""
    run = group.runs[0]
    recipe = group.recipe.removesuffix(".toml")
    setting = run.scenario_type.removesuffix("-IL")
    # The task is known unless a method is named with another setting, as `tsn compare` does.
    method = group.method if setting == "task" else f"{group.method}:{setting}"
    environment = run.result.get("environment") or {}
    return {
        "heading": method,
        "slug": _slug(f"{group.scenario}-{method}-{recipe}"),
        "note": f"{group.scenario}, recipe {group.label}, seed {run.seed}, {run.scenario_type}",
        "notes": run.result.get("notes") or [],
        "figures": figures.of_run(run),
        "classes": figures.classes(run),
        "tasks": [task | {"number": i} for i, task in enumerate(run.tasks, 1)],
        "rungs": _rungs(run.tasks),
        "details": {"Settings": flat(run.settings), "Environment": flat(environment)},
    }
