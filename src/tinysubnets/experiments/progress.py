"""What a run shows while it works: a live line on a terminal, plain lines elsewhere; a summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from tinysubnets.errors import SettingError
from tinysubnets.experiments.metrics import MATRICES
from tinysubnets.experiments.run import Event, Finished, Note, TaskBegun, TaskLearned
from tinysubnets.experiments.tables import text_table
from tinysubnets.files import friendly_os_errors
from tinysubnets.method.core import SubnetReport
from tinysubnets.method.progress import duration
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.text import for_terminal
from tinysubnets.training.loop import EpochReport

MAX_MATRIX = 10  # tasks of which the whole accuracy matrix is shown


class Clock:
    """How long a run will still take, from the epochs it has done.

    Where tasks climb ladders nobody knows how many epochs are left: then from the tasks it learned.
    """

    def __init__(self) -> None:
        self.begin = self.last_learned = time.monotonic()
        self.total = self.done = self.first = 0
        self.num_learned = self.num_left = 0  # tasks
        self.climbs = False

    def see(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, TaskBegun):
            if self.total == 0:
                self.first = event.index * event.epochs + event.first_epoch
                self.begin = self.last_learned = time.monotonic()
            self.total = event.num_tasks * event.epochs
            self.done = event.index * event.epochs + event.first_epoch
            self.num_left = event.num_tasks - event.index
        elif isinstance(event, EpochReport):
            self.climbs = self.climbs or bool(event.stage)
            self.done = min(self.done + 1, self.total)
        elif isinstance(event, TaskLearned):
            self.num_learned, self.last_learned = self.num_learned + 1, time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """An estimate, None before the first epoch, or the first task."""
        if self.climbs:
            if not self.num_learned:
                return None
            each = (self.last_learned - self.begin) / self.num_learned
            return max(0.0, each * self.num_left - (time.monotonic() - self.last_learned))
        fresh = self.done - self.first
        if fresh <= 0:
            return None
        return (time.monotonic() - self.begin) / fresh * (self.total - self.done)


class PlainDisplay:
    """Plain lines: one per task, and now and then one for its epochs."""

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 10.0) -> None:
        self.stream, self.every_seconds = stream or sys.stdout, every_seconds
        self.clock = Clock()
        self._spoke = time.monotonic()
        self._place = ""

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Show one event of a run."""
        self.clock.see(event)
        if isinstance(event, TaskBegun):
            self._place = f"task {event.index + 1}/{event.num_tasks} {for_terminal(event.name)}"
        elif isinstance(event, EpochReport):
            if time.monotonic() - self._spoke >= self.every_seconds:
                self._say(f"{self._place}: {describe_epoch(event, self.clock)}")
        elif isinstance(event, TaskLearned):
            self._say(describe_task(event))
        elif isinstance(event, Note):
            self._say(for_terminal(f"note: {event.text}"))

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)
        self._spoke = time.monotonic()


class LiveDisplay:
    """A live line on a terminal: task, epoch, loss, validation accuracy, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.clock = Clock()
        self.progress = Progress(
            TextColumn("{task.fields[place]}", markup=False),  # names may hold brackets
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            console=Console(),
            transient=True,
        )
        self.line = self.progress.add_task("", place="preparing", state="", total=None)

    def __enter__(self) -> LiveDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Show one event of a run."""
        self.clock.see(event)
        update: dict[str, Any] = {"total": self.clock.total or None, "completed": self.clock.done}
        if isinstance(event, TaskBegun):
            name = for_terminal(event.name)
            update["place"] = f"task {event.index + 1}/{event.num_tasks} {name}"
        elif isinstance(event, EpochReport):
            update["state"] = describe_epoch(event, self.clock)
        elif isinstance(event, TaskLearned):
            self.progress.console.print(describe_task(event), highlight=False, markup=False)
        elif isinstance(event, Note):
            note = for_terminal(f"note: {event.text}")
            self.progress.console.print(note, highlight=False, markup=False)
        elif isinstance(event, Finished):
            update["state"] = "finished"
        self.progress.update(self.line, **update)


def open_display(stream: TextIO | None = None) -> PlainDisplay | LiveDisplay:
    """A live display on a terminal, plain lines elsewhere."""
    is_terminal = stream is None and sys.stdout.isatty()
    return LiveDisplay() if is_terminal else PlainDisplay(stream)


def describe_epoch(report: EpochReport, clock: Clock) -> str:
    """An epoch in one line."""
    left = clock.seconds_left
    return (
        f"{report.stage + '  ' if report.stage else ''}"
        f"epoch {report.epoch}/{report.epochs}  loss {report.loss:.4f}  "
        f"valid {100 * report.valid_accuracy:.2f} %"
        + ("" if left is None else f"  {duration(left)} left")
    )


def describe_task(event: TaskLearned) -> str:
    """A learned task in one line."""
    report, accuracy = event.report, event.row[event.index]
    parts = ["accuracy not measured" if accuracy is None else f"accuracy {100 * accuracy:.2f} %"]
    if isinstance(report, SubnetReport):
        kept = f"{report.bits} bits, density {report.density:.3f}"
        if report.rungs:
            kept = f"{[r.name for r in report.rungs if r.taken][-1]}, density {report.density:.4f}"
        elif report.bank != NO_BANK:
            kept = f"bank {report.bank}, {kept}"
        parts.append(kept)
    parts.append(f"{report.training_seconds:.1f} s")
    name = for_terminal(report.name)
    return f"learned {event.index + 1}/{event.num_tasks} {name}: {'; '.join(parts)}"


