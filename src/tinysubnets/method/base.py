"""What every method is to the rest of the package: a learner, its trainers and its reports.

learner.learn(task)                       # or, in visible steps:

trainer = learner.begin(task)
while not trainer.finished:
    print(trainer.epoch())
trainer.finish()
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets.errors import (
    ArchitectureError,
    FewSamplesWarning,
    MismatchError,
    SettingError,
    TaskError,
)
from tinysubnets.method.progress import OnEpoch, learning
from tinysubnets.method.pruning import PruningSettings
from tinysubnets.model.evaluation import Evaluation
from tinysubnets.model.size import Ledger
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import FEW_VALID, Task, few_samples
from tinysubnets.training.loop import EpochReport
from tinysubnets.training.settings import TrainingSettings

ScenarioType = Literal["task-IL", "class-IL", "domain-IL"]
State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and plain data for JSON


@dataclass(frozen=True)
class TaskReport:
    """What learning one task came to.

    - `name`: the task's.
    - `valid_accuracy`: on its validation data, of the network as it is kept, as a fraction of 1.
    - `best_epoch`: the epoch that was kept, counted from 1.
    - `training_seconds`: all epochs together, validation included.
    """

    name: str
    valid_accuracy: float
    best_epoch: int
    training_seconds: float


class TaskTrainer(Protocol):
    """One task being learned: epochs one at a time, then `finish()`, which keeps it."""

    @property
    def task(self) -> Task:
        """What is being learned."""

    @property
    def epochs_done(self) -> int:
        """How many epochs have been trained."""

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, so that `finish()` is next."""

    def epoch(self) -> EpochReport:
        """Train one epoch and validate."""

    def finish(self) -> TaskReport:
        """Take the best epoch by validation and keep it: the task is learned."""

    def state(self) -> State:
        """Everything needed to go on with this trainer later, taken between two epochs."""

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a trainer of the same task and the same learner."""


class Learner(Protocol):
    """A method at work: it learns tasks one after the other, and answers for all of them.

    - `name`: the method's, as in recipes and `tsn list`.
    - `scenario_types`: what is defined for it; `scenario_type` is the one this learner does. With
      "task-IL" it is told the task of an input; with "class-IL" (classes of all tasks) and
      "domain-IL" (the same classes in every task) it is not.
    - `settings`: the method's own, a frozen dataclass with at least a `seed`.
    - `reports`: what learning each task came to, by the task's name.
    """

    name: ClassVar[str]
    scenario_types: ClassVar[tuple[ScenarioType, ...]]
    settings: Any
    reports: dict[str, Any]

    @property
    def architecture(self) -> Architecture:
        """The network as code."""

    @property
    def training(self) -> TrainingSettings:
        """How every task is trained."""

    @property
    def pruning(self) -> PruningSettings | None:
        """How tasks are post-pruned; None where a method does not."""

    @property
    def device(self) -> torch.device:
        """Where tasks are trained."""

    @property
    def store(self) -> SubnetStore | None:
        """The learned subnets; None where a method has none."""

    @property
    def scenario_type(self) -> ScenarioType:
        """Whether the task of an input is known when predicting."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""

    def begin(self, task: Task) -> TaskTrainer:
        """Check a task and set up its training; nothing is learned yet."""

    def learn(
        self,
        task: Task,
        *,
        progress: bool | None = None,
        on_epoch: OnEpoch | None = None,
        threads: int | None = None,
    ) -> TaskReport:
        """Learn a task to its end; the arguments are those of `learn` in this module."""

    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The logits of a task for raw inputs; None, where the scenario type allows it: of all."""

    def predict(self, task: Any = None, inputs: Any = None) -> Any:
        """The user's own labels for raw inputs: `predict(task, inputs)`, an array.

        Without a task, `predict(inputs)` or `predict(None, inputs)`: a `Prediction` of methods with
        subnets, an array of others.
        """

    def predict_proba(self, task: str | None, inputs: Any) -> np.ndarray:
        """The probability of each class of a task, or of all, for raw inputs."""

    def evaluate(self, task: str | Task, data: Any = None, labels: Any = None) -> Evaluation:
        """How well a task is answered when it is known which; see `SubnetStore.evaluate`.

        `evaluate(name, "a/folder")` measures held-out images of a folder per class, all of them
        where there is no `test/`; of a `Task` without a test part, its validation part is measured.
        """

    def columns(self, task: str) -> tuple[int, int]:
        """A task's logits among those of `logits(None, …)`: the first, and one behind the last."""

    def revisit_(self, task: Task) -> None:
        """Give a learned task's data again after `restore_`: joint training keeps all data."""

    def state(self) -> State:
        """Everything learned so far: tensors by name, and plain data."""

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of the same method on the same architecture."""

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into a folder, atomically; gives the path of its file."""

    @classmethod
    def resume(
        cls,
        folder: str | os.PathLike[str],
        net: nn.Module | Architecture | None = None,
        *,
        device: str | torch.device = "auto",
        overrides: Iterable[str] = (),
    ) -> Self:
        """The learner of a model that this method saved, which goes on as the live one would have.

        - `net`: your own network again; networks of the package are rebuilt by name.
        - `device`: where it computes from now on, "auto" for a GPU if there is one.
        - `overrides`: `key=value` assignments to its settings, such as "training.epochs=5".
        """

    def ledger(self) -> Ledger:
        """What the model weighs, in bits, line by line and task by task."""

    def capacity(self) -> Mapping[str, float]:
        """Sizes that the method's own paper defines, by name, over 32 bits per shared weight."""


