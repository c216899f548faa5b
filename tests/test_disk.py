"""Runs on a real small disk: one that fills up, and one that becomes read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from run_helpers import numbers, small_options

# Run in a namespace of its own: nobody else sees the disk, and it is gone with the process.
FULL = """
mount -t tmpfs -o size="$2" tmpfs "$1" || exit 77
shift 2; "$@"; echo "run: $?"
mount -o remount,size=20m "$DISK"
"$PYTHON" -m tinysubnets resume "$DISK/run" --no-report; echo "resume: $?"
cp -r "$DISK/run" "$KEEP"
"""
READ_ONLY = """
mount -t tmpfs -o size=20m tmpfs "$1" || exit 77
mkdir "$DISK/empty" && mount -o remount,ro "$1" || exit 77
shift 2; "$@"; echo "run: $?"
"$PYTHON" -m tinysubnets compare permuted-digits --methods tsn,naive --seeds 1 --out "$DISK/all"
echo "compare: $?"
"""


def on_a_disk(script: str, size: str, folder: Path) -> tuple[str, Path]:
    """What a run on a small disk says, and the folder that is kept of it."""
    disk, kept = folder / "disk", folder / "kept"
    disk.mkdir()
    command = [sys.executable, "-m", "tinysubnets", "run", "--out", str(disk / "run")]
    command += ["--seed", "3", "--device", "cpu", "--threads", "1", "--checkpoint-seconds", "0"]
    command += ["--no-report", *small_options()]
    names = {"DISK": str(disk), "KEEP": str(kept), "PYTHON": sys.executable}
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", str(disk), size, *command],
            capture_output=True,
            text=True,
            env=os.environ | names,
            timeout=300,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("unshare is missing: runs are NOT tested on a real full disk")
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("disks cannot be mounted here: runs are NOT tested on a real full disk")
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr, kept


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    said, kept = on_a_disk(FULL, "20m", tmp_path_factory.mktemp("large"))
    assert "run: 0" in said
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("size", ["32k", "44k"])
def test_a_full_disk_loses_nothing(size: str, tmp_path: Path, undisturbed: Path) -> None:
    said, kept = on_a_disk(FULL, size, tmp_path)
    assert "run: 2" in said and "the disk is full. Free some space." in said
    assert f"go on with: tsn resume {tmp_path / 'disk' / 'run'}" in said
    assert "resume: 0" in said
    assert numbers(kept) == numbers(undisturbed)
    model = "model/model.safetensors"
    assert (kept / model).read_bytes() == (undisturbed / model).read_bytes()


@pytest.mark.slow
def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    said, _ = on_a_disk(READ_ONLY, "", tmp_path)
    assert "run: 2" in said and "compare: 1" in said
    assert said.count("the file system is read-only. Choose another folder with --out.") >= 3
    assert "tsn resume" not in said
