"""A fuzzer of model files that knows their structure: every mutant has correct hashes.

    python tests/fuzz.py --seconds 60 [--seed 0]     # or: make fuzz SECONDS=60
    python tests/fuzz.py --seed 0 --only 1234        # one mutant again, with its traceback

Mutants are made from the golden files and from fresh models: values of the config, shapes, counts,
lists, sections and streams, the config's own stream, the records of format 1 inside theirs, lengths
in the index, offsets in the header. Each is read by `load` and by two more readers. What may come
of it: one of the package's own errors, or a model whose tasks are the same alone and together, and
the same as a second reader, written from the specification, finds them; in both cases with at most
four times the memory of the decoded model plus 64 MB, and within seconds.

So are dense models of the baselines: what is resumed has the very tensors of the file. And patches:
what is applied gives the file that the patch names, with the old tasks as they were.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import models
import plain_reader
from forge import Sections, opened
from reading import READERS, SPARE, measured, need_of, warm_up
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.errors import TinySubNetsError
from tinysubnets.experiments import methods
from tinysubnets.format.container import (
    SCHEMES,
    assemble,
    canonical,
    digest,
    first_header_of,
    front_of,
    header_of,
    index_of,
)
from tinysubnets.format.patch import DICTIONARY_BYTES, MAGIC, apply_patch
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE
from tinysubnets.tasks.task import Task

SECONDS = 20  # of the processor, for one reading
GOLDEN = Path(__file__).parent / "golden"
NUMBERS = (0, 1, 2, 3, 7, 8, 31, 32, 33, 64, 255, 256, 4096, 65_535, 65_536, 1 << 20, 1 << 24)
NUMBERS += (-1, -2, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, 10**30)
OTHERS: tuple[Any, ...] = (None, True, False, 0.5, -0.0, 1e308, "", "x", "fc.weight", [], {}, [[]])
OTHERS += ("a" * 5000, "\x1b[31m\u202e", "é\U0001f600", [0], [-1], [1 << 40, 1 << 40], {"a": 1})
MOST_BYTES = 12 << 30  # of address space: far above what any reader may take
DENSE = ("gem", "ewc", "replay", "independent", "cwr-star", "lwf")  # each keeps something else

Model = tuple[dict[str, Any], Sections]


# Mutations. Each changes a model's config and sections in place.


def some_value(rng: random.Random, old: Any) -> Any:
    """A value to put in the place of another: near it, at a border, or of another kind."""
    if type(old) is int and rng.random() < 0.5:
        return old + rng.choice((-1, 1, 2, 8, old, -old, 1 << rng.randrange(40)))
    if isinstance(old, str) and rng.random() < 0.3:
        return old + rng.choice(("x", " ", ".weight", "\x00", "é" * 50))
    return copy.deepcopy(rng.choice(NUMBERS if rng.random() < 0.6 else OTHERS))


def mutate_json(rng: random.Random, value: Any) -> None:
    """Change one entry somewhere in nested tables and lists."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            if isinstance(value, list):
                value.append(some_value(rng, 0))
            else:
                value[rng.choice(("name", "x", "seed"))] = some_value(rng, 0)
            return
        key = rng.choice(keys)
        if isinstance(value[key], (dict, list)) and rng.random() < 0.85:
            value = value[key]
            continue
        break
    act = rng.random()
    if act < 0.6:
        value[key] = some_value(rng, value[key])
    elif act < 0.7:
        del value[key]
    elif isinstance(value, dict):
        value[rng.choice(keys)] = copy.deepcopy(value[key])
    elif act < 0.8:
        value.insert(rng.randrange(len(value) + 1), copy.deepcopy(value[key]))
    elif act < 0.9:
        other = rng.randrange(len(value))
        value[key], value[other] = value[other], value[key]
    else:
        value += copy.deepcopy(value) * rng.choice((1, 3, 50))


