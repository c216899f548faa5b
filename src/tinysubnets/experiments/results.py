"""The result of a run as plain data: `result.json`; docs/RESULTS.md describes every field."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets import __version__, config
from tinysubnets.errors import RunError
from tinysubnets.experiments import metrics
from tinysubnets.experiments.methods import METHODS
from tinysubnets.experiments.run_dir import plain
from tinysubnets.files import read

if TYPE_CHECKING:
    import numpy as np

    from tinysubnets.experiments.recipe import Plan
    from tinysubnets.method.base import Learner
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.nn.architecture import Architecture


FORMAT = 1
CAPACITY_VIEWS = ("file", "paper", "worked_example", "printed", "file_bytes")
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
            if wrong := wrong or first_wrong(epoch, _OF_EPOCH, _OF_EPOCH):
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
    _check_kinds(path, result)
    return Run(folder, result)


# What may stand where: its name in errors, and whether a value is of the kind.
Kind = tuple[str, Callable[[Any], bool]]


def _numbers(words: str, least: float, most: float, types: tuple[type, ...] = (int, float)) -> Kind:
    """Finite numbers of a range; True and False are none."""
    return words, lambda value: type(value) in types and least <= value <= most


_MOST = 2**53  # far beyond any size or time, and drawings are exact up to here
_ROUNDING = 1e-6  # by which a mean of shares may be off
TEXT: Kind = ("text", lambda value: isinstance(value, str))
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
TABLE: Kind = ("a table", lambda value: isinstance(value, dict))
LIST: Kind = ("a list", lambda value: isinstance(value, list))
LABEL: Kind = ("text or an integer", lambda value: type(value) in (int, str))
CELLS: Kind = (f"one of {', '.join(metrics.MATRICES)}", lambda value: value in [*metrics.MATRICES])
INTEGER = _numbers("an integer of 64 bits", -(2**63), 2**63 - 1, (int,))
COUNT = _numbers("a count", 0, _MOST, (int,))
AMOUNT = _numbers("a number from 0 on", 0, _MOST)
NUMBER = _numbers("a finite number", -_MOST, _MOST)
SHARE = _numbers("a number from 0 to 1", -_ROUNDING, 1 + _ROUNDING)
CHANGE = _numbers("a number from -1 to 1", -1 - _ROUNDING, 1 + _ROUNDING)
PRODUCT: Kind = (
    "a list of layer, kind, products and density",
    lambda value: (
        isinstance(value, list)
        and len(value) == 4
        and all(k[1](v) for k, v in zip((TEXT, TEXT, AMOUNT, SHARE), value, strict=True))
    ),
)

# By place, what holds others before them; * stands for every entry of a list or table. What has
# no line here is only shown, or looked at by whoever draws it.
NEEDED = ("scenario", "method", "seed", "accuracy_matrix", "metrics", "tasks")
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("scenario", "method", "recipe", "library", "commit"), TEXT),
    **dict.fromkeys(("scenario_type", "setting"), TEXT),
    "seed": INTEGER,
    "seconds": AMOUNT,
    "free_share": SHARE,
    "matrix": CELLS,
    "measured_on": LIST,
    "measured_on.*": TEXT,
    "notes": LIST,
    "notes.*": TEXT,
    "accuracy_matrix": LIST,
    "accuracy_matrix.*": LIST,
    "accuracy_matrix.*.*": SHARE,
    "metrics": TABLE,
    "metrics.*": CHANGE,
    "metrics.average_accuracy": SHARE,
    "metrics.average_accuracy_over_time": SHARE,
    "tasks": LIST,
    "tasks.*": TABLE,
    **{f"tasks.*.{name}": TEXT for name in ("name", "measured_on", "reason")},
    **{f"tasks.*.{name}": SHARE for name in ("accuracy", "final_accuracy", "valid_accuracy")},
    **{f"tasks.*.{name}": SHARE for name in ("density", "new_share")},
    **{f"tasks.*.owned_{when}_pruning": SHARE for when in ("before", "after")},
    **{f"tasks.*.{name}_seconds": AMOUNT for name in ("training", "pruning")},
    "tasks.*.bank": INTEGER,
    "tasks.*.bits": AMOUNT,
    "tasks.*.best_epoch": COUNT,
    "tasks.*.classes": LIST,
    "tasks.*.classes.*": LABEL,
    "tasks.*.samples": TABLE,
    "tasks.*.samples.*": COUNT,
    "tasks.*.rungs": LIST,
    "tasks.*.rungs.*": TABLE,
    "tasks.*.rungs.*.name": TEXT,
    "tasks.*.rungs.*.taken": FLAG,
    "tasks.*.rungs.*.valid_accuracy": SHARE,
    "tasks.*.rungs.*.seconds": AMOUNT,
    "tasks.*.rungs.*.valid_loss": AMOUNT,
    **{f"tasks.*.rungs.*.{name}": NUMBER for name in ("gain", "extra_bytes", "file_bytes")},
    "capacity": TABLE,
    "capacity.*": AMOUNT,
    "ledger": TABLE,
    "ledger.masks_from": TEXT,
    **{f"ledger.{name}": AMOUNT for name in (*CAPACITY_VIEWS, "num_weights")},
    "ledger.total": TABLE,
    "ledger.total.*": AMOUNT,
    "ledger.tasks": TABLE,
    "ledger.tasks.*": TABLE,
    "ledger.tasks.*.*": AMOUNT,
    "without_task": TABLE,
    "without_task.rule": TEXT,
    "without_task.passes": AMOUNT,
    "without_task.task_accuracy": SHARE,
    "without_task.confidence": TABLE,
    "without_task.confidence.edges": LIST,
    "without_task.confidence.edges.*": SHARE,
    **{f"without_task.confidence.{name}": LIST for name in ("right", "wrong")},
    **{f"without_task.confidence.{name}.*": COUNT for name in ("right", "wrong")},
    **{f"without_task.{name}-IL": TABLE for name in ("class", "domain")},
    **{f"without_task.{name}-IL.average_accuracy": SHARE for name in ("class", "domain")},
    **{f"without_task.{name}-IL.backward_transfer": CHANGE for name in ("class", "domain")},
    **{f"without_task.{name}-IL.forgetting": CHANGE for name in ("class", "domain")},
    "without_task.unknown": TABLE,
    "without_task.unknown.auroc": SHARE,
    "without_task.entropy_rule": TABLE,
    "without_task.entropy_rule.*": SHARE,
    "without_task.together": TABLE,
    "without_task.together.*": AMOUNT,
    "divergence": TABLE,
    "divergence.threshold": NUMBER,
    "divergence.matrix": LIST,
    "divergence.matrix.*": LIST,
    "divergence.matrix.*.*": NUMBER,
    "divergence.decisions": TABLE,
    "divergence.decisions.*": TABLE,
    "divergence.decisions.*.bank": INTEGER,
    "divergence.decisions.*.reason": TEXT,
    "banks": TABLE,
    "banks.*": INTEGER,
    "settings": TABLE,
    "settings.data": TABLE,
    "settings.data.datasets": LIST,
    "settings.network": TABLE,
    "environment": TABLE,
    "environment.device": TEXT,
    "environment.jobs": COUNT,
    "measured_on_model": TABLE,
    "measured_on_model.fixed_point": TABLE,
    "measured_on_model.fixed_point.*": SHARE,
    "measured_on_model.uncounted": LIST,
    "measured_on_model.uncounted.*": TEXT,
    "measured_on_model.operations": LIST,
    "measured_on_model.operations.*": LIST,
    "measured_on_model.operations.*.*": PRODUCT,
}
# Numbers that were not defined are null, and so is what a whole run lacks; these never are.
_NEVER_NULL = {
    *NEEDED,
    "accuracy_matrix.*",
    "tasks.*",
    "tasks.*.name",
    "tasks.*.classes.*",
    "tasks.*.rungs.*",
    "ledger.tasks.*",
    "divergence.matrix.*",
    "divergence.decisions.*",
    "measured_on.*",
    "measured_on_model.uncounted.*",
    "measured_on_model.operations.*",
    "measured_on_model.operations.*.*",
    *(f"without_task.confidence.{name}.*" for name in ("edges", "right", "wrong")),
}
_OF_EPOCH: dict[str, Kind] = {"task": TEXT, "epoch": AMOUNT, "valid_accuracy": SHARE}


def _check_kinds(path: Path, result: dict[str, Any]) -> None:
    """Refuse a result whose parts are not of the kinds that every table and picture expects."""
    if wrong := first_wrong(result, KINDS, _NEVER_NULL):
        raise RunError(f"{path} is damaged: {wrong}.")
    count = len(result["tasks"])
    squares = {"accuracy_matrix": result["accuracy_matrix"]}
    if matrix := (result.get("divergence") or {}).get("matrix"):
        squares["divergence.matrix"] = matrix
    for name, rows in squares.items():
        if not count or [len(row) for row in rows] != [count] * count:
            raise RunError(
                f"{path} is damaged: {name} has not one row and one column for each of the "
                f"{count} tasks."
            )


def first_wrong(value: Any, kinds: Mapping[str, Kind], never_null: Collection[str]) -> str | None:
    """What is not of its kind in plain data, in words; None where all is as it should be.

    What holds nothing below a place has nothing wrong there.

    - `kinds`: by place, as `KINDS` has them.
    - `never_null`: places whose value must be there, if that which holds it is.
    """
    for place, (words, fits) in kinds.items():
        for shown, found in _at(value, place.split(".")):
            is_fine = place not in never_null if found is None else fits(found)
            if not is_fine:
                what = "not there" if found is None else _short(found)
                return f"{shown} is {what}, and should be {words}"
    return None


def _at(value: Any, names: Sequence[str], shown: str = "") -> Iterator[tuple[str, Any]]:
    """The values at a place of plain data, each with its path; None for what is not there."""
    if not names:
        yield shown.removeprefix("."), value
        return
    name, rest = names[0], names[1:]
    if isinstance(value, list) and name == "*":
        for i, entry in enumerate(value):
            yield from _at(entry, rest, f"{shown}[{i}]")
    elif isinstance(value, dict):
        for key in value if name == "*" else (name,):
            yield from _at(value.get(key), rest, f"{shown}.{key}")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


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
        """How many passes of networks an input takes whose task is not told; "" where unknown."""
        counts = sorted({int(n) for r in self.runs if (n := r.routed("passes")) is not None})
        return "–".join(map(str, counts[:1] + counts[1:][-1:]))

    def spread(self, measure: Callable[[Run], float | None]) -> Spread | None:
        """Mean and deviation of what was measured in each run; None where in no run."""
        values = [v for v in map(measure, self.runs) if v is not None]
        return Spread.of(values) if values else None


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
