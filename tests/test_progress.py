"""What `learn` shows and tells while it works, and the threads it works with."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Iterator

import pytest
import torch

from nets import mlp, task
from tinysubnets import EpochReport, TaskError
from tinysubnets.errors import SettingError
from tinysubnets.experiments import methods
from tinysubnets.method.base import Learner
from tinysubnets.method.progress import PlainLines, TaskClock
from tinysubnets.method.pruning import PruningStep
from tinysubnets.nn.architecture import Architecture

EVERY_KIND = ("tsn", "packnet", "naive")  # each with a `learn` of its own


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output, as a terminal; within a test, since pytest puts back its own before it."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


@pytest.fixture(autouse=True)
def _no_line_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that come with time do not come, however slow the machine is."""
    monkeypatch.setattr("tinysubnets.method.progress.EVERY_SECONDS", math.inf)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads, as on a machine with two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def make(method: str = "tsn", **training: object) -> Learner:
    settings = {"epochs": 3, "batch_size": 16} | training
    return methods.build(
        method, Architecture(mlp()), training=settings, pruning={"iterations": 2}, device="cpu"
    )


@pytest.mark.parametrize("method", EVERY_KIND)
def test_nothing_is_shown_where_there_is_no_terminal(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(method).learn(task())
    make(method).learn(task(), progress=False)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


@pytest.mark.parametrize("method", EVERY_KIND)
def test_asked_for_the_last_epoch_is_a_plain_line(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(method).learn(task("pets"), progress=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("pets: epoch 3/3  loss ") and "valid " in line and "left" not in line
    assert line.endswith(" s") and "learned in " in line


def test_the_time_left_includes_post_pruning() -> None:
    seconds = [0.0]
    clock = TaskClock(None, lambda: seconds[0])
    assert clock.left == ""
    clock.see(epoch(1, 4))
    assert (
        clock.left == "30 s of epochs left, then compression"
    )  # nothing is known of post-pruning yet
    clock.see(epoch(4, 4))
    seconds[0] = 50.0
    clock.see(PruningStep(1, 11, 0.9, 0))
    assert clock.left == ""
    seconds[0] = 54.0
    clock.see(PruningStep(3, 11, 0.9, 1))
    assert clock.left == "18 s left" and clock.seconds == 54
    known = TaskClock(25.0, lambda: seconds[0])  # of an earlier task
    known.see(epoch(1, 4))
    assert known.left == "55 s left"
    known.see(epoch(1, 4, "head"))  # nobody knows how far a ladder is climbed
    assert known.left == ""


def epoch(number: int, count: int, stage: str = "") -> EpochReport:
    return EpochReport("a", number, count, 1.0, 1.0, 0.5, 1e-3, 10.0, True, stage)


def test_post_pruning_and_the_whole_time_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines("pets", TaskClock(), every_seconds=0.0)
    with lines:
        lines.show(epoch(2, 2))
        lines.show(PruningStep(1, 3, 0.875, 0))
    told = capsys.readouterr().out.splitlines()
    assert told[1] == "pets: post-pruning 1/3  valid 87.50 %"
    assert re.fullmatch(r"pets: epoch 2/2 .* learned in \d+\.\d s", told[2])
    with pytest.raises(KeyboardInterrupt), PlainLines("pets") as stopped:
        stopped.show(epoch(1, 2))
        raise KeyboardInterrupt
    assert "learned" not in capsys.readouterr().out


def test_a_second_task_knows_how_long_post_pruning_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tinysubnets.method.progress.EVERY_SECONDS", 0.0)
    learner = make()
    learner.learn(task("a"), progress=True)
    first = capsys.readouterr().out
    learner.learn(task("b", seed=1), progress=True)
    second = capsys.readouterr().out
    assert "of epochs left, then compression" in first and "a: post-pruning 2/2" in first
    assert " left" in second and "then compression" not in second


@pytest.mark.slow
def test_a_plateau_that_ends_early_is_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    learner = make(schedule="plateau", lr=1e-3, min_lr=9e-4, epochs=60)
    report = learner.learn(task(), progress=True)
    assert report.best_epoch < 60
    assert capsys.readouterr().out.count("a: epoch ") == 1


@pytest.mark.parametrize("method", EVERY_KIND)
def test_a_terminal_shows_every_task(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    make(method).learn(task("pets"))
    assert "pets: epoch 3/3" in terminal.getvalue()
    before = terminal.getvalue()
    make(method).learn(task("pets"), progress=False)
    assert terminal.getvalue() == before


def test_markup_in_names_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    make().learn(task("[red]pets[/red]"))
    assert "[red]pets[/red]: epoch 3/3" in terminal.getvalue()


@pytest.mark.parametrize("method", EVERY_KIND)
def test_on_epoch_is_told_every_epoch(method: str) -> None:
    told: list[EpochReport] = []
    report = make(method).learn(task(), on_epoch=told.append)
    assert [t.epoch for t in told] == [1, 2, 3] and {t.task for t in told} == {"a"}
    assert all(t.epochs == 3 and t.seconds > 0 for t in told)
    if method != "packnet":  # which counts the epochs after pruning anew
        assert [t.epoch for t in told if t.is_best][-1] == report.best_epoch


@pytest.mark.parametrize("method", EVERY_KIND)
def test_what_on_epoch_raises_ends_learning(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    learner = make(method)

    def stop(report: EpochReport) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(task(), on_epoch=stop)
    assert learner.tasks == ()
    learner.learn(task())  # nothing is left of the first attempt, on the screen neither
    assert learner.tasks == ("a",)


@pytest.mark.slow
@pytest.mark.parametrize("method", EVERY_KIND)
def test_small_networks_are_learned_with_one_thread(
    method: str, two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    make(method).learn(task(), on_epoch=lambda _: seen.append(torch.get_num_threads()))
    make(method).learn(task(), threads=2, on_epoch=lambda _: seen.append(torch.get_num_threads()))
    monkeypatch.setattr("tinysubnets.training.precision.SMALL_NETWORK", 10)
    make(method).learn(task(), on_epoch=lambda _: seen.append(torch.get_num_threads()))
    assert seen == [1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert torch.get_num_threads() == 2


def test_threads_are_put_back_after_an_error(two_threads: None) -> None:
    with pytest.raises(TaskError, match="a Task is needed"):
        make().learn("pets")  # type: ignore[arg-type]
    assert torch.get_num_threads() == 2
    for wrong in (0, 2000, 1.5, True):
        with pytest.raises(SettingError, match=r"threads = .* give 1 to 1,024"):
            make().learn(task(), threads=wrong)  # type: ignore[arg-type]


def test_a_learner_computes_where_it_can_by_default() -> None:
    best = "cuda" if torch.cuda.is_available() else "cpu"
    for method in EVERY_KIND:
        learner = methods.learner_class(method)(Architecture(mlp()))  # type: ignore[call-arg]
        assert learner.device.type == best
