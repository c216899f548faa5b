"""The file as bytes: a safetensors header, an index of sections with their hashes, the sections.

The header follows from the config and the sizes alone, so a reader builds it again and compares:
whatever is altered in it is found. The config's hash stands beside it, the index's hash in the
config, the hash of every section in the index.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.errors import ArtifactError, DamageError, FormatError
from tinysubnets.format import limits

FILE_NAME = "model.safetensors"
VERSION = 1
KINDS = ("codes", "codebooks", "masks", "heads", "private", "memory")  # sections of each task
COMMON = ("records", "constants")  # sections that belong to no single task
MAX_HEADER_BYTES = 1 << 24
HASH_BYTES = 8
KEY, HASH_KEY = "tinysubnets", "blake2b"

Sections = Mapping[str, Sequence[bytes]]  # by kind: one per task, or a single one where common


def digest(data: bytes, place: str) -> bytes:
    """The hash of a section; its place enters, so that exchanged sections are found."""
    return blake2b(data, digest_size=HASH_BYTES, person=place.encode()).digest()


def canonical(value: Any) -> str:
    """The one way in which plain data is written as JSON."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def parse(text: str | bytes, what: str) -> Any:
    """JSON in its canonical form; anything else is damage."""
    limits.check_json(text, what)
    try:
        value = json.loads(text, parse_constant=_refuse)
        again = canonical(value)
        data = again.encode()  # fails for half a character
    except (ValueError, RecursionError):
        raise DamageError(f"the {what} is not valid JSON.") from None
    if (again if isinstance(text, str) else data) != text:
        raise DamageError(f"the {what} is not in its canonical form.")
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)


def places(num_tasks: int) -> Iterator[tuple[str, int]]:
    """The kind and task number of every section, in the order of the index."""
    yield from ((kind, 0) for kind in COMMON)
    yield from ((kind, task) for task in range(num_tasks) for kind in KINDS)


def index_of(sections: Sections, num_tasks: int) -> bytes:
    """The index: for each section its length and, unless it is empty, its hash."""
    out = Writer()
    for kind, task in places(num_tasks):
        data = sections[kind][task]
        out.varint(len(data))
        out.raw(digest(data, f"{kind} {task}") if data else b"")
    return out.bytes()


def header_of(config: Mapping[str, Any], sizes: Mapping[str, int]) -> bytes:
    """The first bytes of the file: the length of the header, and the header padded to 8 bytes."""
    text = canonical(config)
    value = digest(text.encode(), "config").hex()
    table: dict[str, Any] = {"__metadata__": {HASH_KEY: value, KEY: text}}
    start = 0
    for name in ("index", *COMMON, *KINDS):
        if sizes[name]:
            stop = start + sizes[name]
            table[name] = {"dtype": "U8", "shape": [sizes[name]], "data_offsets": [start, stop]}
            start = stop
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise ArtifactError(
            f"a header of {len(header)} bytes; at most {MAX_HEADER_BYTES} are allowed. "
            "Shorten the names of tasks and classes."
        )
    return len(header).to_bytes(8, "little") + header


def assemble(config: Mapping[str, Any], sections: Sections, num_tasks: int) -> list[bytes]:
    """The parts of the whole file in order; the config gets the index's hash."""
    index = index_of(sections, num_tasks)
    full = dict(config, index=digest(index, "index").hex())
    sizes = {kind: sum(map(len, parts)) for kind, parts in sections.items()}
    header = header_of(full, sizes | {"index": len(index)})
    return [header, index, *(part for kind in (*COMMON, *KINDS) for part in sections[kind])]


