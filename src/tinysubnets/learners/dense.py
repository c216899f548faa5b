"""Dense learners: one network for all tasks, trained whole, and the lesson that teaches it a task.

Methods differ in what they train (`_module`), how (`_training`) and what they keep (`_keep_`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tinysubnets import config
from tinysubnets.architecture import Architecture
from tinysubnets.capacity import Entry, Ledger
from tinysubnets.dense_module import DenseModule, Outputs
from tinysubnets.errors import TaskError, unknown
from tinysubnets.learners.dense_file import save_dense
from tinysubnets.learners.dense_lesson import DenseLesson
from tinysubnets.learners.dense_settings import (
    ALL,
    DenseSettings,
    Learned,
    Setting,
    check_setting,
    check_task,
)
from tinysubnets.learners.dense_training import DenseTraining
from tinysubnets.learners.lesson import TaskReport
from tinysubnets.normalisation import Normalisation
from tinysubnets.numerics import pick_device
from tinysubnets.start import Origin, initial_private, initial_values
from tinysubnets.store import DEFAULT_BATCH
from tinysubnets.task import Label, Split, Task
from tinysubnets.training_settings import TrainingSettings


class DenseLearner(ABC):
    """A learner with one dense network; `kept` is what a method stores for later learning."""

    name: ClassVar[str]
    allowed: ClassVar[tuple[Setting, ...]] = ALL
    settings_class: ClassVar[type[DenseSettings]] = DenseSettings
    trains_old_heads: ClassVar[bool] = False

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: Any = None,  # every method is built with the same arguments; nothing is pruned
        device: str | torch.device = "cpu",
        **settings: Any,
    ) -> None:
        self.settings: Any = config.build(self.settings_class, settings)
        check_setting(self.name, self.settings.setting, self.allowed)
        self.training = config.build(TrainingSettings, training, "training")
        self.device, self.architecture = pick_device(device), architecture
        self.learned: dict[str, Learned] = {}
        self.tensors: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}
        self.reports: dict[str, TaskReport] = {}
        self.file_bytes: int | None = None

    @property
    def setting(self) -> str:
        """The setting in words, as results carry it."""
        return f"{self.settings.setting}-incremental"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return tuple(self.learned)

    @property
    def classes(self) -> tuple[tuple[str, Label], ...]:
        """The task and the label of every output column; with the same classes, the first task."""
        told = list(self.learned.values())
        if self.settings.setting == "domain":
            told = told[:1]
        return tuple((t.name, label) for t in told for label in t.classes)

    def columns(self, task: str) -> tuple[int, int]:
        """The first output column of a learned task, and the one behind its last."""
        return self._known(task).columns

    def begin(self, task: Task) -> DenseLesson:
        """Check a task and set up its training; nothing is learned yet."""
        check_task(task, self.learned)
        first = next(iter(self.learned.values()), None)
        if self.settings.setting == "domain" and first and task.classes != first.classes:
            raise TaskError(
                f"task {task.name!r} has the classes {list(task.classes)[:10]}, the first task "
                f"{list(first.classes)[:10]}; setting='domain' needs the same classes in all "
                "tasks. Use setting='task' or 'class'."
            )
        return DenseLesson(self, task)

    def learn(self, task: Task) -> TaskReport:
        """Learn a task to its end."""
        lesson = self.begin(task)
        while not lesson.finished:
            lesson.epoch()
        return lesson.finish()

    @torch.no_grad()
    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The class scores for raw inputs of a task; None: of all classes, the task unknown."""
        if task is None and self.settings.setting == "task":
            raise TaskError(
                f"{self.name} with setting='task' needs to know the task of its inputs: give its "
                "name, or learn with setting='class' or 'domain'."
            )
        raw = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.asarray(inputs))
        known = next(iter(self.learned.values())) if task is None else self._known(task)
        start, stop = (0, len(self.classes)) if task is None else known.columns
        network = self.network(known.name) | self.architecture.constants
        tensors = {n: t.to(self.device) for n, t in network.items()}
        normalise = self.normalisation(known)
        parts = [
            self.architecture(tensors, normalise(part.to(self.device)))[:, start:stop].cpu()
            for part in raw.split(DEFAULT_BATCH)
        ]
        return torch.cat(parts) if parts else torch.empty(0, stop - start)

    def predict(self, task: str | None, inputs: Any) -> np.ndarray:
        """The user's own labels for raw inputs; with the task unknown see also `classes`."""
        chosen = self.logits(task, inputs).argmax(1).numpy()
        if task is not None:
            return np.array(self._known(task).classes)[chosen]
        return np.array([label for _, label in self.classes])[chosen]

    def network(self, task: str) -> dict[str, Tensor]:
        """The tensors that answer for a task, by the user's own names."""
        return self.tensors

    def normalisation(self, task: Task | Learned) -> Normalisation:
        """The task's own normalisation where the task is known, else the first task's for all."""
        if self.settings.setting == "task" or not self.learned:
            return task.normalisation
        return next(iter(self.learned.values())).normalisation

    def ledger(self) -> Ledger:
        """What the model weighs, in bits: dense weights at 32 each, and what a method keeps."""
        inside = f"{self.architecture.head}."
        codes = 32 * self.architecture.num_shared
        heads = sum(32 * t.numel() for n, t in self.tensors.items() if n.startswith(inside))
        total = sum(32 * t.numel() for t in self.tensors.values())
        memory = sum(8 * t.numel() * t.element_size() for t in self.kept.values())
        common = Entry(codes=codes, heads=heads, private=total - codes - heads, memory=memory)
        num = self.architecture.num_shared
        return Ledger(
            tasks={name: Entry() for name in self.learned},
            common=common if self.learned else Entry(),
            num_weights=num,
            new_weights=(num,) if self.learned else (),
            bits=(32,) if self.learned else (),
            raw_mask_bits=0,
            samples_kept=memory > 0,
            file_bytes=self.file_bytes,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything learned so far: tensors by name, and plain data."""
        tensors = {n: t.clone() for n, t in self.tensors.items()}
        tensors |= {f"learner/{n}": t.clone() for n, t in self.kept.items()}
        return tensors, {
            "method": self.name,
            "settings": config.to_dict(self.settings),
            "tasks": [dataclasses.asdict(t) for t in self.learned.values()],
            "reports": [dataclasses.asdict(r) for r in self.reports.values()],
        }

    def restore_(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from a state of the same method on the same architecture."""
        inside = "learner/"
        self.tensors = {n: t.clone() for n, t in tensors.items() if not n.startswith(inside)}
        self.kept = {
            n[len(inside) :]: t.clone() for n, t in tensors.items() if n.startswith(inside)
        }
        self.reports = {r["name"]: TaskReport(**r) for r in numbers.get("reports", ())}
        self.learned = {}
        for entry in numbers["tasks"]:
            scale = entry["normalisation"]
            normalisation = Normalisation(
                tuple(scale["mean"]), tuple(scale["std"]), scale["trailing"]
            )
            start, stop = entry["columns"]
            self.learned[entry["name"]] = Learned(
                entry["name"], tuple(entry["classes"]), normalisation, (start, stop)
            )

    def save(self, folder: Any) -> None:
        """Write the network as plain safetensors, beside a config.json for people."""
        tensors, numbers = self.state()
        del numbers["reports"]  # they hold seconds: the same model must have the same bytes
        self.file_bytes = save_dense(folder, tensors, numbers)

    def fresh(self, num_classes: int, number: int = 0) -> dict[str, Tensor]:
        """A whole network that has learned nothing, as task `number` would begin with."""
        origin = Origin(self.settings.seed, 0, number, self.settings.scale)
        given = None
        if self.settings.init == "given":
            given = {n: t.float().cpu() for n, t in self.architecture.given.items()}
        private = initial_private(self.architecture, origin, num_classes, given)
        if given is not None:
            return private | {s.name: given[s.name].clone() for s in self.architecture.shared}
        values = initial_values(self.architecture, origin, "free")
        return private | self.architecture.split(values)

    def start(self, task: Task) -> dict[str, Tensor]:
        """What training of a task begins with: the network so far with rows for new classes."""
        if not self.tensors:
            return self.fresh(task.num_classes)
        if self.settings.setting == "domain":
            return dict(self.tensors)
        fresh = self.fresh(task.num_classes, len(self.learned))
        grown = {n: torch.cat([self.tensors[n], fresh[n]]) for n in self.architecture.output}
        return self.tensors | grown

    def outputs(self, task: Task) -> Outputs:
        """The output columns once this task is learned."""
        columns = [t.columns for t in self.learned.values()]
        first = len(self.classes) if self.settings.setting != "domain" else 0
        columns.append((first, first + task.num_classes))
        return Outputs(columns, by_task=self.settings.setting == "task")

    def num_old(self, outputs: Outputs) -> int:
        """How many output columns earlier tasks have already; all where classes are the same."""
        same = self.settings.setting == "domain" and bool(self.learned)
        return outputs.num if same else outputs.columns[-1][0]

    def relabelled(self, task: Task, first: int) -> Task:
        """The task with output columns as labels and the normalisation that this learner uses."""

        def moved(split: Split) -> Split:
            return Split(split.source, split.labels + first, split.index)

        weights = task.class_weights
        if weights is not None:
            weights = (*(1.0 for _ in range(first)), *weights)
        return dataclasses.replace(
            task,
            train=moved(task.train),
            valid=moved(task.valid),
            normalisation=self.normalisation(task),
            class_weights=weights,
        )

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        """What is trained on a task; heads of earlier tasks rest where nothing of them is seen."""
        train_old = self.trains_old_heads or self.settings.setting != "task"
        num_old = self.num_old(outputs)
        start = self.start(task)
        return DenseModule(self.architecture, start, outputs, num_old=num_old, train_old=train_old)

    def _training(self, module: DenseModule, task: Task) -> DenseTraining:
        """How the module is trained; the task's labels are output columns."""
        return self._plain_training(DenseTraining, module, task)

    def _plain_training(self, kind: type, module: DenseModule, task: Task) -> Any:
        return kind(
            module,
            task,
            self.training,
            seed=self.settings.seed,
            number=len(self.learned),
            device=self.device,
        )

    def _keep_(self, lesson: DenseLesson, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update `kept` from a finished lesson; gives the network as it is to be used."""
        return tensors

    def _known(self, task: str) -> Learned:
        if task not in self.learned:
            raise TaskError(unknown("task", str(task), self.learned))
        return self.learned[task]