def mutate_config(rng: random.Random, model: Model) -> None:
    """One to three changes in the config."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutate_json(rng, model[0])


def mutate_shape(rng: random.Random, model: Model) -> None:
    """Another shape of one tensor of the network."""
    table = model[0]["architecture"]
    kind = rng.choice(("shared", "private" if "private" in table else "task_params"))
    shape = rng.choice(table[kind])[1]
    if not shape or rng.random() < 0.2:
        shape.append(rng.choice(NUMBERS))
    else:
        place = rng.randrange(len(shape))
        shape[place] = some_value(rng, shape[place])


def mutate_network(rng: random.Random, model: Model) -> None:
    """Other settings of the network that is rebuilt."""
    rebuild = model[0]["architecture"].get("rebuild")
    if rebuild is None:
        return mutate_config(rng, model)
    mutate_json(rng, rebuild)


def mutate_tasks(rng: random.Random, model: Model) -> None:
    """A task more or less, with or without its sections; banks and classes exchanged."""
    config, sections = model
    number = rng.randrange(len(config["tasks"]))
    act = rng.random()
    if act < 0.3:
        config["tasks"][number]["bank"] = rng.choice((0, 1, 2, 3, 70_000))
    elif act < 0.5:
        config["classes"].append(rng.choice((list(range(rng.choice((2, 5, 300)))), ["a", "b"])))
        config["tasks"][number]["classes"] = rng.randrange(len(config["classes"]))
    elif act < 0.75:
        task = dict(config["tasks"][number], name=f"copy {rng.random()}")
        config["tasks"].append(task)
        for kind, parts in sections.items():
            if len(parts) > 1 or kind == "masks":
                parts.append(parts[number])
    else:
        del config["tasks"][number]
        if rng.random() < 0.7:
            for parts in sections.values():
                if len(parts) > number and len(parts) > 1:
                    del parts[number]


def mutate_life(rng: random.Random, model: Model) -> None:
    """Another life of a task: its number, name, bank, reference, isolation, absent tensors."""
    config = model[0]
    if config["format"] == 1:
        return mutate_tasks(rng, model)
    tasks = config["tasks"]
    task = rng.choice(tasks)
    act = rng.randrange(10)
    numbers = range(len(tasks) + 2)
    if act == 0:
        task["number"] = rng.choice(numbers)
    elif act == 1:
        config["next"] = rng.choice((*numbers, 1 << 40))
    elif act == 2:
        config["banks"] = rng.choice((*numbers, 65_536))
    elif act == 3:
        task["reference"] = rng.choice(("base", *numbers))
        if rng.random() < 0.5:
            task.pop("bank", None)
    elif act == 4:
        task["isolated"] = rng.random() < 0.8
        task["bank"] = config["banks"]
        config["banks"] += 1
    elif act == 5:
        places = rng.sample(range(len(config["architecture"]["task_params"])), rng.choice((1, 2)))
        runs = [[p, rng.choice((1, 1, 2)), rng.choice((1, 2)), 0.5] for p in places]
        lists = config.setdefault("absent", [])
        lists.append([run if rng.random() < 0.7 else run[:3] for run in runs])
        task["absent"] = rng.randrange(len(lists))
        if rng.random() < 0.7:
            number = tasks.index(task)
            model[1]["heads"][number] = model[1]["task_params"][number] = b""
    elif act == 6:
        for key in set(task) - {"bank", "bits", "number", "codebooks", "reference"}:
            del task[key]
        for kind in SCHEMES[2].kinds[3:]:
            model[1][kind][tasks.index(task)] = b""
    elif act == 7:
        config.setdefault("preprocessing", []).append({"size": rng.choice((32, "a", [1, 2]))})
        task["preprocessing"] = rng.choice(numbers)
    elif act == 8:
        task["rank"] = rng.choice((0, 1, 2, 3, 64, 65, True, *NUMBERS))
        if rng.random() < 0.7:  # as an entry of low rank has to be, but for its codes
            task.pop("bank", None)
            task.pop("empty", None)
            task.setdefault("reference", rng.choice(("base", *numbers)))
            model[1]["masks"][tasks.index(task)] = b""
    else:
        config["base"] = {"name": "b", "source": "s", "sha256": "0" * 64}
        task["reference"] = "base"
        task["adds"] = rng.random() < 0.5
        if rng.random() < 0.3:
            task["empty"] = True
            for kind in ("codes", "codebooks", "masks"):
                model[1][kind][tasks.index(task)] = b"" if rng.random() < 0.7 else b"\0"
    return None


def mutate_section(rng: random.Random, model: Model) -> None:
    """Other bytes in one section."""
    kind = rng.choice([k for k, parts in model[1].items() if any(parts)])
    number = rng.randrange(len(model[1][kind]))
    data = bytearray(model[1][kind][number])
    act, place = rng.randrange(8), rng.randrange(len(data) + 1)
    if act == 0 and data:
        data[place % len(data)] ^= 1 << rng.randrange(8)
    elif act == 1 and data:
        data[place % len(data)] = rng.choice((0, 1, 127, 128, 255))
    elif act == 2:
        del data[place:]
    elif act == 3:
        data[place:place] = rng.randbytes(rng.choice((1, 2, 4, 50)))
    elif act == 4:
        del data[place : place + rng.choice((1, 2, 8))]
    elif act == 5:
        data[place:place] = data[: rng.randrange(len(data) + 1)]
    elif act == 6:
        data = bytearray(rng.choice(model[1][kind]))
    else:
        data = bytearray(rng.randbytes(rng.choice((0, 1, 5, 100))))
    model[1][kind][number] = bytes(data)


def mutate_stream(rng: random.Random, model: Model) -> None:
    """Another reference or codec of a mask, another form of values, a number of another size."""
    scheme = SCHEMES[model[0]["format"]]
    kind = rng.choice(("masks", *scheme.kinds))
    number = rng.randrange(len(model[1][kind]))
    data = model[1][kind][number]
    if not data:
        return mutate_section(rng, model)
    act = rng.random()
    if act < 0.4:
        reader, out = Reader(data, "fuzz"), Writer()
        with contextlib.suppress(TinySubNetsError):
            reader.varint(1 << 62)
        out.varint(rng.choice([n for n in NUMBERS if n >= 0]))
        out.raw(reader.rest())
        data = out.bytes()
    elif act < 0.7:
        first = rng.randrange(min(len(data), 3))
        data = data[:first] + bytes([rng.randrange(256)]) + data[first + 1 :]
    else:
        size = rng.choice((10, 1000, 1 << 20, 64 << 20))
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        data = data[: rng.randrange(min(len(data), 4)) + 1] + coder.compress(bytes(size))
        data += coder.flush()
    model[1][kind][number] = data


def mutate_records(rng: random.Random, model: Model) -> None:
    """Changes inside the records, deflated again with the right length."""
    if "records" not in model[1]:
        return mutate_json(rng, model[0]["settings"])
    reader = Reader(model[1]["records"][0], "fuzz")
    reader.varint(1 << 40)
    value = json.loads(zlib.decompress(reader.rest(), -15))
    mutate_json(rng, value)
    text = canonical(value).encode()
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    out = Writer()
    out.varint(len(text) + (rng.choice((-1, 1, 1000)) if rng.random() < 0.1 else 0))
    out.raw(coder.compress(text) + coder.flush())
    model[1]["records"] = [out.bytes()]
    return None


MUTATIONS: dict[str, Callable[[random.Random, Model], None]] = {
    "config": mutate_config,
    "shape": mutate_shape,
    "network": mutate_network,
    "tasks": mutate_tasks,
    "life": mutate_life,
    "section": mutate_section,
    "stream": mutate_stream,
    "records": mutate_records,
}


_NOTHING_TO_CHANGE = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    zlib.error,
    TinySubNetsError,
)


def mutant(rng: random.Random, base: Model) -> tuple[str, bytes] | None:
    """A mutant's file and what was changed in it; None where it cannot be written at all."""
    model = copy.deepcopy(base)
    told = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        name = rng.choice(list(MUTATIONS))
        # What an earlier change has left may no longer have what this one changes.
        with contextlib.suppress(*_NOTHING_TO_CHANGE):
            MUTATIONS[name](rng, model)
        told.append(name)
    config, sections = model
    try:
        parts = assemble(config, sections, len(sections["masks"]))
        if rng.random() < 0.1:
            told.append("index")
            parts = other_index(rng, config, sections, parts)
        elif config["format"] > 1 and rng.random() < 0.05:
            told.append("front")
            parts = other_front(rng, config, parts)
    except (TypeError, ValueError, LookupError, TinySubNetsError, OverflowError):
        return None
    data = b"".join(parts)
    if rng.random() < 0.05:
        told.append("header")
        data = other_header(rng, data)
    return " + ".join(told), data


