"""Dense methods: one network for all tasks, trained whole, and what a method adds to that.

A method is a subclass of `DenseLearner` in one file and says at most three things:

- `make_module(task)`: what is trained. A `DenseModule` holds the network and its loss; a method
  with a loss of its own brings a subclass with another `loss`.
- `training_class`: how. `DenseTraining` is plain; a method with other steps brings a subclass with
  another `step`. One with other data overrides `make_training`, and gives it another task.
- `after_task(trainer, tensors)`: what becomes of a learned task: the network as it is used from now
  on, and `extra_state`, the tensors that the method keeps beside the network.

The output layer has one row, called a column of the output, per class that was seen. With the
scenario type "task-IL" a sample is told apart from the classes of its own task only, as with one
head per task; with "class-IL" from all; with "domain-IL" all tasks have the same columns.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from tinysubnets import config
from tinysubnets.baselines.dense_file import (
    CONSTANTS,
    EXTRA,
    load_dense,
    recorded_architecture,
    save_dense,
    tensors_with_prefix,
)
from tinysubnets.errors import (
    DamageError,
    FormatError,
    MismatchError,
    SettingError,
    TaskError,
    unknown,
)
from tinysubnets.format.container import model_path
from tinysubnets.format.header import MAX_DIMENSIONS, architecture_table, classes_of
from tinysubnets.method.base import (
    ScenarioType,
    State,
    TaskReport,
    Turn,
    check_architecture,
    check_method,
    check_scenario_type,
    check_task,
    learn,
)
from tinysubnets.method.progress import OnEpoch
from tinysubnets.method.pruning import PruningSettings
from tinysubnets.model.evaluation import Evaluation, evaluate, probabilities
from tinysubnets.model.size import Entry, Ledger
from tinysubnets.model.store import DEFAULT_BATCH
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.nn.init import (
    InitKey,
    initial_task_params,
    initial_values,
    old_weights_hash,
    weights_hash,
)
from tinysubnets.tasks.checks import check_numbers, task_and_inputs
from tinysubnets.tasks.loader import Chunks
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.sources import batches
from tinysubnets.tasks.task import Label, Split, Task
from tinysubnets.training import distributed
from tinysubnets.training.evaluate import (
    BATCHNORM_SAMPLES,
    check_finite,
    count_correct,
    recalibrate_batchnorm,
)
from tinysubnets.training.loop import EpochReport, Training
from tinysubnets.training.precision import pick_device
from tinysubnets.training.settings import TrainingSettings


@dataclass(frozen=True)
class DenseSettings:
    """The settings that all dense methods have.

    - `scenario_type`: whether the task of an input is known ("task-IL"), or unknown among the
      classes of all tasks ("class-IL") or with the same classes in every task ("domain-IL").
    - `init`: weights start from the seed ("seeded") or from those of the network given
      ("pretrained").
    - `scale`: how wide seeded weights are drawn.
    - `norms`: "per_task" keeps scales, shifts and statistics of normalization layers for each task,
      as they were when it was learned; only where the task is known. "shared" has one set for all.
    - `seed`: of first weights, the order of samples, dropout, augmentation and what is remembered.
    """

    scenario_type: ScenarioType = "task-IL"
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    norms: Literal["shared", "per_task"] = "shared"
    seed: int = 0


def check_at_least(settings: DenseSettings, **least: float) -> None:
    """Refuse settings below their least value, which is given by name."""
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise SettingError(
                f"{name} = {getattr(settings, name)!r} is not allowed; give at least {bound}."
            )


@dataclass(frozen=True)
class LearnedTask:
    """What is known of a learned task.

    - `name`, `classes`: its own, as the user gave them.
    - `normalization`: of its raw inputs.
    - `columns`: its first output column, and the one behind its last.
    """

    name: str
    classes: tuple[Label, ...]
    normalization: Normalization
    columns: tuple[int, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, in the words of the file format."""
        out = dataclasses.asdict(self)
        return {"normalisation" if k == "normalization" else k: v for k, v in out.items()}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> LearnedTask:
        """The task that `as_dict` wrote; what it cannot have written is a ValueError."""
        name, scale, (start, stop) = entry["name"], entry["normalisation"], entry["columns"]
        classes = classes_of([*entry["classes"]])
        trailing = scale["trailing"]
        whole = all(type(number) is int for number in (start, stop, trailing))
        if not isinstance(name, str) or not whole or not 0 <= trailing <= MAX_DIMENSIONS:
            raise ValueError(f"an entry that no task has: {str(dict(entry))[:200]}")
        if start < 0 or stop - start != len(classes):
            raise ValueError(f"{len(classes)} classes in the output columns {start} to {stop}")
        normalization = Normalization(tuple(scale["mean"]), tuple(scale["std"]), trailing)
        return cls(name, classes, normalization, (start, stop))


