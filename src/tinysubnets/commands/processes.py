"""Several processes of one command on this machine, started as torchrun starts them.

Unlike torchrun, Ctrl-C leaves them the time to finish their epoch and to save.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from tinysubnets.config import num_cores
from tinysubnets.experiments.run_process import environment

POLL_SECONDS = 0.05
GRACE_SECONDS = 15  # for the others to end by themselves once one has died


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run the command in `count` processes to the end of all; gives its exit status.

    Ctrl-C and SIGTERM are passed on to all of them. Where one dies, the others end too.

    - `arguments`: of the command, the same for all processes.
    """
    with held_port() as port:
        return _launch(count, arguments, port)


def _launch(count: int, arguments: Sequence[str], port: int) -> int:
    """The same, by a given port."""
    workers = [_start(rank, count, port, arguments) for rank in range(count)]

    def pass_on(number: int, _: object) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    before = {s: signal.signal(s, pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(workers)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(rank: int, count: int, port: int, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    threads = max(1, num_cores() // count)
    # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
    return subprocess.Popen(
        [sys.executable, "-m", "tinysubnets", *arguments],
        stdin=None if rank == 0 else subprocess.DEVNULL,
        start_new_session=True,
        env=environment(threads) | environment_of(rank, count, port),
    )


def environment_of(rank: int, count: int, port: int) -> dict[str, str]:
    """The variables by which a process finds the others, as torchrun sets them."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    place |= {"MASTER_PORT": port}
    return {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all processes, or for the rest of them a while after one has failed."""
    deadline = None
    while True:
        statuses = [worker.poll() for worker in workers]
        failed = [rank for rank, status in enumerate(statuses) if status not in (None, 0, 130)]
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE_SECONDS
            _tell(failed[0], statuses[failed[0]] or 0)
        if None not in statuses or (deadline is not None and time.monotonic() > deadline):
            break
        time.sleep(POLL_SECONDS)
    ended = [status for status in statuses if status is not None]
    return 2 if failed else max(ended)


def _tell(rank: int, status: int) -> None:
    """Say of a process that was killed that it was; others say themselves what was wrong."""
    if status < 0:
        name = signal.Signals(-status).name
        print(
            f"tsn: process {rank} of this training was killed by {name}; the others end too.",
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port that nobody listens on, and that Linux gives to nobody else before the block ends.

    Processes take seconds to start, and a port that is merely free may be another's by then. Who
    listens there must ask for SO_REUSEADDR, as torch does.
    """
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        if sys.platform != "linux":  # others do not let two sockets have a port
            found.close()
        yield port
