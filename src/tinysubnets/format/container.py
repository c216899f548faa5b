"""The file as bytes: a safetensors header, the config and the index of sections, the sections.

In format 2 the header holds nothing but the hash of what stands in front of the sections: the
config, deflated, and the index, which has every length and hash. So a reader builds the header
again and compares, and everything else hangs on that one hash. In format 1 the config stands in the
header as it is, the index's hash in the config, and the sections go by kind.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from tinysubnets.coding.bits import deflate, inflate
from tinysubnets.coding.byte_io import MAX_VARINT_BYTES, Reader, Writer, varint_bytes
from tinysubnets.errors import ArtifactError, DamageError, FormatError
from tinysubnets.files import UnsyncedError, atomic_write, reading
from tinysubnets.format import limits

FILE_NAME = "model.safetensors"
BESIDE = ("config.json", "README.md")  # derived from the model, for people
VERSION = 2
KINDS = ("codes", "codebooks", "masks", "heads", "task_params", "memory", "routing")  # of a task
COMMON = ("constants", "base")  # sections that belong to no single task
MAX_HEADER_BYTES = 1 << 24
HASH_BYTES = 8
KEY, HASH_KEY = "tinysubnets", "blake2b"
TENSOR = "model"  # the one tensor of a file of format 2

# What the config is deflated against: text that configs are likely to hold, the likeliest last,
# without line breaks. It is part of format 2 and never changes.
DICTIONARY = """
"adamw","plateau","constant","step","none","task","bytes","xavier","pretrained","similar",
"previous_mask","tf32","bfloat16","samples","compiled","continue","disjoint","sparsity",
"ada-qpacknet","packnet","wsn":{"u8",[1,28,28]],["f32",[3,64,64]],["f32",[64]],
"base":{"name":"","sha256":"","source":"","constants":[["alexnet","dropout":0.5,"tinynet",
"resnet18","stem":"3x3","vit","small-cnn","mlp","hidden":[100,100],"in_features":784,
"layers.0.weight",["fc2.weight",["fc1.bias",["layer1.0.downsample.0.weight",
["layer1.0.bn1.running_var",["blocks.0.attention.out_proj.weight",["conv3.weight",[64,
["stage3.2.norm2.running_mean",[64],0.0],["stage3.0.norm1.running_var",[64],1.0],
["stage2.2.conv2.weight",[32,32,3,3]],["stage3.1.conv1.weight",[64,64,3,3]],
["stage3.1.norm1.weight",[64],1.0],["stage3.1.norm2.bias",[64],0.0],["stage2.1.norm2.weight",
[32],1.0],["fc.weight",[0,64]],["fc.bias",[0]],["norm.running_mean",[16],0.0],
["norm.running_var",[16],1.0],[""reason":"weights of its own","isolated":true,"number":,
"preprocessing":0,"codebooks":1,{"absent":0,"accuracy":0.,"bank":0,"bits":1,"channels":3,
"classes":0,"inputs":0,"name":"classes-0","nearest":0,"owned":0.0,
"reason":"a difference to 'classes-0'","reference":0,"trailing":2},{"absent":[[[40,19,2,0.0],
[41,19,2,0.99999]]],"architecture":{"head":"fc","rebuild":{"network":"small-resnet",
"settings":{"width":16}},"shared":[["conv.weight",[16,3,3,3]],["stage1.0.conv1.weight",[16,16,3,
3]],["stage1.0.conv2.weight",[16,16,3,3]]],"task_params":[["norm.weight",[16],1.0],["norm.bias",
[16],0.0],["stage1.0.norm1.weight",[16],1.0],["stage1.0.norm1.bias",[16],0.0]]},"banks":1,
"block":1,"classes":[["]],"format":2,"inputs":[["u8",[3,32,32]]],"library":"0.1.0",
"method":"tsn-wr","next":10,"seed":0,"settings":{"pruning":{"alpha":0.95,"beta":0.05,
"iterations":50,"objective":"sparsity","samples":256,"step":0.01},
"training":{"augmentation":{"crop":1.0,"flip":true,"shift":4},"batch_size":128,
"codebook_updates_per_epoch":3,"deterministic":false,"engine":"auto","epochs":50,"lr":0.1,
"min_lr":1e-05,"momentum":0.9,"optimizer":"sgd","precision":"float32","schedule":"cosine",
"score_eps":1e-08,"score_lr":"none","weight_decay":0.0},"tsn":{"bits":"auto","block":1,
"codebooks":"layer","density":0.05,"density_exponent":0.0,"difference_decay":"none",
"first_bits":2,"first_density":"none","init":"seeded","isolated":false,"layer_loss_weight":0.0,
"max_banks":2,"memory":"statistics","memory_samples":50,"post_pruning":true,
"previous_mask_of":"last","reference":"none","scale":"kaiming","score_init":"random","seed":0,
"selection":"scores","sharing":"values","task_param_bits":"auto","task_param_tolerance":0.002,
"threshold":3.0,"tolerance":0.005,"training_bits":4}},"tasks":[{
""".replace("\n", "").encode()

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


def front_of(config: Mapping[str, Any], index: bytes) -> bytes:
    """What stands before the sections in format 2: three lengths, the config and the index."""
    text = canonical(config).encode()
    stream = deflate(text, DICTIONARY)
    out = Writer()
    for length in (len(text), len(stream), len(index)):
        out.varint(length)
    out.raw(stream + index)
    return out.bytes()


def check_front(front: bytes) -> None:
    """Refuse to write a config that is longer than readers accept."""
    begin = Reader(front, "the config")
    text, stream = (begin.varint(1 << 62) for _ in range(2))
    if text > limits.max_config_bytes(stream):
        raise ArtifactError(
            f"a config of {text} bytes that is deflated to {stream}; at most "
            f"{limits.max_config_bytes(stream)} are allowed. Shorten the names of tasks and "
            "classes: they repeat themselves."
        )


def header_of(version: int, front: bytes, section_bytes: int) -> bytes:
    """The first bytes of a file of format 2: the length of the header, and the header."""
    hashed, size = digest(front, "front").hex(), len(front) + section_bytes
    return _with_length(
        {
            "__metadata__": {HASH_KEY: hashed, KEY: str(version)},
            TENSOR: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
        }
    )


def first_header_of(config: Mapping[str, Any], sizes: Mapping[str, int]) -> bytes:
    """The first bytes of a file of format 1, whose header holds the config.

    - `sizes`: the bytes of each of its tensors.
    """
    text = canonical(config)
    value = digest(text.encode(), "config").hex()
    table: dict[str, Any] = {"__metadata__": {HASH_KEY: value, KEY: text}}
    start, scheme = 0, SCHEMES[1]
    for name in ("index", *scheme.common, *scheme.kinds):
        if sizes[name]:
            stop = start + sizes[name]
            table[name] = {"dtype": "U8", "shape": [sizes[name]], "data_offsets": [start, stop]}
            start = stop
    return _with_length(table)


def _with_length(table: Mapping[str, Any]) -> bytes:
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def assemble(config: Mapping[str, Any], sections: Sections, num_tasks: int) -> list[bytes]:
    """The parts of the whole file in order: header, what is before the sections, sections."""
    version = config["format"]
    scheme, index = SCHEMES[version], index_of(sections, num_tasks, version)
    if version == 1:
        full = dict(config, index=digest(index, "index").hex())
        sizes = {kind: sum(map(len, parts)) for kind, parts in sections.items()}
        header = first_header_of(full, sizes | {"index": len(index)})
        order = (*scheme.common, *scheme.kinds)
        return [header, index, *(part for kind in order for part in sections[kind])]
    front = front_of(config, index)
    parts = [sections[kind][0] for kind in scheme.common]
    parts += [sections[kind][task] for task in range(num_tasks) for kind in scheme.kinds]
    return [header_of(version, front, sum(map(len, parts))), front, *parts]


class ModelFile:
    """An open model file whose header and index have been checked; sections are read on demand."""

    def __init__(self, source: Path | BinaryIO) -> None:
        self._file = _open(source) if isinstance(source, Path) else source
        # The sections read last: those of one entry that have a hash together.
        self._group: tuple[tuple[str, int], dict[str, bytes]] = (("", 0), {})
        try:
            front = _read_front(self._file)
            self.config, self.identity = front.config, front.identity
            self.text_bytes, self.metadata_bytes = front.text_bytes, front.start
            self._index(front)
        except BaseException as error:
            self._file.close()
            if isinstance(error, ArtifactError) and isinstance(source, Path):
                raise type(error)(f"{source}: {error}") from None
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
        """The sections of an entry that have one hash together, by kind, checked by it."""
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

    def _index(self, front: _Front) -> None:
        """Where each section stands, from the index and checked against the size of the file."""
        self.scheme = scheme = SCHEMES[self.version]
        self._index_data, reader = front.index, Reader(front.index, "the index")
        start = front.start + len(front.index)
        self.file_bytes, left = front.file_bytes, front.file_bytes - start
        # Plain numbers, by kind and group and then by entry: an entry takes a few bytes of the
        # index, and must not take many times that here. A hash is kept by its place in the index.
        every = (*scheme.common, *scheme.kinds)
        self._starts, self._sizes = ({kind: array("q") for kind in every} for _ in range(2))
        self._hashes = {group: array("q") for group in (*scheme.common, *scheme.groups)}

        def read(group: str, kinds: Iterable[str]) -> None:
            nonlocal start, left
            filled = False
            for kind in kinds:
                size = reader.varint(left)
                self._starts[kind].append(start)
                self._sizes[kind].append(size)
                start, left, filled = start + size, left - size, filled or size > 0
            self._hashes[group].append(reader.position)
            if filled:
                reader.raw(HASH_BYTES)

        for kind in scheme.common:
            read(kind, (kind,))
        for _ in range(self.num_tasks):
            for group, kinds in scheme.groups.items():
                read(group, kinds)
        reader.done()
        if left:
            raise DamageError("the index does not cover all sections.")
        if front.tensor_bytes is not None:
            self._by_kind(front.tensor_bytes, front.start + len(front.index))

    def _by_kind(self, tensor_bytes: Mapping[str, int], start: int) -> None:
        """Where sections stand that go by kind, each kind a tensor of its own, as in format 1."""
        for kind, sizes in self._sizes.items():
            if sum(sizes) != tensor_bytes[kind]:
                raise DamageError("the index does not cover all sections.")
            for place, size in enumerate(sizes):
                self._starts[kind][place] = start
                start += size


def model_path(where: str | os.PathLike[str]) -> Path:
    """The model file in a model folder or in a run folder's `model`, or the file itself."""
    path = Path(where)
    if not path.is_dir():
        return path
    own, of_run = path / FILE_NAME, path / "model" / FILE_NAME
    return of_run if of_run.exists() and not own.exists() else own


def put_in_place(
    path: Path,
    data: bytes | Iterable[bytes],
    *,
    done: str = "the new model is",
    again: str = "save",
    is_only_writer: bool = True,
) -> None:
    """Put a model file in its place, in a folder that is locked.

    After an OSError the old one is as it was; an ArtifactError says that the new one is there.

    - `done`: what is said then, before the path.
    - `again`: what should be done again then, for what lies beside it; empty where nothing does.
    - `is_only_writer`: as for `atomic_write`.
    """
    try:
        atomic_write(path, data, is_only_writer=is_only_writer)
    except UnsyncedError as error:
        raise ArtifactError(
            f"{done} in {path}, but it could not be made sure that a power cut leaves it there: "
            f"{error.strerror}." + (f" {beside_is_old(again)}" if again else "")
        ) from error


def beside_is_old(again: str) -> str:
    """The part of an error that says which files beside a new model are old, and the cure."""
    return f"{' and '.join(BESIDE)} beside it are as they were: put that right and {again} again."


@contextlib.contextmanager
def nothing_changed(path: Path) -> Iterator[None]:
    """Turn an OSError inside into an ArtifactError that says that nothing was changed."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"nothing was changed; {error.filename or path} cannot be read or written: "
            f"{error.strerror}."
        ) from error


def write_beside(
    model: Path,
    files: Mapping[str, bytes],
    *,
    done: str = "the new model is saved",
    again: str = "save",
) -> None:
    """Write what is derived from a model that has just been put in place, by name, in its folder.

    The folder is locked. An error says that the model itself is in place, and which were replaced.

    - `done`, `again`: what the error says was done, and should be done again.
    """
    names, unsynced = list(files), None
    for place, name in enumerate(names):
        try:
            atomic_write(model.with_name(name), files[name], is_only_writer=True)
        except UnsyncedError as error:  # it is there all the same
            unsynced = error
        except OSError as error:
            raise ArtifactError(
                f"{done} in {model}, but {' and '.join(names[place:])} beside it, for people "
                f"alone, could not be replaced: {error.strerror}. Put that right and {again} again."
            ) from error
    if unsynced is not None:
        raise ArtifactError(
            f"{done} in {model} with {' and '.join(names)} beside it, but it could not be made "
            f"sure that a power cut leaves them there: {unsynced.strerror}. Put that right and "
            f"{again} again."
        ) from unsynced


def _open(path: Path) -> BinaryIO:
    try:
        return reading(path)
    except OSError as error:
        raise FormatError(
            f"no model at {path}: {error.strerror}. Give a folder with a {FILE_NAME} in it, or "
            "the folder of a finished run."
        ) from None


@dataclass(frozen=True)
class _Front:
    """What a file says before its sections.

    - `config`: its table, in which only the version and the list of tasks have been looked at.
    - `identity`: the hash on which the whole file hangs, as it stands in the header.
    - `index`: the lengths and hashes of the sections, as bytes.
    - `start`: the bytes of the file that are neither index nor sections; these follow one another.
    - `file_bytes`, `text_bytes`: the size of the file, and that of the config as text.
    - `tensor_bytes`: the size of every tensor in format 1; None where there is but one.
    """

    config: dict[str, Any]
    identity: str
    index: bytes
    start: int
    file_bytes: int
    text_bytes: int
    tensor_bytes: Mapping[str, int] | None = None


def _read_front(file: BinaryIO) -> _Front:
    """Everything before the sections, checked by its hash."""
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
    if metadata[KEY].startswith("{"):
        return _read_first(file, first + header, table, total)
    versions = [version for version in SCHEMES if version > 1 and str(version) == metadata[KEY]]
    if not versions:
        raise _unknown_version(metadata[KEY])
    spoken = 8 + length + _sizes(table, (TENSOR,))[TENSOR]
    if spoken != total:
        raise _other_size(total, spoken)
    return _read_second(file, first + header, versions[0], total)


def _read_second(file: BinaryIO, header: bytes, version: int, total: int) -> _Front:
    """What is before the sections in format 2: three lengths, the config and the index."""
    where = "what is before the sections"
    begin = Reader(file.read(3 * MAX_VARINT_BYTES), where)
    text_bytes = begin.varint(1 << 62)
    stream_bytes, index_bytes = (begin.varint(total - len(header)) for _ in range(2))
    file.seek(len(header))
    size = begin.position + stream_bytes + index_bytes
    front = file.read(size)
    if header_of(version, front, total - len(header) - size) != header or len(front) < size:
        raise DamageError("the header, the config or the index of sections has been altered.")
    most = limits.max_config_bytes(stream_bytes)
    if text_bytes > most:
        raise DamageError(f"a config of {text_bytes} bytes; at most {most} are accepted.")
    stream = front[begin.position : begin.position + stream_bytes]
    config = parse(inflate(stream, text_bytes, "the config", DICTIONARY), "config")
    found = config.get("format") if isinstance(config, dict) else None
    if type(found) is not int or found != version:
        raise DamageError(f"a config of format {str(found)[:40]!r} in a file of {version}.")
    limits.check_task_tables(config.get("tasks"), version)
    return _Front(
        config=config,
        identity=digest(front, "front").hex(),
        index=front[begin.position + stream_bytes :],
        start=len(header) + begin.position + stream_bytes,
        file_bytes=total,
        text_bytes=text_bytes,
    )


def _read_first(file: BinaryIO, header: bytes, table: Mapping[str, Any], total: int) -> _Front:
    """What is before the sections in format 1: the config in the header, and the index."""
    text, value = table["__metadata__"][KEY], table["__metadata__"].get(HASH_KEY)
    if digest(text.encode("utf-8", "surrogatepass"), "config").hex() != value:
        raise DamageError("the config in the header has been altered.")
    config = parse(text, "config")
    version = config.get("format") if isinstance(config, dict) else None
    if type(version) is not int or version != 1:
        raise _unknown_version(version)
    limits.check_task_tables(config.get("tasks"), version)
    scheme = SCHEMES[version]
    sizes = _sizes(table, ("index", *scheme.common, *scheme.kinds))
    if first_header_of(config, sizes) != header:
        raise DamageError("the header does not follow from its config.")
    if len(header) + sum(sizes.values()) != total:
        raise _other_size(total, len(header) + sum(sizes.values()))
    index = file.read(sizes["index"])
    if digest(index, "index").hex() != config["index"]:
        raise DamageError("the index of sections has been altered.")
    return _Front(config, value, index, len(header), total, len(header), sizes)


def _other_size(total: int, spoken: int) -> DamageError:
    """A file of another size than its header says."""
    what = "it was cut off" if total < spoken else "something was written behind it"
    return DamageError(
        f"the file has {total} bytes; its header speaks of {spoken}: {what}; copy it again."
    )


def _unknown_version(version: Any) -> FormatError:
    return FormatError(
        f"a model of format {str(version)[:40]!r}; this version of the package reads formats "
        f"{' and '.join(map(str, SCHEMES))}."
    )


def _loads(header: bytes) -> dict[str, Any]:
    limits.check_json(header, "header")
    try:
        table = json.loads(header.decode())
    except (ValueError, RecursionError):
        raise FormatError("not a safetensors file: its header is not JSON.") from None
    if not isinstance(table, dict):
        raise FormatError("not a safetensors file: its header is not a table.")
    return table


def _sizes(table: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    """The size of every tensor that a model may have, 0 where it is absent."""
    sizes = {}
    for name in names:
        shape = table.get(name, {"shape": [0]})
        shape = shape.get("shape") if isinstance(shape, dict) else None
        if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int:
            raise DamageError(f"the tensor {name!r} has no size.")
        if shape[0] < 0:
            raise DamageError(f"the tensor {name!r} has the size {shape[0]}.")
        sizes[name] = shape[0]
    return sizes