def summary(result: Mapping[str, Any]) -> str:
    """A finished run as text: accuracy matrix, metrics, banks, ledger, seconds."""
    head = f"{result['recipe']} by {result['method']}, seed {result['seed']}"
    head += f" ({result['scenario_type']})"
    blocks = [head, _matrix(result), _metrics(result)]
    if result.get("divergence"):
        blocks.append(_banks(result["divergence"]["decisions"]))
    blocks.append(_ledger(result))
    return "\n\n".join(blocks) + f"\n\n{duration(result['seconds'])} in all"


def _matrix(result: Mapping[str, Any]) -> str:
    rows: Sequence[Sequence[float | None]] = result["accuracy_matrix"]
    where = " and ".join(result["measured_on"])
    title = f"accuracy in % on {where} data: row = after task, column = task"
    kind = result.get("matrix") or "full"
    if kind != "full":
        title += f"\nmeasured: {MATRICES[kind]} (--matrix {kind}); – was not measured"
    if len(rows) > MAX_MATRIX:
        title += "\n(the whole matrix is in result.json; here its last row)"
    cells = [
        [str(i), *("–" if v is None else f"{100 * v:.1f}" for v in row)]
        for i, row in enumerate(rows, 1)
    ]
    shown = cells if len(rows) <= MAX_MATRIX else cells[-1:]
    return f"{title}\n{text_table(shown)}"


def _metrics(result: Mapping[str, Any]) -> str:
    m = result["metrics"]
    full = (result.get("matrix") or "full") == "full"
    undefined = "not defined" if full else "needs --matrix full"
    names = {
        "average_accuracy": "average accuracy (ACC)",
        "average_accuracy_over_time": "mean over time (A)",
        "backward_transfer": "backward transfer (BWT)",
        "forward_transfer": "forward transfer (FWT)",
        "forward_transfer_minus_chance": "FWT minus chance",
        "forgetting": "forgetting",
    }
    return text_table(
        [
            (text, undefined if m[key] is None else f"{100 * m[key]:.2f} %")
            for key, text in names.items()
        ]
    )


def _banks(decisions: Mapping[str, Mapping[str, Any]]) -> str:
    """The bank of each task and why; neighbors with the same reason share a line."""
    lines = ["banks"]
    for (bank, reason), found in groupby(
        decisions.items(), key=lambda item: (item[1]["bank"], item[1]["reason"])
    ):
        names = [name for name, _ in found]
        who = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        where = reason if bank == NO_BANK else f"bank {bank} ({reason})"
        lines.append(for_terminal(f"  {who}: {where}"))
    return "\n".join(lines)


def _ledger(result: Mapping[str, Any]) -> str:
    ledger = result["ledger"]
    if "num_weights" not in ledger:
        return "size: " + ", ".join(f"{k} {v}" for k, v in result["capacity"].items() if v)
    dense = 32 * ledger["num_weights"]
    rows: list[tuple[str, ...]] = [
        (name, f"{bits / 8:,.0f}", f"{100 * bits / dense:.2f}")
        for name, bits in ledger["total"].items()
    ]
    views = {"file": "file on disk", "paper": "paper's view", "worked_example": "worked example"}
    shares = {text: result["capacity"].get(key) for key, text in views.items()}
    shares["free weights"] = result.get("free_share")
    rows.append(())
    rows += [(text, "", f"{100 * s:.2f}") for text, s in shares.items() if s is not None]
    title = "size, in % of the shared weights as 32-bit numbers"
    return f"{title}\n{text_table(rows, ('', 'bytes', '%'))}"


class TensorBoard:
    """A writer of event files in `tensorboard/` of a run folder; closed when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with friendly_os_errors(folder):
            self.writer = summary_writer()(str(folder / "tensorboard"))

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, also where a run was stopped."""
        with friendly_os_errors(self.folder):
            self.writer.close()

    def show(self, event: Event) -> None:
        """Write one event of a run."""
        with friendly_os_errors(self.folder):
            self._write(event)

    def _write(self, event: Event) -> None:
        if isinstance(event, EpochReport):
            for name in ("loss", "valid_loss", "valid_accuracy", "lr"):
                self.writer.add_scalar(f"{event.task}/{name}", getattr(event, name), event.epoch)
        elif isinstance(event, TaskLearned):
            for task, accuracy in enumerate(event.row[: event.index + 1]):
                if accuracy is not None:
                    self.writer.add_scalar(f"accuracy/task_{task}", accuracy, event.index)
        elif isinstance(event, Finished):
            for name, value in event.result["metrics"].items():
                if value is not None:
                    self.writer.add_scalar(f"metrics/{name}", value)


def summary_writer() -> Any:
    """The class of writers; an error that names the extra where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SettingError(
            "--tensorboard needs tensorboard, which is not installed. "
            "Install it with: pip install 'tinysubnets[tensorboard]'"
        ) from error
    return SummaryWriter
