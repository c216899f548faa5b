"""Runs on the machines of a Ray cluster: each a task with CPUs and GPUs of its own.

    with Cluster("auto") as cluster, ClusterRuns(cluster, folder) as runs:
        run = runs.start(folder / "tsn" / "seed-0", arguments)   # a run of a `Comparison`
        while (status := run.poll()) is None: …

The task works in the run folder itself where its machine sees that (shared storage), so that a run
whose machine was lost goes on from its checkpoint elsewhere. On other machines it works in a
temporary folder, which comes back through Ray's object store when the run ends or is stopped; a
run that was lost there starts again. Nothing here imports Ray before a cluster is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import runpy
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tinysubnets.errors import RunError, SettingError, not_installed
from tinysubnets.experiments.run_process import command_of, environment, last_epoch
from tinysubnets.files import appending, atomic_write, lock, remove_folder

POLL_SECONDS = 0.5  # how often a task looks at its run
SAVE_SECONDS = 20  # how long a run that was canceled may take to save
LOCK_SECONDS = 60  # how long a run waits for the process of a lost one to give its folder free


@dataclass(frozen=True)
class Assignment:
    """What a machine of the cluster is asked to run.

    - `folder`: the run folder, on the machine of the caller.
    - `arguments`: of `tsn run`, without the folder.
    - `token`: a file of the caller and what is in it; who reads the same there shares the storage.
    - `archive`: what the folder holds already, for a machine that does not see it.
    - `threads`: of the run's libraries.
    """

    folder: Path
    arguments: tuple[str, ...]
    token: tuple[Path, bytes]
    archive: bytes | None = None
    threads: int = 1


@dataclass(frozen=True)
class Going:
    """A run goes on: on which machine, and how far it is."""

    machine: str
    progress: str


@dataclass(frozen=True)
class Ended:
    """A run has ended with a status; `archive` is its folder where that is not shared."""

    status: int
    archive: bytes | None = None


# --------------------------------------------------------------------------------------------------
# On the machine that runs


def work(given: Assignment, is_stopped: Callable[[], bool]) -> Iterator[Going | Ended]:
    """Run what was assigned; yields how far it is now and then, and at last how it ended.

    - `is_stopped`: asked now and then; a run that is stopped saves, and ends with 130.
    """
    path, secret = given.token
    with contextlib.ExitStack() as held:
        is_shared = path.is_file() and path.read_bytes() == secret
        folder = given.folder
        if not is_shared:
            made = tempfile.TemporaryDirectory(prefix="tsn-", ignore_cleanup_errors=True)
            folder = Path(held.enter_context(made)) / folder.name
            unpack(given.archive, folder)
        folder.mkdir(parents=True, exist_ok=True)
        _wait_for_lock(folder)
        yield Going(socket.gethostname(), "preparing")
        status = yield from _run(folder, given, is_stopped)
        yield Ended(status, None if is_shared else pack(folder))


def _run(
    folder: Path, given: Assignment, is_stopped: Callable[[], bool]
) -> Generator[Going, None, int]:
    """The process of a run, to its end; returns its status."""
    code = "from tinysubnets.experiments.cluster import main_while_watched as m; m()"
    told, was_stopped = last_epoch(folder), False
    with appending(folder / "output.txt") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *command_of(folder, given.arguments)],
            stdin=subprocess.PIPE,  # which nobody writes to, see `main_while_watched`
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(given.threads),
        )
    try:
        while process.poll() is None:
            if not was_stopped and is_stopped():
                was_stopped = True
                process.terminate()  # it saves first
            now = last_epoch(folder)
            if now != told:
                told = now
                yield Going(socket.gethostname(), told)
            time.sleep(POLL_SECONDS)
        is_early = was_stopped and process.returncode < 0  # before it was able to answer
        return 130 if is_early else process.returncode
    finally:
        process.terminate()  # where it still runs, it was canceled as it began: it saves too
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SAVE_SECONDS)
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def main_while_watched() -> None:
    """The command `tsn`, which ends at once when the process that started it is gone.

    That one holds the other end of the standard input, and writes nothing: a process that outlived
    it would go on in a folder that another machine has taken over.
    """

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    runpy.run_module("tinysubnets", run_name="__main__")


def _wait_for_lock(folder: Path) -> None:
    """Wait until nobody works in the folder: the process of a lost run takes a while to end."""
    for _ in range(round(LOCK_SECONDS / POLL_SECONDS)):
        try:
            with lock(folder / ".lock"):
                return
        except BlockingIOError:
            time.sleep(POLL_SECONDS)


def pack(folder: Path) -> bytes:
    """All files of a folder as one tar archive, compressed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, ".", filter=lambda i: None if i.name.endswith(".lock") else i)
    return out.getvalue()