def other_index(
    rng: random.Random, config: dict[str, Any], sections: Sections, parts: list[bytes]
) -> list[bytes]:
    """The parts of a file with other bytes in the index, whose hash is right again."""
    index = bytearray(index_of(sections, len(sections["masks"]), config["format"]))
    place = rng.randrange(len(index))
    index[place] = rng.choice((index[place] ^ 1, 0, 127, 128, 255))
    if rng.random() < 0.3:
        index += bytes(rng.choice((1, 9, 1000)))
    if config["format"] > 1:
        front = front_of(config, bytes(index))
        return [header_of(config["format"], front, sum(map(len, parts[2:]))), front, *parts[2:]]
    sizes = {kind: sum(map(len, data)) for kind, data in sections.items()}
    full = dict(config, index=digest(bytes(index), "index").hex())
    return [first_header_of(full, sizes | {"index": len(index)}), bytes(index), *parts[2:]]


def other_front(rng: random.Random, config: dict[str, Any], parts: list[bytes]) -> list[bytes]:
    """The parts of a file of format 2 with other lengths or another stream of the config."""
    begin = Reader(parts[1], "fuzz")
    text, stream, index = (begin.varint(1 << 40) for _ in range(3))
    body = begin.rest()
    act = rng.randrange(4)
    if act == 0:
        text = max(0, text + rng.choice((-1, 1, 1000, 1 << 20, 1 << 40)))
    elif act == 1:
        stream, index = stream + 1, index - 1
    elif act == 2:
        place = rng.randrange(stream)
        body = body[:place] + bytes([body[place] ^ 1 << rng.randrange(8)]) + body[place + 1 :]
    else:
        text = rng.choice((1 << 20, 1 << 24, 1 << 28))
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        bomb = coder.compress(rng.choice((b"[", b" ", b"0,", b"{}")) * text)[: 1 << 20]
        bomb, text = bomb + coder.flush(), text * rng.choice((1, 2))
        body, stream = bomb + body[stream:], len(bomb)
    out = Writer()
    for length in (text, stream, index):
        out.varint(length)
    out.raw(body)
    front = out.bytes()
    return [header_of(config["format"], front, sum(map(len, parts[2:]))), front, *parts[2:]]


