"""Damaged and forged model files: always one of the documented errors, at little cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import models
from forge import Sections, forged, opened
from quick import mostly_slow
from tinysubnets.baselines.dense_file import save_dense
from tinysubnets.coding import byte_io
from tinysubnets.errors import ArtifactError, DamageError, FormatError, MismatchError
from tinysubnets.format import ModelFile, read_contents
from tinysubnets.format.container import KINDS, MAX_HEADER_BYTES, SCHEMES, assemble, header_of
from tinysubnets.model.store import SubnetStore

LARGE = 100 << 20  # bytes: what no file of some kilobytes may cost


FIRST = Path(__file__).parent / "golden" / "format1-named.safetensors"


@pytest.fixture(scope="module", params=[2, 1], ids=["format2", "format1"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of some kilobytes with every kind of section, in every format there is."""
    if request.param == 1:
        return FIRST
    store = models.store("named", tasks=4)
    models.add_task(store, 4, bank=1, routing={"energy": torch.tensor([1.5, -2.0])})
    return store.save(tmp_path_factory.mktemp("small"))


# For what the first format does not have.
of_format_2 = pytest.mark.parametrize("small", [2], ids=["format2"], indirect=True)


def check(path: Path) -> None:
    """Decode everything in a file."""
    with ModelFile(path) as file:
        read_contents(file)


