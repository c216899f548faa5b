"""What a reader grants a file: memory and time in proportion to its size, and errors beyond that.

Both are estimated from the config before anything is allocated. The decoded size counts everything
that reading makes: banks, masks, task-specific parameters with heads of the tasks' widths, labels,
and the Python objects around them. A reader takes at most four times that size plus 64 MB, and time
linear in the size of the file.

A task's weights are put together when the task is used, not when the file is read. Each entry with
weights of its own is counted once for this work, however many tasks refer to it: a task that only
refers to others takes a few bytes, and a model may have many of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tinysubnets.errors import ArtifactError, DamageError
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.nn.low_rank import Factors

if TYPE_CHECKING:
    from tinysubnets.format.header import Manifest

BYTES_PER_BYTE = 8192  # decoded bytes for each byte of the file …
SPARE_BYTES = 1 << 24  # … and so many more for the smallest files
# Numbers gone through to put weights together, for each byte of the file: a thousand million take
# about a second. Factors of rank 1 in two bits for a matrix of 16,000 rows and columns need these.
WORK_PER_BYTE = 1 << 16
SPARE_WORK = 1 << 30
NETWORK_BYTES = 1 << 26  # of a network that is rebuilt: a file without tasks is short
TENSOR_BYTES = 1 << 10  # what Python and torch keep of a tensor beside its values, generously
TASK_BYTES = 1 << 12  # the same for a task: its subnet, its entry in the config and in the index
SPARE_VALUES = 1 << 18  # values in JSON text, beside one for every four bytes of it
LEAST_KEYS = 3  # of a task in the config; real ones have a name, classes, a bank and bits
LEAST_KEYS_OF_WEIGHTS = 2  # of an entry without a name: bits, and a bank or a reference
OWN_BYTES = 4  # of a weight under a mask of no bank
BANK_BYTES = 1 << 11  # what Python and torch keep of a bank, and what is said of it
TEXT_PER_BYTE = 32  # of the config, for each byte of its stream …
SPARE_TEXT = 1 << 20  # … and so much more for the shortest ones
CHARACTER_BYTES = 4  # what a character of the config may take


def most_bytes(file_bytes: int) -> int:
    """The most that the tensors of a file of that size may take."""
    return BYTES_PER_BYTE * file_bytes + SPARE_BYTES


def max_config_bytes(stream_bytes: int) -> int:
    """The most text that a config may have which is deflated to so many bytes."""
    return SPARE_TEXT + TEXT_PER_BYTE * stream_bytes


def known_bytes(manifest: Manifest) -> int:
    """What a model takes once it is decoded, as far as its config tells.

    That is all but the own weights of entries without a bank: only masks tell their number. In a
    large network such a mask mostly holds very little.
    """
    layout = manifest.layout
    # A bank has its values, the owned set, and once more each value in the codes of its owner.
    # One that no entry is in shares the same zeros with all others.
    filled = len({t.bank for t in manifest.tasks if t.bank != NO_BANK})
    need = (8 * layout.num_weights + layout.num_blocks) * filled + BANK_BYTES * manifest.num_banks
    outputs = [s for s in manifest.task_params if s.name in manifest.outputs]
    per_class = sum(math.prod(s.shape[1:]) for s in outputs)
    fixed = sum(s.numel for s in manifest.task_params if s.name not in manifest.outputs)
    num_factors = lru_cache(lambda rank: Factors(layout, rank).num)
    for task in manifest.tasks:
        need += TASK_BYTES + TENSOR_BYTES * len(layout.shared)
        if task.rank:
            need += 4 * num_factors(task.rank) + 2 * TENSOR_BYTES * len(layout.shared)
        elif not task.is_empty:
            need += layout.num_blocks // 8
        if task.name:
            need += 4 * (fixed + per_class * task.num_outputs)
            need += TENSOR_BYTES * len(manifest.task_params) + 8 * task.channels
    if any(t.reference is not None for t in manifest.tasks) and _holds_weights(manifest):
        need += 4 * layout.num_weights  # the sum, while it is made
    if manifest.base is not None and _holds_weights(manifest):
        need += 4 * layout.num_weights
    for labels in {id(t.classes): t.classes for t in manifest.tasks}.values():
        # An array of strings has the width of its longest, four bytes a character.
        longest = max((len(v) for v in labels if isinstance(v, str)), default=2)
        need += 4 * longest * len(labels)
    need += CHARACTER_BYTES * manifest.text_bytes
    for _, dtype, shape in manifest.constants:
        need += TENSOR_BYTES + math.prod(shape) * dtype.itemsize
    return need


def check_budget(manifest: Manifest, file_bytes: int) -> None:
    """Refuse a file whose tensors would take memory or time out of all proportion to its size.

    Every value of a bank that a task owns takes two bits or more in the file, so a real model is
    far below this; a forged one of some kilobytes can claim some ten megabytes at most.
    """
    need, most = _read_bytes(manifest), most_bytes(file_bytes)
    if need > most:
        raise _too_much(need, most, file_bytes)
    work, most = _work(manifest), WORK_PER_BYTE * file_bytes + SPARE_WORK
    if work > most:
        raise DamageError(
            f"config: weights that are put together from {work} numbers in a file of {file_bytes} "
            f"bytes; at most {most} are accepted for a file of that size."
        )


def most_own_weights(manifest: Manifest, file_bytes: int) -> int:
    """How many weights all entries without a bank may have, beside what the config tells of."""
    return max(0, most_bytes(file_bytes) - _read_bytes(manifest)) // OWN_BYTES


def check_own_weights(count: int, most: int, file_bytes: int) -> None:
    """Refuse so many weights under masks of no bank.

    - `most`: see `most_own_weights`.
    """
    if count > most:
        raise _too_much(OWN_BYTES * count, OWN_BYTES * most, file_bytes)


def _too_much(need: int, most: int, file_bytes: int) -> DamageError:
    return DamageError(
        f"config: tensors of {need} bytes in a file of {file_bytes}; at most {most} are accepted "
        "for a file of that size."
    )


def _read_bytes(manifest: Manifest) -> int:
    """The decoded size as far as the config tells it, and the bytes that reading goes through."""
    # Masks are kept packed, yet each is read as a byte per block: that bounds the time. So is
    # every bank looked at, also one that is empty.
    masks = sum(t.has_mask for t in manifest.tasks)
    read = (masks + manifest.num_banks) * manifest.layout.num_blocks
    return known_bytes(manifest) + read


def _holds_weights(manifest: Manifest) -> bool:
    """Whether tasks are decoded from the file alone, not over a base that the user has to give.

    A file that is smaller than the values of its base cannot hold them.
    """
    return manifest.base is None or 4 * manifest.layout.num_weights <= manifest.file_bytes


def _work(manifest: Manifest) -> int:
    """The numbers that all entries go through which add weights of their own to others.

    Adding an entry goes through all weights of the network, and one of low rank also through the
    products of its factors. A task's weights are a sum of some entries, so this bounds the work for
    any task. A task without weights of its own is not counted.
    """
    layout = manifest.layout
    products = lru_cache(lambda rank: rank * sum(r * c for _, r, c in Factors(layout, rank).places))
    adding = [t for t in manifest.tasks if t.reference is not None and not t.is_empty]
    return sum(layout.num_weights + (products(t.rank) if t.rank else 0) for t in adding)


def check_network(shapes: Mapping[str, tuple[int, ...]], manifest: Manifest) -> None:
    """Refuse a network, rebuilt by name, that is larger than its file can be meant for.

    Its shapes are those on record, but for the width of the head: every task has its own. Shared
    weights of a base that is not in the file take no memory until the user gives them.
    """
    given = set() if _holds_weights(manifest) else {s.name for s in manifest.layout.shared}
    need = 4 * sum(math.prod(s) for n, s in shapes.items() if n not in given)
    head = 4 * sum(math.prod(s) for n, s in shapes.items() if n in manifest.outputs)
    most = most_bytes(manifest.file_bytes)
    if head > most or need > max(NETWORK_BYTES, most):
        raise DamageError(
            f"config: the settings of the network ask for {need} bytes, {head} of them for its "
            f"head; at most {most} are accepted for a file of {manifest.file_bytes}."
        )


def check_json(text: str | bytes, what: str) -> None:
    """Refuse JSON of so many values that parsing it would take many times the memory of the text.

    - `what`: what the text is, for the error.
    """
    marks: list[Any] = list(",[{") if isinstance(text, str) else [b",", b"[", b"{"]
    values = sum(text.count(mark) for mark in marks)
    most = SPARE_VALUES + len(text) // 4
    if values > most:
        raise DamageError(f"the {what} has {values} values; at most {most} are accepted.")


def check_task_tables(tasks: Any, version: int) -> None:
    """Refuse a list of tasks with entries too small to be tasks, before anything is made of it.

    - `version`: of the format; only from 2 on an entry may lack a name.
    """
    if not isinstance(tasks, list):
        raise DamageError("the config lists no tasks.")
    for number, task in enumerate(tasks):
        is_task = version == 1 or not isinstance(task, dict) or "bits" not in task or "name" in task
        least = LEAST_KEYS if is_task else LEAST_KEYS_OF_WEIGHTS
        if not isinstance(task, dict) or len(task) < least:
            raise DamageError(f"config: task {number} is no table with a name, classes and a bank.")


@contextmanager
def guarded() -> Iterator[None]:
    """Turn what memory or nesting ends a reader with into errors of ours."""
    try:
        yield
    except MemoryError as error:
        raise ArtifactError(f"there is not enough memory to read this model. {error}") from error
    except RecursionError as error:
        raise DamageError("the model is nested too deeply to be read.") from error
    except RuntimeError as error:
        if "alloc" not in str(error) or isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"there is not enough memory to read this model. {error}") from error
