"""The file as bytes: a safetensors header, an index of sections with their hashes, the sections.

The header follows from the config and the sizes alone, so a reader builds it again and compares:
whatever is altered in it is found. The config's hash stands beside it, the index's hash in the
config, the hash of every section in the index.
"""

from __future__ import annotations

import json
import os
import stat
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.errors import ArtifactError, DamageError, FormatError
from tinysubnets.format import limits

FILE_NAME = "model.safetensors"
VERSION = 2
KINDS = ("codes", "codebooks", "masks", "heads", "task_params", "memory", "routing")  # of a task
COMMON = ("records", "constants", "base")  # sections that belong to no single task
MAX_HEADER_BYTES = 1 << 24
HASH_BYTES = 8
KEY, HASH_KEY = "tinysubnets", "blake2b"

Sections = Mapping[str, Sequence[bytes]]  # by kind: one per task, or a single one where common


@dataclass(frozen=True)
class Scheme:
    """How a version of the format divides a file.

    - `common`, `kinds`: the sections that belong to no single task, and those of each entry.
    - `groups`: the kinds of an entry that have one hash together, by the name of their place.
    """

    common: tuple[str, ...]
    kinds: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]

    @property
    def task_params(self) -> str:
        """What the section of task-specific parameters is called."""
        return self.kinds[4]

    def group_of(self, kind: str) -> str:
        """The group that a kind of section belongs to."""
        return next(name for name, kinds in self.groups.items() if kind in kinds)

    def index_bytes(self, sizes: Mapping[str, int]) -> int:
        """What the sections of one entry take in the index, given their lengths."""
        hashes = sum(any(sizes[kind] for kind in kinds) for kinds in self.groups.values())
        return sum(map(varint_bytes, sizes.values())) + HASH_BYTES * hashes


_FIRST_KINDS = ("codes", "codebooks", "masks", "heads", "private", "memory")
SCHEMES = {
    1: Scheme(("records", "constants"), _FIRST_KINDS, {kind: (kind,) for kind in _FIRST_KINDS}),
    2: Scheme(COMMON, KINDS, {"weights": KINDS[:3], "task": KINDS[3:]}),
}


