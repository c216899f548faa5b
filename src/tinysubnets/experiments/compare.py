"""Comparisons: several methods and seeds of one scenario, each run in a process of its own.

Processes are on this machine, or on those of a `cluster`.

    DIR/<method>/seed-<n>/              one run folder each
    DIR/<method>-<type>/seed-<n>/       of a method in another scenario type than the recipe's

Finished runs are not run again, interrupted ones go on, failed ones do not stop the rest.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tinysubnets.errors import RunError, TinySubNetsError
from tinysubnets.experiments.metrics import MATRICES
from tinysubnets.experiments.recipe import Recipe, complete
from tinysubnets.experiments.results import (
    Run,
    find_runs,
    first_difference,
    grouped,
    read_run,
)
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.experiments.run_process import LocalRun, Working
from tinysubnets.experiments.tables import text_table
from tinysubnets.files import friendly_os_errors
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    from tinysubnets.experiments.cluster import ClusterRuns

POLL_SECONDS = 0.2
STOPPED = (130, -signal.SIGINT)  # by Ctrl-C, the latter before the run listened to it
_COLUMNS: dict[str, Callable[[Run], float | None]] = {
    "accuracy %": lambda r: r.metric("average_accuracy"),
    "BWT %": lambda r: r.metric("backward_transfer"),
    "FWT %": lambda r: r.metric("forward_transfer"),
    "file %": lambda r: r.capacity("file"),
    "paper %": lambda r: r.capacity("paper"),
}
_ROUTED: dict[str, Callable[[Run], float | None]] = {  # without the task's name, in the same run
    "class-IL %": lambda r: r.routed("class-IL", "average_accuracy"),
    "class-IL BWT %": lambda r: r.routed("class-IL", "backward_transfer"),
    "domain-IL %": lambda r: r.routed("domain-IL", "average_accuracy"),
    "domain-IL BWT %": lambda r: r.routed("domain-IL", "backward_transfer"),
    "task found %": lambda r: r.routed("task_accuracy"),
    "class-IL, entropy %": lambda r: r.routed("entropy_rule", "class-IL"),
    "domain-IL, entropy %": lambda r: r.routed("entropy_rule", "domain-IL"),
    "unknown, AUROC %": lambda r: r.routed("unknown", "auroc"),
}


@dataclass
class Job:
    """One run of a comparison and what works on it.

    - `arguments`: of `tsn run`, without the folder.
    - `threads`: bounds those of its libraries, so that runs side by side do not starve each other;
      None leaves it to them.
    """

    method: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    threads: int | None = None
    state: str = "waiting"
    detail: str = ""
    working: Working | None = field(default=None, repr=False)

    @property
    def is_finished(self) -> bool:
        """Whether the run has its result, and nothing is left to tidy up."""
        return (self.folder / "result.json").exists() and not (self.folder / "checkpoint").exists()

    def start(self, cluster: ClusterRuns | None = None) -> None:
        """Begin the run, or go on with it, here or on a machine of a cluster."""
        try:
            with friendly_os_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                self.working = (
                    LocalRun(self.folder, self.arguments, self.threads)
                    if cluster is None
                    else cluster.start(self.folder, self.arguments)
                )
            self.state = "running"
        except (RunError, OSError) as error:
            self.state, self.detail = "failed", str(error)

    def look(self) -> None:
        """See how far the run is."""
        assert self.working is not None
        try:
            status = self.working.poll()
        except RunError as error:
            self.state, self.detail = "failed", str(error)
            return
        if status is None:
            self.detail = self.working.progress
            return
        if status in STOPPED and not self.is_finished:
            self.state, self.detail = "stopped", ""
            return
        self.state = "finished" if status == 0 and self.is_finished else "failed"
        self.detail = accuracy_of(self.folder) if self.state == "finished" else self._reason(status)

    def _reason(self, status: int) -> str:
        """The last line that a failed process printed."""
        output = self.folder / "output.txt"
        text = output.read_text(errors="replace") if output.exists() else ""
        lines = text.strip().splitlines()
        killed = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        said = [line for line in lines if line.startswith("tsn: ")] or lines
        return f"{killed}: {said[-1] if said else 'it printed nothing'}"


class Comparison:
    """All runs of a comparison, at most `num_jobs` of them at a time, here or on a `cluster`."""

    def __init__(
        self, jobs: Sequence[Job], num_jobs: int, cluster: ClusterRuns | None = None
    ) -> None:
        self.jobs, self.num_jobs, self.cluster = list(jobs), num_jobs, cluster
        self.is_stopping = False
        for job in self.jobs:
            if job.is_finished:
                job.state, job.detail = "finished", accuracy_of(job.folder)

    @property
    def is_done(self) -> bool:
        """Whether no run is left to wait for."""
        if self.is_stopping:
            return not self._running()
        return all(job.state in ("finished", "failed", "stopped") for job in self.jobs)

    def step(self) -> None:
        """Look at running processes and start waiting runs where there is room."""
        for job in self._running():
            job.look()
        room = self.num_jobs - len(self._running())
        if not self.is_stopping:
            for job in [j for j in self.jobs if j.state == "waiting"][: max(room, 0)]:
                job.start(self.cluster)

    def stop(self) -> None:
        """Ask all running processes to save and end; asked again, they end at once."""
        self.is_stopping = True
        for job in self._running():
            assert job.working is not None
            job.working.stop()

    def _running(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "running"]


def check_settings(folder: Path, chosen: Recipe) -> None:
    """Refuse to take a run of other settings for one of this comparison."""
    try:
        recorded = RunDir(folder).config()
        there = complete(recorded["run"]["recipe"], recorded)
    except (TinySubNetsError, KeyError):
        return  # no run yet, or one that says itself what is wrong with it
    if other := first_difference(there.as_dict(), chosen.as_dict()):
        raise RunError(
            f"{folder} holds a run with other settings: {other}. Choose another folder with --out, "
            "or remove that run."
        )


def accuracy_of(folder: Path) -> str:
    """The average accuracy of a finished run, in words."""
    accuracy = read_run(folder).metric("average_accuracy")
    return "accuracy not defined" if accuracy is None else f"accuracy {100 * accuracy:.2f} %"


def run_all(comparison: Comparison, stream: TextIO | None = None) -> None:
    """Run a comparison to its end, with a live display on a terminal, plain lines elsewhere.

    Where the reader of those lines goes away, the runs are stopped first and then it is an error,
    a BrokenPipeError.
    """
    stream = stream or sys.stdout
    if stream.isatty():
        _run_live(comparison)
        return
    try:
        _run_plain(comparison, stream)
    except BrokenPipeError:  # nobody reads on: the runs save what they have before this ends
        comparison.stop()
        while not comparison.is_done:
            time.sleep(POLL_SECONDS)
            comparison.step()
        raise


def _run_plain(comparison: Comparison, stream: TextIO) -> None:
    told: dict[int, str] = {}
    while True:
        comparison.step()
        for number, job in enumerate(comparison.jobs):
            if told.get(number, "waiting") != job.state:
                told[number] = job.state
                line = f"{job.method} seed {job.seed}: {job.state} {job.detail}".rstrip()
                print(for_terminal(line), file=stream, flush=True)
        if comparison.is_done:
            return
        time.sleep(POLL_SECONDS)


def _run_live(comparison: Comparison) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(refresh_per_second=4) as live:
        while not comparison.is_done:
            comparison.step()
            rows = [(j.method, str(j.seed), j.state, j.detail) for j in comparison.jobs]
            live.update(Text(text_table(rows, num_labels=4), no_wrap=True))
            time.sleep(POLL_SECONDS)


def summary(folder: Path, methods: Sequence[str]) -> str:
    """The table of a comparison: mean ± standard deviation (n) over its finished runs."""
    if not any(folder.rglob("result.json")):
        return "no run was finished."
    groups = grouped(find_runs([folder]))
    earlier = [r for g in groups for r in g.runs if not _is_asked_for(r, folder, methods)]
    all_runs = [r for g in groups for r in g.runs]
    routed = {t: m for t, m in _ROUTED.items() if any(m(r) is not None for r in all_runs)}
    ordered = sorted(
        groups, key=lambda g: (_place(g.method, methods), g.recipe, g.runs[0].scenario_type)
    )
    rows, unnamed = [], []
    for group in ordered:
        names = [group.method, group.runs[0].scenario_type]
        cells = [group.show(measure) for measure in _COLUMNS.values()]
        size = group.show(lambda r: r.size_bytes, factor=1e-3)
        seconds = group.show(lambda r: r.result.get("seconds"), factor=1.0)
        rows.append([*names, *cells, size, seconds])
        found = [group.show(measure) for measure in routed.values()]
        if any(cell != "–" for cell in found):
            unnamed.append([*names, *found, group.passes or "–"])
    headings = ["method", "scenario type", *_COLUMNS, "kB", "seconds"]
    tables = [text_table(rows, headings, num_labels=2)]
    if unnamed:
        headings = ["no task name", "scenario type", *routed, "passes"]
        tables += ["", text_table(unnamed, headings, num_labels=2)]
    notes = ["mean ± standard deviation (runs)"]
    if routed:
        notes.append(
            "class-IL, domain-IL: the same models without the task's name, by routing over all "
            "tasks' networks; passes: how many of these an input takes; their BWT: new tasks "
            "compete, though no output changes; task found: how often it is the right one; "
            "entropy: the rule of SupSup on the same models; unknown: how well inputs of a task "
            "left out are told"
        )
    kinds = {r.matrix_kind for r in all_runs} - {"full"}
    notes += [
        f"--matrix {kind}: measured {MATRICES[kind]}; what needs more cells is –"
        for kind in sorted(kinds)
    ]
    if earlier:
        others = ", ".join(dict.fromkeys(r.method for r in earlier))
        notes.append(f"not of this command, but of earlier runs that are in {folder}: {others}")
    return "\n".join([*tables, *notes])


def _is_asked_for(run: Run, folder: Path, methods: Sequence[str]) -> bool:
    """Whether a run is one of these methods, told as `method` or `method:scenario_type`."""
    return run.folder.relative_to(folder).parts[:1] in {(t.replace(":", "-"),) for t in methods}


def _place(method: str, methods: Sequence[str]) -> int:
    names = [told.partition(":")[0] for told in methods]
    return names.index(method) if method in names else len(names)
