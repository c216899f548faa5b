"""Published runs: one small JSON file for each, in `results/<table>/<run>.json`.

A file is a run's `result.json` without what no table needs (confusions of classes, ledgers of
single tasks) and with the commit that made it. README, docs and `tsn paper` are written from these
files.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from tinysubnets.errors import RunError
from tinysubnets.experiments.results import Run, changes, checked_run, effective
from tinysubnets.experiments.run_dir import plain
from tinysubnets.files import atomic_write, read

COMMIT_VARIABLE = "TINYSUBNETS_COMMIT"
MAX_BYTES = 5_000_000  # of all files together
CUT_SHORT = ("choose-", "grid-")  # tables of runs with fewer tasks, images or epochs
# Tables of runs that do not measure a whole scenario by a recipe as it is: cut short, longer,
# without an ingredient, at other densities, on other data.
ASIDE = (*CUT_SHORT, "ablation-", "blind-", "curves-", "long-", "spread-", "unlike-")
# What a run beside the paper's numbers may have otherwise than its recipe: how it computes, and
# data in place of those that are not at hand, which the tables mark.
_MAY_DIFFER = frozenset({"training.precision", "training.engine", "data.datasets"})
_KEPT = (
    "format", "library", "scenario", "method", "recipe", "seed", "scenario_type", "measured_on",
    "settings", "accuracy_matrix", "matrix", "metrics", "capacity", "free_share", "notes",
    "environment", "seconds", "measured_on_model",
)  # fmt: skip
_OF_TASK = (
    "name", "classes", "samples", "accuracy", "final_accuracy", "valid_accuracy", "best_epoch",
    "training_seconds", "bank", "bits", "density", "new_share", "owned_before_pruning",
    "owned_after_pruning", "pruning_seconds",
)  # fmt: skip
_OF_LEDGER = ("unit", "masks_from", "total", "raw_mask_bits", "num_weights", "file_bytes")


def source_tree() -> Path | None:
    """The folder of the source tree that this package runs from; None where it is installed."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() else None


def results_folder() -> Path | None:
    """The published runs of the source tree; None where there is none, as in an installation."""
    root = source_tree()
    return root / "results" if root is not None and (root / "results").is_dir() else None


def current_commit() -> str | None:
    """The commit of the source tree, with "+" behind it where files were changed since.

    TINYSUBNETS_COMMIT goes before it, for a copy of the tree without its history.
    """
    if given := os.environ.get(COMMIT_VARIABLE):
        return given
    root = source_tree()
    if root is None:
        return None
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        dirty = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"], capture_output=True)
    except OSError:
        return None
    return (
        f"{head.stdout.strip()[:12]}{'+' if dirty.returncode else ''}"
        if not head.returncode
        else None
    )


LONG = 20  # tasks from which on a published run says what each of them weighs


def published(result: Mapping[str, Any], commit: str | None = None) -> dict[str, Any]:
    """What is published of a run's result.

    - `commit`: the one that made it; what the result itself says goes before it.
    """
    out = {k: result[k] for k in _KEPT if k in result}
    out["commit"] = result.get("commit") or commit
    out["tasks"] = [{k: task[k] for k in _OF_TASK if k in task} for task in result["tasks"]]
    ledger = result.get("ledger") or {}
    out["ledger"] = {k: ledger[k] for k in _OF_LEDGER if k in ledger}
    if len(out["tasks"]) >= LONG and "tasks" in ledger:
        out["ledger"]["tasks"] = ledger["tasks"]
    out["without_task"] = _without_task(result.get("without_task"))
    decisions = (result.get("divergence") or {}).get("decisions") or {}
    out["banks"] = {name: d.get("bank") for name, d in decisions.items()}
    return _rounded(out)


def _without_task(found: Any) -> dict[str, Any] | None:
    """The averages of what was measured without the task's name."""
    if not isinstance(found, dict):
        return None
    out: dict[str, Any] = {k: found.get(k) for k in ("rule", "passes", "task_accuracy")}
    for kind in ("class-IL", "domain-IL"):
        own = found.get(kind)
        numbers = ("average_accuracy", "backward_transfer", "forgetting")
        out[kind] = {k: own.get(k) for k in numbers} if isinstance(own, dict) else None
    out["unknown"] = {"auroc": (found.get("unknown") or {}).get("auroc")}
    out["entropy_rule"] = found.get("entropy_rule")
    if isinstance(found.get("together"), dict):
        out["together"] = found["together"]
    if isinstance(found.get("confusion"), list) and len(found["confusion"]) < LONG:
        out["confusion"] = found["confusion"]  # of tasks: a few numbers
    return out


def _rounded(value: Any) -> Any:
    """Plain data with six digits after the point: a millionth of an accuracy."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    # Settings such as 1e-05 have few digits, and keep them.
    return round(value, 6) if isinstance(value, float) and abs(value) > 1e-3 else value


def publish(result: Mapping[str, Any], path: Path, commit: str | None = None) -> Path:
    """Write a run's result to its file, atomically; gives the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = plain(published(result, commit))
    atomic_write(path, (json.dumps(data, allow_nan=False) + "\n").encode())
    return path