def unpack(archive: bytes | None, folder: Path) -> None:
    """Put the files of an archive into a folder, in an order in which a crash does no harm.

    What says that a checkpoint, or the run, is whole comes after what it speaks of.
    """
    if archive is None:
        return
    last = {"checkpoint/state.json": 1, "result.json": 2}
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = {str(Path(m.name)): m for m in files.getmembers() if m.isfile() or m.isdir()}
        members.pop(".", None)
        if "checkpoint" not in members:  # the run is finished
            remove_folder(folder / "checkpoint")
        for name in sorted(members, key=lambda n: last.get(n, 0)):
            place, source = folder / name, files.extractfile(members[name])
            if not place.parent.resolve().is_relative_to(folder.resolve()):
                raise RunError(f"{name!r} of what was sent back lies outside of {folder}.")
            if source is None:
                place.mkdir(parents=True, exist_ok=True)
            else:
                atomic_write(place, source.read())


# --------------------------------------------------------------------------------------------------
# On the machine of the caller


def import_ray() -> ModuleType:
    """Ray; an error that names the extra where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise SettingError(not_installed("--cluster", "ray", "cluster")) from error
    return ray


class Cluster:
    """A connection to a running Ray cluster, until it is left.

    - `address`: "auto" for the one that this machine belongs to, or "host:port".
    - `cpus`, `gpus`: what each task has for itself; a part of a GPU is shared with others. None
      means one GPU where the cluster has any.
    """

    def __init__(self, address: str, *, cpus: int = 1, gpus: float | None = None) -> None:
        self.ray = import_ray()
        self.address, self.cpus, self.gpus = address, cpus, gpus

    def __enter__(self) -> Cluster:
        if self.ray.is_initialized():
            raise RunError("this process is connected to a Ray cluster already; leave that first.")
        try:
            self.ray.init(self.address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunError(
                f"there is no Ray cluster at {self.address!r} ({error}). Start one by: "
                "ray start --head, and on other machines: ray start --address=HOST:PORT."
            ) from error
        if self.gpus is None:
            self.gpus = 1.0 if self.ray.cluster_resources().get("GPU", 0) else 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    @property
    def num_places(self) -> int:
        """How many tasks the cluster has room for at a time."""
        found = self.ray.cluster_resources()
        places = found.get("CPU", 0) // self.cpus
        return max(1, int(min(places, found.get("GPU", 0) // self.gpus) if self.gpus else places))

    def start(self, generator: Callable[..., Iterator[Any]], *arguments: Any) -> Stream:
        """Run a generator as soon as a machine has room for it; what it yields comes back."""
        remote = self.ray.remote(generator).options(
            # Whoever started it decides what becomes of a lost one, and knows what it has saved.
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0,
        )  # fmt: skip
        return Stream(self.ray, remote.remote(*arguments))


class LostError(Exception):
    """A machine was lost, and with it what was running there."""


class CancelledError(Exception):
    """A task was canceled."""


class Stream:
    """What a generator on another machine yields, as far as it has come."""

    def __init__(self, ray: ModuleType, messages: Any) -> None:
        self._ray, self._messages = ray, messages

    def poll(self) -> Any:
        """The next message; None where there is none yet.

        A machine that is gone is a LostError, an error of the generator itself a RunError.
        """
        errors = self._ray.exceptions
        try:
            if not self._ray.wait([self._messages], timeout=0, fetch_local=False)[0]:
                return None
            return self._ray.get(next(self._messages))
        except errors.TaskCancelledError as error:
            raise CancelledError from error
        except errors.RayTaskError as error:
            raise RunError(f"the cluster could not run it: {error.cause}") from error
        except (errors.RayError, StopIteration) as error:
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise LostError(reason) from error

    def cancel(self, *, force: bool) -> None:
        """End the generator; one that runs already only by force."""
        self._ray.cancel(self._messages, force=force)


class ClusterRuns:
    """Runs of a comparison on the machines of a cluster.

    - `cluster`: connected.
    - `folder`: of all runs.
    - `retries`: how often a run may lose its machine and is run again.
    """

    def __init__(self, cluster: Cluster, folder: Path, *, retries: int = 2) -> None:
        self.cluster, self.folder, self.retries = cluster, folder.resolve(), retries
        self.token = (self.folder / f".cluster-{os.urandom(8).hex()}", os.urandom(32))

    def __enter__(self) -> ClusterRuns:
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(*self.token)
        ray = self.cluster.ray
        # Beside the caller: it is gone when the caller's machine is, and not before.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self.stop = ray.remote(Stop).options(num_cpus=0, scheduling_strategy=here).remote()
        return self

    def __exit__(self, *_: object) -> None:
        self.token[0].unlink(missing_ok=True)

    def start(self, folder: Path, arguments: Sequence[str]) -> RemoteRun:
        """Let a run begin, or go on, as soon as a machine has room for it."""
        threads = self.cluster.cpus
        given = Assignment(folder.resolve(), tuple(arguments), self.token, threads=threads)
        return RemoteRun(self, given)


class Stop:
    """Whether the user wants all runs to stop; an actor of the cluster."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def want(self) -> None:
        """Stop all runs."""
        self.event.set()

    async def wait(self) -> None:
        """Wait until they are to stop."""
        await self.event.wait()


