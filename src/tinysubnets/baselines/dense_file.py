"""The file of a dense model: plain safetensors, and a config.json for people."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from tinysubnets import __version__
from tinysubnets.errors import DamageError, FormatError, MismatchError
from tinysubnets.files import lock, reading
from tinysubnets.format.container import (
    FILE_NAME,
    KEY,
    VERSION,
    model_path,
    put_in_place,
    write_beside,
)
from tinysubnets.format.header import manifest_of
from tinysubnets.format.rebuild import architecture_for
from tinysubnets.method.base import State
from tinysubnets.nn.architecture import Architecture

FORMAT = "tinysubnets-dense-1"
EXTRA = "learner/"  # what the names of extra_state begin with
CONSTANTS = "constants/"  # and those of the network's constant buffers


def save_dense(
    folder: str | os.PathLike[str], tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
) -> Path:
    """Write the model beside what is there and rename it into place; gives its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = {"format": FORMAT, "version": __version__, **numbers}
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    data = save({n: t.contiguous() for n, t in tensors.items()}, {"config": text})
    shown = json.dumps(described, indent=2) + "\n"
    with lock(folder / ".lock", wait=True):
        put_in_place(folder / FILE_NAME, data)
        write_beside(folder / FILE_NAME, {"config.json": shown.encode()})
    return folder / FILE_NAME


def load_dense(folder: str | os.PathLike[str]) -> State:
    """The tensors and plain data of a saved dense model, for the learner's `restore_`."""
    path = model_path(folder)
    try:
        with reading(path), safe_open(path, framework="pt") as file:  # which waits for a pipe
            metadata = file.metadata() or {}
            if KEY in metadata:
                raise MismatchError(
                    f"{path} holds subnets of a method with masks, not a dense model; resume it by "
                    "the method that made it."
                )
            numbers = json.loads(metadata.get("config", "{}"))
            if not isinstance(numbers, dict) or numbers.get("format") != FORMAT:
                raise FormatError(f"{path} is no dense model: its format is not {FORMAT!r}.")
            return {n: file.get_tensor(n) for n in file.keys()}, numbers
    except OSError as error:
        raise FormatError(f"no model at {path}: {error}.") from error
    except (SafetensorError, json.JSONDecodeError, RecursionError) as error:
        raise DamageError(f"{path} is damaged: {error}.") from error


def dense_method(path: Path) -> str | None:
    """The method that wrote a dense model file; None where it is no such file."""
    try:
        with reading(path), safe_open(path, framework="pt") as file:
            numbers = json.loads((file.metadata() or {}).get("config", "{}"))
    except (OSError, SafetensorError, ValueError, RecursionError):
        return None
    is_dense = isinstance(numbers, dict) and numbers.get("format") == FORMAT
    return str(numbers.get("method")) if is_dense else None


def recorded_architecture(
    tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], net: nn.Module | Architecture | None
) -> Architecture:
    """The network of a saved model: rebuilt by name, or given again and compared with it."""
    if "architecture" in numbers:
        empty = {"format": VERSION, "classes": [], "tasks": [], "block": 1, "next": 0, "banks": 0}
        empty["settings"] = {}
        size = sum(t.nbytes for t in tensors.values())
        table = empty | {"architecture": numbers["architecture"]}
        manifest = manifest_of(table, file_bytes=size)
        constants = tensors_with_prefix(tensors, CONSTANTS)
        return architecture_for(manifest, constants, net)
    if net is None:
        raise MismatchError(
            "this model was written by version 0.1, which did not record its network; give it "
            "again: resume(…, net=…)."
        )
    return net if isinstance(net, Architecture) else Architecture(net)


def tensors_with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
