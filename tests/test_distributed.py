"""One training in several processes: the same gradients, stores and files as in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import parallel_cases
from held_network import held
from parallel_cases import (
    CASES,
    DRAWN,
    SometimesShort,
    in_processes,
    learn_digits,
    one_step,
    two_epochs,
)
from run_helpers import children_of, epochs, numbers, small_options, until
from tinysubnets.experiments.run import Experiment
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.training import distributed

PYTHONPATH = os.environ.get("PYTHONPATH", "")


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each of two, or of three, processes came to."""
    folder = tmp_path_factory.mktemp(f"{request.param}-processes")
    assert set(in_processes(parallel_cases.everything, request.param, folder)) == {0}
    return folder


def found(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_step_has_the_gradients_of_the_whole_batch(case: str, together: Path) -> None:
    alone = one_step("plain" if case == "compiled" else case)
    for each in found(together):
        theirs = each[f"gradients of {case}"]
        assert theirs.keys() == alone.keys()
        largest = max(float(g.abs().max()) for g in alone.values())
        assert largest > 1e-3
        for name, gradient in alone.items():
            assert float((theirs[name] - gradient).abs().max()) <= 1e-6 * largest, name


@pytest.mark.slow
@pytest.mark.parametrize("case", DRAWN)
def test_batches_changes_and_buffers_are_drawn_as_by_one_process(case: str, together: Path) -> None:
    alone, theirs = two_epochs(case), [each[f"losses of {case}"] for each in found(together)]
    assert all(each == theirs[0] for each in theirs)  # the mean over processes, to the bit
    assert theirs[0] == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_what_a_pass_draws_is_each_process_own(together: Path) -> None:
    """Dropout is drawn in passes; what is drawn is decided by seed, epoch and process."""
    results = found(together)
    assert all(one == again for one, again in (each["draws"] for each in results))
    drawn = [number for each in results for number in each["draws"][0]]
    assert len(drawn) == 6 * len(results) and len(set(drawn)) == len(drawn)


def test_banks_do_not_travel(together: Path) -> None:
    assert [each["bank"] for each in found(together)] == [[r] for r in range(len(found(together)))]


def test_more_processes_than_a_batch_has_samples_for_are_refused(together: Path) -> None:
    results = found(together)
    size = len(results)
    for each in results:
        assert f"{size} processes, but batches of {size - 1} samples;" in each["small batch"]
        assert "two for each are needed by its batch norm" in each["small batch, normed"]
        assert each["fitting batch"] == each["fitting batch, normed"] == ""
        assert "training.micro_batch is for one process" in each["micro-batch"]


def test_where_gradients_travel_over_the_host_no_step_is_captured(together: Path) -> None:
    assert parallel_cases.can_capture()  # by one process
    for each in found(together):
        assert not each["can capture"]
        assert "gradients travel over the host by gloo" in each["slower on GPUs"]
        assert each["slower on CPUs"] is None
    assert distributed.slower_because(torch.device("cuda")) is None


def test_every_process_has_the_same_store_and_forgets_nothing(together: Path) -> None:
    # That no answer has changed is checked in the processes themselves.
    results = found(together)
    assert all(each["digests"] == results[0]["digests"] for each in results)
    files = [(p / "model.safetensors").read_bytes() for p in sorted(together.glob("model-*"))]
    assert len(files) == len(results) and all(data == files[0] for data in files)


def test_accuracy_and_size_are_those_of_one_process(together: Path) -> None:
    torch.manual_seed(0)
    alone = learn_digits(SometimesShort())
    theirs = type(alone).resume(together / "model-0", SometimesShort())

    def mean(taught: Any) -> float:
        return sum(s.valid_accuracy for s in taught.store.subnets.values()) / 3

    assert abs(mean(alone) - mean(theirs)) < 0.1
    sizes = [t.ledger().total.total for t in (alone, theirs)]
    assert abs(sizes[0] - sizes[1]) < 0.1 * sizes[0]


def test_processes_that_differ_are_an_error(together: Path) -> None:
    for each in found(together):
        assert "a number came out differently in process 1 and in process 0" in each["refused"]
        for method in ("tsn", "ewc"):
            assert "task 'other' came out differently" in each[f"refused by {method}"]


def test_one_process_alone_needs_no_group() -> None:
    assert distributed.is_first() and not distributed.is_active()
    assert distributed.num_processes() == 1 and distributed.mean(0.5) == 0.5
    assert distributed.from_first(lambda: "made") == "made" and distributed.any_of(True)
    distributed.check_same("nothing", object())
    with distributed.process_group("cpu"):  # not started by torchrun
        assert not distributed.is_active()


# --------------------------------------------------------------------------------------------------
# The command


def begun(path: Path, *command: str, processes: str | None = None) -> subprocess.Popen[str]:
    """A run by the given command, which stands still after its first epoch while `hold` is there.

    That is a file beside the run's folder.
    """
    options = ["run", "--out", str(path), "--device", "cpu", "--threads", "1", "--no-report"]
    options += ["--checkpoint-seconds", "0", *small_options("data.num_tasks=2")]
    options += ["--set", "network.name=held_network:build"]
    options += ["--processes", processes] if processes else []
    saved = path / "checkpoint" / "state.json"
    process = subprocess.Popen(
        [*command, "-m", "tinysubnets", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=held(saved, path.with_name("hold")) | {"OMP_NUM_THREADS": "1"},
    )
    until(saved.exists, process)
    return process


def child(process: subprocess.Popen[str], rank: int) -> int:
    """The process of a rank among the children of a command."""
    children = children_of(process.pid).read_text().split()
    environments = {int(c): Path(f"/proc/{c}/environ").read_bytes().split(b"\0") for c in children}
    return next(c for c, names in environments.items() if f"RANK={rank}".encode() in names)


@pytest.mark.slow
@pytest.mark.skipif(not children_of(os.getpid()).exists(), reason="finds processes by /proc")
def test_a_killed_process_ends_the_others_and_three_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = begun(path, sys.executable, processes="2")
    os.kill(child(process, 1), signal.SIGKILL)
    path.with_name("hold").unlink()
    _, said = process.communicate(timeout=30)  # it takes two or three
    assert process.returncode == 2
    assert "process 1 of this training was killed by SIGKILL" in said
    assert f"tsn resume {path}" in said and "Traceback" not in said
    assert in_processes(parallel_cases.go_on, 3, path) == [0, 0, 0]
    result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    assert result["environment"]["processes"] == 3 and len(result["tasks"]) == 2
    places = [(e["index"], e["epoch"]) for e in epochs(path)]
    assert places == [(task, epoch) for task in range(2) for epoch in range(1, 4)]
    assert result["metrics"]["backward_transfer"] == 0 and not (path / "checkpoint").exists()


def interrupted(process: subprocess.Popen[str], path: Path) -> str:
    """What a held run says from Ctrl-C on, until it has ended."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = ""
    while "stopping after this epoch" not in said:
        said += (line := process.stderr.readline())
        assert line, said
    path.with_name("hold").unlink()
    return said + str(process.communicate(timeout=600)[1])


@pytest.mark.slow
def test_ctrl_c_under_torchrun_saves_and_one_process_goes_on(tmp_path: Path) -> None:
    path, torchrun = tmp_path / "run", ("-m", "torch.distributed.run", "--standalone")
    process = begun(path, sys.executable, *torchrun, "--nproc-per-node", "2")
    said = interrupted(process, path)
    assert f"saved. Go on with: tsn resume {path}" in said
    assert said.count("stopping after this epoch") == 1  # the first process speaks for all
    with RunDir(path) as folder:
        for _ in Experiment.resume(folder).steps():
            pass
    assert numbers(path)["environment"]["processes"] == 1


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_of_several_processes_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = begun(path, sys.executable, processes="2")
    said = interrupted(process, path)
    assert process.returncode == 130 and "Traceback" not in said
    assert said.count(f"saved. Go on with: tsn resume {path}") == 1
    tests = str(Path(__file__).parent)  # where the network is
    went_on = subprocess.run(
        [sys.executable, "-m", "tinysubnets", "resume", str(path), "--processes", "2", "--trust"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tests}{os.pathsep}{PYTHONPATH}"},
        timeout=600,
        check=False,
    )
    assert went_on.returncode == 0, went_on.stderr
    assert numbers(path)["environment"]["processes"] == 2
    places = [(e["index"], e["epoch"]) for e in epochs(path)]
    assert places == [(task, epoch) for task in range(2) for epoch in range(1, 4)]


@pytest.mark.slow
@pytest.mark.skipif(not children_of(os.getpid()).exists(), reason="finds processes by /proc")
def test_a_killed_process_under_torchrun_ends_the_others(tmp_path: Path) -> None:
    path, torchrun = tmp_path / "run", ("-m", "torch.distributed.run", "--standalone")
    process = begun(path, sys.executable, *torchrun, "--nproc-per-node", "2")
    first = child(process, 0)
    os.kill(child(process, 1), signal.SIGKILL)
    path.with_name("hold").unlink()
    _, said = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    assert "Signal 9 (SIGKILL)" in said
    assert not Path(f"/proc/{first}").exists()
    with RunDir(path) as folder:
        for _ in Experiment.resume(folder).steps():
            pass
    assert numbers(path)["environment"]["processes"] == 1


@pytest.mark.slow
def test_a_mistake_of_all_is_raised_in_the_first_process_alone(tmp_path: Path) -> None:
    # An error ends a Python process with 1; the others end silently, with the command's 2.
    assert in_processes(parallel_cases.mistaken, 2, tmp_path) == [1, 2]
