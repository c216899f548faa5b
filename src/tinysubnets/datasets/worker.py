"""Decoding of pieces of a data set into a file, in this process or as a process of its own.

Images as small as 32x32 spend most of their time in Python, so that threads do not help. The parent
of a worker process writes one JSON line for the job and one per piece; each piece is answered by a
line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from tinysubnets.datasets.images import decode_image
from tinysubnets.datasets.parquet import read_images
from tinysubnets.errors import DataError
from tinysubnets.files import read
from tinysubnets.tasks.preprocessing import Preprocessing


@dataclass(frozen=True)
class Job:
    """What all pieces have in common: the form of images, and the file to write them into.

    `column` is the image column of parquet files, or empty where each file is an image.
    """

    form: Preprocessing
    column: str
    output: str
    header_bytes: int


@dataclass(frozen=True)
class Piece:
    """Some rows: `start` to `stop` of a row group of one file, or some image files whole.

    `first` is the place of its first image in the output, `row` its first row within the file.
    """

    files: tuple[str, ...]
    row_group: int
    start: int
    stop: int
    first: int
    row: int


class Decoder:
    """Decodes pieces of one job; keeps the encoded images of the last row group it has read."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._held: tuple[str, int] | None = None
        self._images: list[bytes | None] = []

    def decode(self, piece: Piece) -> int:
        """Decode a piece into the output file; returns the number of its images."""
        pixels = np.empty((piece.stop - piece.start, *self.job.form.shape), dtype=np.uint8)
        for index in range(len(pixels)):
            encoded, origin = self._encoded(piece, index)
            if not encoded:
                raise DataError(f"{origin}: there are no image bytes.")
            try:
                pixels[index] = decode_image(encoded, self.job.form)
            except DataError as error:
                raise DataError(f"{origin}: {error}.") from error
        _write_at(self.job, piece.first, pixels)
        return len(pixels)

    def _encoded(self, piece: Piece, index: int) -> tuple[bytes | None, str]:
        """One encoded image of a piece, and where it comes from."""
        if not self.job.column:
            file = piece.files[index]
            try:
                return read(Path(file)), file
            except OSError as error:
                raise DataError(f"{file} cannot be read: {error}.") from error
        key = (piece.files[0], piece.row_group)
        if self._held != key:
            self._images = read_images(Path(key[0]), key[1], self.job.column)
            self._held = key
        return self._images[piece.start + index], f"{key[0]}, row {piece.row + index}"


def _write_at(job: Job, first: int, pixels: np.ndarray) -> None:
    """Write images at their place; unlike a memory map, a full disk is an error here, no crash."""
    data = pixels.data.cast("B")
    position = job.header_bytes + first * int(np.prod(job.form.shape))
    with open(job.output, "r+b", buffering=0) as file:
        file.seek(position)
        while data:
            data = data[file.write(data) :]


def dumps(item: Job | Piece) -> str:
    """One line of JSON for a job or a piece."""
    return json.dumps(asdict(item)) + "\n"


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Decode pieces until the parent closes the pipe; an error is answered and ends the work."""
    described = json.loads(requests.readline())
    decoder = Decoder(replace(Job(**described), form=Preprocessing(**described["form"])))
    for line in requests:
        try:
            answer: dict[str, int | str] = {"done": decoder.decode(Piece(**json.loads(line)))}
        except (DataError, OSError, MemoryError) as error:
            kind = "error" if isinstance(error, DataError) else "system"
            answer = {kind: str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # The parent handles the keyboard and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(sys.stdin, sys.stdout)
    except BrokenPipeError:
        os._exit(0)
