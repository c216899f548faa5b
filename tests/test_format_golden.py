"""The golden files of every format stay readable for ever, and mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import models
import plain_reader
from tinysubnets.format import ModelFile, inspect
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = {
    f"{version}-{name}": expected
    for version in ("format1", "format2")
    for name, expected in json.loads((GOLDEN / f"{version}.json").read_text()).items()
}


@pytest.mark.parametrize("name", EXPECTED)
def test_golden_files_read_as_ever(name: str) -> None:
    net = models.network_of(name)
    path, expected = GOLDEN / f"{name}.safetensors", EXPECTED[name]
    store = SubnetStore.load(path, net)
    assert {task: store.digest(task) for task in store.tasks} == expected["tasks"]
    subnets = list(store.subnets.values())
    references = [s.coded_mask.reference for s in subnets if s.coded_mask is not None]
    assert references == expected["references"]
    assert [list(s.classes) for s in subnets] == expected["classes"]
    assert [s.bank for s in subnets] == expected["banks"]
    assert path.stat().st_size == expected["file_bytes"]
    assert inspect(path)["ledger"]["file_bytes"] == expected["file_bytes"]
    for task in store.tasks:
        alone = SubnetStore.load(path, net, task=task)
        assert alone.digest(task) == expected["tasks"][task]
    if name.startswith("format1"):
        assert [s.number for s in subnets] == list(range(len(subnets)))
        return
    assert [s.number for s in store.entries()] == expected["numbers"]
    assert len(store.banks) == expected["num_banks"]
    assert [s.name for s in subnets if s.isolated] == expected["isolated"]
    assert [s.preprocessing for s in subnets] == expected["preprocessing"]
    routing = [{n: v.tolist() for n, v in s.routing.items()} for s in subnets]
    assert routing == expected["routing"]


@pytest.mark.parametrize("name", [n for n in EXPECTED if n.startswith("format1")])
def test_models_of_format_1_are_saved_as_format_2(name: str, tmp_path: Path) -> None:
    net, expected = models.network_of(name), EXPECTED[name]
    path = SubnetStore.load(GOLDEN / f"{name}.safetensors", net).save(tmp_path)
    with ModelFile(path) as file:
        assert file.version == 2
    store = SubnetStore.load(path, net)
    assert {task: store.digest(task) for task in store.tasks} == expected["tasks"]


def test_golden_files_hold_every_kind_of_reference() -> None:
    for version in ("format1", "format2"):
        found = [e["references"] for name, e in EXPECTED.items() if name.startswith(version)]
        assert {min(r, 4) for references in found for r in references} == {0, 1, 2, 3, 4}


def test_a_golden_file_holds_what_a_life_leaves_behind() -> None:
    with ModelFile(GOLDEN / "format2-whole.safetensors") as file:
        config, tasks = file.config, file.config["tasks"]
        sizes = {kind: file.size(kind) for kind in file.scheme.common}
        routing = sum(file.size("routing", i) for i in range(file.num_tasks))
    assert any("name" not in t for t in tasks)
    assert set(range(config["banks"])) - {t.get("bank") for t in tasks}  # an empty one
    for key in ("isolated", "absent", "preprocessing", "reference", "number"):
        assert any(key in t for t in tasks), key
    assert any("reference" in t and "bank" not in t for t in tasks)
    assert {"base"} <= {t.get("reference") for t in tasks}
    assert routing and sizes["base"] and config["next"] > len(tasks)


def test_golden_files_hold_masks_by_kernel() -> None:
    store = SubnetStore.load(GOLDEN / "format2-kernels.safetensors", models.kernel_network())
    codecs = {s.coded_mask.data[0] & 7 for s in store.subnets.values() if s.coded_mask}
    assert 6 in codecs


def test_golden_files_hold_masks_by_matrix() -> None:
    store = SubnetStore.load(GOLDEN / "format2-matrices.safetensors")
    masks = [s.coded_mask for s in store.subnets.values()]
    assert [m is not None and m.data[0] for m in masks] == [7, 7, 7]


def test_golden_files_hold_differences_of_low_rank() -> None:
    for name in ("low-rank", "chain"):
        store = SubnetStore.load(GOLDEN / f"format2-{name}.safetensors")
        assert {s.rank for s in store.entries()} >= {1, 2}
        assert any(s.reference == BASE for s in store.entries())
    assert any(s.adds_nothing for s in store.entries())


def test_golden_files_hold_codes_of_every_kind() -> None:
    found = set()
    for path in GOLDEN.glob("format2-*.safetensors"):
        with ModelFile(path) as file:
            for place in range(file.num_tasks):
                if file.size("codes", place) and file.size("codebooks", place):
                    kind = file.section("codebooks", place)[0]
                    found.add((kind, file.section("codes", place)[0] if kind else None))
    assert {(0, None), (1, 0), (1, 3)} <= found  # each by itself; alike: packed, by changes


def test_golden_files_hold_parameters_on_grids_of_every_kind() -> None:
    found = set()
    for name in ("named", "own", "whole"):
        with ModelFile(GOLDEN / f"format2-{name}.safetensors") as file:
            for place, task in enumerate(file.config["tasks"]):
                # Behind the normalization: whether the first kind comes together, and its form.
                data = file.section("task_params", place)[8 * task.get("channels", 0) :][:2]
                found.add(tuple(data))
    assert {(1, 64), (1, 65)} <= found  # together, as they are and as differences
    assert {(0, 64)} <= found  # each on a grid of its own


@pytest.mark.parametrize("name", EXPECTED)
def test_a_reader_written_from_the_specification_agrees(name: str) -> None:
    path = GOLDEN / f"{name}.safetensors"
    store = SubnetStore.load(path, models.network_of(name))
    found = plain_reader.read(path)
    assert list(found) == list(store.tasks)
    for task in store.tasks:
        constants = store.architecture.constants
        tensors = {n: t for n, t in store.tensors(task).items() if n not in constants}
        assert set(tensors) == set(found[task])
        for tensor_name, tensor in tensors.items():
            assert tensor.numpy().tobytes() == found[task][tensor_name].tobytes()
