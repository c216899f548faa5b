"""The cache of decoded sets: atomic, rebuilt when a source changes, shared by processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tinysubnets.datasets import cache
from tinysubnets.errors import DataError

SPEC = {"form": ["L", 2, 2]}


class Source:
    """One source file and a build that counts how often it runs."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "source.bin"
        self.file.write_bytes(b"first")
        self.cache = folder / "cache"
        self.builds = 0

    def build(self, folder: Path) -> tuple[np.ndarray, tuple[str, ...]]:
        self.builds += 1
        value = self.file.read_bytes()[0]
        np.save(folder / "inputs.npy", np.full((3, 1, 2, 2), value, dtype=np.uint8))
        return np.array([0, 1, 0]), ("a", "b")

    def fetch(self, spec: dict | None = None) -> cache.Cached:
        return cache.fetch("set", spec or SPEC, {"source": self.file}, self.build, self.cache)

    @property
    def folders(self) -> list[Path]:
        return [p for p in (self.cache / "decoded").iterdir() if p.is_dir()]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def set_later(file: Path) -> None:
    """Give a file a later date, however coarse the clock of the file system is."""
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 5_000_000_000))


def test_second_fetch_reads_the_first_ones_files(source: Source) -> None:
    first, second = source.fetch(), source.fetch()
    assert source.builds == 1
    assert isinstance(second.inputs, np.memmap) and np.array_equal(first.inputs, second.inputs)
    assert second.labels.dtype == np.int64 and second.classes == ("a", "b")
    assert len(second.checksum) == 64 and first.checksum == second.checksum


def test_arrays_can_be_written_to_without_altering_the_cache(source: Source) -> None:
    first = source.fetch()
    assert first.inputs.flags.writeable
    first.inputs[:] = 0
    assert (source.fetch().inputs == b"f"[0]).all()


def test_changed_source_is_built_again(source: Source) -> None:
    before = source.fetch()
    source.file.write_bytes(b"other")  # as long as before
    set_later(source.file)
    after = source.fetch()
    assert source.builds == 2 and (after.inputs == b"o"[0]).all()
    assert before.checksum != after.checksum
    assert (before.inputs == b"f"[0]).all()  # whoever holds the old one keeps it
    source.file.write_bytes(b"longer than before")
    source.fetch()
    assert source.builds == 3 and len(source.folders) == 1


def test_touched_source_with_the_same_bytes_is_hashed_once(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.fetch()
    set_later(source.file)
    source.fetch()
    assert source.builds == 1
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    source.fetch()


def test_other_name_or_number_of_sources_is_another_set(source: Source) -> None:
    source.fetch()
    for sources in ({"renamed": source.file}, {"source": source.file, "b": source.file}):
        cache.fetch("set", SPEC, sources, source.build, source.cache)
    assert source.builds == 3


def test_other_spec_has_its_own_folder(source: Source) -> None:
    source.fetch()
    source.fetch({"form": ["L", 4, 4]})
    source.fetch()
    assert source.builds == 2 and len(source.folders) == 2


@pytest.mark.parametrize("name", ["inputs.npy", "labels.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "garbage"])
def test_damaged_cache_is_built_again(source: Source, name: str, damage: str) -> None:
    source.fetch()
    file = source.folders[0] / name
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"cut": data[:-1], "empty": b"", "garbage": b"\x93NUMPY??"}[damage])
    again = source.fetch()
    assert source.builds == 2
    assert (again.inputs == b"f"[0]).all() and list(again.labels) == [0, 1, 0]


def test_arrays_of_another_shape_are_built_again(source: Source) -> None:
    source.fetch()
    np.save(source.folders[0] / "inputs.npy", np.zeros((4, 1, 2, 2), dtype=np.uint8))
    assert source.fetch().inputs.shape == (3, 1, 2, 2) and source.builds == 2


def test_failed_build_leaves_nothing(source: Source) -> None:
    def fail(folder: Path) -> tuple[np.ndarray, tuple[str, ...]]:
        (folder / "inputs.npy").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.fetch("set", SPEC, {"source": source.file}, fail, source.cache)
    assert source.folders == []
    assert (source.fetch().inputs == b"f"[0]).all()


def test_source_that_changes_while_it_is_decoded_is_refused(source: Source) -> None:
    def build(folder: Path) -> tuple[np.ndarray, tuple[str, ...]]:
        result = source.build(folder)
        source.file.write_bytes(b"something else")
        return result

    with pytest.raises(DataError, match="changed while it was decoded"):
        cache.fetch("set", SPEC, {"source": source.file}, build, source.cache)
    assert source.folders == []


def test_folder_that_cannot_be_written_is_named(source: Source) -> None:
    source.cache.write_text("a file where the folder should be")
    with pytest.raises(DataError, match="TINYSUBNETS_CACHE"):
        source.fetch()


def test_missing_source_is_named(source: Source) -> None:
    source.fetch()
    source.file.unlink()
    with pytest.raises(DataError, match=r"source\.bin cannot be read"):
        source.fetch()


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from tinysubnets.datasets import cache
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
def build(target):
    with open(folder / "log", "a") as log:
        log.write("built\\n")
    np.save(target / "inputs.npy", np.full((3, 1, 2, 2), 7, dtype=np.uint8))
    time.sleep(seconds)
    return np.array([0, 1, 0]), ("a", "b")
found = cache.fetch("set", {"form": 1}, {"source": folder / "source.bin"}, build, folder / "cache")
print(int(found.inputs.sum()))
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_process_leaves_nothing_that_could_be_read(source: Source, tmp_path: Path) -> None:
    process = start(tmp_path, 60)
    while not (tmp_path / "log").exists() or not list(source.cache.rglob("inputs.npy")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert all(p.name.endswith(".tmp") for p in source.folders)
    again = start(tmp_path, 0)
    assert again.communicate()[0] == "84\n"
    assert (tmp_path / "log").read_text() == "built\n" * 2
    assert [p.name.endswith(".tmp") for p in source.folders] == [False]


def test_processes_at_the_same_time_build_once(tmp_path: Path) -> None:
    source = Source(tmp_path)
    processes = [start(tmp_path, 0.3) for _ in range(3)]
    assert [p.communicate()[0] for p in processes] == ["84\n"] * 3
    assert (tmp_path / "log").read_text() == "built\n"
    assert len(source.folders) == 1


def test_kill_between_the_two_renames_is_healed(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.fetch()
    source.file.write_bytes(b"new source")
    replace, calls = os.replace, []

    def die_at_the_second(a: Path, b: Path) -> None:
        calls.append(a)
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(a, b)

    monkeypatch.setattr(os, "replace", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        source.fetch()
    monkeypatch.setattr(os, "replace", replace)
    assert (source.fetch().inputs == b"n"[0]).all()
    assert len(source.folders) == 1


def test_description_can_be_read_by_people(source: Source) -> None:
    source.fetch()
    meta = json.loads((source.folders[0] / "meta.json").read_text())
    assert meta["sources"][0]["name"] == "source" and meta["shape"] == [3, 1, 2, 2]


def test_cache_folder_comes_from_argument_environment_or_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "env"))
    assert cache.cache_root(tmp_path / "arg") == tmp_path / "arg"
    assert cache.cache_root() == tmp_path / "env"
    monkeypatch.delenv("TINYSUBNETS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "tinysubnets"
