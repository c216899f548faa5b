"""Readers of forged files: errors of ours, at most four times the decoded model and 64 MB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import forgeries
from reading import READERS, SPARE

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
    assert set(found) == {*forgeries.FORGERIES, "valid-but-wide"}
    for name, entries in found.items():
        check(name, entries)
        outcomes = {e["reader"]: e["outcome"] for e in entries if "outcome" in e}
        assert list(outcomes) == list(READERS)
        is_valid = name in {*forgeries.VALID, "valid-but-wide"}
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
