"""What dense methods have in common: their settings, what is known of a task, and the checks."""

from __future__ import annotations

import dataclasses
import json
import os
from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from tinysubnets import config
from tinysubnets.errors import FormatError, SettingError, TaskError, unknown
from tinysubnets.method.learner import TaskReport
from tinysubnets.model.size import Entry, Ledger
from tinysubnets.model.store import DEFAULT_BATCH
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.nn.init import InitKey, initial_task_params, initial_values
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Label, Split, Task
from tinysubnets.training.evaluate import BATCHNORM_SAMPLES, count_correct, recalibrate_batchnorm
from tinysubnets.training.loop import EpochReport, Training
from tinysubnets.training.precision import pick_device
from tinysubnets.training.settings import TrainingSettings
from tinysubnets.version import __version__

ScenarioType = Literal["task-IL", "class-IL", "domain-IL"]
ALL: tuple[ScenarioType, ...] = ("task-IL", "class-IL", "domain-IL")


@dataclass(frozen=True)
class DenseSettings:
    """What all dense methods have in common.

    `scenario_type` is "task-IL" (the task is known: an output row per class, compared within the
    task), "class-IL" (unknown: compared with all classes seen) or "domain-IL" (the same classes in
    every task).
    """

    scenario_type: ScenarioType = "task-IL"
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    seed: int = 0


