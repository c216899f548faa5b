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
    finish_seconds: float | None = 0.0,
) -> Iterator[Callable[[EpochReport | PruningStep], None]]:
    """A block in which one task is learned; gives the function that is told every step.

    - `task`: what is learned.
    - `num_weights`: how many shared weights the network has.
    - `progress`: whether epochs are shown; None shows them on a terminal alone.
    - `on_epoch`: called with every `EpochReport`, after it was shown.
    - `threads`: of torch on the CPU inside the block; None takes one for small networks, as
      `tsn run` does, and else leaves the number as it is.
    - `finish_seconds`: what follows the last epoch, post-pruning above all, took for earlier tasks;
      None where something follows of which nothing is known yet.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    name = str(getattr(task, "name", ""))  # what is no task is refused when it begins
    display: Display = Silence()
    if progress or (progress is None and is_terminal):
        clock = TaskClock(finish_seconds)
        display = LiveLine(name, clock) if is_terminal else PlainLines(name, clock)

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def show(self, step: EpochReport | PruningStep) -> None:
        """Show one epoch, or one step of post-pruning."""


class Silence:
    """A display that shows nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, step: EpochReport | PruningStep) -> None:
        """Nothing."""


class TaskClock:
    """How long one task has taken, and will still take: epochs, and post-pruning behind them.

    - `finish_seconds`: how long what follows the last epoch takes; None where nothing tells yet,
      until post-pruning has begun.
    - `now`: gives the seconds of a clock.
    """

    def __init__(
        self, finish_seconds: float | None = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.finish_seconds, self.now = finish_seconds, now
        self.began = now()
        self._epochs: EpochReport | None = None  # the last one
        self._epoch_seconds = 0.0  # of all epochs
        self._pruning: tuple[float, PruningStep, PruningStep] | None = None  # since, first, last

    def see(self, step: EpochReport | PruningStep) -> None:
        """Take note of a step."""
        if isinstance(step, EpochReport):
            self._epochs = step
            self._epoch_seconds += step.seconds
        else:
            began, first, _ = self._pruning or (self.now(), step, step)
            self._pruning = began, first, step

    @property
    def seconds(self) -> float:
        """All that it has taken so far."""
        return self.now() - self.began

    @property
    def left(self) -> str:
        """The time left in words; empty where nobody knows, as with the rungs of a ladder."""
        if self._pruning is not None:
            began, first, last = self._pruning
            if last.step == first.step:
                return ""
            each = (self.now() - began) / (last.step - first.step)
            return f"{duration(each * (last.steps - last.step + 1))} left"
        if self._epochs is None or self._epochs.stage or self._epochs.epoch == self._epochs.epochs:
            return ""
        each = self._epoch_seconds / self._epochs.epoch
        left = each * (self._epochs.epochs - self._epochs.epoch)
        if self.finish_seconds is None:
            return f"{duration(left)} of epochs left, then compression"
        return f"{duration(left + self.finish_seconds)} left"


class PlainLines:
    """Now and then a line for an epoch or a step of post-pruning, and one at the end."""

    def __init__(
        self, task: str, clock: TaskClock | None = None, every_seconds: float | None = None
    ) -> None:
        self.task = for_terminal(task)
        self.every_seconds = EVERY_SECONDS if every_seconds is None else every_seconds
        self.clock, self.last, self._spoke = clock or TaskClock(), "", time.monotonic()

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.last:
            self._say(ended(self.last, self.clock, failed=kind is not None))

    def show(self, step: EpochReport | PruningStep) -> None:
        """Take note of a step, and print it if nothing was said for a while."""
        self.clock.see(step)
        if isinstance(step, EpochReport):
            self.last = describe(step)
        if time.monotonic() - self._spoke >= self.every_seconds:
            self._say(f"{describe(step)}  {self.clock.left}".rstrip())

    def _say(self, text: str) -> None:
        print(f"{self.task}: {text}", flush=True)
        self._spoke = time.monotonic()


class LiveLine:
    """A line on a terminal that changes with every step; the last epoch's stays."""

    def __init__(self, task: str, clock: TaskClock | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.progress = Progress(
            TextColumn("{task.fields[place]}", markup=False),  # names may hold brackets
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            console=Console(),
            transient=True,
        )
        self.task, self.clock, self.last = for_terminal(task), clock or TaskClock(), ""
        self.line = self.progress.add_task("", place=self.task, state="", total=None)

    def __enter__(self) -> LiveLine:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.progress.stop()
        if self.last:
            text = ended(self.last, self.clock, failed=kind is not None)
            self.progress.console.print(f"{self.task}: {text}", highlight=False, markup=False)

    def show(self, step: EpochReport | PruningStep) -> None:
        """Show the step in the place of the one before it; post-pruning has a bar of its own."""
        self.clock.see(step)
        state = f"{describe(step)}  {self.clock.left}".rstrip()
        if isinstance(step, PruningStep):
            self.progress.update(self.line, state=state, total=step.steps, completed=step.step - 1)
            return
        self.last = describe(step)
        # What follows the last epoch, to find the bit-width, has no steps to count.
        state = f"{state}  compressing" if step.epoch == step.epochs else state
        self.progress.update(self.line, state=state, total=step.epochs, completed=step.epoch)


def describe(step: EpochReport | PruningStep) -> str:
    """An epoch, or a step of post-pruning, in one line."""
    if isinstance(step, PruningStep):
        return f"post-pruning {step.step}/{step.steps}  valid {100 * step.accuracy:.2f} %"
    return (
        f"{step.stage + '  ' if step.stage else ''}"
        f"epoch {step.epoch}/{step.epochs}  loss {step.loss:.4f}  "
        f"valid {100 * step.valid_accuracy:.2f} %"
    )


def ended(last: str, clock: TaskClock, *, failed: bool) -> str:
    """The last epoch's line, with all the time that the task took where it was learned."""
    if failed:
        return last
    seconds = clock.seconds
    return f"{last}  learned in {f'{seconds:.1f} s' if seconds < 60 else duration(seconds)}"


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
