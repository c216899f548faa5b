"""Checkpoints: the state of a run between two epochs, as safetensors and JSON, never half-written.

`checkpoint/state.json` is the checkpoint; it names the tensor files that belong to it, with their
hashes. Tensor files are written under new names first, so that replacing `state.json` is the one
instant at which a new checkpoint begins to count.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tinysubnets.errors import RunError
from tinysubnets.files import atomic_write, friendly_os_errors, read, remove_folder

FORMAT = 2  # 1 held subnets as plain data, 2 holds the bytes of the model file

State = tuple[dict[str, Tensor], Any]


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from: what was learned, the trainer at work, and plain numbers."""

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
            if self.folder.is_symlink():  # old checkpoints are removed: never elsewhere
                raise OSError(errno.ELOOP, "a link", str(self.folder))
            self.folder.mkdir(exist_ok=True)
            files = dict(self._files)
            parts: dict[str, Any] = {"trainer": None}
            if learned is not None:
                files["learned"] = self._write("learned", learned[0])
                self._plain = learned[1]
            files.pop("trainer", None)
            if trainer is not None:
                files["trainer"] = self._write("trainer", trainer[0])
                parts["trainer"] = trainer[1]
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
            state = json.loads(read(path))
            if state["format"] != FORMAT:
                raise RunError(
                    f"{path} is of format {state['format']}; this version reads {FORMAT}."
                )
            files = state["files"]
            tensors = {role: self._read(entry) for role, entry in files.items()}
            trainer = None if state["trainer"] is None else (tensors["trainer"], state["trainer"])
            found = Checkpoint((tensors["learned"], state["learned"]), trainer, state["numbers"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise RunError(
                f"the checkpoint in {self.folder} is damaged ({type(error).__name__}: {error}). "
                "Remove the folder to begin the run again."
            ) from error
        self._files, self._plain = files, state["learned"]
        self._count = max(int(e["name"].split("-")[-1].split(".")[0]) for e in files.values())
        return found

    def remove(self) -> None:
        """Remove the checkpoint: the run is finished."""
        remove_folder(self.folder)

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

        data = read(self.folder / Path(entry["name"]).name)
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
