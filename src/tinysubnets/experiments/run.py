"""An experiment: a recipe and a seed, run task by task in a run folder, and safe against crashes.

    with RunDir("runs/one") as folder:
        experiment = Experiment.begin(Plan(recipe.load("permuted-digits")), folder)
        for event in experiment.steps():
            print(event)

Checkpoints are written between two steps, at most one every `checkpoint_seconds` of the plan, and
by `save_()`; `Experiment.resume(folder)` goes on from the last one and ends with the same numbers.
Processes that train together (`training.distributed`) go through the same steps; the first of them
writes, and the others need no access to the folder.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from tinysubnets import scenarios
from tinysubnets.errors import (
    ArchitectureError,
    CapacityWarning,
    RunError,
    SettingError,
    TaskError,
)
from tinysubnets.experiments import results
from tinysubnets.experiments.checkpoint import Checkpoint, Checkpoints
from tinysubnets.experiments.metrics import (
    MAX_FULL,
    Probe,
    Row,
    confusion,
    measure_row,
    share_right,
)
from tinysubnets.experiments.recipe import (
    Plan,
    Recipe,
    as_expected,
    build_architecture,
    build_learner,
)
from tinysubnets.experiments.routing import without_task
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.files import friendly_os_errors, remove_folder
from tinysubnets.method.base import TaskTrainer
from tinysubnets.method.core import SubnetTrainer
from tinysubnets.method.pruning import PruningStep
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import FEW_VALID, Task, few_told
from tinysubnets.training import distributed
from tinysubnets.training.loop import EpochReport
from tinysubnets.training.precision import fitting_threads, pick_device


@dataclass(frozen=True)
class TaskBegun:
    """A task is about to be learned, or gone on with from a later epoch."""

    index: int
    num_tasks: int
    name: str
    num_classes: int
    num_samples: int
    first_epoch: int
    epochs: int


@dataclass(frozen=True)
class TaskLearned:
    """A task was learned, and tasks were measured as the plan's `matrix` says.

    `seconds` is all that it took: epochs, compression with post-pruning, and measuring.
    `measured_on` is the part of the task's data that its accuracy is of, "test" or "valid".
    """

    index: int
    num_tasks: int
    report: Any
    row: Row
    seconds: float
    measured_on: str = "test"


@dataclass(frozen=True)
class Note:
    """Something the user should know."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The run is finished; its result is in the folder, and here in the process that wrote it."""

    result: dict[str, Any]


REFUSALS = (ArchitectureError, SettingError, TaskError)  # of what was given; others may pass
Event = TaskBegun | EpochReport | PruningStep | TaskLearned | Note | Finished


