"""The golden files of format 1 stay readable for ever, and mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import models
import plain_reader
from tinysubnets.model.store import SubnetStore

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "format1.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_golden_files_read_as_ever(name: str) -> None:
    net = models.own_network() if name == "own" else None
    path, expected = GOLDEN / f"format1-{name}.safetensors", EXPECTED[name]
    store = SubnetStore.load(path, net)
    assert {task: store.digest(task) for task in store.tasks} == expected["tasks"]
    subnets = list(store.subnets.values())
    references = [s.coded_mask.reference for s in subnets if s.coded_mask is not None]
    assert references == expected["references"]
    assert [list(s.classes) for s in subnets] == expected["classes"]
    assert [s.bank for s in subnets] == expected["banks"]
    assert path.stat().st_size == expected["file_bytes"]
    for task in store.tasks:
        alone = SubnetStore.load(path, net, task=task)
        assert alone.digest(task) == expected["tasks"][task]


def test_golden_files_hold_every_kind_of_reference() -> None:
    kinds = {min(r, 4) for e in EXPECTED.values() for r in e["references"]}
    assert kinds == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_reader_written_from_the_specification_agrees(name: str) -> None:
    path = GOLDEN / f"format1-{name}.safetensors"
    store = SubnetStore.load(path, models.own_network() if name == "own" else None)
    found = plain_reader.read(path)
    assert list(found) == list(store.tasks)
    for task in store.tasks:
        constants = store.architecture.constants
        tensors = {n: t for n, t in store.tensors(task).items() if n not in constants}
        assert set(tensors) == set(found[task])
        for tensor_name, tensor in tensors.items():
            assert tensor.numpy().tobytes() == found[task][tensor_name].tobytes()
