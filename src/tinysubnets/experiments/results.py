"""The result of a run as plain data: `result.json`; docs/RESULTS.md describes every field."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets import __version__, config
from tinysubnets.errors import RunError
from tinysubnets.experiments import metrics
from tinysubnets.experiments.methods import METHODS
from tinysubnets.experiments.result_kinds import (
    CAPACITY_VIEWS,
    NEEDED,
    OF_EPOCH,
    check_kinds,
    first_wrong,
)
from tinysubnets.experiments.run_dir import plain
from tinysubnets.files import read

if TYPE_CHECKING:
    import numpy as np

    from tinysubnets.experiments.recipe import Plan
    from tinysubnets.method.base import Learner
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.nn.architecture import Architecture


FORMAT = 1
_names_run_here: set[str] = set()  # of the networks of runs that this process has made
MAX_CONFUSED = 50  # classes up to which a result has the counts of all pairs


def build(
    plan: Plan,
    learner: Learner,
    probes: Sequence[metrics.Probe],
    sizes: Sequence[dict[str, int]],
    matrix: list[metrics.Row],
    confusions: Sequence[np.ndarray],
    model_bytes: int | None,
    without_task: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything a run came to; seconds are the only numbers that differ when it is repeated.

    - `confusions`: of every task at the end, counts [true class, answered class].
    - `without_task`: what `experiments.routing` measured.
    """
    _names_run_here.add(str(plan.recipe.network.get("name")))
    weighed, store = learner.ledger(), learner.store
    if model_bytes is not None and weighed.file_bytes is None:
        weighed = replace(weighed, file_bytes=model_bytes)
    ledger = weighed.as_dict()
    recipe = plan.recipe
    defined = metrics.comparable(matrix, [p.classes for p in probes])
    return {
        "format": FORMAT,
        "library": __version__,
        "scenario": recipe.scenario,
        "method": recipe.method,
        "recipe": recipe.name,
        "seed": plan.seed,
        "scenario_type": learner.scenario_type,
        "measured_on": sorted({p.measured_on for p in probes}),
        "settings": recipe.as_dict(),
        "accuracy_matrix": matrix,
        "matrix": plan.matrix,
        "metrics": metrics.summary(defined, [len(p.classes) for p in probes]),
        "tasks": [
            _task(learner, probe, size, (matrix[i][i], matrix[-1][i]), counts)
            for i, (probe, size, counts) in enumerate(zip(probes, sizes, confusions, strict=True))
        ],
        "capacity": {name: ledger.get(name) for name in CAPACITY_VIEWS} | dict(learner.capacity()),
        "free_share": None if store is None else store.free_share(),
        "ledger": ledger,
        "without_task": without_task,
        "divergence": None if store is None else divergence(store, [p.name for p in probes]),
        "environment": environment(plan),
    }


def _task(
    learner: Learner,
    probe: metrics.Probe,
    sizes: dict[str, int],
    accuracies: tuple[float | None, float | None],
    counts: np.ndarray,
) -> dict[str, Any]:
    """One task's line: its data, its accuracy when learned and at the end, the learner's report."""
    report, store = asdict(learner.reports[probe.name]), learner.store
    if store is not None:
        report["new_share"] = store.subnet(probe.name).num_new / store.layout.num_weights
    few = len(probe.classes) <= MAX_CONFUSED
    return {
        "name": probe.name,
        "classes": list(probe.classes),
        "samples": dict(sizes),
        "measured_on": probe.measured_on,
        "accuracy": accuracies[0],
        "final_accuracy": accuracies[1],
        "class_accuracy": metrics.class_accuracies(counts),
        "confusion": counts.tolist() if few else None,
    } | {k: v for k, v in report.items() if k != "name"}


def divergence(store: SubnetStore, names: Sequence[str]) -> dict[str, Any] | None:
    """How far each task was from the earlier ones, and which bank that led to."""
    subnets = store.subnets
    found = {n: subnets[n].decision for n in names if n in subnets}
    decisions = {n: d for n, d in found.items() if d is not None}
    if not decisions:
        return None
    distances = {n: store.divergences(n) for n in decisions}
    matrix = [[distances.get(row, {}).get(column) for column in names] for row in names]
    settings = store.settings.get("tsn")
    return {
        "threshold": settings.get("threshold") if isinstance(settings, dict) else None,
        "matrix": matrix,
        "decisions": {
            n: {"bank": d.bank, "reason": d.reason, "nearest": d.nearest}
            for n, d in decisions.items()
        },
    }