def other_header(rng: random.Random, data: bytes) -> bytes:
    """A file with something else in the header's table: an offset, a size, a name."""
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    text = table["__metadata__"].pop("tinysubnets")
    mutate_json(rng, table)
    table.setdefault("__metadata__", {})
    if isinstance(table["__metadata__"], dict):
        table["__metadata__"]["tinysubnets"] = text
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


# What must hold.


def check_values(path: Path, net: Any) -> None:
    """A mutant that is read means the same to every reader."""
    store = SubnetStore.load(path, net)
    digests = {task: store.digest(task) for task in store.tasks}
    for task in store.tasks:
        alone = SubnetStore.load(path, net, task=task).digest(task)
        assert alone == digests[task], f"task {task!r} differs where it is loaded alone"
    try:
        found = plain_reader.read(path)
    except Exception:  # the second reader is for valid files: it has no errors of its own
        return
    assert list(found) == list(store.tasks)
    for task in store.tasks:
        tensors = store.tensors(task)
        for name, values in found[task].items():
            same = tensors[name].numpy().tobytes() == values.tobytes()
            assert same, f"{name} of task {task!r} differs in the second reader"


def was_read(path: Path, reader: str, need: int, seen: Counter[str], net: Any = None) -> bool:
    """Whether a reader took the file; raises AssertionError on what must not be."""
    result = measured(path, reader, net)
    seen[f"{reader}: {result['outcome']}"] += 1
    assert not result["outcome"].startswith("RAW"), f"{reader}: {result['outcome']}"
    assert result["bytes"] <= 4 * need + SPARE, f"{reader}: {result}, need {need}"
    assert result["seconds"] <= SECONDS, f"{reader}: {result}"
    return bool(result["outcome"] == "read")


# What mutants are made from. Each makes one, with what was changed in it, and checks one.


class Subnets:
    """A model of subnets, read by `load` and two more readers."""

    def __init__(self, path: Path, net: Any) -> None:
        self.model, self.net = opened(path), net

    def mutant(self, rng: random.Random) -> tuple[str, bytes] | None:
        return mutant(rng, self.model)

    def check(self, path: Path, rng: random.Random, seen: Counter[str]) -> None:
        others = rng.sample([r for r in READERS if r != "load"], 2)
        need = need_of(path)
        taken = [was_read(path, reader, need, seen, self.net) for reader in ("load", *others)]
        if taken[0]:
            check_values(path, self.net)
            seen["values compared"] += 1


