"""Parquet files, or folders of images, to one .npy file of uint8 images, on all cores.

Neither the encoded nor the decoded set is ever whole in memory: pieces of a few megabytes go to
worker processes, which write them straight to their place in the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tinysubnets.datasets.images import Form, sniff
from tinysubnets.datasets.parquet import Table, read_images
from tinysubnets.datasets.worker import Decoder, Job, Piece, dumps
from tinysubnets.errors import DataError

# A worker takes about half a second to start; below this many images it is not worth it.
IMAGES_PER_WORKER = 2000
_PIECE_BYTES = 8 << 20


def decode_parquet(table: Table, form: Form, output: Path, title: str) -> None:
    """Write all images of a split to `output`, in the order of the files' rows."""
    step = _rows_per_piece(form)
    pieces, first = [], 0
    for file, groups in zip(table.files, table.row_groups, strict=True):
        row = 0
        for group, num_rows in enumerate(groups):
            for start in range(0, num_rows, step):
                stop = min(start + step, num_rows)
                pieces.append(Piece((str(file),), group, start, stop, first + start, row + start))
            row, first = row + num_rows, first + num_rows
    _decode(pieces, first, form, table.image, output, title)


def decode_files(files: Sequence[Path], form: Form, output: Path, title: str) -> None:
    """Write images that are files of their own to `output`, in the order given."""
    step = min(256, _rows_per_piece(form))
    pieces = []
    for first in range(0, len(files), step):
        part = tuple(str(file) for file in files[first : first + step])
        pieces.append(Piece(part, -1, 0, len(part), first, 0))
    _decode(pieces, len(files), form, "", output, title)


def sniff_parquet(table: Table) -> Form:
    """The form of a split's first image."""
    for file, groups in zip(table.files, table.row_groups, strict=True):
        for group, num_rows in enumerate(groups):
            if num_rows:
                first = read_images(file, group, table.image)[0]
                try:
                    return sniff(first or b"")
                except DataError as error:
                    raise DataError(f"{file}, row 0: {error}.") from error
    raise DataError(f"{table.files[0]} has no rows.")


def num_cores() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _rows_per_piece(form: Form) -> int:
    return max(1, min(1024, _PIECE_BYTES // int(np.prod(form.shape))))


def _decode(
    pieces: Sequence[Piece], total: int, form: Form, column: str, output: Path, title: str
) -> None:
    """Make the .npy file and let one decoder, or a worker per core, fill it."""
    header_bytes = _allocate(output, (total, *form.shape))
    job = Job(form, column, str(output), header_bytes)
    num_workers = min(num_cores(), total // IMAGES_PER_WORKER, len(pieces))
    with _progress(title, total) as advance:
        if num_workers < 2:
            decoder = Decoder(job)
            for piece in pieces:
                advance(decoder.decode(piece))
        else:
            _on_workers(job, pieces, num_workers, advance)


def _allocate(output: Path, shape: tuple[int, ...]) -> int:
    """An .npy file of that shape with its space reserved; returns the size of its header."""
    with open(output, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
        header_bytes = file.tell()
        size = header_bytes + int(np.prod(shape))
        file.truncate(size)
        file.flush()
        if hasattr(os, "posix_fallocate") and size > header_bytes:
            # A full disk is reported now and not after an hour of decoding.
            os.posix_fallocate(file.fileno(), 0, size)
    return header_bytes


def _on_workers(
    job: Job, pieces: Sequence[Piece], num_workers: int, advance: Callable[[int], None]
) -> None:
    """Hand out pieces to worker processes; the first error stops them all and is raised."""
    waiting: queue.SimpleQueue[Piece] = queue.SimpleQueue()
    for piece in pieces:
        waiting.put(piece)
    done: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
    workers = [_start_worker() for _ in range(num_workers)]
    threads = [
        threading.Thread(target=_drive, args=(worker, job, waiting, done), daemon=True)
        for worker in workers
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in pieces:
            answer = done.get()
            if isinstance(answer, Exception):
                raise answer
            advance(answer)
    finally:
        for worker in workers:
            worker.kill()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.communicate()


def _start_worker() -> subprocess.Popen[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", "tinysubnets.datasets.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": paths},
    )


def _drive(
    worker: subprocess.Popen[str],
    job: Job,
    waiting: queue.SimpleQueue[Piece],
    done: queue.SimpleQueue[int | Exception],
) -> None:
    """Feed one worker until no piece is left, from a thread that only waits for it."""
    assert worker.stdin is not None and worker.stdout is not None
    piece: Piece | None = None
    try:
        worker.stdin.write(dumps(job))
        while True:
            piece = waiting.get_nowait()
            worker.stdin.write(dumps(piece))
            worker.stdin.flush()
            done.put(_answer(worker.stdout.readline(), piece))
    except queue.Empty:
        return
    except (OSError, ValueError) as error:
        where = piece.files[0] if piece else job.output
        done.put(DataError(f"a decoding process ended while it read {where}: {error}."))


def _answer(line: str, piece: Piece) -> int | Exception:
    """A worker's answer as the number of images, or as the error to raise."""
    if not line:
        rows = f"rows {piece.row} to {piece.row + piece.stop - piece.start - 1}"
        return DataError(f"a decoding process died while it read {piece.files[0]}, {rows}.")
    answer = json.loads(line)
    if "error" in answer:
        return DataError(answer["error"])
    return OSError(answer["system"]) if "system" in answer else int(answer["done"])


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, and nothing where standard error is a file or a pipe."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
