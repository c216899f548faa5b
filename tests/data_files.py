"""Small data files in the schemas of the real ones, made by the tests themselves."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "JPEG": {"quality": 95}}


def pixels(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random images, height and width first."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def encode(image: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    """One encoded image."""
    buffer = io.BytesIO()
    made = Image.fromarray(image)
    (made.convert(mode) if mode else made).save(buffer, kind, **LOSSLESS[kind])
    return buffer.getvalue()


def write_parquet(
    file: Path,
    encoded: list[bytes | None],
    labels: dict[str, list[int]],
    image: str = "image",
    names: list[str] | None = None,
    rows: int = 4,
) -> Path:
    """A parquet file as the Hub has them: an image column, label columns, small row groups."""
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = {image: pa.array([{"bytes": b, "path": None} for b in encoded], type=IMAGE)}
    columns |= {key: pa.array(values, type=pa.int64()) for key, values in labels.items()}
    table = pa.table(columns)
    if names:
        features = {key: {"names": names, "_type": "ClassLabel"} for key in labels}
        described = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": described})
    pq.write_table(table, file, row_group_size=rows, compression="none")
    return file


def mnist_like(root: Path, count: int = 10, seed: int = 0, split: str = "train") -> np.ndarray:
    """A little `ylecun/mnist` below `root`; returns its images."""
    images = pixels(count, (28, 28), seed)
    write_parquet(
        root / f"ylecun/mnist/mnist/{split}-00000-of-00001.parquet",
        [encode(image) for image in images],
        {"label": [index % 10 for index in range(count)]},
    )
    return images