def environment(plan: Plan) -> dict[str, Any]:
    """The machine and versions a run was made with."""
    import numpy as np
    import torch

    from tinysubnets.training import distributed

    device = plan.device
    if device.startswith("cuda"):
        device = f"{device} ({torch.cuda.get_device_name()})"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": distributed.num_processes(),
        "device": device,
    }


def to_json(result: dict[str, Any]) -> str:
    """The result as JSON text; what is not a number is null, since JSON has no NaN."""
    return json.dumps(plain(result), indent=1, allow_nan=False) + "\n"


# --------------------------------------------------------------------------------------------------
# Finished runs, read back from their folders: results, learning curves, and the saved model.


RESULT = "result.json"
EPOCHS = "metrics.jsonl"
MODEL = "model"


@dataclass(frozen=True)
class Run:
    """One finished run: its folder and its `result.json` as plain data."""

    folder: Path
    result: dict[str, Any]

    @property
    def name(self) -> str:
        """What the run is called: by its folder, its own recipe's file, or else its scenario.

        A folder that `tsn run` or `tsn compare` chose itself is called by its seed, which says
        nothing.
        """
        if self.folder.name and not re.fullmatch(r"seed-\d+(-\d+)?", self.folder.name):
            return self.folder.name
        return self.subject

    @property
    def subject(self) -> str:
        """What was learned: the user's own recipe by its file's name, or else the scenario."""
        return Path(self.recipe).stem if self.recipe.endswith(".toml") else self.scenario

    @property
    def scenario(self) -> str:
        """The name of the scenario."""
        return str(self.result["scenario"])

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.result["method"])

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.result["seed"])

    @property
    def recipe(self) -> str:
        """The name of the recipe, or "defaults"."""
        return str(self.result.get("recipe") or "defaults")

    @property
    def scenario_type(self) -> str:
        """Whether the task is known when predicting: "task-IL" and so on."""
        if "scenario_type" in self.result:
            return str(self.result["scenario_type"])
        # Results of version 0.1 have "setting": "task-incremental".
        before = str(self.result.get("setting", "task-incremental"))
        return before.replace("-incremental", "-IL")

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """What was recorded of each task, in the order of learning."""
        return list(self.result["tasks"])

    @property
    def measured_on(self) -> list[str]:
        """The parts of data that accuracies were measured on: "test", "valid" or both."""
        return list(self.result.get("measured_on") or ["test"])

    @property
    def matrix(self) -> list[list[float | None]]:
        """The accuracy matrix as fractions of 1."""
        return list(self.result["accuracy_matrix"])

    @property
    def defined_matrix(self) -> list[list[float | None]]:
        """The accuracy matrix without cells that mean nothing, see `metrics.comparable`."""
        return metrics.comparable(self.matrix, [task.get("classes") for task in self.tasks])

    @property
    def matrix_kind(self) -> str:
        """Which cells of the accuracy matrix were measured, a key of `metrics.MATRICES`."""
        return str(self.result.get("matrix") or "full")

    def metric(self, name: str) -> float | None:
        """A metric of the accuracy matrix as a fraction of 1; None where it is not defined."""
        value = self.result["metrics"].get(name)
        return None if value is None else float(value)

    @property
    def without_task(self) -> dict[str, Any]:
        """What was measured without the task's name; empty where nothing was."""
        found = self.result.get("without_task")
        return found if isinstance(found, dict) else {}

    def routed(self, *path: str) -> float | None:
        """A number of `without_task` by its path, such as ("class-IL", "average_accuracy")."""
        value: Any = self.without_task
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number else None

    def capacity(self, view: str) -> float | None:
        """The size in one of the four views, over the dense float32 shared weights."""
        value = (self.result.get("capacity") or {}).get(view)
        if value is None:
            value = (self.result.get("ledger") or {}).get(view)
        return None if value is None else float(value)

    @property
    def size_bytes(self) -> float | None:
        """The bytes of the saved file, or of the ledger where nothing was saved."""
        ledger = self.result.get("ledger") or {}
        if ledger.get("file_bytes") is not None:
            return float(ledger["file_bytes"])
        total = (ledger.get("total") or {}).get("total")
        return None if total is None else float(total) / 8

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe with every setting, without the seed."""
        return config.modernized(self.result.get("settings") or {})

    def setting_of(self, *path: str) -> Any:
        """A setting by its path, such as ("tsn", "bits"); None where it was not recorded."""
        value: Any = self.settings
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of every epoch, in order; empty where none were kept."""
        path = self.folder / EPOCHS
        if not path.is_file():
            return []
        try:
            lines = read(path).decode("utf-8").splitlines()
            found = [json.loads(line) for line in lines if line.strip()]
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} cannot be read: {error}.") from error
        for number, epoch in enumerate(found, 1):
            wrong = None if isinstance(epoch, dict) else "it is no table"
            if wrong := wrong or first_wrong(epoch, OF_EPOCH, OF_EPOCH):
                raise RunError(f"{path} is damaged in line {number}: {wrong}.")
        return found

    def store(self) -> SubnetStore | None:
        """The saved model; None where there is none of subnets, or its network is unknown here."""
        if not (self.folder / MODEL).is_dir():
            return None
        from tinysubnets.errors import MismatchError, TinySubNetsError
        from tinysubnets.model.store import SubnetStore

        try:
            try:
                return SubnetStore.load(self.folder / MODEL)
            except MismatchError:
                architecture = self._own_architecture()
                if architecture is None:
                    return None
                return SubnetStore.load(self.folder / MODEL, architecture)
        except TinySubNetsError:  # over a base that is not in the file, too
            return None

    def _own_architecture(self) -> Architecture | None:
        """The user's own network, built again where this process has made a run of it.

        A result never makes it call code that it names, imported or not: whoever wrote it may be
        anybody, and name os.system. Nor are weights fetched: those of the tasks are in the model.
        """
        from tinysubnets import networks
        from tinysubnets.errors import TinySubNetsError
        from tinysubnets.nn.architecture import Architecture

        given = dict(self.settings.get("network") or {})
        name, head = str(given.pop("name", "auto")), given.pop("head", None)
        of_base = ("base", "weights", "pretrained", "embed_base")
        settings = {k: v for k, v in given.items() if k not in of_base}
        if name == "auto" or (":" in name and name not in _names_run_here):
            return None
        try:
            return Architecture(networks.build(name, **settings), head)
        except TinySubNetsError:
            return None


