"""Runs killed at many points go on from their checkpoint and end with the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from run_helpers import epochs, numbers, small_options, tsn
from tinysubnets.errors import RunError
from tinysubnets.experiments import checkpoint, recipe
from tinysubnets.experiments.recipe import Plan
from tinysubnets.experiments.run import Experiment
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.method.pruning import PruningStep
from tinysubnets.training.loop import EpochReport

# A process that kills itself at its n-th write of a file: before the write, after a part of it,
# before or after the rename.
KILLER = """
import os, signal, sys
from tinysubnets.experiments import run_dir as run_folder
from tinysubnets.cli import main
where, count = sys.argv[1], int(sys.argv[2])
sync, replace, calls = os.fsync, os.replace, {"sync": 0, "replace": 0}
def die(name):
    calls[name] += 1
    if calls[name] == count and where.startswith(name):
        os.kill(os.getpid(), signal.SIGKILL)
def dying_sync(descriptor):
    die("sync")
    sync(descriptor)
def dying_replace(old, new):
    if where == "replaced":
        replace(old, new)
        die("replace")
    else:
        die("replace")
        replace(old, new)
os.fsync, os.replace = dying_sync, dying_replace
sys.exit(main(sys.argv[3:]))
"""

# A process that gets Ctrl-C in its second epoch.
INTERRUPTED = """
import os, signal, sys
from tinysubnets.cli import main
from tinysubnets.experiments.run_dir import RunDir
track, calls = RunDir.track, []
def interrupted(self, report):
    track(self, report)
    calls.append(report)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGINT)
