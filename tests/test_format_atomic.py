"""Saving at one instant: killed processes, full disks, two writers at once."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import models
from tinysubnets.format import FILE_NAME
from tinysubnets.model.store import SubnetStore

HERE = Path(__file__).parent


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_killed_at_any_instant_a_folder_holds_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    done = run("kill_saves.py", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = int(done.stdout.split()[0])
    assert lines > 40, "the children were killed at many lines"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_model_and_no_litter(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = models.store(tasks=2)
    store.save(tmp_path)
    before = (tmp_path / FILE_NAME).read_bytes()
    models.add_task(store, 3)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            store.save(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {FILE_NAME, "config.json", "README.md"}
    store.save(tmp_path)
    assert SubnetStore.load(tmp_path).tasks == store.tasks


def test_the_file_is_synced_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        events.append(f"sync {re.sub('[0-9a-f]{16}', '*', name)}")
        fsync(descriptor)

    def spy_replace(source: Any, target: Any) -> None:
        events.append(f"rename {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    models.store(tasks=1).save(tmp_path / "m")
    assert events[:3] == [f"sync .{FILE_NAME}.*.tmp", f"rename {FILE_NAME}", "sync m"]


@pytest.mark.slow
def test_of_two_writers_at_once_one_is_refused(tmp_path: Path) -> None:
    models.store(tasks=1).save(tmp_path)
    writer = (
        "import sys, models\n"
        "from tinysubnets.model.store import SubnetStore\n"
        "from tinysubnets.errors import ConflictError\n"
        "store = SubnetStore.load(sys.argv[1])\n"
        "models.add_task(store, int(sys.argv[2]))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    store.save(sys.argv[1])\n"
        "    print('saved')\n"
        "except ConflictError:\n"
        "    print('refused')\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", writer, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )
        for number in (3, 5)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outcomes = sorted(process.communicate()[0].strip() for process in processes)
    assert outcomes == ["refused", "saved"]
    assert len(SubnetStore.load(tmp_path).tasks) == 2
