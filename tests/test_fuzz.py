"""A short run of the fuzzer, the same mutants every time; `make fuzz` goes on from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
needs_linux = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="measures memory as Linux tells it"
)


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "fuzz.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@needs_linux
def test_the_first_mutants_are_refused_or_read_right() -> None:
    done = fuzz("--seed", "0", "--count", "30", "--seconds", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
    assert "values compared" in done.stdout and "load: DamageError" in done.stdout


@needs_linux
@pytest.mark.slow
def test_more_mutants_are_refused_or_read_right() -> None:
    done = fuzz("--seed", "0", "--first", "30", "--count", "670", "--seconds", "500")
    assert done.returncode == 0, done.stdout + done.stderr
