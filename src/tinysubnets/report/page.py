"""The page: numbers, pictures and tables of some runs, put into one HTML text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from tinysubnets.experiments.results import Group, Run, Spread, grouped
from tinysubnets.report import theme
from tinysubnets.report.axes import size_text
from tinysubnets.report.drawing import Drawing
from tinysubnets.report.pictures import Figure, accuracy_over_time, comparison, run_figures
from tinysubnets.report.scatter import Dot
from tinysubnets.scenarios import SCENARIOS
from tinysubnets.version import __version__

DETAILED = 8  # at most so many groups get pictures of their own

Tile = dict[str, str]


def build(runs: Sequence[Run]) -> tuple[str, dict[str, Drawing]]:
    """The page as text, and all its drawings by the names of their files."""
    groups = grouped(runs)
    found = [comparison(runs, references(runs))]
    if len(groups) > 1:
        found.append(accuracy_over_time(runs))
    overview = [figure for figure in found if figure is not None]
    sections = [_section(group) for group in groups[:DETAILED]]
    for number, section in enumerate(sections):
        # Groups that differ in settings alone must not overwrite each other's pictures.
        if section["slug"] in {s["slug"] for s in sections[:number]}:
            section["slug"] += f"-{number + 1}"
    drawings = {f.key: f.drawing for f in overview}
    for section in sections:
        prefix = "" if len(sections) == 1 else f"{section['slug']}-"
        drawings |= {f"{prefix}{f.key}": f.drawing for f in section["figures"]}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_file("page.html.j2"))
    text = template.render(
        title=", ".join(dict.fromkeys(r.scenario for r in runs)),
        lead=lead(runs, groups),
        tiles=tiles(groups[0]) if len(groups) == 1 else [],
        table=comparison_table(groups) if len(runs) > 1 else [],
        overview=overview,
        sections=sections,
        omitted=max(0, len(groups) - DETAILED),
        version=__version__,
        style=_file("page.css")
        .replace("/*light*/", theme.variables(theme.LIGHT))
        .replace("/*dark*/", theme.variables(theme.DARK)),
    )
    return text, drawings


def _file(name: str) -> str:
    return resources.files("tinysubnets.report").joinpath(name).read_text(encoding="utf-8")


def lead(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """One sentence that says what was run and what came of it."""
    first = runs[0]
    tasks = f"{len(first.tasks)} tasks" if len(first.tasks) != 1 else "One task"
    if len(groups) > 1:
        methods = len({g.method for g in groups})
        kinds = f"{methods} methods" if methods > 1 else f"{len(groups)} recipes"
        settings = ", ".join(dict.fromkeys(run.scenario_type for run in runs))
        return f"{kinds} compared in {len(runs)} runs, {tasks} each, {settings}."
    accuracy = groups[0].spread(lambda r: r.metric("average_accuracy"))
    shown = f"{accuracy.mean * 100:.1f} % mean accuracy" if accuracy else "no accuracy"
    forgetting = groups[0].spread(lambda r: r.metric("forgetting"))
    kept = (
        "nothing forgotten"
        if forgetting is None or forgetting.mean == 0
        else f"{forgetting.mean * 100:.1f} points forgotten"
    )
    size = groups[0].spread(lambda r: r.size_bytes)
    weighs = f", {size_text(size.mean)} in all" if size else ""
    return f"{tasks} in one network by {first.method}: {shown}, {kept}{weighs}."


def tiles(group: Group) -> list[Tile]:
    """The few numbers that stand at the top."""
    run = group.runs[0]
    banks = len({t["bank"] for t in run.tasks if t.get("bank") is not None})
    candidates = [
        _tile(
            group.spread(lambda r: r.metric("average_accuracy")), "mean accuracy (ACC)", 100, "%"
        ),
        _tile(
            group.spread(lambda r: r.metric("backward_transfer")), "backward transfer", 100, "pts"
        ),
        _tile(group.spread(lambda r: r.capacity("file")), "file, of dense float32", 100, "%"),
        _tile(group.spread(lambda r: r.capacity("paper")), "paper's capacity", 100, "%"),
    ]
    out = [t for t in candidates if t]
    size = group.spread(lambda r: r.size_bytes)
    if size:
        number, unit = size_text(size.mean).split(" ")
        out.append({"value": number, "unit": unit, "label": "size", "detail": ""})
    many = f"{banks} bank{'s' if banks != 1 else ''}" if banks else ""
    out.append({"value": str(len(run.tasks)), "unit": "", "label": "tasks", "detail": many})
    return out


def _tile(spread: Spread | None, label: str, factor: float, unit: str) -> Tile | None:
    if spread is None:
        return None
    value = spread.mean * factor
    digits = 1 if unit == "%" else 2
    detail = f"± {spread.std * factor:.{digits}f}, {spread.count} runs" if spread.count > 1 else ""
    return {"value": f"{value:.{digits}f}", "unit": unit, "label": label, "detail": detail}


def comparison_table(groups: Sequence[Group]) -> list[dict[str, str]]:
    """One line per group: mean ± deviation over its seeds."""

    def show(spread: Spread | None, digits: int, factor: float = 1.0) -> str:
        if spread is None:
            return "–"
        return spread.show(digits, factor).rpartition(" (")[0]

    rows = []
    for group in groups:
        size = group.spread(lambda r: r.size_bytes)
        rows.append(
            {
                "method": group.method,
                "recipe": group.label,
                "setting": group.runs[0].scenario_type,
                "runs": str(len(group.runs)),
                "accuracy": show(group.spread(lambda r: r.metric("average_accuracy")), 2, 100),
                "backward": show(group.spread(lambda r: r.metric("backward_transfer")), 2, 100),
                "file": show(group.spread(lambda r: r.capacity("file")), 1, 100),
                "size": size_text(size.mean) if size else "–",
                "seconds": show(group.spread(_seconds), 0),
            }
        )
    return rows


def _seconds(run: Run) -> float | None:
    value = run.result.get("seconds")
    return None if value is None else float(value)


def _section(group: Group) -> dict[str, Any]:
    """One group's part of the page, shown by its run with the lowest seed."""
    run = group.runs[0]
    figures: list[Figure] = run_figures(run)
    recipe = group.recipe.replace("/", "-").removesuffix(".toml")
    setting = run.scenario_type.removesuffix("-IL")
    # The task is known unless a method is named with another setting, as `tsn compare` does.
    method = group.method if setting == "task" else f"{group.method}:{setting}"
    return {
        "heading": method,
        "slug": f"{group.scenario}-{method.replace(':', '-')}-{recipe}",
        "note": f"{group.scenario}, recipe {group.label}, seed {run.seed}, {run.scenario_type}",
        "figures": figures,
        "tasks": [_task_row(i, t) for i, t in enumerate(run.tasks, 1)],
        "notes": [str(n) for n in run.result.get("notes") or []],
        "settings": list(flat(run.settings)),
        "environment": list(flat(run.result.get("environment") or {})),
    }