class Turn:
    """Whose turn it is to learn: a learner learns one task at a time.

    A trainer has the turn from its first epoch until its task is kept, it fails, or nobody holds it
    any more. Other threads are refused meanwhile. Within one thread a trainer may overtake another,
    which then refuses to finish.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: weakref.ref[Any] | None = None
        self._thread = 0

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()  # a copy of a learner has a turn of its own

    @contextmanager
    def taken(self, trainer: Any = None, *, is_last: bool = False) -> Iterator[None]:
        """The turn for a block of code, and for a trainer beyond it.

        - `trainer`: who learns; None where a task only begins.
        - `is_last`: whether the trainer needs no turn any more after this.
        """
        if not self._lock.acquire(blocking=False):
            raise TaskError(BUSY)
        try:
            holder = None if self._holder is None else self._holder()
            others = holder is not None and holder is not trainer
            if others and self._thread != threading.get_ident():
                raise TaskError(BUSY)
            if trainer is not None:
                self._holder, self._thread = weakref.ref(trainer), threading.get_ident()
            try:
                yield
            except BaseException:
                self._holder = None
                raise
            if is_last:
                self._holder = None
        finally:
            self._lock.release()


BUSY = (
    "another thread is learning a task with this learner, which learns one at a time; finish that "
    "task first, let go of its trainer, or give every thread a learner of its own."
)


def learn(
    learner: Learner,
    task: Task,
    *,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
    threads: int | None = None,
) -> TaskReport:
    """Train all epochs of a task and keep it.

    - `progress`: whether epochs are shown, live on a terminal and as plain lines elsewhere; None
      shows them on a terminal alone.
    - `on_epoch`: called with every epoch's `EpochReport`, say to log it. What it raises ends
      learning, and the task is not kept.
    - `threads`: of torch on the CPU meanwhile; None takes one for networks of fewer than 250,000
      shared weights, as `tsn run` does, and else leaves the number as it is.
    """
    warn_of_few_samples(learner, task, stacklevel=4)
    with learning(task, learner.architecture.num_shared, progress, on_epoch, threads) as see:
        trainer = learner.begin(task)
        while not trainer.finished:
            see(trainer.epoch())
        return trainer.finish()


def fits_few_samples(
    training: TrainingSettings, pruning: PruningSettings | None
) -> tuple[bool, bool]:
    """Whether epochs are not chosen, and weights not dropped, by too few validation samples."""
    keeps_last = training.kept_epoch in ("auto", "last")
    return keeps_last, pruning is None or pruning.min_valid >= FEW_VALID


def warn_of_few_samples(learner: Learner, task: Task, stacklevel: int = 2) -> None:
    """Warn of a folder of few images, unless the settings fit them; tells those that are missing.

    - `stacklevel`: of the user's call, as for `warnings.warn` where this is called.
    """
    if not isinstance(task, Task) or not task.is_from_folder or not (few := few_samples(task)):
        return
    keeps_last, leaves_out = fits_few_samples(learner.training, learner.pruning)
    settings = {'kept_epoch="auto"': keeps_last, f"min_valid={FEW_VALID}": leaves_out}
    wanted = [setting for setting, is_given in settings.items() if not is_given]
    if wanted:
        acts = ["keep the last epoch"] * (not keeps_last)
        acts += ["leave post-pruning out"] * (not leaves_out)
        told = " and ".join(acts).capitalize()
        cure = f"{type(learner).__name__}(…, {', '.join(wanted)})"
        warnings.warn(f"{few}. {told}: {cure}.", FewSamplesWarning, stacklevel=stacklevel)


def check_task(task: Task, learned: Iterable[str]) -> None:
    """Refuse what is no task, or a task of a name that has been learned."""
    if not isinstance(task, Task):
        raise TaskError(f"a Task is needed, not {type(task).__name__}; see Task.from_arrays.")
    check_name(task.name, learned)


def check_name(name: str, learned: Iterable[str]) -> None:
    """Refuse the name of a task that has been learned."""
    if name in learned:
        raise TaskError(
            f"a task named {name!r} has been learned already; "
            "learned tasks never change, so choose another name."
        )


def check_scenario_type(
    method: str, scenario_type: ScenarioType, defined: tuple[ScenarioType, ...]
) -> None:
    """Refuse a scenario type that is not defined for the method."""
    if scenario_type not in defined:
        raise SettingError(
            f"scenario_type = {scenario_type!r} is not defined for {method}; give "
            f"{' or '.join(repr(d) for d in defined)}."
        )


def check_architecture(architecture: object, *, takes_base: bool = False) -> None:
    """Refuse what is no architecture, such as a bare network.

    - `takes_base`: whether the method learns tasks over a frozen base.
    """
    if not isinstance(architecture, Architecture):
        raise ArchitectureError(
            f"an Architecture is needed, not {type(architecture).__name__}; wrap the network: "
            'Architecture(net, head="the name of its last layer").'
        )
    if architecture.base is not None and not takes_base:
        raise ArchitectureError(
            "base = 'frozen' is for TinySubNets alone; other methods start from pretrained weights "
            "by init = 'pretrained'."
        )


def check_method(numbers: Mapping[str, Any], name: str) -> None:
    """Refuse the state or file of another method."""
    if numbers.get("method") != name:
        raise MismatchError(
            f"this model was made by the method {numbers.get('method')!r}, not by {name!r}; go on "
            "with the method that made it."
        )