RunDir.track = interrupted
sys.exit(main(sys.argv[1:]))
"""


def plan(*more: str, method: str = "tsn") -> Plan:
    """A run of a second, with a checkpoint after every epoch."""
    given = small_options(*more)[1::2]
    small = recipe.load("permuted-digits", method=method, assignments=given)
    return Plan(small, seed=3, device="cpu", threads=1, checkpoint_seconds=0.0)


def finish(experiment: Experiment) -> None:
    for _ in experiment.steps():
        pass


def killed(where: str, count: int, *arguments: str) -> int:
    """The exit status of a command that kills itself at its n-th write, or ends before that."""
    process = subprocess.run(
        [sys.executable, "-c", KILLER, where, str(count), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert process.returncode in (0, -signal.SIGKILL), process.stderr
    return process.returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with RunDir(path) as folder:
        finish(Experiment.begin(plan(), folder))
    assert not (path / "checkpoint").exists()
    return path


def assert_same(path: Path, undisturbed: Path) -> None:
    """The same numbers, the same epochs, the same model, and nothing left over."""
    assert numbers(path) == numbers(undisturbed)
    assert epochs(path) == epochs(undisturbed)
    model = "model/model.safetensors"
    assert (path / model).read_bytes() == (undisturbed / model).read_bytes()
    left = {p.name for p in path.iterdir()} - {"report.html", "pictures"}
    assert left == {"config.toml", "log.txt", "metrics.jsonl", "result.json", "model"}


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path, undisturbed: Path) -> None:
    """Before and after files are synced and renamed, once early and once late in the run."""
    path = tmp_path / "run"
    begin = ("run", "--out", str(path), "--seed", "3", "--device", "cpu", "--threads", "1")
    begin += ("--checkpoint-seconds", "0", *small_options())
    deaths = 0
    places = (("sync", 2), ("replace", 1), ("replaced", 3), ("sync", 6), ("replace", 5))
    for where, count in places:
        started = (path / "config.toml").exists()
        status = killed(where, count, *(("resume", str(path)) if started else begin))
        deaths += status != 0
    while not (path / "result.json").exists():
        assert tsn("resume", str(path)).returncode == 0
    assert deaths >= 4
    assert_same(path, undisturbed)


@pytest.mark.slow
def test_killed_by_the_clock(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-m", "tinysubnets", "run", "--out", str(path), "--seed", "3"]
    command += ["--device", "cpu", "--threads", "1", "--checkpoint-seconds", "0", *small_options()]
    for lines in (1, 4, 8):  # epochs after which the process dies, wherever it then is
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        tracked = path / "metrics.jsonl"
        while process.poll() is None:
            if tracked.exists() and tracked.read_bytes().count(b"\n") >= lines:
                process.kill()
            time.sleep(0.002)
        command = [sys.executable, "-m", "tinysubnets", "resume", str(path)]
    while not (path / "result.json").exists():
        assert tsn("resume", str(path)).returncode == 0
    assert_same(path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stop"), [(EpochReport, 1), (EpochReport, 3), (EpochReport, 5), (PruningStep, 3)]
)
def test_saved_between_two_steps(kind: type, stop: int, tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run"
    with RunDir(path) as folder:
        experiment = Experiment.begin(plan(), folder)
        seen = 0
        for event in experiment.steps():
            seen += isinstance(event, kind)
            if seen == stop:
                experiment.save_()
                break
    assert seen == stop
    with RunDir(path) as folder:
        finish(Experiment.resume(folder))
    assert_same(path, undisturbed)


def test_killed_before_the_first_checkpoint(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run"
    with RunDir(path) as folder:
        experiment = Experiment.begin(plan(), folder)
        folder.track({"epoch": "of a process that died"})
        del experiment
    with RunDir(path) as folder:
        finish(Experiment.resume(folder))
    assert_same(path, undisturbed)


@pytest.mark.slow  # quickly by test_baselines_runs.py
@pytest.mark.parametrize("method", ["naive", "packnet", "tsn-wr-wpp"])
def test_other_methods_go_on_too(method: str, tmp_path: Path) -> None:
    for name in ("whole", "broken"):
        with RunDir(tmp_path / name) as folder:
            steps = Experiment.begin(plan(method=method), folder).steps()
            for number, _ in enumerate(steps):
                if name == "broken" and number == 6:
                    break
            steps.close()
    with RunDir(tmp_path / "broken") as folder:
        finish(Experiment.resume(folder))
    assert numbers(tmp_path / "broken") == numbers(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run"
    command = ["run", "--out", str(path), "--seed", "3", "--device", "cpu", "--threads", "1"]
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *command, *small_options()],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert process.returncode == 130
    assert f"tsn resume {path}" in process.stderr
    assert "Traceback" not in process.stderr and not (path / "result.json").exists()
    assert len(epochs(path)) == 2
    assert tsn("resume", str(path)).returncode == 0
    assert_same(path, undisturbed)


def test_nothing_to_resume(tmp_path: Path, undisturbed: Path) -> None:
    with pytest.raises(RunError, match="finished"), RunDir(undisturbed) as folder:
        Experiment.resume(folder)
    with pytest.raises(RunError, match=r"no config\.toml"), RunDir(tmp_path) as folder:
        Experiment.resume(folder)


def broken_run(path: Path) -> Path:
    """A run folder with a checkpoint."""
    with RunDir(path) as folder:
        steps = Experiment.begin(plan(), folder).steps()
        for _ in range(3):
            next(steps)
        steps.close()
    assert (path / "checkpoint" / "state.json").exists()
    return path


def test_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = broken_run(tmp_path / "run")
    file = next((path / "checkpoint").glob("trainer-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(RunError, match="damaged"), RunDir(path) as folder:
        Experiment.resume(folder)


def test_run_of_another_version_is_refused_unchanged(tmp_path: Path) -> None:
    path = broken_run(tmp_path / "run")
    text = (path / "config.toml").read_text(encoding="utf-8")
    (path / "config.toml").write_text(text.replace("format = 1", "format = 2"), encoding="utf-8")
    before = sorted((p.name, p.stat().st_size) for p in path.rglob("*") if p.name != ".lock")
    with pytest.raises(RunError, match="format 2"), RunDir(path) as folder:
        Experiment.resume(folder)
    after = sorted((p.name, p.stat().st_size) for p in path.rglob("*") if p.name != ".lock")
    assert after == before
    state = path / "checkpoint" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"format": 3}))
    with pytest.raises(RunError, match="format 3"):
        checkpoint.Checkpoints(path).load()


def test_checkpoints_keep_their_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, saved = [0.0], []
    honest = Experiment.save_

    def noted(self: Experiment) -> None:
        saved.append(now[0])
        honest(self)

    monkeypatch.setattr(Experiment, "save_", noted)
    monkeypatch.setattr("tinysubnets.experiments.run.time.monotonic", lambda: now[0])
    with RunDir(tmp_path) as folder:
        experiment = Experiment.begin(replace(plan(), checkpoint_seconds=30.0), folder)
        for event in experiment.steps():
            now[0] += 0.0 if isinstance(event, PruningStep) else 7.0
    assert len(saved) >= 2
    assert all(later - earlier >= 30 for earlier, later in pairwise([0.0, *saved]))
    # A step that begins a task saves nothing, so two may pass.
    assert all(later - earlier < 30 + 2 * 7 for earlier, later in pairwise([0.0, *saved]))


def test_old_checkpoints_are_removed(tmp_path: Path) -> None:
    path = broken_run(tmp_path / "run")
    names = sorted(p.name.split("-")[0] for p in (path / "checkpoint").iterdir())
    assert names == ["learned", "state.json", "trainer"]


def test_checkpoints_hold_no_pickle(tmp_path: Path) -> None:
    path = broken_run(tmp_path / "run")
    for file in (path / "checkpoint").iterdir():
        assert file.suffix in (".json", ".safetensors")
        assert b"\x80\x04\x95" not in file.read_bytes()[:8]


@pytest.mark.slow
def test_second_process_is_told_of_the_first(tmp_path: Path) -> None:
    with RunDir(tmp_path):
        said = tsn("run", "--out", str(tmp_path), *small_options())
        assert said.returncode == 2
        assert f"process {os.getpid()}" in said.stderr
        assert "in use" in said.stderr


def test_second_process_is_refused(tmp_path: Path) -> None:
    with RunDir(tmp_path):
        with pytest.raises(RunError, match="in use"):
            RunDir(tmp_path).__enter__()
    with RunDir(tmp_path):
        pass  # free again