def read_tables(folder: Path) -> dict[str, list[Run]]:
    """All published runs below a folder, by their table."""
    tables = {}
    for table in sorted(p for p in folder.iterdir() if p.is_dir()):
        if runs := [read_file(path) for path in sorted(table.glob("*.json"))]:
            tables[table.name] = runs
    return tables


def final_runs(folder: Path, varied: Collection[str] = ()) -> list[Run]:
    """The published runs that stand beside the paper's numbers, those by its own recipes first.

    Of our methods these are runs by `paper/*` and `best/*` as they are shipped. A rival's are its
    rows of the main table, where all methods have one network and the dial that validation chose;
    ours of that table have recipes of their own. Runs of the tables `ASIDE` are left out.

    - `varied`: settings that may differ from the recipe as well.
    """
    tables = read_tables(folder)
    whole = {name: runs for name, runs in tables.items() if not name.startswith(ASIDE)}
    found = [r for name, runs in whole.items() for r in runs if _is_final(name, r, varied)]
    return sorted(found, key=lambda r: not r.recipe.startswith("paper/"))


def _is_final(table: str, run: Run, varied: Collection[str]) -> bool:
    if run.method.startswith("tsn"):
        return not table.startswith("main-") and changes(run).keys() <= _MAY_DIFFER | set(varied)
    # Such as "naive" and "naive-class-IL", but not "wsn-same-codec".
    return label_of(run) in (run.method, f"{run.method}-{run.scenario_type}")


def read_file(path: Path) -> Run:
    """One published run; its folder is the file's path without the ending."""
    try:
        result = json.loads(read(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    return checked_run(path.with_suffix(""), path, result)


# --------------------------------------------------------------------------------------------------
# What tables are made of: runs of one label over seeds, and differences between two labels.


def label_of(run: Run) -> str:
    """What a run is called in its table: its file's name without its seeds.

    A seed of the data that is set apart goes before the run's own: `<label>-data3-s0`.
    """
    return re.sub(r"-data\d+$", "", run.folder.name.removesuffix(f"-s{run.seed}"))


def by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of one table by their label, those of a label by their seed.

    All runs of a label must have the same settings: a mean over others would be of nothing.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(label_of(run), []).append(run)
    for members in groups.values():
        for one, other in combinations(members, 2):
            _check_alike(one, other)
    return {k: sorted(v, key=lambda r: r.seed) for k, v in groups.items()}


def _kind(run: Run) -> dict[str, Any]:
    """What a run is of, beside its settings."""
    kept = ("scenario", "method", "recipe", "scenario_type", "measured_on")
    return {name: run.result[name] for name in kept if name in run.result}


def _check_alike(one: Run, other: Run) -> None:
    """Refuse two runs of a label whose settings differ; a setting that one lacks is a newer one."""
    known, found = (effective(run.settings) | _kind(run) for run in (one, other))
    for name in known.keys() & found.keys() - {"training.engine", "data.seed"}:
        if known[name] != found[name]:
            raise RunError(
                f"{one.folder.name} and {other.folder.name} share a label and differ in {name}: "
                f"{known[name]} and {found[name]}. Give one another name, or run it again."
            )


def accuracies(runs: Iterable[Run]) -> dict[int, float]:
    """The average accuracy of each run by its seed, in %."""
    found = {r.seed: r.metric("average_accuracy") for r in runs}
    return {seed: 100 * value for seed, value in found.items() if value is not None}


def valid_accuracy(run: Run) -> float | None:
    """The mean validation accuracy of the tasks as they are stored, in %."""
    values = [t["valid_accuracy"] for t in run.tasks if t.get("valid_accuracy") is not None]
    return 100 * sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Difference:
    """A mean of differences, seed by seed, and its 95 % t-interval; None of one seed alone."""

    mean: float
    half_width: float | None
    count: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    def __str__(self) -> str:
        sign = "+" if self.mean >= 0 else "−"
        spread = "" if self.half_width is None else f" ± {self.half_width:.2f}"
        return f"{sign}{abs(self.mean):.2f}{spread}"


def paired_difference(ones: Mapping[int, float], others: Mapping[int, float]) -> Difference | None:
    """How far `ones` lie above `others`, by the seeds that both have; None where there are none.

    >>> str(paired_difference({0: 1.0, 1: 2.0, 2: 3.5}, {0: 0.0, 1: 1.5, 2: 2.5, 3: 9.0}))
    '+0.83 ± 0.72'
    """
    seeds = sorted(ones.keys() & others.keys())
    if not seeds:
        return None
    values = [ones[s] - others[s] for s in seeds]
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Difference(mean, None, 1)
    from scipy.stats import t

    variance = math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
    quantile = float(t.ppf(0.975, len(values) - 1))
    return Difference(mean, quantile * math.sqrt(variance / len(values)), len(values))
