"""Data as torch has them: data sets and loaders as inputs and labels, and batches of raw inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from tinysubnets.errors import TaskError
from tinysubnets.tasks.checks import DatasetInputs, Pixels, as_array, as_tensor, item_of_pair

Names = Sequence[str] | None  # of classes, by number


def labeled(
    data: Any, names: Names = None, *, own_names: bool = True, pixels: Pixels | None = None
) -> tuple[Any, Any]:
    """Inputs and labels of a data set or loader; items of a data set stay where they are.

    Of a loader the data set is taken; its batches and their order do not matter. A loader with a
    sampler or collate function of its own is read into memory, one pass of it.

    - `names`: what classes are called by number.
    - `own_names`: whether names that the data set brings itself come first.
    - `pixels`: makes an array of a picture of Pillow; by default it is taken as it is.
    """
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if own_names:
        names = class_names(dataset) or names
    if isinstance(data, DataLoader) and not _gives_all(data):
        return _one_pass(data, names)
    if isinstance(dataset, IterableDataset):
        items = [item_of_pair(item) for item in dataset]
        inputs, labels = ([pair[i] for pair in items] for i in (0, 1))
        return as_tensor(inputs, pixels), with_names(_plain(labels), names)
    labels = with_names(dataset_labels(dataset), names)
    return DatasetInputs(dataset, pixels=pixels), labels


def _gives_all(loader: DataLoader) -> bool:
    """Whether one pass of a loader gives every sample of its data set once, in plain batches."""
    if isinstance(loader.dataset, IterableDataset) or loader.collate_fn is not default_collate:
        return False
    sampler: Any = loader.sampler
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    own_batches = loader.batch_sampler is not None and loader.batch_size is None
    return isinstance(sampler, SequentialSampler) and not own_batches


def _one_pass(loader: DataLoader, names: Names) -> tuple[Tensor, Any]:
    """All batches of a loader, one behind the other."""
    inputs, labels = [], []
    for batch in loader:
        one, other = item_of_pair(batch)
        inputs.append(as_tensor(one))
        labels.append(as_array(other))
    if not inputs:
        raise TaskError("the loader gives no batch.")
    shapes = sorted({tuple(part.shape[1:]) for part in inputs}, key=str)
    if len(shapes) > 1:
        raise TaskError(f"the loader gives samples of several shapes, {shapes[:3]}.")
    return torch.cat(inputs), with_names(np.concatenate(labels), names)


def dataset_labels(dataset: Any) -> Any:
    """The labels of a torch `Dataset`, without its inputs where it keeps them apart."""
    known = _kept_labels(dataset)
    if known is not None:
        return known
    return _plain([item_of_pair(dataset[i])[1] for i in range(len(dataset))])


def _kept_labels(dataset: Any) -> Any:
    """Labels that can be had without reading items; None where there is no such way."""
    if isinstance(dataset, Subset):
        labels = _kept_labels(dataset.dataset)
        return None if labels is None else as_array(labels)[list(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        parts = [_kept_labels(part) for part in dataset.datasets]
        return None if any(p is None for p in parts) else np.concatenate(list(map(as_array, parts)))
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[1]
    if _changes_labels(dataset):
        return None
    for attribute in ("targets", "labels"):
        labels = getattr(dataset, attribute, None)
        if labels is not None and len(labels) == len(dataset):
            return labels
    return None


def _changes_labels(dataset: Any) -> bool:
    """Whether labels of items may be others than the data set began with, as torchvision does it.

    There `transforms` of inputs and labels together either holds both apart or is a function.
    """
    together = getattr(dataset, "transforms", None)
    is_function = together is not None and not hasattr(together, "target_transform")
    return is_function or getattr(dataset, "target_transform", None) is not None


def _plain(labels: list[Any]) -> np.ndarray:
    """Labels one by one as an array; tensors of one element, as many data sets give, as numbers."""
    return np.array([v.item() if isinstance(v, Tensor) else v for v in labels])


def class_names(dataset: Any) -> tuple[str, ...] | None:
    """What a data set in torchvision's style calls its classes, by number; None if nothing."""
    if isinstance(dataset, Subset):
        return class_names(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        found = {class_names(part) for part in dataset.datasets}
        return found.pop() if len(found) == 1 else None
    if _changes_labels(dataset):
        return None  # numbers may mean something else now
    given = getattr(dataset, "classes", None)
    if not isinstance(given, (list, tuple, np.ndarray)):
        return None
    names = tuple(", ".join(n) if isinstance(n, (list, tuple)) else n for n in given)
    if not names or not all(isinstance(n, str) for n in names) or len(set(names)) < len(names):
        return None
    return tuple(map(str, names))


def with_names(labels: Any, names: Names) -> Any:
    """Numbers of classes as their names; labels that are names already, or without names, stay."""
    array = as_array(labels)
    if names is None or array.dtype.kind not in "iu" or array.ndim != 1 or len(array) == 0:
        return labels
    if array.min() < 0 or array.max() >= len(names):
        wrong = int(array.min() if array.min() < 0 else array.max())
        raise TaskError(f"a label is {wrong}, but there are names of {len(names)} classes.")
    return np.array(names)[array]


def is_dataset(data: Any) -> bool:
    """Whether something is a data set or a loader, not an array of numbers."""
    return isinstance(data, (Dataset, DataLoader))


def batches(inputs: Any, size: int, pixels: Pixels | None = None) -> Iterator[Tensor]:
    """Raw inputs in batches of at most so many samples, in their own order.

    They are an array, a tensor, pictures of Pillow, a data set of inputs or of (input, label)
    pairs, or a loader in batches of its own.

    - `pixels`: makes an array of a picture of Pillow; by default it is taken as it is.
    """
    if isinstance(inputs, DataLoader):
        if isinstance(inputs.sampler, RandomSampler):
            raise TaskError(
                "the loader shuffles, so that nobody could tell which answer is whose; give "
                "DataLoader(…, shuffle=False)."
            )
        for batch in inputs:
            yield as_tensor(batch[0] if isinstance(batch, (tuple, list)) else batch, pixels)
    elif isinstance(inputs, IterableDataset):
        bare = [item[0] if isinstance(item, (tuple, list)) else item for item in inputs]
        yield from as_tensor(bare, pixels).split(size)
    elif isinstance(inputs, Dataset):
        items = DatasetInputs(inputs, labeled=False, pixels=pixels)
        for start in range(0, len(items), size):
            yield items[start : start + size]
    else:
        raw = as_tensor(inputs, pixels)
        if raw.ndim == 0:
            raise TaskError("one number is given; (samples, features…) are needed.")
        yield from raw.split(size)
