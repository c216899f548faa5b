"""Independent: one network per task, the upper bound in accuracy and in bytes."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from tinysubnets.capacity import Entry, Ledger
from tinysubnets.dense_module import DenseModule, Outputs
from tinysubnets.learners.dense import DenseLearner
from tinysubnets.learners.dense_lesson import DenseLesson
from tinysubnets.learners.dense_settings import Setting
from tinysubnets.task import Task


class Independent(DenseLearner):
    """A learner that trains a network of its own for every task."""

    name: ClassVar[str] = "independent"
    allowed: ClassVar[tuple[Setting, ...]] = ("task",)

    def outputs(self, task: Task) -> Outputs:
        """The columns of the task's own network."""
        return Outputs([(0, task.num_classes)], by_task=True)

    def network(self, task: str) -> dict[str, Tensor]:
        """The task's own network."""
        inside = f"{task}/"
        return {n[len(inside) :]: t for n, t in self.tensors.items() if n.startswith(inside)}

    def ledger(self) -> Ledger:
        """What the networks weigh, in bits, task by task."""
        num, head = self.architecture.num_shared, f"{self.architecture.head}."
        entries = {}
        for name in self.learned:
            network = self.network(name)
            total = sum(32 * t.numel() for t in network.values())
            heads = sum(32 * t.numel() for n, t in network.items() if n.startswith(head))
            entries[name] = Entry(codes=32 * num, heads=heads, private=total - heads - 32 * num)
        return Ledger(
            tasks=entries,
            common=Entry(),
            num_weights=num,
            new_weights=(num,) * len(entries),
            bits=(32,) * len(entries),
            raw_mask_bits=0,
            samples_kept=False,
            file_bytes=self.file_bytes,
        )

    def _module(self, task: Task, outputs: Outputs) -> DenseModule:
        start = self.fresh(task.num_classes, len(self.learned))
        return DenseModule(self.architecture, start, outputs)

    def _keep_(self, lesson: DenseLesson, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {f"{lesson.task.name}/{n}": t for n, t in tensors.items()}
        return self.tensors | own
