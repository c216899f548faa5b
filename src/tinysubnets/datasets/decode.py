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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tinysubnets.config import num_cores
from tinysubnets.datasets.images import sniff
from tinysubnets.datasets.parquet import Table, read_images
from tinysubnets.datasets.worker import Decoder, Job, Piece, dumps
from tinysubnets.errors import DataError
from tinysubnets.tasks.preprocessing import Preprocessing

# A worker takes about half a second to start; below this many images it is not worth it.
IMAGES_PER_WORKER = 2000
PIECE_BYTES = 8 << 20  # decoded images that a worker holds at once


def decode_parquet(table: Table, form: Preprocessing, output: Path, title: str) -> None:
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


def decode_files(files: Sequence[Path], form: Preprocessing, output: Path, title: str) -> None:
    """Write images that are files of their own to `output`, in the order given."""
    step = min(256, _rows_per_piece(form))
    pieces = []
    for first in range(0, len(files), step):
        part = tuple(str(file) for file in files[first : first + step])
        pieces.append(Piece(part, -1, 0, len(part), first, 0))
    _decode(pieces, len(files), form, "", output, title)


def sniff_parquet(table: Table) -> Preprocessing:
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


def _rows_per_piece(form: Preprocessing) -> int:
    return max(1, min(1024, PIECE_BYTES // int(np.prod(form.shape))))


def _decode(
    pieces: Sequence[Piece], total: int, form: Preprocessing, column: str, output: Path, title: str
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
    workers = [Worker(job) for _ in range(num_workers)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def decode(piece: Piece) -> int:
        worker = idle.get()
        try:
            return worker.decode(piece)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(num_workers)  # which only wait for the processes
    try:
        for num_images in threads.map(decode, pieces):
            advance(num_images)
    finally:
        for worker in workers:
            worker.kill()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()


class Worker:
    """A child process that decodes pieces of one job, one after the other.

    Not one of `multiprocessing`: that would run the user's script a second time, which plain
    scripts do not expect. A child ends with its parent, and a dead one names what it was reading.
    """

    def __init__(self, job: Job) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tinysubnets.datasets.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._greeting = dumps(job)  # sent with the first piece, where an error has a place

    def decode(self, piece: Piece) -> int:
        """Decode a piece; returns the number of its images."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(self._greeting + dumps(piece))
            self._process.stdin.flush()
            self._greeting = ""
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):  # a closed pipe, or no answer
            rows = f"rows {piece.row} to {piece.row + piece.stop - piece.start - 1}"
            raise DataError(
                f"a decoding process died while it read {piece.files[0]}, {rows}."
            ) from None
        if "error" in answer:
            raise DataError(answer["error"])
        if "system" in answer:
            raise OSError(answer["system"])
        return int(answer["done"])

    def kill(self) -> None:
        """End the process at once; whoever waits for it gets an error."""
        self._process.kill()

    def close(self) -> None:
        """Close the pipes of a killed process, which nobody waits for any more."""
        self._process.communicate()


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
