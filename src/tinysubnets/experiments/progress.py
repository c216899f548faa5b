"""What a run shows while it works: a live line on a terminal, plain lines elsewhere; a summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from tinysubnets.errors import SettingError, not_installed
from tinysubnets.experiments.metrics import MATRICES, comparable, parts_told, where_not_test
from tinysubnets.experiments.run import Event, Finished, Note, TaskBegun, TaskLearned
from tinysubnets.experiments.tables import size_text, text_table
from tinysubnets.files import friendly_os_errors
from tinysubnets.method.core import SubnetReport
from tinysubnets.method.progress import duration
from tinysubnets.method.pruning import PruningStep
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.text import for_terminal
from tinysubnets.training.loop import EpochReport

MAX_MATRIX = 10  # tasks of which the whole accuracy matrix is shown


class Clock:
    """How long a run will still take: its epochs, and what follows the epochs of each task.

    What follows is compression with post-pruning, and measuring all tasks so far. Its time is known
    from earlier tasks, or in the first task from the steps of post-pruning. Before that, the time
    left is that of the epochs alone, and `is_least` is true. Where tasks climb ladders, nobody
    knows how many epochs are left: then the tasks learned so far give the time of the others.

    - `now`: gives the seconds of a clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.total = self.done = 0  # epochs of all tasks
        self.num_tasks = self.index = 0
        self._last = now()  # when the last event was seen
        self._epoch_seconds: list[float] = []
        self._finish_seconds: list[float] = []  # from a task's last epoch until it was learned
        self._finish_began: float | None = None  # None while epochs are trained
        self._began = self._learned = self._last  # of the first task, and of the last one learned
        self.num_learned, self.climbs = 0, False
        self._pruning: tuple[float, PruningStep, PruningStep] | None = None  # since, first, last

    def see(self, event: Event) -> None:
        """Take note of an event."""
        now, since = self.now(), self._last
        self._last = now
        if isinstance(event, TaskBegun):
            self.num_tasks, self.index = event.num_tasks, event.index
            self.total = event.num_tasks * event.epochs
            self.done = event.index * event.epochs + event.first_epoch
            self._finish_began = self._pruning = None
            self._began = now if not self.num_learned else self._began
        elif isinstance(event, EpochReport):
            self.climbs = self.climbs or bool(event.stage)
            self.done = min(self.done + 1, self.total)
            self._epoch_seconds.append(now - since)
            self._finish_began = now
        elif isinstance(event, PruningStep):
            began, first, _ = self._pruning or (now, event, event)
            self._pruning = began, first, event
        elif isinstance(event, TaskLearned):
            self.done = (event.index + 1) * (self.total // max(1, self.num_tasks))
            self.index, self._learned = event.index + 1, now
            self.num_learned += 1
            if self._finish_began is not None:
                self._finish_seconds.append(now - self._finish_began)
            self._finish_began = self._pruning = None

    @property
    def is_least(self) -> bool:
        """Whether the time left is that of epochs alone, because nothing else is known yet."""
        return self._one_finish() is None and not self.climbs

    @property
    def seconds_left(self) -> float | None:
        """An estimate, None before the first epoch; with ladders, before the first task."""
        if self.climbs:
            if not self.num_learned:
                return None
            each = (self._learned - self._began) / self.num_learned
            return max(0.0, each * (self.num_tasks - self.index) - (self.now() - self._learned))
        if not self._epoch_seconds:
            return None
        left = _mean(self._epoch_seconds) * (self.total - self.done)
        one = self._one_finish()
        if one is None or self.index >= self.num_tasks:
            return left
        gone = 0.0  # of what follows the epochs of the task at hand
        if self._pruning is not None and self._finish_began is not None:
            gone = self.now() - self._finish_began
        return left + max(0.0, one - gone) + one * (self.num_tasks - self.index - 1)

    def _one_finish(self) -> float | None:
        """How long what follows the epochs of one task takes; None where nothing tells yet."""
        if self._finish_seconds:
            return _mean(self._finish_seconds)
        if self._pruning is None or self._finish_began is None:
            return None
        began, first, last = self._pruning
        if last.step == first.step:
            return None
        per_step = (self._last - began) / (last.step - first.step)
        return began - self._finish_began + per_step * (last.steps - first.step + 1)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
        elif isinstance(event, (EpochReport, PruningStep)):
            if time.monotonic() - self._spoke >= self.every_seconds:
                self._say(f"{self._place}: {describe_step(event, self.clock)}")
        elif isinstance(event, TaskLearned):
            self._say(describe_task(event))
        elif isinstance(event, Note):
            self._say(for_terminal(f"note: {event.text}"))

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)
        self._spoke = time.monotonic()


