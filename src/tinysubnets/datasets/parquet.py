"""Parquet files of images in the Hub's schema: rows, columns, labels, names of classes.

An image column is a struct of encoded `bytes` and `path`, or plain binary; a label is an integer.
Every error names the file, and the row where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinysubnets.errors import DataError, install_command
from tinysubnets.files import reading


@dataclass(frozen=True)
class Table:
    """The files of one split: the rows of each row group, and all labels."""

    files: tuple[Path, ...]
    image: str
    row_groups: tuple[tuple[int, ...], ...]
    labels: np.ndarray
    classes: tuple[str, ...]


def read_table(files: Sequence[Path], image: str | None, label: str | None) -> Table:
    """What is known of a split without its images; None finds the column in the first file."""
    opened = [open_parquet(file) for file in files]
    schema = opened[0].schema_arrow
    image = image or _image_column(schema, files[0])
    label = label or _label_column(schema, files[0])
    labels = [_labels(f, p, image, label) for f, p in zip(files, opened, strict=True)]
    groups = tuple(
        tuple(p.metadata.row_group(i).num_rows for i in range(p.num_row_groups)) for p in opened
    )
    return Table(tuple(files), image, groups, np.concatenate(labels), _classes(schema, label))


def open_parquet(file: Path) -> Any:
    """The opened file; a DataError names a file that is not parquet or is cut short."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(
            f"reading {file} needs pyarrow and pillow. Install them with: {install_command('data')}"
        ) from error
    try:
        with reading(file):  # no pipe, for whose other end it would wait
            return pq.ParquetFile(file)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise _corrupt(file, error) from error


def read_images(file: Path, row_group: int, image: str) -> list[bytes | None]:
    """The encoded images of one row group."""
    try:
        column = open_parquet(file).read_row_group(row_group, columns=[image]).column(0)
    except (OSError, ValueError) as error:
        raise _corrupt(file, error) from error
    values = column.to_pylist()
    return [value.get("bytes") if isinstance(value, dict) else value for value in values]


def _labels(file: Path, opened: Any, image: str, label: str) -> np.ndarray:
    """The labels of one file as int64."""
    names = opened.schema_arrow.names
    for column in (image, label):
        if column not in names:
            raise DataError(f"{file} has no column {column!r}; its columns are {', '.join(names)}.")
    try:
        column = opened.read(columns=[label]).column(0)
    except (OSError, ValueError) as error:
        raise _corrupt(file, error) from error
    if not str(column.type).startswith(("int", "uint")):
        raise DataError(f"{file}: labels in {label!r} are {column.type}; they must be integers.")
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{file}, row {row}: the label is missing.")
    labels = column.to_numpy().astype(np.int64)
    if labels.size and labels.min() < 0:
        row = int(np.argmax(labels < 0))
        raise DataError(f"{file}, row {row}: the label is {labels[row]}, which means no label.")
    return labels


def _image_column(schema: Any, file: Path) -> str:
    """The first column of a struct with `bytes`, or of plain binary."""
    for column in schema:
        kind = str(column.type)
        if kind.startswith("struct<bytes: ") or kind in ("binary", "large_binary"):
            return str(column.name)
    raise DataError(f"{file} has no column of images; its columns are {', '.join(schema.names)}.")


def _label_column(schema: Any, file: Path) -> str:
    """The column named `label`, or the first of integers."""
    integers = [c.name for c in schema if str(c.type).startswith(("int", "uint"))]
    if not integers:
        raise DataError(f"{file} has no column of integer labels; columns: {schema.names}.")
    return "label" if "label" in integers else str(integers[0])


def _classes(schema: Any, label: str) -> tuple[str, ...]:
    """The names of the classes that the `datasets` library leaves in the schema, or none."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        return tuple(str(name) for name in described["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def _corrupt(file: Path, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    return DataError(
        f"{file} cannot be read as parquet ({reason}). It is corrupt or cut short: "
        "delete it and download it again."
    )
