"""The table of known data sets: where each one lives on the Hub, and how its images look.

Nothing heavy is imported here, so that a list of data sets can be printed at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tinysubnets.datasets import hub
from tinysubnets.datasets.classes import (
    CIFAR10,
    CIFAR100,
    CIFAR100_SUPERCLASSES,
    DIGITS,
    FASHION,
    LETTERS,
)
from tinysubnets.errors import SettingError, unknown

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SPLITS = MappingProxyType({"train": ("train",), "test": ("test",)})


@dataclass(frozen=True)
class DataSet:
    """One data set in parquet files: `<repo>/<folder>/<split>-*.parquet`.

    `splits` maps our split names to the files' (the first that exists is taken). `size` is the side
    of a decoded image; where images vary, `resize` is the length of the shorter side before the
    center crop. `image`, `label`, `mode` and `size` are None for a set whose files have to tell.
    `superclasses` names groups of classes, where the set has them, each with its classes.
    """

    name: str
    repo: str
    description: str
    folder: str = "data"
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _SPLITS)
    image: str | None = "image"
    label: str | None = "label"
    mode: str | None = "RGB"
    size: int | None = 32
    resize: int | None = None
    num_classes: int | None = 10
    classes: tuple[str, ...] = ()
    superclasses: Mapping[str, str] = field(default_factory=dict)

    @property
    def channels(self) -> int | None:
        """The number of color channels, None where the files have to tell."""
        return None if self.mode is None else len(self.mode)

    def patterns(self, split: str) -> tuple[str, ...]:
        """The patterns of the split's files within the repository, most wanted first."""
        if split not in self.splits:
            raise SettingError(unknown(f"split of {self.name}", split, self.splits))
        return tuple(f"{self.folder}/{given}-*.parquet" for given in self.splits[split])


_ALL = (
    DataSet(
        "mnist",
        "ylecun/mnist",
        "60,000 / 10,000 handwritten digits, 1x28x28",
        folder="mnist",
        mode="L",
        size=28,
        classes=DIGITS,
    ),
    DataSet(
        "fashion-mnist",
        "zalando-datasets/fashion_mnist",
        "60,000 / 10,000 garments, 1x28x28",
        folder="fashion_mnist",
        mode="L",
        size=28,
        classes=FASHION,
    ),
    DataSet(
        "cifar10",
        "uoft-cs/cifar10",
        "50,000 / 10,000 photographs in 10 classes, 3x32x32",
        folder="plain_text",
        image="img",
        classes=CIFAR10,
    ),
    DataSet(
        "cifar100",
        "uoft-cs/cifar100",
        "50,000 / 10,000 photographs in 100 classes, 3x32x32",
        folder="cifar100",
        image="img",
        label="fine_label",
        num_classes=100,
        classes=CIFAR100,
        superclasses=CIFAR100_SUPERCLASSES,
    ),
    DataSet(
        "svhn",
        "ufldl-stanford/svhn",
        "73,257 / 26,032 house-number digits, 3x32x32",
        folder="cropped_digits",
        classes=DIGITS,
    ),
    # No official home on the Hub; of its copies of "notMNIST small" this one is split in two.
    DataSet(
        "notmnist",
        "anubhavmaity/notMNIST",
        "about 15,000 / 3,750 letters A to J, 1x28x28",
        mode="L",
        size=28,
        classes=LETTERS,
    ),
    DataSet(
        "tiny-imagenet",
        "zh-plus/tiny-imagenet",
        "100,000 / 10,000 in 200 classes, 3x64x64",
        splits=MappingProxyType({"train": ("train",), "test": ("valid",)}),
        size=64,
        num_classes=200,
    ),
    DataSet(
        "imagenet100",
        "clane9/imagenet-100",
        "about 126,700 / 5,000 in 100 classes, resized to 256 and cropped to 3x224x224",
        splits=MappingProxyType({"train": ("train",), "test": ("validation",)}),
        size=224,
        resize=256,
        num_classes=100,
    ),
    DataSet(
        "cifar10-small",
        "local/cifar10_small",
        "15,000 / 4,000 of CIFAR-10, 3x32x32",
        folder="plain_text",
        image="img",
        classes=CIFAR10,
    ),
    DataSet(
        "notmnist-small",
        "local/notmnist_small",
        "16,851 / 1,873 letters of notMNIST, 1x28x28",
        mode="L",
        size=28,
        classes=LETTERS,
    ),
    DataSet(
        "emnist-letters",
        "local/emnist_letters_a_to_j",
        "20,000 / 4,000 handwritten letters A to J, 1x28x28; can stand in for SVHN",
        mode="L",
        size=28,
        classes=LETTERS,
    ),
    DataSet(
        "tiny-imagenet-20",
        "local/tiny_imagenet_20_classes",
        "10,000 / 1,000 in 20 of the 200 classes of Tiny-ImageNet, 3x64x64",
        splits=MappingProxyType({"train": ("train",), "test": ("valid",)}),
        size=64,
        num_classes=20,
    ),
)
CATALOG: Mapping[str, DataSet] = MappingProxyType({entry.name: entry for entry in _ALL})


def names() -> tuple[str, ...]:
    """The names of all known data sets."""
    return tuple(CATALOG)


def find(name: str) -> DataSet:
    """The data set of a name: one of `names()`, or a Hub repository `owner/name[/folder]`.

    A repository that the table does not know is read as the Hub lays out image sets: a column of
    images, a column of integer labels, both found in the files.
    """
    if name in CATALOG:
        return CATALOG[name]
    for entry in _ALL:
        if name in (entry.repo, f"{entry.repo}/{entry.folder}"):
            return entry
    parts = name.split("/")
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        other = (
            " A Hub repository is named 'owner/name' or 'owner/name/folder'; a folder of images or "
            "an .npz file is given by its path, and there is none of that name."
        )
        raise SettingError(unknown("data set", name, CATALOG) + other)
    return DataSet(
        name,
        "/".join(parts[:2]),
        "images of a Hub repository",
        folder="/".join(parts[2:]) or "data",
        splits=MappingProxyType({"train": ("train",), "test": ("test", "validation", "valid")}),
        image=None,
        label=None,
        mode=None,
        size=None,
        num_classes=None,
    )


@dataclass(frozen=True)
class Availability:
    """Where a data set would come from, and whether all of it is on this machine."""

    where: str
    present: bool


def available(name: str, root: str | Path | None = None) -> Availability:
    """Where `load` would take a data set from; looks at file names only."""
    entry = find(name)
    places = [hub.find(entry.repo, entry.patterns(split), root) for split in entry.splits]
    found = [place for place in places if place is not None]
    if len(found) == len(places):
        return Availability(found[0].where, True)
    if hub.is_local_only(entry.repo):
        return Availability(f"{entry.repo} below --data or {hub.ROOT_VARIABLE}", False)
    return Availability(f"Hugging Face Hub, {entry.repo}", False)