class LiveDisplay:
    """A live line on a terminal: task, epoch or step of pruning, validation accuracy, time left."""

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
            update["state"] = describe_step(event, self.clock)
        elif isinstance(event, PruningStep):  # a bar of its own
            update |= {"total": event.steps, "completed": event.step - 1}
            update["state"] = describe_step(event, self.clock)
        elif isinstance(event, TaskLearned):
            self.progress.console.print(describe_task(event), highlight=False, markup=False)
        elif isinstance(event, Note):
            note = for_terminal(f"note: {event.text}")
            self.progress.console.print(note, highlight=False, markup=False)
        elif isinstance(event, Finished):
            update["state"] = "finished"
        self.progress.update(self.line, **update)


def open_display() -> PlainDisplay | LiveDisplay:
    """A live display on a terminal, plain lines elsewhere."""
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()


def describe_step(step: EpochReport | PruningStep, clock: Clock) -> str:
    """An epoch, or a step of post-pruning, in one line with the time left of the whole run."""
    if isinstance(step, EpochReport):
        stage = f"{step.stage}  " if step.stage else ""
        text = f"{stage}epoch {step.epoch}/{step.epochs}  loss {step.loss:.4f}"
        accuracy = step.valid_accuracy
    else:
        text, accuracy = f"post-pruning {step.step}/{step.steps}", step.accuracy
    left, what = clock.seconds_left, " of epochs" if clock.is_least else ""
    shown = "" if left is None else f"  {duration(left)}{what} left"
    return f"{text}  valid {100 * accuracy:.2f} %{shown}"


def describe_task(event: TaskLearned) -> str:
    """A learned task in one line."""
    report, accuracy = event.report, event.row[event.index]
    where = where_not_test([event.measured_on])
    shown = "not measured" if accuracy is None else f"{100 * accuracy:.2f} %{where}"
    parts = [f"accuracy {shown}"]
    if isinstance(report, SubnetReport):
        kept = f"{report.bits} bits, density {report.density:.3f}"
        if report.rungs:
            kept = f"{[r.name for r in report.rungs if r.taken][-1]}, density {report.density:.4f}"
        elif report.bank != NO_BANK:
            kept = f"bank {report.bank}, {kept}"
        parts.append(kept)
    name = for_terminal(report.name)
    place = f"{event.index + 1}/{event.num_tasks} {name}"
    return f"learned {place} in {event.seconds:.1f} s: {'; '.join(parts)}"


def summary(result: Mapping[str, Any]) -> str:
    """A finished run as text: what came of it, accuracy matrix, metrics, banks, ledger, seconds."""
    head = f"{result['recipe']} by {result['method']}, seed {result['seed']}"
    head += f" ({result['scenario_type']})"
    blocks = [f"{head}\n{_headline(result)}"]
    if len(result["tasks"]) > 1:
        blocks.append(_matrix(result))
    blocks.append(_metrics(result))
    if result.get("without_task") and len(result["tasks"]) > 1:
        blocks.append(_without_task(result["without_task"]))
    if result.get("divergence"):
        blocks.append(_banks(result["divergence"]["decisions"]))
    blocks.append(_ledger(result))
    return "\n\n".join(blocks) + f"\n\n{duration(result['seconds'])} in all"


def _headline(result: Mapping[str, Any]) -> str:
    """What a run came to in one sentence: bytes first, then accuracy and what was forgotten."""
    ledger, metrics, tasks = result["ledger"], result["metrics"], result["tasks"]
    size = ledger.get("file_bytes")
    said = f"{len(tasks)} tasks" if len(tasks) != 1 else "1 task"
    if size is not None:
        said += f" in {size_text(size)}"
        if ledger.get("num_weights"):
            dense = size_text(4 * ledger["num_weights"])
            is_less = size < 4 * ledger["num_weights"]
            said += f" instead of {dense} for" if is_less else f"; {dense} are the weights of"
            said += " one dense network"
    said += f"; {100 * metrics['average_accuracy']:.1f} % right on average"
    said += where_not_test(result["measured_on"])
    lost = metrics["forgetting"]
    if lost is not None:
        said += f", {100 * lost:.1f} points forgotten" if lost else ", nothing forgotten"
    return f"{said}."