class Experiment:
    """One run: its scenario, its learner and what was measured so far."""

    def __init__(self, plan: Plan, folder: RunDir, checkpoint: Checkpoint | None = None) -> None:
        self.folder = folder
        self.checkpoints = Checkpoints(folder.path)
        recipe = plan.recipe
        self.scenario = scenarios.build(
            recipe.scenario, recipe.data, seed=plan.seed, root=plan.data
        )
        # All data are looked at before anything is trained: a missing set must not cost hours.
        tasks = [self._described(self.scenario.task(i)) for i in range(len(self.scenario.names))]
        self.probes = [probe for probe, _ in tasks]
        self.sizes = [sizes for _, sizes in tasks]
        sample = self.probes[0].data.inputs(slice(0, 1)).shape[1:]
        shape = (self.sizes[0]["train"], *sample)
        architecture = build_architecture(recipe, shape, plan.seed)
        if plan.threads is None:
            plan = replace(plan, threads=fitting_threads(architecture.num_shared))
        assert plan.threads is not None
        torch.set_num_threads(plan.threads)
        if plan.matrix is None:
            short = len(self.probes) <= MAX_FULL
            plan = replace(plan, matrix="full" if short else "diagonal")
        self.plan = plan
        self.learner = build_learner(recipe, architecture, device=plan.device, seed=plan.seed)
        self.chosen = _chosen(recipe, self.learner.architecture, shape)
        self.matrix: list[Row] = []
        self.notes: list[str] = []
        self._confusions: list[np.ndarray] = []  # of every task, when all are learned
        self._trainer: TaskTrainer | None = None
        self._resumed = None if checkpoint is None else checkpoint.trainer
        self._seconds, self._since = 0.0, time.perf_counter()
        self._saved_at = time.monotonic()
        self._learned_is_saved = False
        self._is_untouched = False  # a run that has begun here, and trained no epoch yet
        if checkpoint is not None:
            self._restore_(checkpoint)

    @classmethod
    def begin(cls, plan: Plan, folder: RunDir) -> Experiment:
        """A new run in an empty folder."""
        distributed.from_first(lambda: _check_unused(folder))
        experiment = cls(replace(plan, device=str(pick_device(plan.device))), folder)
        folder.write_config(experiment.plan.as_dict())
        folder.log(f"begin {plan.recipe.name} by {plan.recipe.method}, seed {plan.seed}")
        experiment._is_untouched = True
        return experiment

    @classmethod
    def resume(cls, folder: RunDir) -> Experiment:
        """A run that was interrupted, at its last checkpoint or at its beginning."""
        checkpoints = Checkpoints(folder.path)
        kept, checkpoint = distributed.from_first(lambda: _read(folder, checkpoints))
        plan = Plan.from_dict(kept)
        if plan.threads is not None and distributed.num_processes() > 1:
            # One process had the whole machine, and each of several has a share of it.
            plan = replace(plan, threads=min(plan.threads, torch.get_num_threads()))
        experiment = cls(plan, folder, checkpoint)
        experiment.checkpoints = checkpoints
        if not experiment.matrix and experiment._resumed is None:
            folder.forget_metrics(0)
        folder.log(f"resume with {len(experiment.matrix)} tasks learned")
        if kept["run"].get("torch") != torch.__version__:
            folder.log(f"torch is now {torch.__version__}: numbers may differ from here on")
        return experiment

    def steps(self) -> Iterator[Event]:
        """The run, one event at a time: epochs, pruning steps, learned tasks, and the result.

        A run that is refused before its first epoch is trained takes its files back.
        """
        try:
            yield from self._steps()
        except REFUSALS:
            if self._is_untouched:
                self.folder.take_back()
            raise

    def _steps(self) -> Iterator[Event]:
        yield from self._note(distributed.slower_because(self.learner.device))
        if self.chosen:
            yield Note(self.chosen)
        for index in range(len(self.matrix), len(self.probes)):
            yield from self._learn(index)
        yield Finished(self._finish())

    def save_(self) -> None:
        """Write a checkpoint of this very moment; only between two steps."""
        if not distributed.is_first():
            return
        learned = None if self._learned_is_saved else self.learner.state()
        trainer = None if self._trainer is None else self._trainer.state()
        numbers = {
            "matrix": self.matrix,
            "notes": self.notes,
            "seconds": self.seconds,
            "metrics_bytes": self.folder.tracked_bytes(),
        }
        self.checkpoints.save(learned, trainer, numbers)
        self._learned_is_saved, self._is_untouched = True, False
        self._saved_at = time.monotonic()

    def _save_if_due_(self) -> None:
        if time.monotonic() - self._saved_at >= self.plan.checkpoint_seconds:
            self.save_()

    @property
    def seconds(self) -> float:
        """How long the run has taken, over all its processes."""
        return self._seconds + time.perf_counter() - self._since

    def _described(self, task: Task) -> tuple[Probe, dict[str, int]]:
        test = 0 if task.test is None else len(task.test)
        return Probe.of(task), {"train": len(task.train), "valid": len(task.valid), "test": test}

    def _restore_(self, checkpoint: Checkpoint) -> None:
        self.learner.restore_(*checkpoint.learned)
        numbers = checkpoint.numbers
        for index in range(len(numbers["matrix"])):  # joint training keeps all data, this none
            self.learner.revisit_(as_expected(self.scenario.task(index), self.learner))
        self.matrix, self.notes = [list(row) for row in numbers["matrix"]], list(numbers["notes"])
        self._seconds = float(numbers["seconds"])
        self._learned_is_saved = True
        self.folder.forget_metrics(int(numbers["metrics_bytes"]))

    def _learn(self, index: int) -> Iterator[Event]:
        """One task from its first or resumed epoch to its row of the accuracy matrix."""
        task = as_expected(self.scenario.task(index), self.learner)
        yield from self._begin_task(task)
        assert self._trainer is not None
        trainer = self._trainer
        first, epochs = trainer.epochs_done, self.learner.training.epochs
        yield TaskBegun(
            index,
            len(self.probes),
            task.name,
            task.num_classes,
            len(task.train),
            first,
            epochs,
        )
        while not trainer.finished:
            epoch = trainer.epoch()
            self._is_untouched = False
            self.folder.track({"index": index} | asdict(epoch))
            self._save_if_due_()
            yield epoch
        began = time.perf_counter()
        if isinstance(trainer, SubnetTrainer):
            yield from trainer.finishing()
        else:
            trainer.finish()
        self._trainer, self._learned_is_saved = None, False
        assert self.plan.matrix is not None
        if index < len(self.probes) - 1:
            row = measure_row(self.learner, self.probes, index, self.plan.matrix)
        else:  # all tasks, and which classes are taken for which
            self._confusions = [confusion(self.learner, probe) for probe in self.probes]
            row = [share_right(counts) for counts in self._confusions]
        self.matrix.append(row)
        report = self.learner.reports[task.name]
        seconds = report.training_seconds + time.perf_counter() - began
        where = self.probes[index].measured_on
        learned = TaskLearned(index, len(self.probes), report, row, seconds, where)
        measured = "not measured" if row[index] is None else f"{row[index]:.4f}"
        self.folder.log(f"learned {task.name}: accuracy {measured}")
        self._save_if_due_()
        yield learned

    def _begin_task(self, task: Task) -> Iterator[Note]:
        """Set up the task's trainer, at the epoch of the checkpoint where there is one."""
        sizes = {
            p.name: (s["train"], s["valid"]) for p, s in zip(self.probes, self.sizes, strict=True)
        }
        if self.plan.recipe.scenario == "own" and (few := few_told(sizes)):  # once for all tasks
            yield from self._note(f"{few}: {_done_about_it(self.plan.recipe)}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._trainer = self.learner.begin(task)
        for warning in caught:
            text = str(warning.message)
            if not issubclass(warning.category, CapacityWarning):
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )
            else:
                yield from self._note(text)
        if self._resumed is not None:
            self._trainer.restore_(*self._resumed)
            self._resumed = None

    def _note(self, text: str | None) -> Iterator[Note]:
        """Tell something, once in a run."""
        if text is not None and text not in self.notes:
            self.notes.append(text)
            self.folder.log(text)
            yield Note(text)

    def _finish(self) -> dict[str, Any]:
        """Save the model, write the result, and remove what is no longer needed."""
        if not distributed.is_first():
            return {}
        model_bytes = self._save_model()
        # Counted with the last row, in another process if this one resumes a run at its very end.
        confusions = self._confusions or [confusion(self.learner, p) for p in self.probes]
        result = results.build(
            self.plan,
            self.learner,
            self.probes,
            self.sizes,
            self.matrix,
            confusions,
            model_bytes,
            self._without_task(),
        )
        result |= {"notes": self.notes, "seconds": self.seconds}
        self.folder.tracked_bytes()  # on disk before the result says that the run is finished
        self.folder.write("result.json", results.to_json(result))
        self.folder.log(f"finished: average accuracy {result['metrics']['average_accuracy']:.4f}")
        self.checkpoints.remove()
        return result

    def _without_task(self) -> dict[str, Any] | None:
        """What the model is worth without the task's name; None for methods without subnets.

        Every network sees all test data, so that very many tasks are left alone.
        """
        store = self.learner.store
        if store is None or len(self.probes) > MAX_FULL:
            return None
        return without_task(store, self.probes)

    def _save_model(self) -> int:
        """The learned model in `model/`; the bytes of its file."""
        folder = self.folder.path / "model"
        # Of a process that was killed between its model and its result.
        remove_folder(folder)
        if self.plan.recipe.network.get("embed_base") and self.learner.store is not None:
            self.learner.store.embed_base_()
        with friendly_os_errors(self.folder.path):
            return self.learner.save(folder).stat().st_size