@dataclass(frozen=True)
class LearnedTask:
    """What is known of a learned task: its classes, its normalization and its output columns."""

    name: str
    classes: tuple[Label, ...]
    normalization: Normalization
    columns: tuple[int, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, in the words of the file format."""
        out = dataclasses.asdict(self)
        return {"normalisation" if k == "normalization" else k: v for k, v in out.items()}


def check_task(task: Task, learned: Mapping[str, Any]) -> None:
    """Refuse what is no task, or a task of a name that has been learned."""
    if not isinstance(task, Task):
        raise TaskError(f"a Task is needed, not {type(task).__name__}; see Task.from_arrays.")
    if task.name in learned:
        raise TaskError(
            f"a task named {task.name!r} has been learned already; choose another name."
        )


def check_scenario_type(
    name: str, scenario_type: ScenarioType, allowed: tuple[ScenarioType, ...]
) -> None:
    """Refuse a setting that the method's own paper does not define."""
    if scenario_type not in allowed:
        raise SettingError(
            f"scenario_type = {scenario_type!r} is not defined for {name}; its paper defines "
            f"{', '.join(repr(a) for a in allowed)}."
        )


# --------------------------------------------------------------------------------------------------
# Training of dense networks: the shared training with validation over the right classes.


class DenseTraining(Training):
    """One dense network in training on a task whose labels are columns of the output."""

    def __init__(
        self,
        module: DenseModule,
        task: Task,
        settings: TrainingSettings,
        *,
        seed: int,
        number: int,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(module, task, settings, seed=seed, number=number, device=device)
        self.network = module

    def validation_counts(self) -> Tensor:
        """Right answers and sum of losses, with statistics of the network as it stands."""
        tensors = self.settled(self.network.eval_tensors(), BATCHNORM_SAMPLES)
        restrict = self.network.outputs.restrict
        return count_correct(self.network.architecture, tensors, self.valid, adjust_logits=restrict)

    def settled(self, tensors: Mapping[str, Tensor], limit: int | None = None) -> dict[str, Tensor]:
        """The tensors with the normalization statistics of what this training shows the network."""
        if self.network.mode != "train":
            return dict(tensors)
        return recalibrate_batchnorm(self.network.architecture, tensors, self, limit)  # type: ignore[arg-type]

    def chunks(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in the same mixture as in training, in a fixed order."""
        return self.train.chunks(batch_size, limit)


# --------------------------------------------------------------------------------------------------
# The files of a dense model: plain safetensors, and a config.json for people.


FORMAT = "tinysubnets-dense-1"


def save_dense(folder: Any, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> int:
    """Write the model beside what is there and rename it into place; gives the model's bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = {"format": FORMAT, "version": __version__, **numbers}
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    data = save({n: t.contiguous() for n, t in tensors.items()}, {"config": text})
    _replace(folder / "config.json", (json.dumps(described, indent=2) + "\n").encode())
    _replace(folder / "model.safetensors", data)
    return len(data)


def load_dense(folder: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and plain data of a saved dense model, for the learner's `restore_`."""
    path = Path(folder) / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        numbers = json.loads((file.metadata() or {}).get("config", "{}"))
        if numbers.get("format") != FORMAT:
            raise FormatError(
                f"{path} has the format {numbers.get('format')!r}; a dense model has {FORMAT!r}."
            )
        return {n: file.get_tensor(n) for n in file.keys()}, numbers


def _replace(path: Path, data: bytes) -> None:
    """Write a whole file beside its place and rename it, so that no reader sees a part."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


# --------------------------------------------------------------------------------------------------
# One task being learned by a dense network, one epoch at a time.


class DenseTrainer:
    """One task being learned by a dense network, one epoch at a time."""

    def __init__(self, learner: DenseLearner, task: Task) -> None:
        self.learner, self.task = learner, task
        self.outputs = learner.outputs(task)
        self.columns = self.outputs.columns[-1]
        self.module = learner._module(task, self.outputs)
        raw = task.train.inputs(torch.arange(min(2, len(task.train))))
        learner.architecture.check(
            self.module.eval_tensors(), learner.normalization(task)(raw), self.outputs.num
        )
        labelled = learner.relabelled(task, self.columns[0])
        self.training: DenseTraining = learner._training(self.module, labelled)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, so that `finish()` is next."""
        return self.training.finished

    def epoch(self) -> EpochReport:
        """Train one epoch."""
        return self.training.epoch()

    def finish(self) -> TaskReport:
        """Take the best epoch and let the learner keep it."""
        self.training.restore_best_()
        tensors = self.training.settled(self.module.eval_tensors())
        constants = self.learner.architecture.constants
        plain = {n: t.cpu().clone() for n, t in tensors.items() if n not in constants}
        learner, task = self.learner, self.task
        learner.tensors = learner.after_task(self, plain)
        learner.learned[task.name] = LearnedTask(
            task.name, task.classes, task.normalization, self.columns
        )
        report = dense_report(task.name, self.training)
        learner.reports[task.name] = report
        return report

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on with this lesson later, taken between two epochs."""
        return self.training.state()

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a lesson on the same task and the same learner."""
        self.training.restore_(tensors, numbers)


def dense_report(name: str, training: DenseTraining) -> TaskReport:
    """What learning a task came to, in the words that all methods use."""
    progress = training.progress
    return TaskReport(
        name=name,
        bank=0,
        reason="one dense network",
        bits=32,
        density=1.0,
        owned_before_pruning=1.0,
        owned_after_pruning=1.0,
        valid_accuracy=progress.best_accuracy,
        best_epoch=progress.best_epoch,
        training_seconds=progress.seconds,
        pruning_seconds=0.0,
    )


# --------------------------------------------------------------------------------------------------
# Dense learners: one network for all tasks, trained whole, and the lesson that teaches it a task.
#
# Methods differ in what they train (`_module`), how (`_training`) and what they keep (`_keep_`).


class DenseLearner(ABC):
    """A learner with one dense network; `extra_state` is what a method stores beside it."""

    name: ClassVar[str]
    allowed: ClassVar[tuple[ScenarioType, ...]] = ALL
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
        check_scenario_type(self.name, self.settings.scenario_type, self.allowed)
        self.training = config.build(TrainingSettings, training, "training")
        self.device, self.architecture = pick_device(device), architecture
        self.learned: dict[str, LearnedTask] = {}
        self.tensors: dict[str, Tensor] = {}
        self.extra_state: dict[str, Tensor] = {}
        self.reports: dict[str, TaskReport] = {}
        self.file_bytes: int | None = None

    @property
    def scenario_type(self) -> str:
        """The setting in words, as results carry it."""
        return str(self.settings.scenario_type)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return tuple(self.learned)

    @property
    def classes(self) -> tuple[tuple[str, Label], ...]:
        """The task and the label of every output column; with the same classes, the first task."""
        told = list(self.learned.values())
        if self.settings.scenario_type == "domain-IL":
            told = told[:1]
        return tuple((t.name, label) for t in told for label in t.classes)

    def columns(self, task: str) -> tuple[int, int]:
        """The first output column of a learned task, and the one behind its last."""
        return self._known(task).columns

    def begin(self, task: Task) -> DenseTrainer:
        """Check a task and set up its training; nothing is learned yet."""
        check_task(task, self.learned)
        first = next(iter(self.learned.values()), None)
        if self.settings.scenario_type == "domain-IL" and first and task.classes != first.classes:
            raise TaskError(
                f"task {task.name!r} has the classes {list(task.classes)[:10]}, the first task "
                f"{list(first.classes)[:10]}; scenario_type='domain-IL' needs the same classes in "
                "all tasks. Use scenario_type='task-IL' or 'class-IL'."
            )
        return DenseTrainer(self, task)

    def learn(self, task: Task) -> TaskReport:
        """Learn a task to its end."""
        trainer = self.begin(task)
        while not trainer.finished:
            trainer.epoch()
        return trainer.finish()

    @torch.no_grad()
    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The logits for raw inputs of a task; None: of all classes, the task unknown."""
        if task is None and self.settings.scenario_type == "task-IL":
            raise TaskError(
                f"{self.name} with scenario_type='task-IL' needs to know the task of its inputs: "
                "give its name, or learn with scenario_type='class-IL' or 'domain-IL'."
            )
        raw = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.asarray(inputs))
        known = next(iter(self.learned.values())) if task is None else self._known(task)
        start, stop = (0, len(self.classes)) if task is None else known.columns
        network = self.network(known.name) | self.architecture.constants
        tensors = {n: t.to(self.device) for n, t in network.items()}
        normalize = self.normalization(known)
        parts = [
            self.architecture(tensors, normalize(part.to(self.device)))[:, start:stop].cpu()
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

    def normalization(self, task: Task | LearnedTask) -> Normalization:
        """The task's own normalization where the task is known, else the first task's for all."""
        if self.settings.scenario_type == "task-IL" or not self.learned:
            return task.normalization
        return next(iter(self.learned.values())).normalization

    def ledger(self) -> Ledger:
        """What the model weighs, in bits: dense weights at 32 each, and what a method keeps."""
        prefix = f"{self.architecture.head}."
        codes = 32 * self.architecture.num_shared
        heads = sum(32 * t.numel() for n, t in self.tensors.items() if n.startswith(prefix))
        total = sum(32 * t.numel() for t in self.tensors.values())
        memory = sum(8 * t.numel() * t.element_size() for t in self.extra_state.values())
        common = Entry(codes=codes, heads=heads, task_params=total - codes - heads, memory=memory)
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
        tensors |= {f"learner/{n}": t.clone() for n, t in self.extra_state.items()}
        return tensors, {
            "method": self.name,
            "settings": config.to_dict(self.settings),
            "tasks": [t.as_dict() for t in self.learned.values()],
            "reports": [dataclasses.asdict(r) for r in self.reports.values()],
        }

    def restore_(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from a state of the same method on the same architecture."""
        prefix = "learner/"
        self.tensors = {n: t.clone() for n, t in tensors.items() if not n.startswith(prefix)}
        self.extra_state = {
            n[len(prefix) :]: t.clone() for n, t in tensors.items() if n.startswith(prefix)
        }
        self.reports = {r["name"]: TaskReport(**r) for r in numbers.get("reports", ())}
        self.learned = {}
        for entry in numbers["tasks"]:
            scale = entry["normalisation"]
            normalization = Normalization(
                tuple(scale["mean"]), tuple(scale["std"]), scale["trailing"]
            )
            start, stop = entry["columns"]
            self.learned[entry["name"]] = LearnedTask(
                entry["name"], tuple(entry["classes"]), normalization, (start, stop)
            )

    def save(self, folder: Any) -> None:
        """Write the network as plain safetensors, beside a config.json for people."""
        tensors, numbers = self.state()
        del numbers["reports"]  # they hold seconds: the same model must have the same bytes
        self.file_bytes = save_dense(folder, tensors, numbers)

    def fresh(self, num_classes: int, number: int = 0) -> dict[str, Tensor]:
        """A whole network that has learned nothing, as task `number` would begin with."""
        init_key = InitKey(self.settings.seed, 0, number, self.settings.scale)
        pretrained = None
        if self.settings.init == "pretrained":
            pretrained = {n: t.float().cpu() for n, t in self.architecture.pretrained.items()}
        task_params = initial_task_params(self.architecture, init_key, num_classes, pretrained)
        if pretrained is not None:
            return task_params | {
                s.name: pretrained[s.name].clone() for s in self.architecture.shared
            }
        values = initial_values(self.architecture, init_key, "free")
        return task_params | self.architecture.split(values)

    def start(self, task: Task) -> dict[str, Tensor]:
        """What training of a task begins with: the network so far with rows for new classes."""
        if not self.tensors:
            return self.fresh(task.num_classes)
        if self.settings.scenario_type == "domain-IL":
            return dict(self.tensors)
        fresh = self.fresh(task.num_classes, len(self.learned))
        grown = {n: torch.cat([self.tensors[n], fresh[n]]) for n in self.architecture.output}
        return self.tensors | grown

    def outputs(self, task: Task) -> Outputs:
        """The output columns once this task is learned."""
        columns = [t.columns for t in self.learned.values()]
        first = len(self.classes) if self.settings.scenario_type != "domain-IL" else 0
        columns.append((first, first + task.num_classes))
        return Outputs(columns, by_task=self.settings.scenario_type == "task-IL")

    def num_old(self, outputs: Outputs) -> int:
        """How many output columns earlier tasks have already; all where classes are the same."""
        same = self.settings.scenario_type == "domain-IL" and bool(self.learned)
        return outputs.num if same else outputs.columns[-1][0]

    def relabelled(self, task: Task, first: int) -> Task:
        """The task with output columns as labels and the normalization that this learner uses."""

        def moved(split: Split) -> Split:
            return Split(split.source, split.labels + first, split.index)

        weights = task.class_weights
        if weights is not None:
            weights = (*(1.0 for _ in range(first)), *weights)
        return dataclasses.replace(
            task,
            train=moved(task.train),
            valid=moved(task.valid),
            normalization=self.normalization(task),
            class_weights=weights,
        )

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        """What is trained on a task; heads of earlier tasks rest where nothing of them is seen."""
        train_old = self.trains_old_heads or self.settings.scenario_type != "task-IL"
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

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update `extra_state` from a finished lesson; gives the network as it is to be used."""
        return tensors

    def _known(self, task: str) -> LearnedTask:
        if task not in self.learned:
            raise TaskError(unknown("task", str(task), self.learned))
        return self.learned[task]