def _matrix(result: Mapping[str, Any]) -> str:
    classes = [task.get("classes") for task in result["tasks"]]
    rows = comparable(result["accuracy_matrix"], classes)
    where = parts_told(result["measured_on"])
    title = f"accuracy in % on {where} data: row = after task, column = task"
    kind = result.get("matrix") or "full"
    if kind != "full":
        title += f"\nmeasured: {MATRICES[kind]} (--matrix {kind}); – was not measured"
    elif any(value is None for row in rows for value in row):
        title += "\n– is not defined: a task's network on classes that it has not learned"
    if len(rows) > MAX_MATRIX:
        title += "\n(the whole matrix is in result.json; here its last row)"
    cells = [
        [f"{i} {task['name']}", *("–" if v is None else f"{100 * v:.1f}" for v in row)]
        for i, (task, row) in enumerate(zip(result["tasks"], rows, strict=True), 1)
    ]
    shown = cells if len(rows) <= MAX_MATRIX else cells[-1:]
    numbers = ["", *(str(i) for i in range(1, len(rows) + 1))]
    return f"{title}\n{text_table([numbers, *shown])}"


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
            if m[key] is not None or len(result["tasks"]) > 1  # one task has no transfer
        ]
    )


def _without_task(found: Mapping[str, Any]) -> str:
    """What the same model is worth when nobody tells the task."""
    rows = []
    for kind, text in (("class-IL", "task and class right"), ("domain-IL", "label right")):
        if found.get(kind):
            own = found[kind]
            rows.append((f"{kind}: {text}", f"{100 * own['average_accuracy']:.2f} %"))
            if own.get("backward_transfer") is not None:  # no output changes, but tasks compete
                rows.append((f"{kind}: BWT", f"{100 * own['backward_transfer']:.2f} %"))
    rows.append(("task found", f"{100 * found['task_accuracy']:.2f} %"))
    if found.get("entropy_rule"):
        share = found["entropy_rule"]["task_accuracy"]
        rows.append(("the same by least entropy (SupSup)", f"{100 * share:.2f} %"))
    if found.get("unknown"):
        rows.append(("unknown inputs told, AUROC", f"{100 * found['unknown']['auroc']:.2f} %"))
    passes = f"{found['passes']} pass{'es' * (found['passes'] != 1)} of networks an input"
    title = f"without the task's name, by {found['rule']}, {passes}"
    return f"{title}\n{text_table(rows)}"


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
    lines = [f"size\n{text_table(rows, ('', 'bytes', '% of dense'))}"]
    lines.append(f"100 % are the shared weights of one dense network, {dense // 8:,} bytes.")
    if (paper := result["capacity"].get("paper")) is not None:
        lines.append(
            f"{100 * paper:.2f} % by the paper's way of counting: without heads, routing and "
            "metadata."
        )
    if (free := result.get("free_share")) is not None:
        lines.append(f"{100 * free:.2f} % of the weights are still free.")
    return "\n".join(lines)


class TensorBoard:
    """A writer of event files in `tensorboard/` of a run folder; closed when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: Any = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, also where a run was stopped."""
        with friendly_os_errors(self.folder):
            if self._made is not None:
                self._made.close()

    def show(self, event: Event) -> None:
        """Write one event of a run."""
        with friendly_os_errors(self.folder):
            self._write(event)

    @property
    def _writer(self) -> Any:
        """The writer, made with its files when there is something to write."""
        if self._made is None:
            self._made = summary_writer()(str(self.folder / "tensorboard"))
        return self._made

    def _write(self, event: Event) -> None:
        if isinstance(event, EpochReport):
            for name in ("loss", "valid_loss", "valid_accuracy", "lr"):
                self._writer.add_scalar(f"{event.task}/{name}", getattr(event, name), event.epoch)
        elif isinstance(event, TaskLearned):
            for task, accuracy in enumerate(event.row[: event.index + 1]):
                if accuracy is not None:
                    self._writer.add_scalar(f"accuracy/task_{task}", accuracy, event.index)
        elif isinstance(event, Finished):
            for name, value in event.result["metrics"].items():
                if value is not None:
                    self._writer.add_scalar(f"metrics/{name}", value)


def summary_writer() -> Any:
    """The class of writers; an error that names the extra where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SettingError(not_installed("--tensorboard", "tensorboard", "tensorboard")) from error
    return SummaryWriter