def _check_unused(folder: RunDir) -> None:
    """Refuse to begin a run in the folder of another."""
    if folder.is_finished:
        raise RunError(
            f"{folder.path} already holds a finished run. Choose another folder with --out, "
            "or remove this one."
        )
    if folder.is_started:
        raise RunError(
            f"{folder.path} holds a run that was not finished. Go on with it by: "
            f"tsn resume {folder.path}; or choose another folder with --out."
        )


def _read(folder: RunDir, checkpoints: Checkpoints) -> tuple[dict[str, Any], Checkpoint | None]:
    """The settings of a run that is not finished, and its last checkpoint."""
    kept = folder.config()
    if folder.is_finished:
        checkpoints.remove()  # of a process that was killed right after its result
        raise RunError(f"{folder.path} is finished: there is nothing to resume.")
    return kept, checkpoints.load()


def _chosen(recipe: Recipe, architecture: Architecture, shape: tuple[int, ...]) -> str:
    """Which network was chosen where the recipe leaves it open; nothing where it does not."""
    if recipe.network["name"] != "auto" or architecture.rebuild is None:
        return ""
    settings = ", ".join(f"{k} = {v}" for k, v in architecture.rebuild["settings"].items())
    return (
        f"the network {architecture.rebuild['network']} ({settings}) with "
        f"{architecture.num_shared:,} shared weights is chosen for {shape[0]:,} samples of "
        f"{'x'.join(map(str, shape[1:]))}; a table [network] names another"
    )


def _done_about_it(recipe: Recipe) -> str:
    """What a run does about few validation samples, and what it could do."""
    keeps_last = recipe.training["kept_epoch"] in ("auto", "last")
    done = ["the last epoch is kept"] if keeps_last else []
    done += ["nothing is post-pruned"] if recipe.pruning["min_valid"] >= FEW_VALID else []
    if len(done) == 2:
        return " and ".join(done)
    return 'set training.kept_epoch = "auto" and pruning.min_valid = 60, or give more data'