class Dense:
    """A model of a baseline: plain safetensors with a config, resumed and asked."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        self.table, self.data = json.loads(data[8 : 8 + length]), data[8 + length :]

    def mutant(self, rng: random.Random) -> tuple[str, bytes]:
        """Changes in the config, in the table of tensors or in their bytes."""
        table, data, told = copy.deepcopy(self.table), bytearray(self.data), ["config"]
        config = json.loads(table["__metadata__"]["config"])
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            mutate_json(rng, config)
        table["__metadata__"]["config"] = json.dumps(config)
        if rng.random() < 0.2:
            told.append("table")
            mutate_json(rng, table)
        if rng.random() < 0.1:
            told.append("dtype")
            tensors = [n for n, t in table.items() if isinstance(t, dict) and n != "__metadata__"]
            table[rng.choice(tensors)]["dtype"] = rng.choice(("I32", "U32", "I64", "F64", "BOOL"))
        if rng.random() < 0.1:
            told.append("bytes")
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        header = json.dumps(table).encode(errors="replace")
        header += b" " * (-len(header) % 8)
        return " + ".join(told), len(header).to_bytes(8, "little") + header + bytes(data)

    def check(self, path: Path, rng: random.Random, seen: Counter[str]) -> None:
        need = 4 * path.stat().st_size
        other = rng.choice(("load", "inspect", "tsn inspect"))
        taken = [was_read(path, r, need, seen) for r in ("resume", "dense predict", other)]
        if taken[0]:
            tensors, _ = methods.resume(path).state()
            for name, values in safetensors.numpy.load_file(path).items():
                if not name.startswith("constants/"):
                    same = tensors.pop(name).cpu().numpy().tobytes() == values.tobytes()
                    assert same, f"{name} differs from the file"
            assert not tensors, f"{list(tensors)} are not in the file"
            seen["values compared"] += 1


class Patched:
    """A patch from one model to a longer one, which is changed: both of its hashes are right."""

    def __init__(self, old: Path, new: Path) -> None:
        self.old, self.model = old.read_bytes(), opened(new)
        self.first, self.sections = opened(old)
        self.net = models.network_of(old.parent.name)
        self.digests = digests(old, self.net)
        self.new = b""

    def mutant(self, rng: random.Random) -> tuple[str, bytes] | None:
        """A patch to a changed model, and now and then other bytes in the patch itself."""
        config, sections = copy.deepcopy(self.model)
        told = []
        for _ in range(rng.choice((0, 1, 1, 2))):
            told.append(rng.choice(list(MUTATIONS)))
            with contextlib.suppress(*_NOTHING_TO_CHANGE):
                MUTATIONS[told[-1]](rng, (config, sections))
        count = len(self.first["tasks"])
        try:
            for kind in SCHEMES[2].kinds:  # those of old tasks are never in a patch
                sections[kind][:count] = self.sections[kind]
            self.new = b"".join(assemble(config, sections, len(config["tasks"])))
            data = bytearray(self.written(config, sections))
        except (TypeError, ValueError, LookupError, TinySubNetsError, OverflowError):
            return None
        if not told or rng.random() < 0.1:
            told.append("bytes")
            place = rng.randrange(len(data))
            data[place] = rng.choice((data[place] ^ 1 << rng.randrange(8), 0, 127, 128, 255))
            del data[rng.choice((place, len(data), len(data))) :]
        return " + ".join(told), bytes(data)

    def written(self, config: dict[str, Any], sections: Sections) -> bytes:
        """The bytes of the patch, unchecked; docs/FORMAT.md has them."""
        out = Writer()
        out.raw(MAGIC)
        for data in (self.old, self.new):
            out.varint(len(data))
            out.raw(hashlib.sha256(data).digest())
        text, known = (canonical(c).encode() for c in (config, self.first))
        coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zdict=known[-DICTIONARY_BYTES:])
        out.varint(len(text))
        out.block(coder.compress(text) + coder.flush())
        for kind in SCHEMES[2].common:
            is_other = sections[kind][0] != self.sections[kind][0]
            out.varint(int(is_other))
            if is_other:
                out.block(sections[kind][0])
        for task in range(len(self.first["tasks"]), len(config["tasks"])):
            for kind in SCHEMES[2].kinds:
                out.block(sections[kind][task])
        return out.bytes()

    def check(self, path: Path, _: random.Random, seen: Counter[str]) -> None:
        result = path.with_name("result.safetensors")
        result.write_bytes(self.new)
        if was_read(path, "apply", need_of(result) + len(self.old), seen, self.old):
            assert apply_patch(self.old, path.read_bytes()) == self.new
            with contextlib.suppress(TinySubNetsError):  # networks are not part of what is applied
                found = digests(result, self.net)
                assert {task: found[task] for task in self.digests} == self.digests
                seen["values compared"] += 1


def digests(path: Path, net: Any) -> dict[str, str]:
    """What every task of a model file computes with, as a hash."""
    store = SubnetStore.load(path, net)
    return {task: store.digest(task) for task in store.tasks}


def bases(folder: Path) -> dict[str, Subnets | Dense | Patched]:
    """What mutants are made from, by name."""
    paths = {p.stem: p for p in sorted(GOLDEN.glob("format*.safetensors"))}
    for kind, tasks, block in (("named", 1, 1), ("named", 4, 3), ("own", 4, 1)):
        name = f"fresh-{kind}-{tasks}-{block}"
        paths[name] = models.store(kind, tasks, block).save(folder / name)
    paths["low-rank"] = models.low_rank_store().save(folder / "low-rank")
    made: dict[str, Subnets | Dense | Patched] = {
        name: Subnets(path, models.network_of(name)) for name, path in paths.items()
    }
    for kind in ("named", "own"):
        old, new = (models.store(kind, n).save(folder / f"{kind}-{n}") for n in (2, 4))
        made[f"patch-{kind}"] = Patched(old, new)
    longer = models.low_rank_store()
    models.add_low_rank(longer, 13, 1, BASE)
    made["patch-low-rank"] = Patched(paths["low-rank"], longer.save(folder / "longer"))
    return made | {f"dense-{method}": Dense(dense(method, folder)) for method in DENSE}


def dense(method: str, folder: Path) -> Path:
    """The file of a baseline that has learned two tasks."""
    learner: Any = methods.build(method, models.architecture(), training={"epochs": 1})
    rng = np.random.default_rng(0)
    for number in range(2):
        inputs = rng.random((40, 6), dtype=np.float32)
        learner.learn(Task.from_arrays(f"task {number}", inputs, np.arange(40) % 2))
    return Path(learner.save(folder / method))


def run(seconds: float, seed: int, first: int = 0, count: int | None = None) -> int:
    """Try mutants until the time is over; the number of failures, each of which is printed."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    seen: Counter[str] = Counter()
    failures, done, number = 0, 0, first
    with tempfile.TemporaryDirectory() as folder:
        warm_up()
        models_of = bases(Path(folder))
        path = Path(folder) / "mutant.safetensors"
        end = time.monotonic() + seconds
        while time.monotonic() < end and (count is None or number < first + count):
            rng = random.Random(f"{seed} {number}")
            name = rng.choice(list(models_of))
            made = models_of[name].mutant(rng)
            number += 1
            if made is None:
                continue
            told, data = made
            path.write_bytes(data)
            done += 1
            signal.alarm(10 * SECONDS)  # a reader that hangs ends the process
            try:
                models_of[name].check(path, rng, seen)
            except Exception as error:
                failures += 1
                print(f"FAILED seed {seed}, mutant {number - 1} ({name}, {told}): {error}")
                if count == 1 or not isinstance(error, AssertionError):
                    traceback.print_exc(file=sys.stdout)
            signal.alarm(0)
    for outcome, times in sorted(seen.items()):
        print(f"{times:8} {outcome}")
    print(f"{done} mutants (of seed {seed}, {first} to {number - 1}), {failures} failures")
    return failures


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--count", type=int, help="stop after so many mutants")
    parser.add_argument("--only", type=int, help="one mutant again")
    options = parser.parse_args()
    if options.only is not None:
        options.first, options.count = options.only, 1
    sys.exit(1 if run(options.seconds, options.seed, options.first, options.count) else 0)


if __name__ == "__main__":
    main()
