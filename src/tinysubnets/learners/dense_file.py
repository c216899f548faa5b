"""The files of a dense model: plain safetensors, and a config.json for people."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from tinysubnets.errors import FormatError
from tinysubnets.version import __version__

FORMAT = "tinysubnets-dense-1"


def save_dense(folder: Any, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> int:
    """Write the model beside what is there and rename it into place; gives the model's bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = {"format": FORMAT, "version": __version__, **numbers}
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    data = save({n: t.contiguous() for n, t in tensors.items()}, {"config": text})
    _replace(folder / "config.json", (json.dumps(described, indent=2) + "\n").encode())
    _replace(folder / "model.safetensors", data)
    return len(data)


def load_dense(folder: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and plain data of a saved dense model, for the learner's `restore_`."""
    path = Path(folder) / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        numbers = json.loads((file.metadata() or {}).get("config", "{}"))
        if numbers.get("format") != FORMAT:
            raise FormatError(
                f"{path} has the format {numbers.get('format')!r}; a dense model has {FORMAT!r}."
            )
        return {n: file.get_tensor(n) for n in file.keys()}, numbers


def _replace(path: Path, data: bytes) -> None:
    """Write a whole file beside its place and rename it, so that no reader sees a part."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