@pytest.fixture
def cheap() -> Iterator[None]:
    """Insist that a test allocates little."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < LARGE


@pytest.mark.slow
def test_every_flipped_byte_is_found(small: Path, tmp_path: Path) -> None:
    data, path = bytearray(small.read_bytes()), tmp_path / "model.safetensors"
    check(small)
    header = 8 + int.from_bytes(data[:8], "little")
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        data[place] ^= 1 << place % 8
        with pytest.raises((FormatError, DamageError)) as caught:
            check(path)
        assert place < header or caught.type is DamageError


def test_a_file_that_was_cut_off_says_so_with_its_path(small: Path, tmp_path: Path) -> None:
    data, half = small.read_bytes(), tmp_path / "half.safetensors"
    half.write_bytes(data[: len(data) - 100])
    with pytest.raises(DamageError, match="cut off; copy it again") as caught:
        SubnetStore.load(half)
    assert str(caught.value).startswith(f"{half}: the file has")


@pytest.mark.slow
def test_every_truncation_is_found(small: Path, tmp_path: Path) -> None:
    data, path = small.read_bytes(), tmp_path / "model.safetensors"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises((FormatError, DamageError)):
            check(path)


def test_padding_is_found(small: Path, tmp_path: Path) -> None:
    data, path = small.read_bytes(), tmp_path / "model.safetensors"
    for extra in (b"\0", b" ", b"\n" * 8, data, bytes(1 << 20)):
        path.write_bytes(data + extra)
        with pytest.raises(DamageError, match="its header speaks of"):
            check(path)
        path.write_bytes(extra + data)
        with pytest.raises((FormatError, DamageError)):
            check(path)


def test_exchanged_sections_are_found(small: Path, tmp_path: Path) -> None:
    data, path = small.read_bytes(), tmp_path / "model.safetensors"
    with ModelFile(small) as file:
        kinds = file.scheme.kinds
        places = {(kind, task): file.place(kind, task) for kind in kinds for task in range(4)}
    exchanged = 0
    for kind in kinds:
        for one in range(4):
            for two in range(one):
                (a, n), (b, m) = places[kind, one], places[kind, two]
                if n == m and n and data[a : a + n] != data[b : b + n]:
                    mixed = bytearray(data)
                    mixed[a : a + n], mixed[b : b + m] = data[b : b + m], data[a : a + n]
                    path.write_bytes(mixed)
                    with pytest.raises(DamageError, match=kind):
                        check(path)
                    exchanged += 1
    (a, n), (b, m) = places["heads", 0], places[kinds[4], 0]  # different sizes: all moves along
    mixed = data[:a] + data[b : b + m] + data[a + n : b] + data[a : a + n] + data[b + m :]
    path.write_bytes(mixed)
    with pytest.raises(DamageError):
        check(path)
    assert exchanged


def test_the_place_of_damage_is_named(small: Path, tmp_path: Path) -> None:
    with ModelFile(small) as file:
        start, size = file.place("codes", 1)
    data, path = bytearray(small.read_bytes()), tmp_path / "model.safetensors"
    data[start + size // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamageError, match=f"the codes.* of task 1, [0-9]+ bytes from {start} on"):
        check(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", bytes(8), b"\x02" + bytes(7) + b"{}", b"\xff" * 64, bytes(5) + b"\1\0\0"],
)
def test_other_files_are_not_models(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        check(path)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no model at"):
        SubnetStore.load(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match="not a plain file"):
        SubnetStore.load(tmp_path)


def test_foreign_safetensors_are_not_models(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(FormatError, match="not of ours"):
        SubnetStore.load(tmp_path)
    save_dense(tmp_path, {"a": torch.zeros(3)}, {"method": "naive"})
    with pytest.raises(FormatError, match="the dense network of a baseline"):
        SubnetStore.load(tmp_path)


def test_other_versions_are_named(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer(config: dict[str, Any], _: Sections) -> None:
        config["format"] = 3

    monkeypatch.setitem(SCHEMES, 3, SCHEMES[2])
    config, sections = opened(small)
    newer(config, sections)
    sections.setdefault("routing", [b""] * len(sections["masks"]))
    sections.setdefault("task_params", sections["heads"])
    sections.setdefault("base", [b""])
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"".join(assemble(config, sections, len(sections["masks"]))))
    monkeypatch.delitem(SCHEMES, 3)
    with pytest.raises(FormatError, match=r"format '3'; this version .* reads formats 1 and 2"):
        check(path)


def test_headers_that_are_not_canonical_are_found(small: Path, tmp_path: Path) -> None:
    data, path = small.read_bytes(), tmp_path / "model.safetensors"
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    for text in (
        json.dumps(table),
        json.dumps(table, separators=(",", ":")) + " " * 64,
        "[" * 100_000,
        "NaN",
        '{"__metadata__":{"tinysubnets":"\\ud800"}}',
        '{"__metadata__":{"tinysubnets":"' + "[" * 5000 + '"}}',
    ):
        header = text.encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
        with pytest.raises((FormatError, DamageError)):
            check(path)
    assert MAX_HEADER_BYTES <= 1 << 24


def _word(config: dict[str, Any], key: Any) -> Any:
    """What task-specific parameters are called in the format of a config."""
    return "private" if key == "task_params" and config["format"] == 1 else key


def _set(*path: Any, value: Any) -> Any:
    """A forgery that sets one entry of the config."""

    def change(config: dict[str, Any], _: Sections) -> None:
        table: Any = config
        keys = [_word(config, key) for key in path]
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return change


CONFIGS = {
    "a huge shared tensor": _set("architecture", "shared", 0, 1, value=[1 << 30, 1 << 9]),
    "an endless shape": _set("architecture", "shared", 0, 1, value=[1 << 62, 1 << 62]),
    "a negative shape": _set("architecture", "shared", 0, 1, value=[-12, 6]),
    "an empty shape": _set("architecture", "shared", 0, 1, value=[0, 6]),
    "many dimensions": _set("architecture", "shared", 0, 1, value=[1] * 99),
    "a shape of fractions": _set("architecture", "shared", 0, 1, value=[12.0, 6]),
    "another shape": _set("architecture", "shared", 0, 1, value=[6, 12, 2]),
    "a huge task-specific parameter": _set("architecture", "task_params", 0, 1, value=[1 << 36]),
    "two tensors of one name": _set("architecture", "task_params", 0, 0, value="fc1.weight"),
    "no tensors": _set("architecture", "shared", value=[]),
    "no network": _set("architecture", value=None),
    "a nameless head": _set("architecture", "head", value=3),
    "a seed of letters": _set("seed", value="seven"),
    "a seed that is true": _set("seed", value=True),
    "a huge block": _set("block", value=1 << 60),
    "a block of none": _set("block", value=0),
    "another block": _set("block", value=3),
    "a bank out of nowhere": _set("tasks", 0, "bank", value=1),
    "a far bank": _set("tasks", 3, "bank", value=1 << 15),
    "classes that are not listed": _set("tasks", 1, "classes", value=99),
    "negative classes": _set("tasks", 1, "classes", value=-1),
    "no classes": _set("classes", 0, value=[]),
    "mixed classes": _set("classes", 0, value=[1, "one"]),
    "the same class twice": _set("classes", 0, value=[1, 1]),
    "a class of many digits": _set("classes", 0, value=[10**40, 1]),
    "true as a class": _set("classes", 0, value=[True, False]),
    "very many classes": _set("classes", 0, value=list(range(70_000))),
    "the same task twice": _set("tasks", 1, "name", value="task 0"),
    "a nameless task": _set("tasks", 1, "name", value=""),
    "no bits": _set("tasks", 1, "bits", value=0),
    "many bits": _set("tasks", 1, "bits", value=1000),
    "many channels": _set("tasks", 1, "channels", value=1 << 23),
    "more channels": _set("tasks", 0, "channels", value=7),
    "many trailing dimensions": _set("tasks", 1, "trailing", value=99),
    "tasks that are no list": _set("tasks", value=3),
    "a task that is no table": _set("tasks", 1, value=3),
    "constants of an odd type": _set("architecture", "constants", value=[["c", "q9", [2]]]),
    "constants that are not there": _set("architecture", "constants", value=[["c", "f32", [2]]]),
    "huge constants": _set("architecture", "constants", value=[["c", "f32", [1 << 39]]]),
    "a rebuild that is no table": _set("architecture", "rebuild", value=[1]),
}


MEANS = {
    "means alone": _set("tasks", 1, "mean", value=[1.0, 2.0]),
    "endless means": _set("tasks", 1, "mean", value=[1e308]),
    "textual means": _set("tasks", 1, "mean", value=["1"]),
}


@pytest.mark.parametrize("name", MEANS)
def test_lies_about_means_in_the_config_of_format_1_are_found(name: str, tmp_path: Path) -> None:
    with pytest.raises(DamageError):
        check(forged(FIRST, MEANS[name], tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", mostly_slow(CONFIGS, quick=CONFIGS.keys() - {"very many classes"}))
@pytest.mark.usefixtures("cheap")
def test_lies_in_the_config_are_found(name: str, small: Path, tmp_path: Path) -> None:
    with pytest.raises(DamageError):
        check(forged(small, CONFIGS[name], tmp_path / "model.safetensors"))


def _absent(*runs: list[Any]) -> Any:
    """A forgery that leaves out tensors of a task."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["absent"] = [list(runs)]
        config["tasks"][1]["absent"] = 0

    return change