# --------------------------------------------------------------------------------------------------
# One task being learned: the training of the network, and the trainer that keeps its result.


class DenseTraining(Training):
    """One dense network in training on a task whose labels are columns of the output.

    - `learner`: whose training settings, seed, device and number of learned tasks it is done with.
    - `module`: the network and its loss; found again as `network`.
    - `task`: the data, labels being output columns.

    `calibration` is what BatchNorm's running statistics are estimated on: the training data, or,
    where a subclass shows the network more than those, the same mixture.
    """

    def __init__(self, learner: DenseLearner, module: DenseModule, task: Task) -> None:
        super().__init__(
            module,
            task,
            learner.training,
            seed=learner.settings.seed,
            number=len(learner.learned),
            device=learner.device,
        )
        self.network = module
        self.calibration: Chunks = self.train

    def validation_counts(self) -> Tensor:
        """Right answers and sum of losses on validation data, over the classes that may answer."""
        tensors = self.recalibrated(self.network.eval_tensors(), BATCHNORM_SAMPLES)
        restrict = self.network.outputs.restrict
        return count_correct(self.network.architecture, tensors, self.valid, adjust_logits=restrict)

    def recalibrated(
        self, tensors: Mapping[str, Tensor], limit: int | None = None
    ) -> dict[str, Tensor]:
        """The tensors with running statistics of `calibration`; as they are in a frozen network."""
        if self.network.mode != "train":
            return dict(tensors)
        return recalibrate_batchnorm(self.network.architecture, tensors, self.calibration, limit)


class DenseTrainer:
    """One task being learned by a dense learner, one epoch at a time.

    - `task` is the user's own, `labeled` the same with output columns as labels.
    - `module` is what is trained, `training` its training, `columns` the task's output columns.
    """

    def __init__(self, learner: DenseLearner, task: Task) -> None:
        self.learner, self.task, self.number = learner, task, len(learner.learned)
        self.module = learner.make_module(task)
        self.columns = self.module.outputs.columns[-1]
        batch = min(2, len(task.train), learner.training.batch_size)
        raw = task.train.inputs(torch.arange(batch))
        learner.architecture.check(
            self.module.eval_tensors(), learner.normalization(task)(raw), self.module.outputs.num
        )
        self.labeled = learner.relabeled(task, self.columns[0])
        self.training: DenseTraining = learner.make_training(self.module, self.labeled)

    @property
    def epochs_done(self) -> int:
        """How many epochs have been trained."""
        return self.training.progress.epoch

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, so that `finish()` is next."""
        return self.training.finished

    def epoch(self) -> EpochReport:
        """Train one epoch and validate."""
        with self.learner.turn.taken(self):
            return self.training.epoch()

    def finish(self) -> TaskReport:
        """Take the best epoch by validation and let the learner keep it: the task is learned."""
        with self.learner.turn.taken(self, is_last=True):
            return self._finish()

    def _finish(self) -> TaskReport:
        learner, task, progress = self.learner, self.task, self.training.progress
        if len(learner.learned) != self.number:
            raise TaskError(
                f"another task has been learned since the training on {task.name!r} began, and "
                "with it the network has changed that this one started from; begin it again."
            )
        self.training.restore_best_()
        tensors = self.training.recalibrated(self.module.eval_tensors())
        check_finite(learner.architecture, tensors, self.training.valid, task.name)
        constants = learner.architecture.constants
        plain = {n: t.cpu().clone() for n, t in tensors.items() if n not in constants}
        norms = tensors_with_prefix(learner.extra_state, "norms/")  # a method may replace the rest
        learner.tensors = learner.after_task(self, plain)
        for name in learner.norm_names() if learner.settings.norms == "per_task" else ():
            norms[f"{self.number}/{name}"] = learner.tensors[name].clone()
        learner.extra_state |= {f"norms/{name}": tensor for name, tensor in norms.items()}
        if distributed.is_active():
            kept = {**learner.tensors, **learner.extra_state}
            distributed.check_same(f"task {task.name!r}", weights_hash(kept))
        learner.learned[task.name] = LearnedTask(
            task.name, task.classes, task.normalization, self.columns
        )
        learner.reports[task.name] = TaskReport(
            name=task.name,
            valid_accuracy=progress.best_accuracy,
            best_epoch=progress.best_epoch,
            training_seconds=progress.seconds,
        )
        return learner.reports[task.name]

    def state(self) -> State:
        """Everything needed to go on with this trainer later, taken between two epochs."""
        return self.training.state()

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a trainer of the same task and the same learner."""
        self.training.restore_(tensors, numbers)