def work_until(given: Assignment, stop: Any) -> Iterator[Going | Ended]:
    """`work` as a task of the cluster; it ends early when the actor `stop` says so."""
    ray = import_ray()
    is_wanted, is_over = threading.Event(), threading.Event()

    def listen() -> None:
        wanted = [stop.wait.remote()]
        while not is_over.is_set():
            if ray.wait(wanted, timeout=POLL_SECONDS)[0]:
                is_wanted.set()
                return

    # Not in the main thread: a task that waits for Ray there lends its CPU to others.
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield from work(given, is_wanted.is_set)
    finally:
        is_over.set()


class RemoteRun:
    """A run somewhere in the cluster, looked at by `poll`."""

    def __init__(self, runs: ClusterRuns, given: Assignment) -> None:
        self.runs, self.given = runs, given
        self.progress = "waiting for a machine"
        self.num_lost = 0
        self._num_stops = self._num_told = 0
        self._submit()

    def _submit(self) -> None:
        folder = self.given.folder
        archive = pack(folder) if (folder / "config.toml").exists() else None
        given, self.has_begun = replace(self.given, archive=archive), False
        self._stream = self.runs.cluster.start(work_until, given, self.runs.stop)

    def stop(self) -> None:
        """Ask the run to save and end; asked again, to end at once. Heard at the next `poll`."""
        self._num_stops += 1

    def poll(self) -> int | None:
        """The exit status of the run; None while it goes on. One that is given up is an error."""
        try:
            while (message := self._stream.poll()) is not None:
                if isinstance(message, Ended):
                    unpack(message.archive, self.given.folder)
                    return message.status
                self.has_begun = True
                self.progress = f"{message.progress} ({message.machine})"
        except CancelledError:
            if (self.given.folder / ".lock").exists():  # it had begun after all, and saves
                _wait_for_lock(self.given.folder)
            return 130
        except LostError as error:
            return self._lost(str(error))
        self._pass_stops_on()  # after its messages: what has begun is asked, not canceled
        return None

    def _lost(self, reason: str) -> int | None:
        """Run again what has lost its machine, but not for ever."""
        self.num_lost += 1
        if self._num_stops:
            return 130
        if self.num_lost > self.runs.retries:
            raise RunError(f"its machine was lost {self.num_lost} times; the last time: {reason}")
        self.progress = f"its machine was lost; waiting for another ({self.num_lost})"
        self._submit()
        return None

    def _pass_stops_on(self) -> None:
        if self._num_stops > self._num_told:
            if self._num_told == 0 and self.has_begun:
                self.runs.stop.want.remote()
            else:
                self._stream.cancel(force=self.has_begun)
            self._num_told = self._num_stops