LIVES = {
    "a number used twice": _set("tasks", 2, "number", value=1),
    "a number that is next": _set("next", value=2),
    "no next number": _set("next", value=None),
    "too few banks": _set("banks", value=1),
    "very many banks": _set("banks", value=1 << 40),
    "a reference to itself": _set("tasks", 2, "reference", value=2),
    "a reference to a later task": _set("tasks", 1, "reference", value=3),
    "a reference to no base": _set("tasks", 1, "reference", value="base"),
    "a reference to a name": _set("tasks", 1, "reference", value="task 0"),
    "isolated in company": _set("tasks", 1, "isolated", value=True),
    "half isolated": _set("tasks", 1, "isolated", value=1),
    "absent from no list": _set("tasks", 1, "absent", value=0),
    "absent from nowhere": _absent([99, 1, 1, 0.0]),
    "absent behind the end": _absent([0, 2, 99, 0.0]),
    "absent very often": _absent([0, 1 << 40, 1, 0.0]),
    "absent in no steps": _absent([0, 2, 0, 0.0]),
    "absent but there": _absent([0, 1, 1, 0.0]),
    "absent twice": _absent([0, 2, 1, 0.0], [1, 1, 1, 0.0]),
    "absent for no base": _absent([0, 1, 1]),
    "no settings": _set("settings", value=None),
    "settings of a list": _set("settings", value=[]),
    "an accuracy of letters": _set("tasks", 1, "accuracy", value="high"),
    "a share that is true": _set("tasks", 1, "owned", value=True),
    "a reason of none": _set("tasks", 1, "reason", value=None),
    "a nearest task by name": _set("tasks", 1, "nearest", value="task 0"),
    "a nearest task to come": _set("tasks", 1, "nearest", value=3),
    "added to no base": _set("tasks", 1, "adds", value=True),
    "half added": _set("tasks", 1, "adds", value=1),
    "preprocessing of none": _set("tasks", 1, "preprocessing", value=0),
    "nested preprocessing": _set("preprocessing", value=[{"size": [[1]]}]),
    "a base of no hash": _set("base", value={"name": "a", "source": "b", "sha256": "c"}),
    "a method of no name": _set("method", value=3),
}


