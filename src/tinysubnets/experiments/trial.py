"""One trial of a search: a recipe with some of its settings changed, learned and weighed.

Test data are not even opened: a trial is judged by validation accuracy and the bytes of its file.
"""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tinysubnets import scenarios
from tinysubnets.errors import CapacityWarning, TinySubNetsError
from tinysubnets.experiments.metrics import Probe, accuracy
from tinysubnets.experiments.recipe import (
    Recipe,
    as_expected,
    build_architecture,
    build_learner,
)
from tinysubnets.experiments.search_space import Space, with_settings
from tinysubnets.tasks.task import Split, Task
from tinysubnets.training.loop import EpochReport
from tinysubnets.training.precision import SMALL_NETWORK

if TYPE_CHECKING:
    from tinysubnets.method.base import Learner

TEMPORARY = ".trial-"  # folders that a killed trial may leave behind
_NUM_THREADS = torch.get_num_threads()  # torch's own choice, before a trial sets another


@dataclass(frozen=True)
class SearchPlan:
    """What is to be searched, and where.

    - `recipe`: all settings but those of the `space`.
    - `space`: what is tried.
    - `first`: settings that are tried first, of the space; what is missing is drawn.
    - `seeds`: each trial runs once with every one of these development seeds.
    - `num_trials`: how many trials the study has at the end, those of earlier processes included.
    - `budget`: the largest file wanted, in bytes; None for any.
    - `seed`: of the search itself: what it draws.
    - `jobs`: how many trials run at a time, each in a process of its own; 1 runs them in this one,
      or on a cluster one after the other.
    - `device`, `data`: as of runs.
    - `threads`: of torch in each trial; None: one for small networks, else torch's own choice.
    """

    recipe: Recipe
    space: Space
    first: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (100, 101)
    num_trials: int = 40
    budget: int | None = None
    seed: int = 0
    jobs: int = 1
    device: str = "cpu"
    data: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Partial:
    """What a trial has come to after some of its steps, a step being one task of one seed.

    - `accuracy`: on validation data, the mean over all tasks learned so far, as a fraction of 1.
    - `size_bytes`: of the largest file so far, over the seeds.
    """

    step: int
    num_steps: int
    accuracy: float
    size_bytes: int


@dataclass(frozen=True)
class Failed:
    """A trial could not be run with these settings."""

    reason: str


def attempt(
    plan: SearchPlan, settings: Mapping[str, Any], folder: Path
) -> Iterator[EpochReport | Partial | Failed]:
    """Run a trial: its epochs, and after each task what it has come to; the last is its result.

    - `settings`: those tried, by dotted name.
    - `folder`: where files are written to be weighed.
    """
    try:
        recipe = with_settings(plan.recipe, settings)
        done: list[float] = []  # accuracies of all tasks of the seeds before
        largest = 0
        for place, seed in enumerate(plan.seeds):
            for event in _learn_all(plan, recipe, seed, folder):
                if isinstance(event, EpochReport):
                    yield event
                    continue
                accuracies, size_bytes, num_tasks = event
                largest, known = max(largest, size_bytes), [*done, *accuracies]
                step = place * num_tasks + len(accuracies)
                mean = math.fsum(known) / len(known)
                yield Partial(step, len(plan.seeds) * num_tasks, mean, largest)
            done += accuracies
    except (TinySubNetsError, MemoryError) as error:
        yield Failed(str(error) or "out of memory")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        yield Failed(f"the device is out of memory: {error}")


def attempt_anywhere(
    plan: SearchPlan, settings: Mapping[str, Any]
) -> Iterator[EpochReport | Partial | Failed]:
    """`attempt` as a task of a cluster: files are weighed there, and few epochs are reported."""
    told = -math.inf
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        for message in attempt(plan, settings, Path(folder)):
            if not isinstance(message, EpochReport) or time.monotonic() > told + 1:
                told = time.monotonic()
                yield message


def _learn_all(
    plan: SearchPlan, recipe: Recipe, seed: int, folder: Path
) -> Iterator[EpochReport | tuple[list[float], int, int]]:
    """All tasks with one seed: epochs, and after each task the validation accuracy of every task
    so far, the bytes of the file, and the number of tasks in all."""
    scenario = untested(recipe, seed, plan.data)
    learner: Learner | None = None
    probes: list[Probe] = []
    accuracies: list[float] = []
    for index in range(len(scenario.names)):
        task = scenario.task(index)
        learner = learner or _learner(plan, recipe, seed, task)
        task = as_expected(task, learner)
        with warnings.catch_warnings():
            # A full bank is no mistake here: the trial shows what it costs.
            warnings.simplefilter("ignore", CapacityWarning)
            trainer = learner.begin(task)
        while not trainer.finished:
            yield trainer.epoch()
        trainer.finish()
        probe = Probe(task.name, task.classes, _held(task.valid), "valid")
        if learner.store is None:  # what was learned before may be forgotten now
            probes.append(probe)
            accuracies = [accuracy(learner, each) for each in probes]
        else:
            accuracies = [*accuracies, accuracy(learner, probe)]
        yield accuracies, _file_bytes(learner, folder), len(scenario.names)


def untested(recipe: Recipe, seed: int, data: str | None) -> scenarios.Scenario:
    """The recipe's scenario without its test data, which are not even opened."""
    return scenarios.build(recipe.scenario, recipe.data, seed=seed, root=data, with_test=False)


def _learner(plan: SearchPlan, recipe: Recipe, seed: int, first: Task) -> Learner:
    """A new learner, as a run of the recipe would begin with."""
    shape = (len(first.train), *first.valid.inputs(slice(0, 1)).shape[1:])
    architecture = build_architecture(recipe, shape, seed)
    is_small = architecture.num_shared < SMALL_NETWORK
    own = 1 if is_small else max(1, _NUM_THREADS // plan.jobs)
    torch.set_num_threads(plan.threads or own)
    return build_learner(recipe, architecture, device=plan.device, seed=seed)


def _held(valid: Split) -> Split:
    """Validation data without the training data in the same memory, so that these can go."""
    if isinstance(valid.source, torch.Tensor):
        return Split(valid.inputs(), valid.labels)
    return valid  # on disk


def _file_bytes(learner: Learner, folder: Path) -> int:
    """The bytes of the model's file, written and weighed."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
        return learner.save(Path(temporary) / "model").stat().st_size
