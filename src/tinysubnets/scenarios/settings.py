"""The settings of scenarios: how many tasks, of which data; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tinysubnets.errors import SettingError


@dataclass(frozen=True)
class DataSettings:
    """What all scenarios have in common.

    - `valid`: the share of training data held back for validation.
    - `train_limit`, `test_limit`: at most so many samples of each task, evenly over its classes,
      for quick trials.
    - `test`: whether test data are read; without them accuracy is measured on validation data, as
      it should be where settings are chosen.
    - `seed`: of what is drawn from the data: permutations, class orders, validation samples. By
      default it is the run's seed; set apart, that one draws initial values and batches alone.
    """

    valid: float = 0.1
    train_limit: int | None = None
    test_limit: int | None = None
    test: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(0.0 < self.valid < 1.0, "valid", self.valid, "a share between 0 and 1")
        for name in ("train_limit", "test_limit"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, 'at least 1, or "none"')


@dataclass(frozen=True)
class PermutedSettings(DataSettings):
    """One data set, its pixels in another order for each task.

    - `dataset`: its name, see `tsn list`.
    - `num_tasks`: how many tasks there are.
    - `permute_first`: whether the first task is permuted too, or has its images as they are.
    """

    dataset: str = "mnist"
    num_tasks: int = 10
    permute_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.num_tasks >= 1, "num_tasks", self.num_tasks, "an integer of at least 1")


@dataclass(frozen=True)
class SplitSettings(DataSettings):
    """One data set, some of its classes for each task.

    - `dataset`: its name, see `tsn list`.
    - `num_tasks`: how many tasks there are; "none" takes as many as the classes allow.
    - `classes_per_task`: how many classes each has.
    - `class_order`: classes are drawn from the seed, or taken as the data set numbers them; with
      "superclasses" a task is one of the data set's own groups of classes, whatever
      `classes_per_task` says, and the seed draws their order.
    - `image_size`: the side that images are resized to; "none" leaves them as they are.
    """

    dataset: str = "cifar100"
    num_tasks: int | None = None
    classes_per_task: int = 10
    class_order: Literal["seeded", "natural", "superclasses"] = "seeded"
    image_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.num_tasks is None or self.num_tasks >= 1, "num_tasks", self.num_tasks, "1 or up"
        )
        _check_size(self.image_size)
        few = self.classes_per_task < 2
        _require(not few, "classes_per_task", self.classes_per_task, "an integer of at least 2")


@dataclass(frozen=True)
class SequenceSettings(DataSettings):
    """Whole data sets one after the other, all brought to one shape of images.

    - `datasets`: their names, see `tsn list`.
    - `image_size`, `channels`: the side of all images, and 1 for gray or 3 for color.
    """

    datasets: tuple[str, ...] = ("mnist", "svhn", "fashion-mnist", "cifar10", "notmnist")
    image_size: int = 32
    channels: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_size(self.image_size)
        twice = len(set(self.datasets)) != len(self.datasets)
        _require(bool(self.datasets) and not twice, "datasets", self.datasets, "different names")
        _require(self.channels in (1, 3), "channels", self.channels, "1 or 3")


@dataclass(frozen=True)
class TaskSource:
    """One of the user's own tasks: a folder of images per class, an .npz file or a Hub name.

    `classes` picks some of its classes by name, in that order.
    """

    data: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OwnSettings(DataSettings):
    """The user's own tasks by name; images can be resized and given more channels.

    - `tasks`: one table [tasks.NAME] each, with `data`: a folder of images per class, an .npz file
      or a name of the Hub; and `classes`: some of its classes by name.
    - `image_size`, `channels`: the side that images are resized to, and 1 for gray or 3 for color;
      "none" takes those of the first task.
    """

    tasks: dict[str, Any] = field(default_factory=dict)
    image_size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_size(self.image_size)
        _require(bool(self.tasks), "tasks", self.tasks, "at least one table [tasks.NAME]")


def _check_size(side: int | None) -> None:
    _require(side is None or side >= 1, "image_size", side, "a number of pixels, at least 1")


def _require(fine: bool, name: str, value: object, allowed: str) -> None:
    if not fine:
        raise SettingError(f"data.{name} = {value!r} is not allowed; give {allowed}.")
