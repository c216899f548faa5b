"""Readers of forged files: errors of ours, at most four times the decoded model and 64 MB.

And time that grows no faster than the file: by counted calls, and by the processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import forgeries
import models
from forge import forged
from quick import mostly_slow
from reading import READERS, SPARE
from tinysubnets.errors import TinySubNetsError

HERE = Path(__file__).parent
SECONDS = 30  # of the processor, for a reading that takes at most some
needs_linux = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="measures memory as Linux tells it"
)


def read_all(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What every reader came to with every file of a folder, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "reading.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = defaultdict(list)
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        found[entry["file"].removesuffix(".safetensors")].append(entry)
    return found


def check(name: str, entries: list[dict[str, Any]]) -> None:
    """Insist on errors of ours, little memory and little time."""
    need = next(e["need"] for e in entries if "need" in e)
    for entry in entries:
        if "outcome" in entry:
            told = f"{name} by {entry['reader']}: {entry}, need {need:,}"
            assert not entry["outcome"].startswith("RAW"), told
            assert entry["bytes"] <= 4 * need + SPARE, told
            assert entry["seconds"] <= SECONDS, told


@needs_linux
@pytest.mark.slow
def test_no_reader_takes_more_than_four_times_the_decoded_model(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    forgeries.write_all(tmp_path)
    found = read_all(tmp_path)
    valid = {"valid-but-wide", "valid-of-low-rank"}
    assert set(found) == {*forgeries.FORGERIES, *valid}
    for name, entries in found.items():
        check(name, entries)
        outcomes = {e["reader"]: e["outcome"] for e in entries if "outcome" in e}
        assert list(outcomes) == list(READERS)
        is_valid = name in forgeries.VALID | valid
        assert (set(outcomes.values()) == {"read"}) == is_valid, (name, outcomes)
        assert is_valid or outcomes["load"] != "read", name


@needs_linux
@pytest.mark.slow  # test_fuzz.py insists on the same limits, in small
def test_small_forgeries_are_refused_at_once(tmp_path: Path) -> None:
    names = ["head-of-forty-million", "head-of-a-billion", "wider-masks", "a-bank-each"]
    for name in [*names, "tasks-times-tensors"]:
        forgeries.write(tmp_path, name)
    found = read_all(tmp_path)
    for name, entries in found.items():
        check(name, entries)
        assert next(e["outcome"] for e in entries if e.get("reader") == "load") == "DamageError"
    assert len(found) == 5


# Files that can be made as large as one likes, and how large is enough to see how work grows.
GROWING: dict[str, tuple[Callable[[int], forgeries.Forgery], int]] = {
    "tasks": (lambda n: forgeries.bare_tasks(n, 10), 100),
    "tasks times tensors": (lambda n: forgeries.many_tasks(n, 10 * n), 60),
    "tasks without a name": (forgeries.nameless, 150),
    "tasks over another": (forgeries.differences, 25),
    "tasks that add nothing": (lambda n: forgeries.over_the_first(n, 10 * n), 100),
    "products of zeros": (lambda n: forgeries.over_the_first(n, 10 * n, rank=2), 120),
    "banks": (lambda n: forgeries.empty_banks(n, 10), 300),
    "shared tensors": (forgeries.many_shared, 500),
    "constants": (forgeries.constants, 1000),
    "one name": (forgeries.repeated_names, 1000),
    "routing": (forgeries.routing, 1000),
    "preprocessing": (forgeries.preprocessings, 1000),
}


def files_of(name: str, factors: tuple[int, ...], folder: Path) -> list[Path]:
    """Forgeries of one kind, so many times as large as the least."""
    make, size = GROWING[name]
    good = models.store("named", tasks=4).save(folder / "good")
    return [forged(good, make(n * size), folder / f"{n}.safetensors") for n in factors]


def read(path: Path, reader: str) -> str:
    """What came of reading a file."""
    try:
        READERS[reader](path, None)
    except TinySubNetsError as error:
        return type(error).__name__
    return "read"


def calls_of(path: Path, reader: str) -> int:
    """How many functions, of Python and of C, are called to read a file."""
    count = 0

    def called(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    read(path, reader)  # imports and caches are not counted
    sys.setprofile(called)
    try:
        read(path, reader)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("reader", mostly_slow(READERS, quick=["load", "inspect"]))
@pytest.mark.parametrize(
    "name", mostly_slow(GROWING, quick=["tasks", "tasks times tensors", "constants"])
)
def test_what_is_added_to_a_file_costs_the_same_however_large_it_is(
    name: str, reader: str, tmp_path: Path
) -> None:
    files = files_of(name, (1, 2, 3), tmp_path)
    assert len({read(path, reader) for path in files}) == 1
    one, two, three = (calls_of(path, reader) for path in files)
    assert three - two <= 1.05 * (two - one) + 20


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWING)
def test_a_file_that_is_ten_times_as_large_does_not_take_a_hundred_times_as_long(
    name: str, tmp_path: Path
) -> None:
    """What calls do not tell: the processor's time, with room for a busy machine."""

    def seconds(path: Path, reader: str) -> float:
        taken = []
        for _ in range(3):
            start = time.process_time()
            read(path, reader)
            taken.append(time.process_time() - start)
        return min(taken)

    small, large = files_of(name, (1, 10), tmp_path)
    for reader in ("load", "one task", "inspect", "verify", "resume"):
        assert seconds(large, reader) <= 40 * seconds(small, reader) + 0.2, reader
