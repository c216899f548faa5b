"""A search for the best model below so many bytes: Optuna tries settings of a recipe.

    with RunDir("runs/search") as folder, Search(plan, folder) as search:
        for event in search.steps():
            print(event)
        print(search.front())

A trial learns all tasks of the scenario, once for each development seed, and is judged by its mean
validation accuracy and the bytes of its file. Test data are never read. The study is the file
`study.db` of the folder, which Optuna's own tools read; one process alone works on it, also where
trials run in several, so that a search can be killed at any time and goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import re
import signal
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tinysubnets import config, seeds
from tinysubnets.errors import (
    RunError,
    SettingError,
    TinySubNetsError,
    not_installed,
)
from tinysubnets.experiments.result_kinds import (
    AMOUNT,
    COUNT,
    LIST,
    SHARE,
    TABLE,
    TEXT,
    Kind,
    first_wrong,
)
from tinysubnets.experiments.results import first_difference, flat
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.experiments.search_space import Range
from tinysubnets.experiments.trial import (
    TEMPORARY,
    Failed,
    Partial,
    SearchPlan,
    attempt,
    attempt_anywhere,
)
from tinysubnets.files import check_plain, friendly_os_errors, remove_folder
from tinysubnets.training.loop import EpochReport

if TYPE_CHECKING:
    from tinysubnets.experiments.cluster import Cluster, Stream

STUDY, STUDY_NAME = "study.db", "tsn search"
DIRECTIONS = ["maximize", "minimize"]  # of accuracy and bytes
FEW_TASKS = 2  # before so many are learned, no trial is given up
MARGIN = 0.02  # of accuracy, by which another trial must be ahead for this one to be given up
MAX_ATTEMPTS = 3  # of a trial whose process died
POLL_SECONDS = 0.2
_STEP: Kind = (
    "accuracy and bytes",
    lambda step: (
        isinstance(step, list)
        and len(step) == 2
        and all(fits(value) for (_, fits), value in zip((SHARE, AMOUNT), step, strict=True))
    ),
)
_OF_TRIAL: dict[str, Kind] = {  # what is written down of one, where it is
    "steps": LIST,
    "steps.*": _STEP,
    "reason": TEXT,
    "attempts": COUNT,
    "again_of": COUNT,
    "fixed_params": TABLE,
}
_NEVER_NULL = {"steps.*"}


@dataclass(frozen=True)
class TrialBegun:
    """A trial is about to run."""

    number: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class TrialWent:
    """A trial went on: an epoch was trained, or a task was learned."""

    number: int
    report: EpochReport | Partial


@dataclass(frozen=True)
class TrialEnded:
    """A trial has ended: "complete", "pruned" or "failed"; `detail` says why, or what came out."""

    number: int
    state: str
    detail: str


@dataclass(frozen=True)
class Waited:
    """Nothing new from the processes of a search."""


Event = TrialBegun | TrialWent | TrialEnded | Waited


@dataclass(frozen=True)
class TrialResult:
    """A complete trial: its settings by dotted name, and what it came to."""

    number: int
    settings: Mapping[str, Any]
    accuracy: float
    size_bytes: int


# --------------------------------------------------------------------------------------------------
# What came out


def is_hopeless(now: Partial, finished: Iterable[Sequence[Partial]]) -> bool:
    """Whether a trial can be given up: some finished one had, at the same step, a clearly higher
    accuracy in no more bytes.

    - `finished`: all steps of every finished trial.
    """
    if now.step < FEW_TASKS or now.step >= now.num_steps:
        return False
    there = [steps[now.step - 1] for steps in finished if len(steps) >= now.step]
    return any(
        p.accuracy >= now.accuracy + MARGIN and p.size_bytes <= now.size_bytes for p in there
    )


def pareto_front(results: Iterable[TrialResult]) -> list[TrialResult]:
    """The results that no other beats in both accuracy and bytes, the smallest first."""
    front: list[TrialResult] = []
    for result in sorted(results, key=lambda r: (r.size_bytes, -r.accuracy, r.number)):
        if not front or result.accuracy > front[-1].accuracy:
            front.append(result)
    return front


def best_below(results: Iterable[TrialResult], budget: int | None) -> TrialResult | None:
    """The most accurate result of at most `budget` bytes, the smaller of equals; None: of none."""
    fitting = [r for r in results if budget is None or r.size_bytes <= budget]
    return min(fitting, key=lambda r: (-r.accuracy, r.size_bytes, r.number), default=None)


def parse_size(text: str) -> int:
    """A number of bytes as people write it; 1 kB is 1,000 bytes.

    >>> parse_size("100kB"), parse_size("2.5 MB"), parse_size("4096"), parse_size("1 KiB")
    (100000, 2500000, 4096, 1024)
    """
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    units |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", text, re.IGNORECASE)
    size = 0 if found is None else int(float(found[1]) * units.get(found[2].lower(), 0))
    if size < 1:
        raise SettingError(
            f"{text!r} is no size; give bytes as 100kB, 2.5MB, 64KiB or 4096, at least 1."
        )
    return size


# --------------------------------------------------------------------------------------------------
# The study


def import_optuna() -> ModuleType:
    """Optuna; an error that names the extra where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise SettingError(not_installed("tsn search", "optuna", "search")) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Search:
    """A study in a folder that this process holds, until it is closed.

    - `plan`: what is searched. A folder that holds a search of other settings is refused; more
      trials, and another budget, are welcome.
    - `folder`: where the study is, or is made.
    - `cluster`: on whose machines trials run, connected; None for this one.
    """

    def __init__(self, plan: SearchPlan, folder: RunDir, cluster: Cluster | None = None) -> None:
        self.optuna = import_optuna()
        self.plan, self.folder, self.cluster = plan, folder, cluster
        self._coded: dict[str, dict[str, Any]] = {}  # lists have texts in the study
        self.distributions = {k: self._distribution(k) for k in plan.space}
        if folder.is_started:
            raise RunError(f"{folder.path} holds a run. Choose another folder with --out.")
        for left in folder.path.glob(f"{TEMPORARY}*"):
            remove_folder(left)
        self.storage = self._open_storage(folder.path.resolve() / STUDY)
        try:
            with self._told_of_damage():
                self.study = self.optuna.create_study(
                    study_name=STUDY_NAME,
                    storage=self.storage,
                    directions=DIRECTIONS,
                    load_if_exists=True,
                )
                self._begin_()
                self._tidy_()
        except BaseException:
            self._close_storage()
            raise

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        """Hand back what was not finished, so that the next search begins with it."""
        try:
            self._tidy_()
        finally:
            self._close_storage()

    def _open_storage(self, path: Path) -> Any:
        from sqlalchemy.exc import SQLAlchemyError  # what Optuna keeps studies by

        with friendly_os_errors(path.parent):
            for beside in ("", "-journal", "-wal", "-shm"):  # SQLite writes through links
                check_plain(path.with_name(f"{STUDY}{beside}"))
        try:
            return self.optuna.storages.RDBStorage(f"sqlite:///{path}")
        except (SQLAlchemyError, RuntimeError) as error:
            raise RunError(
                f"{path} cannot be opened as a study: {error}. Choose another folder with --out, "
                "or remove that file."
            ) from error

    @contextlib.contextmanager
    def _told_of_damage(self) -> Iterator[None]:
        """Turn Optuna's errors over a file that it has not written into a RunError.

        Optuna does not check what it reads, so that any of these errors can come of it.
        """
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except TinySubNetsError:
            raise
        except (SQLAlchemyError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    def _damaged(self, what: str) -> RunError:
        return RunError(
            f"{self.folder.path / STUDY} cannot be the study of this search: {what}. Choose "
            "another folder with --out, or remove that file."
        )

    def _close_storage(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    def _distribution(self, key: str) -> Any:
        made, allowed = self.optuna.distributions, self.plan.space[key]
        if not isinstance(allowed, Range):
            self._coded[key] = {_code(v): v for v in allowed.values}
            return made.CategoricalDistribution(tuple(self._coded[key]))
        kind = made.IntDistribution if isinstance(allowed.low, int) else made.FloatDistribution
        return kind(allowed.low, allowed.high, log=allowed.is_log)

    def _begin_(self) -> None:
        """Record in a new study what is searched; check that an old one searches the same."""
        plan = self.plan
        about = {
            "settings": flat(plan.recipe.as_dict()),
            "space": {key: str(allowed) for key, allowed in plan.space.items()},
            "seeds": list(plan.seeds),
            "seed": plan.seed,
        }
        directions = [direction.name.lower() for direction in self.study.directions]
        if directions != DIRECTIONS:
            raise self._damaged(f"it is to {' and '.join(directions)}")
        before = self.study.user_attrs.get("about")
        if before is not None:
            if not isinstance(before, dict):
                raise self._damaged("what it is about is no table")
            if other := first_difference(before, about):
                raise RunError(
                    f"{self.folder.path} holds a search with other settings: {other}. Choose "
                    "another folder with --out, or remove that one."
                )
        self._check_trials()
        if before is not None:
            return
        if plan.first and not self.study.trials:
            first = {k: _code(v, self._coded.get(k)) for k, v in plan.first.items()}
            self.study.enqueue_trial(first)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            self.study.set_metric_names(["validation accuracy", "bytes"])
        # Last, so that a study which says what it is about is a whole one.
        self.study.set_user_attr("about", about)

    def _check_trials(self) -> None:
        """Refuse trials that do not say what those of a search do."""
        for trial in self.study.trials:
            if wrong := first_wrong(trial.user_attrs | trial.system_attrs, _OF_TRIAL, _NEVER_NULL):
                raise self._damaged(f"of trial {trial.number}, {wrong}")
            if trial.state.name not in ("COMPLETE", "PRUNED"):
                continue
            steps = trial.user_attrs.get("steps")
            came_to = trial.values if trial.state.name == "COMPLETE" else steps and steps[-1]
            if not steps or not _STEP[1](came_to) or trial.distributions != self.distributions:
                raise self._damaged(f"trial {trial.number} lacks settings, or what it came to")

    def _tidy_(self) -> None:
        """Mark trials that were cut off as failed, and queue their settings to be tried again."""
        for trial in self._trials("RUNNING"):
            self._again_(trial)
            self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)

    def _again_(self, trial: Any, attempts: int = 0) -> None:
        """Queue the settings of a trial to be tried again, unless they are queued already."""
        if any(t.user_attrs.get("again_of") == trial.number for t in self.study.trials):
            return  # by a process that was killed right after it
        settings = trial.system_attrs.get("fixed_params", {}) | trial.params
        if settings:
            self.study.enqueue_trial(
                settings, user_attrs={"again_of": trial.number, "attempts": attempts}
            )

    def _trials(self, *states: str) -> list[Any]:
        wanted = [getattr(self.optuna.trial.TrialState, state) for state in states]
        found: list[Any] = self.study.get_trials(deepcopy=False, states=wanted)
        return found

    @property
    def num_begun(self) -> int:
        """How many trials have been run or are running; those that were cut off do not count."""
        counted = [t for t in self._trials("FAIL") if "reason" in t.user_attrs]
        return len(counted) + len(self._trials("RUNNING", "COMPLETE", "PRUNED"))

    @property
    def results(self) -> list[TrialResult]:
        """All complete trials, in their order."""
        return [
            TrialResult(t.number, self.settings(t), t.values[0], int(t.values[1]))
            for t in self._trials("COMPLETE")
        ]

    def front(self) -> list[TrialResult]:
        """The Pareto front so far, the smallest first."""
        return pareto_front(self.results)

    def counts(self) -> dict[str, int]:
        """How many trials are complete, pruned, and failed by their own fault."""
        failed = [t for t in self._trials("FAIL") if "reason" in t.user_attrs]
        return {
            "complete": len(self._trials("COMPLETE")),
            "pruned": len(self._trials("PRUNED")),
            "failed": len(failed),
        }

    def last_failure(self) -> str | None:
        """Why the last failed trial failed."""
        reasons = [t.user_attrs["reason"] for t in self._trials("FAIL") if "reason" in t.user_attrs]
        return reasons[-1] if reasons else None

    def settings(self, trial: Any) -> dict[str, Any]:
        """The settings of a trial of the study, by dotted name."""
        return {
            key: self._coded[key][trial.params[key]] if key in self._coded else trial.params[key]
            for key in self.plan.space
        }

    # Running trials

    def steps(self) -> Generator[Event, None, None]:
        """The search, one event at a time, until it has its trials."""
        if self.cluster is not None:
            yield from self._steps_on_cluster(self.cluster)
        else:
            yield from self._steps_here() if self.plan.jobs == 1 else self._steps_in_processes()

    def _steps_here(self) -> Iterator[Event]:
        while self.num_begun < self.plan.num_trials:
            trial = self._ask()
            settings = self.settings(trial)
            yield TrialBegun(trial.number, settings)
            for message in attempt(self.plan, settings, self.folder.path):
                event = self._take_(trial, message)
                yield event
                if isinstance(event, TrialEnded):
                    break

    def _steps_in_processes(self) -> Iterator[Event]:
        idle: list[_Worker] = []
        busy: list[_Worker] = []
        try:
            while True:
                while len(busy) < self.plan.jobs and self.num_begun < self.plan.num_trials:
                    worker = idle.pop() if idle else _Worker(self.plan, self.folder.path)
                    trial = self._ask()
                    worker.begin(trial, self.settings(trial))
                    busy.append(worker)
                    yield TrialBegun(trial.number, self.settings(trial))
                if not busy:
                    return
                ready = multiprocessing.connection.wait(
                    [w.connection for w in busy], timeout=POLL_SECONDS
                )
                for worker in [w for w in busy if w.connection in ready]:
                    event = self._hear_(worker)
                    if isinstance(event, TrialEnded):
                        busy.remove(worker)
                        idle += [worker] if worker.process.is_alive() else []
                    yield event
                if not ready:
                    yield Waited()
        finally:
            for worker in (*idle, *busy):
                worker.end()

    def _steps_on_cluster(self, cluster: Cluster) -> Iterator[Event]:
        running: dict[Stream, Any] = {}  # the trial of each
        try:
            while True:
                while len(running) < self.plan.jobs and self.num_begun < self.plan.num_trials:
                    trial = self._ask()
                    settings = self.settings(trial)
                    running[cluster.start(attempt_anywhere, self.plan, settings)] = trial
                    yield TrialBegun(trial.number, settings)
                if not running:
                    return
                events = [e for s, t in list(running.items()) for e in self._hear_stream_(s, t)]
                ended = {e.number for e in events if isinstance(e, TrialEnded)}
                running = {s: t for s, t in running.items() if t.number not in ended}
                yield from events
                if not events:
                    time.sleep(POLL_SECONDS)
                    yield Waited()
        finally:
            for stream in running:
                stream.cancel(force=True)

    def _hear_stream_(self, stream: Stream, trial: Any) -> Iterator[Event]:
        """The new messages of a trial on another machine; one that is given up is ended there."""
        from tinysubnets.experiments.cluster import LostError

        try:
            while (message := stream.poll()) is not None:
                event = self._take_(trial, message)
                yield event
                if isinstance(event, TrialEnded):
                    if event.state == "pruned":
                        stream.cancel(force=True)
                    return
        except LostError as error:
            yield self._lost_(trial, f"its machine was lost ({error})")

    def _hear_(self, worker: _Worker) -> Event:
        """The next message of a process: the trial goes on, or has ended, or its process has."""
        try:
            message = worker.connection.recv()
            event = self._take_(worker.trial, message)
            if isinstance(message, Partial) and message.step < message.num_steps:
                worker.connection.send(not isinstance(event, TrialEnded))
            return event
        except (EOFError, OSError):
            worker.end()
            status = worker.process.exitcode
            return self._lost_(worker.trial, f"its process ended with status {status}")

    def _lost_(self, trial: Any, reason: str) -> TrialEnded:
        """Fail the trial of a process that died; it is tried again, up to `MAX_ATTEMPTS` times."""
        attempts = trial.user_attrs.get("attempts", 0) + 1
        if attempts < MAX_ATTEMPTS:
            self._again_(self.study.trials[trial.number], attempts)
            reason += "; it will be tried again"
        else:
            trial.set_user_attr("reason", f"{reason}, {attempts} times")
        self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        return TrialEnded(trial.number, "failed", reason)

    def _ask(self) -> Any:
        """The next trial: one that waits, else one that the sampler draws.

        Draws are seeded by the trial's place, not by what was drawn before, so that a search that
        was killed goes on as it would have.
        """
        seed = seeds.key(self.plan.seed, "search", self.num_begun) % 2**32
        self.study.sampler = self.optuna.samplers.TPESampler(seed=seed)
        return self.study.ask(self.distributions)

    def _take_(self, trial: Any, message: EpochReport | Partial | Failed) -> Event:
        """Record a message of a trial in the study; it may end the trial."""
        state = self.optuna.trial.TrialState
        if isinstance(message, EpochReport):
            return TrialWent(trial.number, message)
        if isinstance(message, Failed):
            trial.set_user_attr("reason", message.reason)
            self.study.tell(trial, state=state.FAIL)
            return TrialEnded(trial.number, "failed", message.reason)
        so_far = [*trial.user_attrs.get("steps", []), [message.accuracy, message.size_bytes]]
        trial.set_user_attr("steps", so_far)
        shown = f"{100 * message.accuracy:.2f} % in {message.size_bytes:,} bytes"
        is_last = message.step == message.num_steps
        if not is_last and not is_hopeless(message, self._finished_steps(message.num_steps)):
            return TrialWent(trial.number, message)
        if self.plan.budget is not None:  # the sampler keeps to what fits
            trial.set_constraint("budget", message.size_bytes / self.plan.budget - 1)
        if is_last:
            self.study.tell(trial, (message.accuracy, message.size_bytes))
            return TrialEnded(trial.number, "complete", shown)
        self.study.tell(trial, state=state.PRUNED)
        detail = f"{shown} after {message.step} of {message.num_steps} tasks"
        return TrialEnded(trial.number, "pruned", detail)

    def _finished_steps(self, num_steps: int) -> list[list[Partial]]:
        return [
            [Partial(i, num_steps, *step) for i, step in enumerate(t.user_attrs["steps"], 1)]
            for t in self._trials("COMPLETE")
        ]


def _code(value: Any, known: Mapping[str, Any] | None = None) -> Any:
    """A value as the study has it: plain ones as they are, lists and the like as TOML text.

    `known` are the coded values of a choice: of equal ones, such as 1 and 1.0, its own is taken.
    """
    if known is not None:
        return next(code for code, choice in known.items() if choice == value)
    if isinstance(value, (bool, int, float, str)):
        return value
    return config.to_toml({"x": value}).removeprefix("x = ").strip()


# --------------------------------------------------------------------------------------------------
# Trials in processes of their own


class _Worker:
    """A process that runs one trial after the other, and ends with this one."""

    def __init__(self, plan: SearchPlan, folder: Path) -> None:
        # A fresh interpreter: a fork of one that has used torch's threads or a GPU may hang.
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there, plan, folder), daemon=True)
        self.process.start()
        there.close()  # so that its end is heard here
        self.trial: Any = None

    def begin(self, trial: Any, settings: Mapping[str, Any]) -> None:
        """Let it run a trial."""
        self.trial = trial
        with contextlib.suppress(OSError):  # it has died: that is heard when it is listened to
            self.connection.send(settings)

    def end(self) -> None:
        """End the process at once; nothing that it holds is worth waiting for."""
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _work(connection: Any, plan: SearchPlan, folder: Path) -> None:
    """Run trials until the searching process ends this one, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's to answer
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            for message in attempt(plan, connection.recv(), folder):
                connection.send(message)
                # After a task the answer says whether to go on.
                is_midway = isinstance(message, Partial) and message.step < message.num_steps
                if is_midway and not connection.recv():
                    break
