"""What dense methods have in common: their settings, what is known of a task, and the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tinysubnets.errors import SettingError, TaskError
from tinysubnets.normalisation import Normalisation
from tinysubnets.task import Label, Task

Setting = Literal["task", "class", "domain"]
ALL: tuple[Setting, ...] = ("task", "class", "domain")


@dataclass(frozen=True)
class DenseSettings:
    """What all dense methods have in common.

    `setting` is "task" (the task is known: an output row per class, compared within the task),
    "class" (unknown: compared with all classes seen) or "domain" (the same classes in every task).
    """

    setting: Setting = "task"
    init: Literal["seeded", "given"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    seed: int = 0


@dataclass(frozen=True)
class Learned:
    """What is known of a learned task: its classes, its normalisation and its output columns."""

    name: str
    classes: tuple[Label, ...]
    normalisation: Normalisation
    columns: tuple[int, int]


def check_task(task: Task, learned: Mapping[str, Any]) -> None:
    """Refuse what is no task, or a task of a name that has been learned."""
    if not isinstance(task, Task):
        raise TaskError(f"a Task is needed, not {type(task).__name__}; see Task.from_arrays.")
    if task.name in learned:
        raise TaskError(
            f"a task named {task.name!r} has been learned already; choose another name."
        )


def check_setting(name: str, setting: Setting, allowed: tuple[Setting, ...]) -> None:
    """Refuse a setting that the method's own paper does not define."""
    if setting not in allowed:
        raise SettingError(
            f"setting = {setting!r} is not defined for {name}; its paper defines "
            f"{', '.join(repr(a) for a in allowed)}."
        )