def read_run(folder: str | Path) -> Run:
    """The run in a folder, or an error that says what is missing."""
    folder = Path(folder)
    try:
        result = json.loads(read(folder / RESULT).decode("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} holds no {RESULT}: it is no finished run.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{folder / RESULT} cannot be read: {error}.") from error
    return checked_run(folder, folder / RESULT, result)


def checked_run(folder: Path, path: Path, result: Any) -> Run:
    """The run of that folder whose result was read from a file, or an error about the file."""
    if isinstance(result, dict) and result.get("format", FORMAT) != FORMAT:
        raise RunError(
            f"{path} is of format {result['format']}, written by tinysubnets "
            f"{result.get('library', 'of an unknown version')}; this version reads format "
            f"{FORMAT}. Look at it with that version."
        )
    missing = [k for k in NEEDED if not isinstance(result, dict) or k not in result]
    if missing:
        raise RunError(f"{path} is no result of this package: it lacks {missing}.")
    check_kinds(path, result)
    return Run(folder, result)


def find_runs(folders: Iterable[str | Path]) -> list[Run]:
    """All finished runs in or below the folders, in the order of their paths."""
    found: dict[Path, Run] = {}
    for given in folders:
        folder = Path(given)
        if not folder.is_dir():
            raise RunError(f"{folder} is no folder; give run folders, or a folder that holds some.")
        results = sorted(folder.rglob(RESULT))
        if not results:
            hint = f" Go on with: tsn resume {folder}" if (folder / "config.toml").exists() else ""
            raise RunError(f"{folder} holds no finished run (no {RESULT} in it or below it).{hint}")
        for path in results:
            found.setdefault(path.parent.resolve(), read_run(path.parent))
    return list(found.values())


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of a number over runs."""

    mean: float
    std: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return cls(mean, 0.0, 1)
        squares = math.fsum((v - mean) ** 2 for v in values)
        return cls(mean, math.sqrt(squares / (len(values) - 1)), len(values))

    def __str__(self) -> str:
        return self.show()

    def show(self, digits: int = 2, factor: float = 1.0) -> str:
        """Such as "97.14 ± 0.05 (5)"; without ± for a single run."""
        mean = f"{self.mean * factor:.{digits}f}"
        spread = f" ± {self.std * factor:.{digits}f}" if self.count > 1 else ""
        return f"{mean}{spread} ({self.count})"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    scenario: str
    method: str
    recipe: str
    runs: tuple[Run, ...] = field(default_factory=tuple)

    @property
    def label(self) -> str:
        """The recipe's name, and how many of its settings these runs changed."""
        changed = changes(self.runs[0])
        if not changed:
            return self.recipe
        few = ", ".join(f"{n}={v}" for n, v in list(changed.items())[:1])
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"{self.recipe} with {few}{more}"

    @property
    def passes(self) -> str:
        """How many networks an input passes if its task is not given; "" if not measured."""
        counts = sorted({int(n) for r in self.runs if (n := r.routed("passes")) is not None})
        return "–".join(map(str, counts[:1] + counts[1:][-1:]))

    def spread(self, measure: Callable[[Run], float | None]) -> Spread | None:
        """Mean and deviation of what was measured in each run; None where in no run."""
        values = [v for v in map(measure, self.runs) if v is not None]
        return Spread.of(values) if values else None

    def show(
        self, measure: Callable[[Run], float | None], digits: int = 2, factor: float = 100.0
    ) -> str:
        """Such as "97.14 ± 0.05 (5)", times the factor; – where in no run it was measured."""
        spread = self.spread(measure)
        return "–" if spread is None else spread.show(digits, factor)


def changes(run: Run) -> dict[str, Any]:
    """The settings of a run that differ from its recipe in this package, by dotted name."""
    if run.recipe == "defaults" or run.recipe.endswith(".toml"):
        return {}
    from tinysubnets.errors import SettingError
    from tinysubnets.experiments import recipe

    try:
        # Through JSON, as the run's own settings went: tuples become lists there.
        plain = json.loads(json.dumps(recipe.load(run.recipe, method=run.method).as_dict()))
    except SettingError:
        return {}
    known, used = effective(plain), effective(run.settings)
    return {n: v for n, v in used.items() if known.get(n, "none") != v}


def effective(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by dotted names, without those of a ladder where there is none to be climbed."""
    found = flat(settings)
    has_price = found.get("tsn.price") not in (None, "none", 0)
    has_ladder = has_price or found.get("network.base") == "frozen"
    return {n: v for n, v in found.items() if has_ladder or n != "tsn.rungs"}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        out |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return out


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Where two tables of settings differ, in words; None where they do not."""
    there, here = flat(dict(before)), flat(dict(now))
    other = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if not other:
        return None
    name, more = other[0], f" (and {len(other) - 1} more)" if len(other) > 1 else ""
    shown = name.removeprefix("settings.")
    return f"{shown} is {there.get(name)} there and {here.get(name)} here{more}"


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs gathered by scenario, method, recipe and settings, whatever their seed.

    Methods come in the order of `tsn list`, unknown ones last.
    """
    order = {name: place for place, name in enumerate(METHODS)}
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        settings = json.dumps(run.settings, sort_keys=True, default=str)
        groups.setdefault((run.scenario, run.method, run.recipe, settings), []).append(run)
    found = [
        Group(key[0], key[1], key[2], tuple(sorted(members, key=lambda r: r.seed)))
        for key, members in groups.items()
    ]
    return sorted(found, key=lambda g: order.get(g.method, len(order)))
