"""The user's own tasks: folders of images, .npz files and Hub names, listed in a TOML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tinysubnets import config
from tinysubnets.datasets import catalog, hub
from tinysubnets.datasets.loaders import TEST_FOLDERS, DecodedSet, has_test_arrays
from tinysubnets.errors import DataError, SettingError, TaskError, unknown
from tinysubnets.scenarios.sets import Sets
from tinysubnets.scenarios.settings import OwnSettings, TaskSource
from tinysubnets.tasks.task import Task


class Own:
    """One task per table [tasks.NAME], in the order of the file."""

    def __init__(self, settings: OwnSettings, sets: Sets) -> None:
        self.settings, self.sets = settings, sets
        self.sources = {
            name: config.build(TaskSource, table, f"tasks.{name}")
            if "data" in table
            else _no_data(name)
            for name, table in settings.tasks.items()
        }
        self._shape: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.sources)

    def task(self, index: int) -> Task:
        """The task at a place of the sequence."""
        name = self.names[index]
        source = self.sources[name]
        try:
            train = self._load(source, "train")
        except DataError as error:
            if _is_missing(source.data, self.sets.root):
                told = hub.not_a_folder(source.data, error.__cause__)
                raise DataError(f"tasks.{name}: {told}") from error
            raise
        self._check_shape(name, train.inputs.shape[1:])
        has_test = self.sets.with_test and _has_test(source.data)
        test = self._load(source, "test") if has_test else None
        for wanted in source.classes:
            if wanted not in train.classes:
                raise SettingError(unknown(f"class of task {name!r}:", wanted, train.classes))
        chosen = source.classes or train.classes
        numbers = [train.classes.index(c) for c in chosen]
        return self.sets.task(name, train, test, numbers)

    def _load(self, source: TaskSource, split: str) -> DecodedSet:
        size = None if source.data.endswith(".npz") else self.settings.image_size
        part = self.sets.load(source.data, split, size)
        channels, side = self.settings.channels, self.settings.image_size
        if part.inputs.ndim != 4 or (channels is None and side is None):
            return part
        part = part.fitted(channels, side)
        done = part.preprocessing
        if channels == 3 and done is not None and done.mode == "L":
            # Of gray pictures the same, and all tasks take pictures alike, whichever they are.
            part = replace(part, preprocessing=replace(done, mode="RGB", channels=None))
        return part

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse tasks that one network cannot take, with the cure."""
        if self._shape is None:
            self._shape = shape
        if shape != self._shape:
            raise TaskError(
                f"task {name!r} has inputs of shape {tuple(shape)}, {self.names[0]!r} of "
                f"{tuple(self._shape)}; one network takes one shape. Set data.image_size and "
                "data.channels to bring images to a common one."
            )


def _no_data(name: str) -> TaskSource:
    raise SettingError(
        f'tasks.{name} does not say where its data are: data = "a folder, .npz file or Hub name".'
    )


def _is_missing(data: str, root: str | Path | None) -> bool:
    """Whether a name is neither a folder nor a known data set, nor a repository that is here."""
    if data.endswith(".npz") or Path(data).expanduser().exists() or hub.is_local_only(data):
        return False
    here = hub.data_root(root)
    if here is not None and (here / data).is_dir():
        return False  # but not complete
    is_known = data in catalog.CATALOG or catalog.find(data).name != data
    return not is_known and not catalog.available(data, root).present


def _has_test(data: str) -> bool:
    """Whether the source has test data of its own; sets of the Hub do."""
    if data.endswith(".npz"):
        return has_test_arrays(data)
    folder = Path(data).expanduser()
    return not folder.is_dir() or any((folder / name).is_dir() for name in TEST_FOLDERS)
