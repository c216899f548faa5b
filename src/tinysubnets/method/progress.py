"""What `learn` shows while it works: a live line on a terminal, plain lines elsewhere.

`tsn run` shows whole runs of many tasks by `experiments.progress`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tinysubnets.method.pruning import PruningStep
from tinysubnets.tasks.task import Task
from tinysubnets.text import for_terminal
from tinysubnets.training.loop import EpochReport
from tinysubnets.training.precision import cpu_threads, fitting_threads

EVERY_SECONDS = 10.0  # between two plain lines about epochs
OnEpoch = Callable[[EpochReport], object]


@contextmanager
def learning(
    task: Task,
    num_weights: int,
    progress: bool | None = None,
    on_epoch: OnEpoch | None = None,
    threads: int | None = None,
) -> Iterator[Callable[[EpochReport | PruningStep], None]]:
    """A block in which one task is learned; gives the function that is told every step.

    - `task`: what is learned.
    - `num_weights`: how many shared weights the network has.
    - `progress`: whether epochs are shown; None shows them on a terminal alone.
    - `on_epoch`: called with every `EpochReport`, after it was shown.
    - `threads`: of torch on the CPU inside the block; None takes one for small networks, as
      `tsn run` does, and else leaves the number as it is.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    name = str(getattr(task, "name", ""))  # what is no task is refused when it begins
    display: Display = Silence()
    if progress or (progress is None and is_terminal):
        display = LiveLine(name) if is_terminal else PlainLines(name)

    def see(step: EpochReport | PruningStep) -> None:
        display.show(step)
        if on_epoch is not None and isinstance(step, EpochReport):
            on_epoch(step)

    count = fitting_threads(num_weights) if threads is None else threads
    with cpu_threads(count), display:
        yield see


class Display(Protocol):
    """Shows the steps of learning one task; entered before the first and left after the last."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, step: EpochReport | PruningStep) -> None:
        """Show one epoch, or one step of post-pruning."""
        ...


class Silence:
    """A display that shows nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, step: EpochReport | PruningStep) -> None:
        """Nothing."""


class PlainLines:
    """One line for the last epoch, and now and then one for those before it."""

    def __init__(self, task: str, every_seconds: float = EVERY_SECONDS) -> None:
        self.task, self.every_seconds = for_terminal(task), every_seconds
        self.seconds, self.last, self._spoke = 0.0, "", time.monotonic()

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._say()

    def show(self, step: EpochReport | PruningStep) -> None:
        """Take note of an epoch, and print it if nothing was said for a while."""
        if isinstance(step, PruningStep):
            return
        self.seconds += step.seconds
        self.last = describe(step, self.seconds)
        is_last = step.epoch == step.epochs
        if is_last or time.monotonic() - self._spoke >= self.every_seconds:
            self._say()

    def _say(self) -> None:
        if self.last:
            print(f"{self.task}: {self.last}", flush=True)
        self.last, self._spoke = "", time.monotonic()


class LiveLine:
    """A line on a terminal that changes with every epoch; the last epoch's stays."""

    def __init__(self, task: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.progress = Progress(
            TextColumn("{task.fields[place]}", markup=False),  # names may hold brackets
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            console=Console(),
            transient=True,
        )
        self.task, self.seconds, self.last = for_terminal(task), 0.0, ""
        self.line = self.progress.add_task("", place=self.task, state="", total=None)

    def __enter__(self) -> LiveLine:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if self.last:
            self.progress.console.print(f"{self.task}: {self.last}", highlight=False, markup=False)

    def show(self, step: EpochReport | PruningStep) -> None:
        """Show the step in the place of the one before it."""
        if isinstance(step, PruningStep):
            state = f"post-pruning {step.step}/{step.steps}  valid {100 * step.accuracy:.2f} %"
            self.progress.update(self.line, state=state, total=step.steps, completed=step.step)
            return
        self.seconds += step.seconds
        self.last = describe(step, self.seconds)
        # What follows the last epoch, to find the bit-width, has no steps to count.
        state = f"{self.last}  compressing" if step.epoch == step.epochs else self.last
        self.progress.update(self.line, state=state, total=step.epochs, completed=step.epoch)


def describe(report: EpochReport, seconds: float) -> str:
    """An epoch in one line.

    - `seconds`: what all epochs so far have taken; as long each as they did, the rest will take.
    """
    left = seconds / report.epoch * (report.epochs - report.epoch)
    return (
        f"{report.stage + '  ' if report.stage else ''}"
        f"epoch {report.epoch}/{report.epochs}  loss {report.loss:.4f}  "
        f"valid {100 * report.valid_accuracy:.2f} %"
        # Nobody knows how many rungs of a ladder are still climbed.
        + (f"  {duration(left)} left" if report.epoch < report.epochs and not report.stage else "")
    )


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42), duration(200), duration(8000)
    ('42 s', '3 min 20 s', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
