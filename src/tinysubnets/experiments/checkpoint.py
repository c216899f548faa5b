"""Checkpoints: the state of a run between two epochs, as safetensors and JSON, never half-written.

`checkpoint/state.json` is the checkpoint; it names the tensor files that belong to it, with their
hashes. Tensor files are written under new names first, so that replacing `state.json` is the one
instant at which a new checkpoint begins to count.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import RunError
from tinysubnets.experiments.run_dir import FORMAT
from tinysubnets.files import atomic_write, friendly_os_errors

# The modules whose dataclasses a checkpoint may hold; nothing else can be made from a file.
_MODULES = (
    "model.subnet",
    "tasks.divergence",
    "tasks.task",
    "tasks.normalization",
    "method.learner",
)

State = tuple[dict[str, Tensor], Any]


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from: what was learned, the lesson under way if any, and plain numbers."""

    learned: State
    trainer: State | None
    numbers: Mapping[str, Any]


class Checkpoints:
    """The checkpoint of one run folder."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / "checkpoint"
        self._files: dict[str, dict[str, str]] = {}
        self._plain: Any = None
        self._count = 0

    def save(
        self, learned: State | None, trainer: State | None, numbers: Mapping[str, Any]
    ) -> None:
        """Replace the checkpoint; `learned` None means that it is as in the last one."""
        with friendly_os_errors(self.run):
            self.folder.mkdir(exist_ok=True)
            files = dict(self._files)
            parts: dict[str, Any] = {"lesson": None}
            if learned is not None:
                files["learned"] = self._write("learned", learned[0])
                self._plain = learned[1]
            files.pop("lesson", None)
            if trainer is not None:
                files["lesson"] = self._write("lesson", trainer[0])
                parts["lesson"] = trainer[1]
            state = {"format": FORMAT, "files": files, "learned": self._plain, **parts}
            text = json.dumps(state | {"numbers": dict(numbers)})
            atomic_write(self.folder / "state.json", text.encode())
        self._files = files
        self._tidy()

    def load(self) -> Checkpoint | None:
        """The last checkpoint, None where there is none; an error where it is damaged."""
        path = self.folder / "state.json"
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["format"] != FORMAT:
                raise RunError(
                    f"{path} is of format {state['format']}; this version reads {FORMAT}."
                )
            files = state["files"]
            tensors = {role: self._read(entry) for role, entry in files.items()}
            trainer = None if state["lesson"] is None else (tensors["lesson"], state["lesson"])
            found = Checkpoint((tensors["learned"], state["learned"]), trainer, state["numbers"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"the checkpoint in {self.folder} is damaged ({type(error).__name__}: {error}). "
                "Remove the folder to begin the run again."
            ) from error
        self._files, self._plain = files, state["learned"]
        self._count = max(int(e["name"].split("-")[-1].split(".")[0]) for e in files.values())
        return found

    def remove(self) -> None:
        """Remove the checkpoint: the run is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, role: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """Write tensors under a new name; its entry for `state.json`."""
        from safetensors.torch import save

        self._count += 1
        name = f"{role}-{self._count}.safetensors"
        data = save({n: t.detach().cpu().contiguous() for n, t in tensors.items()})
        atomic_write(self.folder / name, data)
        return {"name": name, "sha256": hashlib.sha256(data).hexdigest()}

    def _read(self, entry: Mapping[str, str]) -> dict[str, Tensor]:
        from safetensors.torch import load

        data = (self.folder / Path(entry["name"]).name).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise ValueError(f"{entry['name']} is not as it was written")
        tensors: dict[str, Tensor] = load(data)
        return tensors

    def _tidy(self) -> None:
        """Remove files of earlier checkpoints."""
        needed = {"state.json", *(e["name"] for e in self._files.values())}
        for file in self.folder.iterdir():
            if file.name not in needed:
                with contextlib.suppress(OSError):
                    file.unlink()


def learner_state(learner: Any) -> State:
    """What a learner has learned, as tensors and plain data; see `restore_learner_`."""
    if hasattr(learner, "state"):
        state: State = learner.state()
        return state
    tensors: dict[str, Tensor] = {}
    subnets = [pack(s, tensors) for s in learner.store.subnets.values()]
    reports = [pack(r, tensors) for r in learner.reports.values()]
    return tensors, {"subnets": subnets, "reports": reports}


def restore_learner_(learner: Any, state: State) -> None:
    """Give a new learner what an earlier one had learned."""
    if hasattr(learner, "restore_"):
        learner.restore_(*state)
        return
    tensors, plain = state
    for packed in plain["subnets"]:
        learner.store.add_(unpack(packed, tensors))
    for packed in plain["reports"]:
        report = unpack(packed, tensors)
        learner.reports[report.name] = report


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; tensors and bytes go into `tensors` and are named in their place."""
    if isinstance(value, (Tensor, bytes)):
        key = str(len(tensors))
        kind = "tensor" if isinstance(value, Tensor) else "bytes"
        tensors[key] = (
            value.detach().cpu().contiguous().clone()
            if isinstance(value, Tensor)
            else torch.from_numpy(np.frombuffer(value, np.uint8).copy())
        )
        return {"$": kind, "key": key}
    if isinstance(value, torch.dtype):
        return {"$": "dtype", "name": str(value).removeprefix("torch.")}
    if is_dataclass(value) and not isinstance(value, type):
        held = {f.name: pack(getattr(value, f.name), tensors) for f in fields(value)}
        return {"$": type(value).__name__, "fields": held}
    if isinstance(value, tuple):
        return {"$": "tuple", "items": [pack(v, tensors) for v in value]}
    if isinstance(value, Mapping):
        return {"$": "map", "items": [[k, pack(v, tensors)] for k, v in value.items()]}
    return value


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `pack` was given."""
    if not isinstance(value, dict):
        return value
    kind = value["$"]
    if kind in ("tensor", "bytes"):
        tensor = tensors[value["key"]]
        return tensor if kind == "tensor" else tensor.numpy().tobytes()
    if kind == "dtype":
        return _dtypes()[value["name"]]
    if kind == "tuple":
        return tuple(unpack(v, tensors) for v in value["items"])
    if kind == "map":
        return {k: unpack(v, tensors) for k, v in value["items"]}
    held = {n: unpack(v, tensors) for n, v in value["fields"].items()}
    return _classes()[kind](**held)


def _classes() -> dict[str, Any]:
    """The dataclasses that a checkpoint may hold, by name."""
    modules = [importlib.import_module(f"tinysubnets.{name}") for name in _MODULES]
    return {n: c for m in modules for n, c in vars(m).items() if is_dataclass(c)}


def _dtypes() -> dict[str, torch.dtype]:
    """The types of tensors by name."""
    return {n: d for n, d in vars(torch).items() if isinstance(d, torch.dtype)}