def varint_bytes(value: int) -> int:
    """How many bytes a varint takes."""
    return max(1, -(-value.bit_length() // 7))


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


def index_of(sections: Sections, num_tasks: int, version: int = VERSION) -> bytes:
    """The index: the lengths of all sections, and the hash of each group that is not empty."""
    scheme, out = SCHEMES[version], Writer()
    for kind in scheme.common:
        data = sections[kind][0]
        out.varint(len(data))
        out.raw(digest(data, f"{kind} 0") if data else b"")
    for task in range(num_tasks):
        for name, kinds in scheme.groups.items():
            for kind in kinds:
                out.varint(len(sections[kind][task]))
            data = b"".join(sections[kind][task] for kind in kinds)
            out.raw(digest(data, f"{name} {task}") if data else b"")
    return out.bytes()


def header_of(config: Mapping[str, Any], sizes: Mapping[str, int]) -> bytes:
    """The first bytes of the file: the length of the header, and the header padded to 8 bytes."""
    text = canonical(config)
    value = digest(text.encode(), "config").hex()
    table: dict[str, Any] = {"__metadata__": {HASH_KEY: value, KEY: text}}
    start, scheme = 0, SCHEMES[config["format"]]
    for name in ("index", *scheme.common, *scheme.kinds):
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
    scheme = SCHEMES[config["format"]]
    index = index_of(sections, num_tasks, config["format"])
    full = dict(config, index=digest(index, "index").hex())
    sizes = {kind: sum(map(len, parts)) for kind, parts in sections.items()}
    header = header_of(full, sizes | {"index": len(index)})
    order = (*scheme.common, *scheme.kinds)
    return [header, index, *(part for kind in order for part in sections[kind])]


class ModelFile:
    """An open model file whose header and index have been checked; sections are read on demand."""

    def __init__(self, source: Path | BinaryIO) -> None:
        self._file = _open(source) if isinstance(source, Path) else source
        # The sections read last: those of one entry that have a hash together.
        self._group: tuple[tuple[str, int], dict[str, bytes]] = (("", 0), {})
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
        """How many entries the file holds: its tasks, and weights without a name."""
        return len(self.config["tasks"])

    @property
    def version(self) -> int:
        """The version of its format."""
        return int(self.config["format"])

    def place(self, kind: str, task: int = 0) -> tuple[int, int]:
        """Where a section begins in the file, and its length, in bytes."""
        return self._starts[kind][task], self._sizes[kind][task]

    def size(self, kind: str, task: int = 0) -> int:
        """The length of a section in bytes; 0 for a kind that the file's version does not have."""
        return self._sizes[kind][task] if kind in self._sizes else 0

    def peek(self, kind: str, task: int, count: int) -> bytes:
        """The first bytes of a section, unchecked; for planning only."""
        start, size = self.place(kind, task)
        self._file.seek(start)
        return self._file.read(min(count, size))

    def section(self, kind: str, task: int = 0) -> bytes:
        """The bytes of a section, read and checked with all that have one hash with it."""
        if kind not in self._sizes:
            return b""
        is_common = kind in self.scheme.common
        group = kind if is_common else self.scheme.group_of(kind)
        kinds = (kind,) if is_common else self.scheme.groups[group]
        if self._group[0] != (group, task):
            self._group = ((group, task), self._read_group(group, kinds, task))
        return self._group[1][kind]

    def _read_group(self, group: str, kinds: tuple[str, ...], task: int) -> dict[str, bytes]:
        found, places = {}, {kind: self.place(kind, task) for kind in kinds}
        for kind, (start, size) in places.items():
            self._file.seek(start)
            found[kind] = self._file.read(size)
        data = b"".join(found.values())
        size = sum(size for _, size in places.values())
        if len(data) != size or (
            data and digest(data, f"{group} {task}") != self._hash(group, task)
        ):
            filled = [kind for kind in kinds if places[kind][1]]
            named = f"the {' or '.join(filled)}"
            where = named if group in self.scheme.common else f"{named} of task {task}"
            start = places[filled[0]][0]
            raise DamageError(f"{where}, {size} bytes from {start} on, have been altered.")
        return found

    def _hash(self, group: str, task: int) -> bytes:
        """The hash of a group of sections that are not all empty."""
        start = self._hashes[group][task]
        return self._index_data[start : start + HASH_BYTES]

    def _index(self, sizes: Mapping[str, int]) -> None:
        """Where each section stands, from the index and checked against the header's sizes."""
        data = self._file.read(sizes["index"])
        if digest(data, "index").hex() != self.config["index"]:
            raise DamageError("the index of sections has been altered.")
        self.scheme = scheme = SCHEMES[self.version]
        self._index_data, reader = data, Reader(data, "the index")
        base, cursor, ends = self.header_bytes + sizes["index"], {}, {}
        for kind in (*scheme.common, *scheme.kinds):
            cursor[kind], ends[kind] = base, base + sizes[kind]
            base += sizes[kind]
        # Plain numbers, by kind and group and then by entry: an entry takes a few bytes of the
        # index, and must not take many times that here. A hash is kept by its place in the index.
        self._starts, self._sizes = ({kind: array("q") for kind in ends} for _ in range(2))
        self._hashes = {group: array("q") for group in (*scheme.common, *scheme.groups)}

        def read(group: str, kinds: Iterable[str]) -> None:
            filled = False
            for kind in kinds:
                size = reader.varint(ends[kind] - cursor[kind])
                self._starts[kind].append(cursor[kind])
                self._sizes[kind].append(size)
                cursor[kind] += size
                filled |= size > 0
            self._hashes[group].append(reader.position)
            if filled:
                reader.raw(HASH_BYTES)

        for kind in scheme.common:
            read(kind, (kind,))
        for _ in range(self.num_tasks):
            for group, kinds in scheme.groups.items():
                read(group, kinds)
        reader.done()
        if cursor != ends:
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
    if type(version) is not int or version not in SCHEMES:
        raise FormatError(
            f"a model of format {str(version)[:40]!r}; this version of the package reads formats "
            f"{' and '.join(map(str, SCHEMES))}."
        )
    limits.check_task_tables(config.get("tasks"), version)
    sizes = _sizes(table, SCHEMES[version])
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


def _sizes(table: Mapping[str, Any], scheme: Scheme) -> dict[str, int]:
    """The size of every tensor that a model may have, 0 where it is absent."""
    sizes = {}
    for name in ("index", *scheme.common, *scheme.kinds):
        shape = table.get(name, {"shape": [0]})
        shape = shape.get("shape") if isinstance(shape, dict) else None
        if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int:
            raise DamageError(f"the tensor {name!r} has no size.")
        if shape[0] < 0:
            raise DamageError(f"the tensor {name!r} has the size {shape[0]}.")
        sizes[name] = shape[0]
    return sizes