class ModelFile:
    """An open model file whose header and index have been checked; sections are read on demand."""

    def __init__(self, source: Path | BinaryIO) -> None:
        self._file = _open(source) if isinstance(source, Path) else source
        try:
            self.header_bytes, self.config, sizes, self.identity = _read_header(self._file)
            self._index(sizes)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def num_tasks(self) -> int:
        """How many tasks the file holds."""
        return len(self.config["tasks"])

    def place(self, kind: str, task: int = 0) -> tuple[int, int]:
        """Where a section begins in the file, and its length, in bytes."""
        return self._table[kind, task][:2]

    def size(self, kind: str, task: int = 0) -> int:
        """The length of a section in bytes."""
        return self.place(kind, task)[1]

    def peek(self, kind: str, task: int, count: int) -> bytes:
        """The first bytes of a section, unchecked; for planning only."""
        start, size = self.place(kind, task)
        self._file.seek(start)
        return self._file.read(min(count, size))

    def section(self, kind: str, task: int = 0) -> bytes:
        """The bytes of a section, read and checked."""
        start, size, expected = self._table[kind, task]
        self._file.seek(start)
        data = self._file.read(size)
        if len(data) != size or (size and digest(data, f"{kind} {task}") != expected):
            where = f"the {kind}" if kind in COMMON else f"the {kind} of task {task}"
            raise DamageError(f"{where}, {size} bytes at {start}, have been altered.")
        return data

    def _index(self, sizes: Mapping[str, int]) -> None:
        """Where each section stands, from the index and checked against the header's sizes."""
        data = self._file.read(sizes["index"])
        if digest(data, "index").hex() != self.config["index"]:
            raise DamageError("the index of sections has been altered.")
        reader = Reader(data, "the index")
        start = self.header_bytes + sizes["index"]
        ends, base = {}, start
        for kind in (*COMMON, *KINDS):
            ends[kind] = (base, base + sizes[kind])
            base += sizes[kind]
        cursor = {kind: first for kind, (first, _) in ends.items()}
        self._table: dict[tuple[str, int], tuple[int, int, bytes]] = {}
        for kind, task in places(self.num_tasks):
            size = reader.varint(ends[kind][1] - cursor[kind])
            value = reader.raw(HASH_BYTES) if size else b""
            self._table[kind, task] = (cursor[kind], size, value)
            cursor[kind] += size
        reader.done()
        if any(cursor[kind] != end for kind, (_, end) in ends.items()):
            raise DamageError("the index does not cover all sections.")
        self.file_bytes = base


def model_path(where: str | os.PathLike[str]) -> Path:
    """The model file in a model folder or in a run folder's `model`, or the file itself."""
    path = Path(where)
    if not path.is_dir():
        return path
    own, of_run = path / FILE_NAME, path / "model" / FILE_NAME
    return of_run if of_run.exists() and not own.exists() else own


def _open(path: Path) -> BinaryIO:
    try:
        # A pipe would block for ever when opened.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FormatError(f"{path} is not a file.")
        return open(path, "rb")
    except OSError as error:
        raise FormatError(
            f"no model at {path}: {error.strerror}. Give a folder with a {FILE_NAME} in it, or "
            "the folder of a finished run."
        ) from None


def _read_header(file: BinaryIO) -> tuple[int, dict[str, Any], dict[str, int], str]:
    """The header's length, the config, the size of each tensor, and the config's hash."""
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, total - 8):
        raise FormatError(
            f"not a model of this package: {total} bytes that do not begin with a header."
        )
    header = file.read(length)
    table = _loads(header)
    metadata = table.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(KEY), str):
        if isinstance(metadata, dict) and "tinysubnets-dense" in str(metadata.get("config")):
            raise FormatError(
                "the dense network of a baseline: plain weights without masks or subnets, for the "
                "method that wrote it alone."
            )
        raise FormatError(f"a safetensors file, but without the metadata {KEY!r}: not of ours.")
    text, value = metadata[KEY], metadata.get(HASH_KEY)
    if digest(text.encode("utf-8", "surrogatepass"), "config").hex() != value:
        raise DamageError("the config in the header has been altered.")
    config = parse(text, "config")
    version = config.get("format") if isinstance(config, dict) else None
    if version != VERSION:
        raise FormatError(
            f"a model of format {version!r}; this version of the package reads format {VERSION}."
        )
    limits.check_task_tables(config.get("tasks"))
    sizes = _sizes(table)
    if header_of(config, sizes) != first + header:
        raise DamageError("the header does not follow from its config.")
    if 8 + length + sum(sizes.values()) != total:
        raise DamageError(
            f"the file has {total} bytes; its header speaks of {8 + length + sum(sizes.values())}."
        )
    return 8 + length, config, sizes, value


def _loads(header: bytes) -> dict[str, Any]:
    limits.check_json(header, "header")
    try:
        table = json.loads(header.decode())
    except (ValueError, RecursionError):
        raise FormatError("not a safetensors file: its header is not JSON.") from None
    if not isinstance(table, dict):
        raise FormatError("not a safetensors file: its header is not a table.")
    return table


def _sizes(table: Mapping[str, Any]) -> dict[str, int]:
    """The size of every tensor that a model may have, 0 where it is absent."""
    sizes = {}
    for name in ("index", *COMMON, *KINDS):
        shape = table.get(name, {"shape": [0]})
        shape = shape.get("shape") if isinstance(shape, dict) else None
        if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int:
            raise DamageError(f"the tensor {name!r} has no size.")
        if shape[0] < 0:
            raise DamageError(f"the tensor {name!r} has the size {shape[0]}.")
        sizes[name] = shape[0]
    return sizes