def _task_row(number: int, task: Mapping[str, Any]) -> dict[str, str]:
    def share(key: str) -> str:
        return "–" if task.get(key) is None else f"{task[key] * 100:.1f} %"

    def seconds(key: str) -> str:
        return "–" if task.get(key) is None else f"{task[key]:.1f}"

    return {
        "number": str(number),
        "name": str(task["name"]),
        "accuracy": share("final_accuracy") if "final_accuracy" in task else share("accuracy"),
        "bank": "–" if task.get("bank") is None else str(task["bank"]),
        "bits": "–" if task.get("bits") is None else str(task["bits"]),
        "density": share("density"),
        "owned": f"{share('owned_before_pruning')} → {share('owned_after_pruning')}",
        "training": seconds("training_seconds"),
        "pruning": seconds("pruning_seconds"),
        "reason": str(task.get("reason") or ""),
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names and texts."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield name, "none" if value is None else str(value)


def _is_whole(run: Run) -> bool:
    """Whether a run has the scenario's own data and tasks: fewer tasks take fewer bytes."""
    known = SCENARIOS.get(run.scenario)
    if known is None or not known.datasets:
        return False
    data = run.setting_of("data") or {}
    used = tuple(data.get("datasets") or [data.get("dataset")])
    tasks, classes = map(int, known.tasks.split(" x "))
    return used == known.datasets and [len(t["classes"]) for t in run.tasks] == [classes] * tasks


def references(runs: Sequence[Run]) -> list[Dot]:
    """The paper's own points for the scenario, where all runs are of all tasks of one it has."""
    from tinysubnets.paper.numbers import ACCURACY, CAPACITY

    if not all(_is_whole(r) for r in runs):
        return []
    names = {r.scenario for r in runs}
    weights = {(r.result.get("ledger") or {}).get("num_weights") for r in runs}
    scenario = next(iter(names))
    if len(names) != 1 or len(weights) != 1 or None in weights:
        return []
    dense = 4.0 * float(next(iter(weights)))  # type: ignore[arg-type]
    dots = []
    for method, label in (("wsn", "WSN"), ("tsn-wr", "TSN-wr"), ("tsn", "TSN")):
        accuracy, capacity = ACCURACY[method].get(scenario), CAPACITY[method].get(scenario)
        if accuracy is None or capacity is None:
            continue
        note = f"{label} in the paper: {accuracy} % at {capacity} %"
        place = (capacity / 100 * dense, accuracy / 100)
        dots.append(Dot(*place, "faint", f"{label}, paper", "disc", True, 5.0, note))
    return dots
