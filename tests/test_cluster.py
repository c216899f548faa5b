"""Runs on the machines of a cluster: lost ones go on elsewhere, and results are the local ones."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from run_helpers import numbers, small_options, tsn
from tinysubnets.cli import main
from tinysubnets.commands.processes import held_port
from tinysubnets.errors import RunError
from tinysubnets.experiments import recipe
from tinysubnets.experiments.cluster import (
    Assignment,
    ClusterRuns,
    Ended,
    Going,
    LostError,
    RemoteRun,
    pack,
    unpack,
    work,
)
from tinysubnets.experiments.recipe import Plan
from tinysubnets.experiments.run import Experiment
from tinysubnets.experiments.run_dir import RunDir

LONGER = small_options("training.epochs=110", "data.num_tasks=2")  # some seconds
OPTIONS = ("--device", "cpu", "--threads", "1", "--checkpoint-seconds", "0")


def undisturbed(path: Path, seed: int, given: Sequence[str]) -> Path:
    """The same run in this process."""
    chosen = recipe.load("permuted-digits", method="tsn", assignments=given[1::2])
    with RunDir(path) as folder:
        for _ in Experiment.begin(Plan(chosen, seed, "cpu", 1), folder).steps():
            pass
    return path


def assert_same(path: Path, other: Path) -> None:
    model = "model/model.safetensors"
    assert numbers(path) == numbers(other)
    assert (path / model).read_bytes() == (other / model).read_bytes()


@pytest.mark.slow
def test_a_folder_that_is_not_shared_comes_back_and_a_stopped_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looked at all the time, so that its two hundred epochs are not over before it is stopped.
    monkeypatch.setattr("tinysubnets.experiments.cluster.POLL_SECONDS", 0.01)
    arguments = ("run", "permuted-digits", "--method", "tsn", "--no-report", *OPTIONS, *LONGER)
    there = Assignment(tmp_path / "there", arguments, (tmp_path / "token", b"not the same"))
    here, heard = tmp_path / "here", []

    def is_going() -> bool:
        return any(isinstance(m, Going) and "epoch" in m.progress for m in heard)

    for message in work(there, is_going):  # stopped after its first epoch
        heard.append(message)
    end = heard[-1]
    assert isinstance(end, Ended) and end.status == 130
    unpack(end.archive, here)
    assert (here / "checkpoint" / "state.json").exists()
    *_, end = work(replace(there, archive=pack(here)), lambda: False)
    assert isinstance(end, Ended) and end.status == 0
    unpack(end.archive, here)
    assert not (here / "checkpoint").exists()
    assert not there.folder.exists()  # it was run elsewhere
    assert_same(here, undisturbed(tmp_path / "alone", 0, LONGER))


def test_what_is_packed_is_what_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "result.json").write_text("{}")
    (tmp_path / "a" / "deep" / "file").write_bytes(bytes(range(256)))
    (tmp_path / "a" / ".lock").write_text("process 1")
    (tmp_path / "a" / "link").symlink_to("/etc/passwd")
    unpack(pack(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b" / "deep" / "file").read_bytes() == bytes(range(256))
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["deep", "result.json"]


@pytest.mark.parametrize("name", ["../file", "deep/../../file", "/tmp/file", "linked/file"])
def test_nothing_is_unpacked_outside_the_folder(tmp_path: Path, name: str) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "linked").symlink_to(tmp_path)
    with pytest.raises(RunError, match="outside"):
        unpack(made.getvalue(), tmp_path / "b")
    assert not (tmp_path / "file").exists()


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    given = ["compare", "permuted-digits", "--methods", "tsn", "--out", str(tmp_path / "out")]
    assert main([*given, "--cluster", "auto"]) == 2
    assert "[cluster]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --------------------------------------------------------------------------------------------------
# A cluster without Ray: machines are generators in this process


class Machine:
    """A stream of what a run says, cut off at a message that `is_last` knows."""

    def __init__(self, messages: Iterator[Any], is_last: Callable[[Any], bool]) -> None:
        self.messages, self.is_last, self.is_lost = messages, is_last, False

    def poll(self) -> Any:
        if self.is_lost:
            raise LostError("the machine is gone")
        message = next(self.messages)
        if self.is_last(message):
            self.is_lost = True
            self.messages.close()  # type: ignore[attr-defined]
        return message


class OneMachine:
    """A cluster that runs one thing at a time; `started` are the runs that it was given."""

    def __init__(self, *_: Any, lost: Sequence[Callable[[Any], bool]] = (), **__: Any) -> None:
        self.cpus, self.num_places, self.ray = 1, 1, MagicMock()
        self.started: list[Assignment] = []
        self.lost = list(lost)

    def __enter__(self) -> OneMachine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, generator: Any, given: Assignment, stop: Any) -> Machine:
        self.started.append(given)
        number = len(self.started) - 1
        never = self.lost[number] if number < len(self.lost) else lambda message: False
        return Machine(work(given, lambda: False), never)


def has_trained(message: Any) -> bool:
    return isinstance(message, Going) and "epoch" in message.progress


def small_run(path: Path, cluster: OneMachine, retries: int = 2) -> RemoteRun:
    """A run on machines that do not see the folder of the caller."""
    runs = ClusterRuns(cluster, path.parent, retries=retries)  # type: ignore[arg-type]
    runs.stop = None  # nobody asks for it
    arguments = ("run", "permuted-digits", "--method", "tsn", "--no-report", *OPTIONS)
    return runs.start(path, (*arguments, *small_options()))


@pytest.mark.slow
def test_a_run_that_lost_a_machine_of_its_own_storage_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinysubnets.experiments.cluster.POLL_SECONDS", 0.01)
    cluster = OneMachine(lost=[has_trained])
    path = tmp_path / "runs" / "one"
    run = small_run(path, cluster)
    status = None
    while status is None:
        status = run.poll()
    assert status == 0 and run.num_lost == 1
    first, second = cluster.started
    assert first.archive is second.archive is None  # nothing of it had come back
    log = (path / "log.txt").read_text()
    assert log.count("begin ") == 1 and "resume with" not in log
    assert_same(path, undisturbed(tmp_path / "alone", 0, small_options()))


@pytest.mark.parametrize("retries", [0, 2])
def test_a_run_that_loses_its_machines_again_and_again_is_given_up(
    retries: int, tmp_path: Path
) -> None:
    cluster = OneMachine(lost=[lambda message: True] * (retries + 1))
    run = small_run(tmp_path / "runs" / "one", cluster, retries)
    for number in range(retries):
        assert run.poll() is None
        assert run.progress == f"its machine was lost; waiting for another ({number + 1})"
    again = f"its machine was lost {retries + 1} times; the last time: the machine is gone"
    with pytest.raises(RunError, match=again):
        run.poll()
    assert len(cluster.started) == retries + 1


@pytest.mark.slow
def test_finished_runs_are_not_run_again_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = OneMachine()
    monkeypatch.setattr("tinysubnets.experiments.cluster.Cluster", lambda *_, **__: cluster)
    given = ["compare", "permuted-digits", "--methods", "tsn", "--out", str(tmp_path / "out")]
    given += ["--cluster", "auto", "--no-report", *OPTIONS, *small_options("data.num_tasks=2")]
    for seeds in ("1", "2", "2"):
        assert main([*given, "--seeds", seeds]) == 0, capsys.readouterr().err
    assert [a.folder.name for a in cluster.started] == ["seed-0", "seed-1"]


# --------------------------------------------------------------------------------------------------
# A real cluster


def node(folder: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    """A node of a Ray cluster, once it is up; it lasts as long as its process."""
    said = folder / f"{name}.txt"
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
    command += ["--block", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
    command += ["--include-log-monitor=false", "--disable-usage-stats", *options]
    with open(said, "wb") as output:
        started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 240
    while b"Ray runtime started" not in said.read_bytes():
        assert started.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)
    return started


def children(process: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def raylet(started: subprocess.Popen[bytes]) -> int:
    """The process without which a node is lost."""
    names = {c: Path(f"/proc/{c}/comm").read_text().strip() for c in children(started.pid)}
    return next(c for c, name in names.items() if name == "raylet")


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a cluster with two machines of one CPU, and the processes of those."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with held_port() as port:
        pass  # Ray does not take one that is held
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        head = ("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
        # How long a lost machine is hoped for.
        patience = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}
        told = f"--system-config={json.dumps(patience)}"
        nodes.append(node(folder, "head", *head, f"--temp-dir={folder}", told))
        for name in ("one", "two"):  # one after the other: they find free names for their sockets
            nodes.append(node(folder, name, f"--address=127.0.0.1:{port}", "--num-cpus=1"))
        yield f"127.0.0.1:{port}", nodes[1:]
    finally:
        for each in reversed(nodes):
            each.terminate()
        for each in nodes:
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                each.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="RAY IS NOT INSTALLED: runs on a cluster are not tested. pip install '.[cluster]'",
)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes by /proc")
def test_a_run_that_lost_its_machine_goes_on_at_another(
    tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, machines = cluster
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tinysubnets", "compare", "permuted-digits"]
    command += ["--methods", "tsn", "--seeds", "3", "--out", str(out), "--no-report"]
    command += ["--cluster", address, *OPTIONS, *LONGER]

    def begun() -> tuple[subprocess.Popen[str], Path]:
        """The command, and a run of it that has done something."""
        pipe, length = subprocess.PIPE, _tracked(out)
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        while not (grown := [p for p, size in _tracked(out).items() if size > length.get(p, 0)]):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        return process, grown[0]

    process, saved = begun()
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=240)
    assert process.returncode == 130 and "The same command goes on with it" in errors
    assert (saved / "checkpoint" / "state.json").exists()
    assert said.count(": stopped") == 3  # those that were still waiting too

    process, saved = begun()
    worker = int((saved / ".lock").read_text().split()[1])
    above, before = ancestors(worker), (saved / "log.txt").read_text()
    os.kill(next(r for r in map(raylet, machines) if r in above), signal.SIGKILL)
    said, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert said.count("finished accuracy") == 3 and "Traceback" not in errors
    assert "resume with" in (saved / "log.txt").read_text()[len(before) :]
    lost = int(saved.name.removeprefix("seed-"))
    for seed in {lost, 2}:  # the last one had to wait
        alone = undisturbed(tmp_path / f"alone-{seed}", seed, LONGER)
        assert_same(out / "tsn" / f"seed-{seed}", alone)
    assert not list(out.glob(".cluster-*"))
    assert_searches_are_the_same(tmp_path, address)


def assert_searches_are_the_same(folder: Path, address: str) -> None:
    """A search finds on the machine that is left what it finds here."""
    pytest.importorskip("optuna")
    command = ["search", "permuted-digits", "--trials", "2", "--seeds", "100", "--device", "cpu"]
    command += ["--threads", "1", "--space", "tsn.density=0.1..0.4", *small_options()]
    with redirect_stdout(io.StringIO()) as here:
        assert main([*command, "--out", str(folder / "here")]) == 0
    there = tsn(*command, "--out", str(folder / "there"), "--cluster", address)
    assert there.returncode == 0, there.stderr
    trials = [
        [line for line in text.splitlines() if line.startswith("trial ") and "bytes" in line]
        for text in (here.getvalue(), there.stdout)
    ]
    assert len(trials[0]) == 2 and trials[0] == trials[1]


def _tracked(out: Path) -> dict[Path, int]:
    """How much each run has tracked."""
    return {path.parent: path.stat().st_size for path in out.glob("tsn/*/metrics.jsonl")}


def ancestors(process: int) -> list[int]:
    """The processes above one, nearest first."""
    out = []
    while process > 1:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        process = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
        out.append(process)
    return out