@of_format_2
@pytest.mark.parametrize("name", LIVES)
@pytest.mark.usefixtures("cheap")
def test_lies_about_the_life_of_tasks_are_found(name: str, small: Path, tmp_path: Path) -> None:
    with pytest.raises(DamageError):
        check(forged(small, LIVES[name], tmp_path / "model.safetensors"))


def test_a_task_that_lost_its_name_is_found(small: Path, tmp_path: Path) -> None:
    def change(config: dict[str, Any], _: Sections) -> None:
        del config["tasks"][1]["name"]

    with pytest.raises(DamageError, match="name"):
        check(forged(small, change, tmp_path / "model.safetensors"))


def test_too_few_or_too_many_tasks_are_found(small: Path, tmp_path: Path) -> None:
    config, sections = opened(small)
    for change in (lambda: config["tasks"].pop(), lambda: config["tasks"].append({})):
        change()
        path = tmp_path / "model.safetensors"
        parts = assemble(config, sections, len(sections["masks"]))
        path.write_bytes(b"".join(parts))
        with pytest.raises(DamageError):
            check(path)


REBUILDS: dict[str, dict[str, Any]] = {
    "a huge layer": {"network": "mlp", "settings": {"hidden": [1 << 40, 1 << 40]}},
    "many layers": {"network": "mlp", "settings": {"hidden": [8] * 100_000}},
    "endless layers": {"network": "vit", "settings": {"depth": 10**12}},
    "negative layers": {"network": "mlp", "settings": {"hidden": [-3]}},
    "textual layers": {"network": "mlp", "settings": {"hidden": "many"}},
    "unknown settings": {"network": "mlp", "settings": {"deep": True}},
    "an unknown network": {"network": "transformer-xxl", "settings": {}},
    "a network by number": {"network": 3, "settings": {}},
    "another network": {"network": "small-cnn", "settings": {}},
    "settings that are no table": {"network": "mlp", "settings": 3},
    "code to import": {"network": "os:abort", "settings": {}},
    "no network": {},
}


@pytest.mark.parametrize("name", mostly_slow(REBUILDS, quick=REBUILDS.keys() - {"many layers"}))
@pytest.mark.usefixtures("cheap")
def test_lies_about_the_network_are_found(name: str, small: Path, tmp_path: Path) -> None:
    change = _set("architecture", "rebuild", value=REBUILDS[name])
    path = forged(small, change, tmp_path / "model.safetensors")
    check(path)
    before = torch.random.get_rng_state()
    with pytest.raises((DamageError, MismatchError)):
        SubnetStore.load(path)
    assert torch.equal(torch.random.get_rng_state(), before)


