"""Every reader of a model file, and what one reading of it costs in a process of its own.

    python tests/reading.py FOLDER      # reads FOLDER/*.safetensors and prints a line for each

Used by the tests of forged files and by the fuzzer.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinysubnets.coding.byte_io import Reader
from tinysubnets.errors import TinySubNetsError
from tinysubnets.format import ModelFile, check, inspect
from tinysubnets.format.header import manifest_of
from tinysubnets.format.limits import OWN_BYTES, known_bytes, max_config_bytes
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import NO_BANK

MEGABYTE = 1 << 20
SPARE = 64 * MEGABYTE  # what a reader may take beside four times the decoded model


def _first_task(path: Path) -> str:
    """The name of the first task of a file, or one that no file has."""
    with ModelFile(path) as file:
        tasks = file.config["tasks"]
    name = tasks[0].get("name") if tasks else None
    return name if isinstance(name, str) else "none"


def load(path: Path, net: Any = None) -> SubnetStore:
    """All tasks, each put together once."""
    store = SubnetStore.load(path, net)
    for task in store.tasks:
        store.tensors(task)
    return store


def load_one(path: Path, net: Any = None) -> SubnetStore:
    """The first task alone."""
    task = _first_task(path)
    store = SubnetStore.load(path, net, task=task)
    store.tensors(task)
    return store


def inspected(path: Path, _: Any = None) -> Any:
    """What `inspect` tells, which needs no network."""
    return inspect(path)


def predict(path: Path, net: Any = None) -> Any:
    """Labels for two inputs as the file describes them."""
    import torch

    task = _first_task(path)
    store = SubnetStore.load(path, net, task=task)
    sample = store.subnet(task).sample
    shape = (6,) if sample is None or math.prod(sample.shape) > 1 << 16 else sample.shape
    dtype = torch.float32 if sample is None else sample.dtype
    return store.predict(task, torch.zeros((2, *shape), dtype=dtype))


def export(path: Path, net: Any = None) -> Any:
    """The first task as a plain module, which is what every export begins with."""
    task = _first_task(path)
    return SubnetStore.load(path, net, task=task).module(task)


def report(path: Path, net: Any = None) -> Any:
    """The pictures of a saved model."""
    from tinysubnets.report import model_figures

    store = SubnetStore.load(path, net)
    return model_figures.of_model(store) if store.tasks else None


def resume(path: Path, net: Any = None) -> Any:
    """The learner that goes on with the model."""
    from tinysubnets.experiments import methods

    return methods.resume(path, net)


def command(path: Path, _: Any = None) -> int:
    """`tsn inspect`, as it prints."""
    from contextlib import redirect_stderr, redirect_stdout

    from tinysubnets.cli import main

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return main(["inspect", str(path)])


def dense_predict(path: Path, net: Any = None) -> Any:
    """Labels from every task of a baseline that goes on from its model."""
    import numpy as np

    from tinysubnets.experiments import methods

    learner = methods.resume(path, net)
    return [learner.predict(task, np.zeros((2, 6), np.float32)) for task in learner.tasks]


def apply(path: Path, old: Any = None) -> Any:
    """What a patch gives for the file `old`, as bytes."""
    from tinysubnets.format.patch import apply_patch

    return apply_patch(old, path.read_bytes())


READERS: dict[str, Callable[[Path, Any], Any]] = {
    "load": load,
    "one task": load_one,
    "inspect": inspected,
    "verify": check,
    "predict": predict,
    "export": export,
    "report": report,
    "resume": resume,
    "tsn inspect": command,
}
OF_OTHERS = {"dense predict": dense_predict, "apply": apply}  # files, which are no subnets


@contextmanager
def peak_bytes(found: list[int]) -> Iterator[None]:
    """Put into `found` how much resident memory the block took at its height (Linux alone)."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = _status("VmRSS")
    try:
        yield
    finally:
        found.append(max(0, _status("VmHWM") - before))


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(key)


def need_of(path: Path) -> int:
    """The decoded size that a file claims, at least the file and its text as Python holds it."""
    try:
        with ModelFile(path) as file:
            manifest = manifest_of(file.config, file.file_bytes, file.text_bytes)
            without_bank = sum(t.has_mask and t.bank == NO_BANK for t in manifest.tasks)
            own = OWN_BYTES * manifest.layout.num_weights * without_bank  # at the most
            claimed = known_bytes(manifest) + own
    except TinySubNetsError:
        claimed = 0
    return max(claimed, path.stat().st_size + 4 * accepted_text(path))  # four bytes a character


def accepted_text(path: Path) -> int:
    """The bytes of a config that a reader may inflate before it looks at what it says."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        begin = Reader(data[start : start + 20], "the config")
        text, stream = begin.varint(1 << 62), begin.varint(len(data))
    except TinySubNetsError:
        return 0
    return text if text <= max_config_bytes(stream) else 0


def measured(path: Path, reader: str, net: Any = None) -> dict[str, Any]:
    """What came of reading a file: "read" or the error's name, seconds and bytes at most.

    - `net`: the user's own network, where the model was made with one; for a patch, the old file.
    """
    peak: list[int] = []
    start = time.process_time()  # of this process alone, however busy the machine is
    with peak_bytes(peak):
        try:
            (READERS | OF_OTHERS)[reader](path, net)
            outcome = "read"
        except TinySubNetsError as error:
            outcome = type(error).__name__
        except Exception as error:  # what must never happen: the caller tells where
            outcome = f"RAW {type(error).__name__}: {str(error)[:300]}"
    return {
        "file": path.name,
        "reader": reader,
        "outcome": outcome,
        "seconds": round(time.process_time() - start, 3),
        "bytes": peak[0],
    }


def warm_up() -> None:
    """Read a good model by every reader, so that imports and caches are not measured."""
    import models

    with tempfile.TemporaryDirectory() as folder:
        path = models.store("named", tasks=3).save(folder)
        for reader in READERS:
            measured(path, reader)


def main() -> None:
    """Read every model in a folder by every reader, a line of JSON each."""
    warm_up()
    for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
        for reader in READERS:
            print(json.dumps(measured(path, reader)), flush=True)
        print(json.dumps({"file": path.name, "need": need_of(path)}), flush=True)


if __name__ == "__main__":
    main()