# --------------------------------------------------------------------------------------------------
# The learner: the network so far, what is known of its tasks, and what a method keeps beside it.


class DenseLearner:
    """A learner with one dense network; itself it does nothing against forgetting.

    - `learned`: what is known of each task, by name, in the order of learning.
    - `tensors`: the network as it is used, by the user's own names, on the CPU.
    - `extra_state`: what the method keeps beside the network, by name; saved and counted with it.
    """

    name: ClassVar[str]
    scenario_types: ClassVar[tuple[ScenarioType, ...]] = ("task-IL", "class-IL", "domain-IL")
    settings_class: ClassVar[type[DenseSettings]] = DenseSettings
    settings: DenseSettings
    pruning: PruningSettings | None = None
    training_class: ClassVar[type[DenseTraining]] = DenseTraining
    # Whether heads of earlier tasks are trained too, because samples of these tasks are seen.
    trains_old_heads: ClassVar[bool] = False
    # Whether a learned task can keep its norms: not where all tasks are trained together.
    takes_norms: ClassVar[bool] = True

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping[str, Any] | None = None,
        pruning: Any = None,
        routing: Any = None,
        device: str | torch.device = "auto",
        **settings: Any,
    ) -> None:
        """A learner that has learned nothing.

        - `architecture`: the network.
        - `training`: how every task is trained, `TrainingSettings` or their values by name.
        - `pruning`, `routing`: not used; every method is built with the same arguments.
        - `device`: where it computes, "auto" for a GPU if there is one.
        - `settings`: those of the method by name, see its settings class, and those of training.
        """
        check_architecture(architecture)
        self.settings, self.training = config.build_with(
            self.settings_class, settings, training=(TrainingSettings, training)
        )
        check_scenario_type(self.name, self.settings.scenario_type, self.scenario_types)
        self._check_norms()
        self.device, self.architecture = pick_device(device), architecture
        self.pretrained: dict[str, Tensor] | None = None
        if self.settings.init == "pretrained":
            # A copy: the user's network may change while tasks are learned.
            self.pretrained = {
                n: t.float().cpu().clone() for n, t in architecture.pretrained.items()
            }
        self.learned: dict[str, LearnedTask] = {}
        self.tensors: dict[str, Tensor] = {}
        self.extra_state: dict[str, Tensor] = {}
        self.reports: dict[str, TaskReport] = {}
        self.file_bytes: int | None = None
        self.turn = Turn()

    def _check_norms(self) -> None:
        """Refuse norms per task where the task is not known, or tasks are trained together."""
        if self.settings.norms == "shared":
            return
        if not self.takes_norms:
            raise SettingError(
                f"norms = 'per_task' is not allowed: {self.name} trains all tasks together, or "
                "has a network for each; give 'shared'."
            )
        if self.settings.scenario_type != "task-IL":
            raise SettingError(
                "norms = 'per_task' needs to know the task of an input; give "
                "scenario_type = 'task-IL', or norms = 'shared'."
            )

    def norm_names(self) -> list[str]:
        """The names of all tensors of normalization layers."""
        own = {s.name for s in self.architecture.task_params}
        kinds = (_NormBase, nn.GroupNorm, nn.LayerNorm)
        modules = self.architecture.code("eval").named_modules()
        names = [f"{n}." if n else "" for n, module in modules if isinstance(module, kinds)]
        leaves = ("weight", "bias", "running_mean", "running_var")
        return [f"{n}{leaf}" for n in names for leaf in leaves if f"{n}{leaf}" in own]

    # What a method may say of its own.

    def make_module(self, task: Task) -> DenseModule:
        """What is trained on a task: the network so far, with new rows for its classes.

        Heads of earlier tasks rest where nothing of them is seen, under any optimizer.
        """
        train_old = self.trains_old_heads or self.scenario_type != "task-IL"
        outputs, start = self.outputs(task), self.start(task)
        num_old = self.num_old(outputs)
        return DenseModule(self.architecture, start, outputs, num_old=num_old, train_old=train_old)

    def make_training(self, module: DenseModule, task: Task) -> DenseTraining:
        """How the module is trained on a task whose labels are output columns."""
        return self.training_class(self, module, task)

    def after_task(self, trainer: DenseTrainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update `extra_state` once a task is trained; gives the network as it is used from now on.

        - `trainer`: the task's, at its best epoch. The task is not among `learned` yet.
        - `tensors`: the trained network, by name, on the CPU.
        """
        return tensors

    # What a method starts from.

    def outputs(self, task: Task) -> Outputs:
        """The output columns once this task is learned."""
        columns = [t.columns for t in self.learned.values()]
        first = len(self.classes) if self.scenario_type != "domain-IL" else 0
        columns.append((first, first + task.num_classes))
        return Outputs(columns, by_task=self.scenario_type == "task-IL")

    def num_old(self, outputs: Outputs) -> int:
        """How many output columns earlier tasks have already; all where classes are the same."""
        same = self.scenario_type == "domain-IL" and bool(self.learned)
        return outputs.num if same else outputs.columns[-1][0]

    def fresh(self, num_classes: int, number: int = 0) -> dict[str, Tensor]:
        """A whole network that has learned nothing.

        - `num_classes`: how many rows its output layer has.
        - `number`: of the task that begins with it; every number has random values of its own.
        """
        init_key = InitKey(self.settings.seed, 0, number, self.settings.scale)
        pretrained = self.pretrained
        task_params = initial_task_params(self.architecture, init_key, num_classes, pretrained)
        if pretrained is not None:
            return task_params | {
                s.name: pretrained[s.name].clone() for s in self.architecture.shared
            }
        values = initial_values(self.architecture, init_key)
        return task_params | self.architecture.split(values)

    def start(self, task: Task) -> dict[str, Tensor]:
        """What training of a task begins with: the network so far with rows for new classes."""
        if not self.tensors:
            return self.fresh(task.num_classes)
        if self.scenario_type == "domain-IL":
            return dict(self.tensors)
        fresh = self.fresh(task.num_classes, len(self.learned))
        grown = {n: torch.cat([self.tensors[n], fresh[n]]) for n in self.architecture.output}
        return self.tensors | grown

    def normalization(self, task: Task | LearnedTask) -> Normalization:
        """The task's own normalization where the task is known, else the first task's for all."""
        if self.scenario_type == "task-IL" or not self.learned:
            return task.normalization
        return next(iter(self.learned.values())).normalization

    def relabeled(self, task: Task, first: int) -> Task:
        """The task with output columns as labels and the normalization that this learner uses.

        `first` is the output column of its first class.
        """

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

    # What every learner does.

    @property
    def scenario_type(self) -> ScenarioType:
        """Whether the task of an input is known when predicting."""
        return self.settings.scenario_type

    @property
    def store(self) -> None:
        """None: there are no subnets."""
        return None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return tuple(self.learned)

    @property
    def classes(self) -> tuple[tuple[str, Label], ...]:
        """The task and the label of every output column; with the same classes, the first task."""
        told = list(self.learned.values())
        if self.scenario_type == "domain-IL":
            told = told[:1]
        return tuple((t.name, label) for t in told for label in t.classes)

    def columns(self, task: str) -> tuple[int, int]:
        """The first output column of a learned task, and the one behind its last."""
        return self._known(task).columns

    def begin(self, task: Task) -> DenseTrainer:
        """Check a task and set up its training; nothing is learned yet."""
        with self.turn.taken():
            return self._begin(task)

    def _begin(self, task: Task) -> DenseTrainer:
        check_task(task, self.learned)
        first = next(iter(self.learned.values()), None)
        if self.scenario_type == "domain-IL" and first and task.classes != first.classes:
            raise TaskError(
                f"task {task.name!r} has the classes {list(task.classes)[:10]}, the first task "
                f"{list(first.classes)[:10]}; scenario_type='domain-IL' needs the same classes in "
                "all tasks. Use scenario_type='task-IL' or 'class-IL'."
            )
        return DenseTrainer(self, task)

    def learn(
        self,
        task: Task,
        *,
        progress: bool | None = None,
        on_epoch: OnEpoch | None = None,
        threads: int | None = None,
    ) -> TaskReport:
        """Learn a task to its end; the arguments are those of `method.base.learn`."""
        return learn(self, task, progress=progress, on_epoch=on_epoch, threads=threads)

    def network(self, task: str) -> dict[str, Tensor]:
        """The tensors that answer for a learned task, by the user's own names."""
        place = list(self.learned).index(task)
        return self.tensors | tensors_with_prefix(self.extra_state, f"norms/{place}/")

    @torch.no_grad()
    def logits(self, task: str | None, inputs: Any) -> Tensor:
        """The logits for raw inputs of a task; None: of all classes, the task unknown."""
        if task is None and self.scenario_type == "task-IL":
            raise TaskError(
                f"{self.name} with scenario_type='task-IL' needs to know the task of its inputs: "
                "give its name, or learn with scenario_type='class-IL' or 'domain-IL'."
            )
        if task is None and not self.learned:
            raise TaskError(f"this {self.name} learner has learned no task yet; learn one first.")
        known = next(iter(self.learned.values())) if task is None else self._known(task)
        start, stop = (0, len(self.classes)) if task is None else known.columns
        network = self.network(known.name) | self.architecture.constants
        tensors = {n: t.to(self.device) for n, t in network.items()}
        normalize = self.normalization(known)
        parts = []
        for raw in batches(inputs, DEFAULT_BATCH):
            check_numbers(known.name, raw)
            normalize.check(known.name, raw)
            answers = self.architecture(tensors, normalize(raw.to(self.device)))
            parts.append(answers[:, start:stop].cpu())
        return torch.cat(parts) if parts else torch.empty(0, stop - start)

    def predict(self, task: Any = None, inputs: Any = None) -> np.ndarray:
        """The user's own labels for raw inputs: `predict(task, inputs)`, or `predict(inputs)` where
        the scenario type allows it; see also `classes`.
        """
        task, inputs = task_and_inputs(task, inputs)
        chosen = self.logits(task, inputs).argmax(1).numpy()
        if task is not None:
            return np.array(self._known(task).classes)[chosen]
        return np.array([label for _, label in self.classes])[chosen]

    def predict_proba(self, task: str | None, inputs: Any) -> np.ndarray:
        """The probability of each class of a task, or of all in the order of `classes`."""
        return probabilities(self.logits(task, inputs))

    def evaluate(self, task: str | Task, data: Any = None, labels: Any = None) -> Evaluation:
        """How well a task is answered when it is known which; see `SubnetStore.evaluate`."""
        name, data = (task.name, task) if isinstance(task, Task) else (task, data)
        classes = self._known(name).classes
        return evaluate(lambda raw: self.logits(name, raw), name, classes, data, labels)

    def revisit_(self, task: Task) -> None:
        """Nothing: no data of learned tasks are needed again."""

    def ledger(self) -> Ledger:
        """What the model weighs, in bits: dense weights at 32 each, and what the method keeps."""
        num, learned = self.architecture.num_shared, bool(self.learned)
        bits = {n: 8 * t.numel() * t.element_size() for n, t in self.extra_state.items()}
        norms = sum(b for n, b in bits.items() if n.startswith("norms/"))
        memory = sum(bits.values()) - norms
        common = network_bits(self.architecture, self.tensors)
        common += Entry(memory=memory, task_params=norms)
        return Ledger(
            tasks={name: Entry() for name in self.learned},
            common=common if learned else Entry(),
            num_weights=num,
            new_weights=(num,) if learned else (),
            bits=(32,) if learned else (),
            raw_mask_bits=0,
            samples_kept=memory > 0,
            num_layers=len(self.architecture.shared),
            file_bytes=self.file_bytes,
        )

    def capacity(self) -> Mapping[str, float]:
        """Nothing: the papers of dense methods define no size of their own."""
        return {}

    def state(self) -> State:
        """Everything learned so far: tensors by name, and plain data."""
        tensors = {n: t.clone() for n, t in self.tensors.items()}
        tensors |= {f"{EXTRA}{n}": t.clone() for n, t in self.extra_state.items()}
        return tensors, {
            "method": self.name,
            "settings": config.to_dict(self.settings),
            "tasks": [t.as_dict() for t in self.learned.values()],
            "reports": [dataclasses.asdict(r) for r in self.reports.values()],
        }

    def restore_(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from a state of the same method on the same architecture."""
        check_method(numbers, self.name)
        own = {n: t.clone() for n, t in tensors.items() if not n.startswith(CONSTANTS)}
        self.extra_state = tensors_with_prefix(own, EXTRA)
        self.tensors = {n: t for n, t in own.items() if not n.startswith(EXTRA)}
        tasks = [LearnedTask.from_dict(entry) for entry in numbers["tasks"]]
        self.learned = {t.name: t for t in tasks}
        if len(self.learned) < len(tasks):
            raise ValueError("two tasks have the same name")
        # Older reports say more, of what only methods with masks do.
        names = [f.name for f in dataclasses.fields(TaskReport)]
        reports = [TaskReport(**{n: r[n] for n in names}) for r in numbers.get("reports", ())]
        self.reports = {r.name: r for r in reports}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the network as plain safetensors, beside a config.json; gives the model's path."""
        tensors, numbers = self.state()
        del numbers["reports"]  # they hold seconds: the same model must have the same bytes
        tensors |= {f"{CONSTANTS}{n}": t for n, t in self.architecture.constants.items()}
        numbers["training"] = config.to_dict(self.training)
        numbers["architecture"] = architecture_table(self.architecture)
        if self.pretrained is not None:
            numbers["pretrained"] = weights_hash(self.pretrained)
        path = save_dense(folder, tensors, numbers)
        self.file_bytes = path.stat().st_size
        return path

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

        - `folder`: where it was saved, or the folder of its run.
        - `net`: your own network again; networks of the package are rebuilt by name.
        - `device`: where the learner computes from now on.
        - `overrides`: `key=value` assignments to its settings, such as "training.epochs=5".
        """
        tensors, numbers = load_dense(folder)
        check_method(numbers, cls.name)
        try:
            recorded = config.modernized(
                {cls.name: numbers["settings"], "training": numbers.get("training", {})}
            )
            before = config.build(cls.settings_class, recorded[cls.name])
            config.build(TrainingSettings, recorded["training"], "training")
        except (SettingError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"the recorded settings are not of this version: {error}") from error
        values = config.override(recorded, overrides)
        for table in values.keys() - recorded.keys():
            raise SettingError(unknown("table of settings", table, recorded))
        learner = cls(
            recorded_architecture(tensors, numbers, net),
            training=values["training"],
            device=device,
            **values[cls.name],
        )
        if learner.scenario_type != before.scenario_type:
            raise SettingError(
                f"scenario_type = {learner.scenario_type!r}, but this model was learned with "
                f"{before.scenario_type!r}, which its output layer is laid out for; leave it."
            )
        if learner.pretrained is not None and "pretrained" in numbers:
            hashes = (weights_hash(learner.pretrained), old_weights_hash(learner.pretrained))
            if numbers["pretrained"] not in hashes:
                raise MismatchError(
                    "init = 'pretrained', but these are not the weights that learning began with; "
                    "pass the same pretrained network as net."
                )
        try:
            learner.restore_(tensors, numbers)
        except (KeyError, TypeError, ValueError, DamageError) as error:
            raise DamageError(
                f"{folder}: the tasks of the model are damaged: {error!r}."
            ) from error
        learner._check_network()
        learner.file_bytes = model_path(folder).stat().st_size
        return learner

    def _known(self, task: str) -> LearnedTask:
        if not isinstance(task, str) or task not in self.learned:
            raise TaskError(unknown("task", str(task), self.learned))
        return self.learned[task]

    def _check_network(self) -> None:
        """Refuse a network whose tensors are not those of the model."""
        specs = (*self.architecture.shared, *self.architecture.task_params)
        is_known = self.scenario_type == "task-IL"
        for task, learned in self.learned.items():
            network = self.network(task)
            rows = learned.columns[1] if is_known else len(self.classes)
            if any(tensor.dtype != torch.float32 for tensor in network.values()):
                raise DamageError(f"task {task!r}: the values of a network are float32.")
            for spec in specs:
                # The rows of the output layer are as many as there are classes.
                first = 1 if spec.name in self.architecture.output else 0
                found = tuple(network[spec.name].shape) if spec.name in network else None
                is_short = found is not None and first == 1 and found[:1] < (rows,)
                if found is None or found[first:] != spec.shape[first:] or is_short:
                    raise MismatchError(
                        f"the network given is not the one this model was made with: {spec.name} "
                        f"has the shape {spec.shape}, in the model {found}."
                    )


def network_bits(architecture: Architecture, tensors: Mapping[str, Tensor]) -> Entry:
    """What a dense network weighs, 32 bits a value: shared weights, head, and all others."""
    prefix = f"{architecture.head}."
    codes = 32 * architecture.num_shared
    heads = sum(32 * t.numel() for n, t in tensors.items() if n.startswith(prefix))
    total = sum(32 * t.numel() for t in tensors.values())
    return Entry(codes=codes, heads=heads, task_params=total - codes - heads)