def deflated(text: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return coder.compress(text) + coder.flush()


def varint(value: int) -> bytes:
    out = byte_io.Writer()
    out.varint(value)
    return out.bytes()


BOMB = deflated(bytes(200 << 20))
RECORDS = [
    varint(200 << 20) + BOMB,
    varint(1000) + BOMB,
    varint(10) + deflated(b"[" * 10),
    varint(60_000) + deflated(b"[" * 60_000),
    varint(2) + deflated(b"{}"),
    varint(24) + deflated(b'{"settings":{},"tasks":3'),
    varint(26) + deflated(b'{"settings":{},"tasks":[]}'),
    varint(2) + b"\xff\xff",
    b"",
]


@pytest.mark.parametrize("number", range(len(RECORDS)))
@pytest.mark.usefixtures("cheap")
def test_lies_in_the_records_are_found(number: int, tmp_path: Path) -> None:
    def change(_: dict[str, Any], sections: Sections) -> None:
        sections["records"] = [RECORDS[number]]

    with pytest.raises(DamageError, match="records"):
        check(forged(FIRST, change, tmp_path / "model.safetensors"))


FRONTS = {
    "a bomb": (200 << 20, BOMB),
    "a bomb that says it is small": (1000, BOMB),
    "too little text": (3, deflated(b"{}")),
    "too much text": (1, deflated(b"{}")),
    "more behind the stream": (2, deflated(b"{}") + b"more"),
    "an unfinished stream": (2, deflated(b"{}")[:-1]),
    "no stream": (2, b""),
    "what is no stream": (2, b"\xff\xff"),
    "an empty table": (2, deflated(b"{}")),
    "what is no table": (2, deflated(b"[]")),
    "another format": (12, deflated(b'{"format":1}')),
    "a format of letters": (14, deflated(b'{"format":"2"}')),
    "deep nesting": (60_000, deflated(b"[" * 60_000)),
    "half a character": (3, deflated(b'"\xff"')),
    "spaces": (12, deflated(b'{"format":2 ')),
}


@pytest.mark.parametrize("name", FRONTS)
@pytest.mark.usefixtures("cheap")
def test_lies_before_the_sections_are_found(name: str, tmp_path: Path) -> None:
    text, stream = FRONTS[name]
    front = varint(text) + varint(len(stream)) + varint(2) + stream + bytes(2)
    path = tmp_path / "model.safetensors"
    path.write_bytes(header_of(2, front, 0) + front)
    with pytest.raises(DamageError, match="config"):
        check(path)
    path.write_bytes(header_of(2, front, 0) + front[:-1])
    with pytest.raises(DamageError, match="its header speaks of"):
        check(path)
    path.write_bytes(header_of(2, front[:-2], 0) + front[:-2])  # the index is not there
    with pytest.raises(DamageError):
        check(path)


SECTIONS: list[tuple[str, int, bytes]] = [
    ("masks", 0, b""),
    ("masks", 0, b"\0"),
    ("masks", 0, b"\0\x01" + BOMB),
    ("masks", 0, b"\0\x02" + BOMB),
    ("masks", 0, b"\0\x01" + deflated(bytes(1 << 20))),
    ("masks", 0, b"\0\x04\x01\x00"),
    ("masks", 0, b"\0\x05\xff\xff\xff\xff\x0f"),
    ("masks", 0, b"\0\x06\x02\0\0\x01\0"),  # by kernel, but there are none
    ("masks", 0, b"\0\x07"),
    ("masks", 0, b"\x04\x00"),  # a member, but it is the first
    ("masks", 1, b"\x05\x00"),  # itself
    ("masks", 1, b"\xff\xff\xff\xff\xff\xff\x7f"),
    ("masks", 1, b"\x80\x00\x00"),  # a number in a longer form than need be
    ("masks", 1, b"\x02" + bytes(8) + b"\xff" * 8 + b"\0"),
    ("masks", 1, b"\x02" + bytes(11)),
    ("codes", 0, b""),
    ("codes", 0, b"\xff\xff\xff\xff\x0f"),
    ("codes", 0, varint(len(BOMB) + 1) + b"\x01" + BOMB),
    ("codebooks", 0, b""),
    ("codebooks", 0, b"\xfe" * 40),
    ("codebooks", 0, b"\x21\xff\xff\x03" + bytes(100)),
    ("heads", 0, b""),
    ("heads", 0, b"\x01"),
    ("heads", 0, b"\x08\x0f" + bytes(32) + varint(len(BOMB) + 1) + b"\x01" + BOMB),
    ("task_params", 0, bytes(1000)),
    ("task_params", 1, b"\x02\x00\x00\x00\x05\x00\xff\xff\xff\xff"),
    ("memory", 1, b"\x09"),
    ("memory", 1, b"\x01" + varint(50) + bytes(8) + varint(1 << 39)),
    ("memory", 1, b"\x03\x05\x09" + b"\x01" * 9),
    ("memory", 1, b"\x03\x05\x08" + varint(1 << 31) * 8),
    ("memory", 1, b"\x03\x05\x02" + varint(1 << 30) + varint(1 << 30) + bytes(100)),
    ("memory", 1, b"\x03\x63\x01\x01\x00"),
    ("memory", 1, b"\x00\x07" + bytes(4)),  # a divergence from a later task
    ("constants", 0, b"more"),
]
ROUTINGS = [
    b"\x00",
    b"\x01\x00\x00",
    b"\x01\x01a\x02" + bytes(4),
    b"\x01\x01a\x01" + b"\xff" * 4,
    b"\x02\x01b\x00\x01a\x00",
    b"\x01\x01\xff\x00",
    b"\xff\xff\xff\x7f",
    b"\x01\x01a\x00",  # a vector of no numbers
    b"\x11" + b"".join(b"\x01" + bytes([65 + i]) + b"\x01" + bytes(4) for i in range(17)),
]


@of_format_2
@pytest.mark.parametrize("number", range(len(ROUTINGS)))
def test_lies_in_the_routing_are_found(number: int, small: Path, tmp_path: Path) -> None:
    def change(_: dict[str, Any], sections: Sections) -> None:
        sections["routing"][1] = ROUTINGS[number]

    with pytest.raises(DamageError, match="routing"):
        check(forged(small, change, tmp_path / "model.safetensors"))


BOOKS = [
    b"",
    b"\x02" + bytes(20),  # neither each by itself nor alike
    b"\x01",
    b"\x01\x00",  # codes of no bits
    b"\x01\x22" + bytes(1 << 17),  # codes of 17
    b"\x01\x08" + bytes(20),  # centroids that are not there
    b"\x01\x02" + bytes(9),  # one byte more than two codebooks have
    b"\x01\x03" + bytes(4),  # which are wide?
    b"\x01\x03\xff" + bytes(16),  # a third of two is wide
]


@of_format_2
@pytest.mark.parametrize("number", range(len(BOOKS)))
@pytest.mark.usefixtures("cheap")
def test_lies_about_codebooks_are_found(number: int, small: Path, tmp_path: Path) -> None:
    def change(_: dict[str, Any], sections: Sections) -> None:
        sections["codebooks"][0] = BOOKS[number]
        sections["codes"][0] = b"\0" + bytes(len(sections["codes"][0]))

    with pytest.raises(DamageError):
        check(forged(small, change, tmp_path / "model.safetensors"))


GRIDS = [
    ("heads", b"\x40"),
    ("heads", b"\x40\x0b\x80" + bytes(40)),  # too many bits of mantissa
    ("heads", b"\x40\x03\x80\xe0" + varint(len(BOMB) + 1) + b"\x01" + BOMB),
    ("heads", b"\x40\x00\xff\xe0" + varint(31) + b"\0" + b"\xff" * 30),  # beyond float32
    ("heads", b"\x41\x03\x80\x00" + varint(5) + bytes(50)),  # a head has no reference
    ("heads", b"\x42\x03\x80\x00" + varint(5) + bytes(50)),
    ("task_params", b"\x02" + bytes(40)),  # neither together nor each by itself
    ("task_params", b"\x01\x00" + bytes(44)),  # together, but not on a grid
    ("task_params", b"\x01\x41\x03\x80\x00" + varint(4) + bytes(4)),  # no reference
    ("task_params", b"\x01\x40\x03\x80\x00" + varint(4) + bytes(9)),  # bytes left over
]


@of_format_2
@pytest.mark.parametrize("number", range(len(GRIDS)))
@pytest.mark.usefixtures("cheap")
def test_lies_about_grids_are_found(number: int, small: Path, tmp_path: Path) -> None:
    kind, data = GRIDS[number]

    def change(_: dict[str, Any], sections: Sections) -> None:
        normalization = sections[kind][1][:8] if kind == "task_params" else b""
        sections[kind][1] = normalization + data

    with pytest.raises(DamageError):
        check(forged(small, change, tmp_path / "model.safetensors"))


@pytest.mark.parametrize("number", range(len(SECTIONS)))
@pytest.mark.usefixtures("cheap")
def test_lies_in_the_sections_are_found(number: int, small: Path, tmp_path: Path) -> None:
    kind, task, data = SECTIONS[number]

    def change(config: dict[str, Any], sections: Sections) -> None:
        sections[_word(config, kind)][task] = data

    with pytest.raises(DamageError):
        check(forged(small, change, tmp_path / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory from Linux")
def test_forged_files_take_little_memory(small: Path, tmp_path: Path) -> None:
    """All of them in one process, with whatever torch allocates."""
    (tmp_path / "good").write_bytes(small.read_bytes())
    changes = [*CONFIGS.values()]
    changes += [_set("architecture", "rebuild", value=value) for value in REBUILDS.values()]
    for kind, task, data in SECTIONS:

        def change(
            c: dict[str, Any], s: Sections, k: str = kind, t: int = task, d: Any = data
        ) -> None:
            s[_word(c, k)][t] = d

        changes.append(change)
    for number, forgery in enumerate(changes):
        forged(small, forgery, tmp_path / f"forged-{number}")
    command = [sys.executable, str(Path(__file__).with_name("load_all.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    refused, peak = map(int, done.stdout.split())
    assert refused == len(changes)
    assert peak < LARGE


def test_a_bank_has_few_masks_made_from_scores(tmp_path: Path) -> None:
    store = models.store(tasks=2)
    for number in range(10, 16):
        models.add_task(store, number)
    kinds = [s.coded_mask.reference for s in store.subnets.values() if s.coded_mask]
    assert sum(k in (2, 3) for k in kinds) <= 3
    path = store.save(tmp_path)

    def change(_: dict[str, Any], sections: Sections) -> None:
        for task in range(len(store.tasks)):
            # The mask of all first scores, which holds every weight, flipped nowhere.
            flips = b"\0" + bytes(-(-store.layout.num_blocks // 8))
            sections["masks"][task] = b"\x02" + bytes(8 + 4 * 2) + flips
            if task:
                sections["codes"][task] = sections["codebooks"][task] = b""
        values = bytes(2 * store.layout.num_weights)
        sections["codes"][0], sections["codebooks"][0] = values, bytes(3)

    with pytest.raises(DamageError, match="more than 3 masks refer to scores"):
        check(forged(path, change, tmp_path / "forged"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("cheap")
def test_any_altered_byte_with_correct_hashes_is_harmless(
    kind: str, small: Path, tmp_path: Path
) -> None:
    """Such a file may hold another valid model; nothing but the documented errors comes of it."""
    rng = np.random.default_rng(len(kind))
    config, original = opened(small)
    kind = _word(config, kind)
    if kind not in original:
        pytest.skip("format 1 has no such section")
    outcomes = set()
    for _ in range(150):
        task = int(rng.integers(len(original[kind])))
        data = bytearray(original[kind][task])
        if not data:
            continue
        place, act = int(rng.integers(len(data))), rng.integers(3)
        if act == 0:
            data[place] ^= 1 << int(rng.integers(8))
        elif act == 1:
            del data[place:]
        else:
            data[place:place] = bytes(rng.integers(0, 256, 3, dtype=np.uint8))

        def change(_: dict[str, Any], sections: Sections, t: int = task, d: Any = data) -> None:
            sections[kind][t] = bytes(d)

        path = forged(small, change, tmp_path / "model.safetensors")
        try:
            check(path)
            outcomes.add("fine")
        except ArtifactError as error:
            assert type(error) in (DamageError, FormatError)
            outcomes.add("damage")
    assert "damage" in outcomes
