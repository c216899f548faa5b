"""Exported tasks: the same numbers in onnxruntime and in torch, small files, any batch size."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import models
from digit_tasks import permuted
from tinysubnets import networks
from tinysubnets.cli import main
from tinysubnets.errors import ArchitectureError, SettingError, TaskError
from tinysubnets.format import encode
from tinysubnets.format import onnx as export
from tinysubnets.format.onnx import OPSET, pack_weights
from tinysubnets.format.routed import AllTasks
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import CodebookTensor, PackedMask, Sample, Subnet, code
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.normalization import Normalization

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def one_task(
    bits: int, network: str = "small-cnn", density: float = 0.3, **settings: Any
) -> SubnetStore:
    """A store of one task with random weights on images or vectors."""
    store = SubnetStore(Architecture(networks.build(network, **settings)))
    rng = np.random.default_rng(bits)
    mask = torch.from_numpy(rng.random(store.layout.num_blocks) < density)
    values = torch.from_numpy(rng.normal(size=store.layout.num_weights) * 0.2).float()
    own = tuple(code(values[i:j][mask[i:j]], bits) for i, j in store.layout.segments)
    shapes = store.architecture.task_param_shapes(4)
    task_params = {
        n: CodebookTensor(torch.from_numpy(rng.random(int(np.prod(s)))).float() + n.endswith("var"))
        for n, s in shapes.items()
    }
    shape = (1, 8, 8) if network == "small-cnn" else (3, 32, 32)
    channels = shape[0]
    normalization = Normalization((100.0,) * channels, (60.0,) * channels, 2)
    store.add_(
        Subnet(
            "a",
            ("e", "f", "g", "h"),
            normalization,
            0,
            PackedMask.of(mask),
            bits,
            own,
            task_params,
            shapes,
            sample=Sample(torch.uint8, shape),
        )
    )
    return store


def raw(store: SubnetStore, count: int = 5) -> np.ndarray:
    sample = store.subnet("a").sample
    assert sample is not None
    return np.random.default_rng(1).integers(0, 256, (count, *sample.shape), dtype=np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "network", "settings"),
    [
        (3, "small-cnn", {}),
        pytest.param(5, "small-cnn", {}, marks=pytest.mark.slow),
        pytest.param(4, "resnet18", {"width": 4}, marks=pytest.mark.slow),
    ],
)
def test_coded_weights_compute_the_same(
    bits: int, network: str, settings: dict, tmp_path: Path
) -> None:
    store = one_task(bits, network, **settings)
    coded = export.to_onnx(store, "a", tmp_path / "coded.onnx")
    plain = export.to_onnx(store, "a", tmp_path / "plain.onnx", packed=False)
    assert coded.plain_bytes == plain.file_bytes == plain.plain_bytes
    for count in (1, 5):
        x = raw(store, count)
        logits = export.onnx_logits(coded.path, x)
        assert np.abs(logits - store.logits("a", x).numpy()).max() < 1e-5
        assert np.abs(logits - export.onnx_logits(plain.path, x)).max() < 1e-5
    saved = 32 - 1 - 0.3 * (bits + 1)  # bits a weight: a mask, and codes where it is set
    assert plain.file_bytes - coded.file_bytes > 0.8 * store.layout.num_weights * saved / 8


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "density"), [(3, 0.2), (4, 0.03), (2, 0.1)])
def test_one_task_is_not_much_larger_than_its_own_model_file(
    bits: int, density: float, tmp_path: Path
) -> None:
    # So large that the graph, which takes kilobytes however many weights there are, hardly counts.
    store = one_task(bits, "mlp", density, in_features=3072, hidden=[96, 64])
    file = sum(map(len, encode(store).parts))
    exported = export.to_onnx(store, "a", tmp_path / "a.onnx")
    assert exported.file_bytes <= 1.5 * file
    x = raw(store)
    assert np.abs(export.onnx_logits(exported.path, x) - store.logits("a", x).numpy()).max() < 1e-3
    # Nothing of the unpacking is left once it is loaded.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(exported.path, options, providers=["CPUExecutionProvider"])
    left = {node.op_type for node in onnx.load(tmp_path / "loaded.onnx").graph.node}
    assert not left & {"BitShift", "CumSum", "ScatterElements", "Gather", "Mod"}


@pytest.mark.slow
def test_the_graph_takes_raw_inputs_and_says_what_it_is(tmp_path: Path) -> None:
    store = one_task(3)
    model = onnx.load(export.to_onnx(store, "a", tmp_path / "a.onnx").path)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == OPSET
    (entry,) = model.graph.input
    assert entry.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    dims = entry.type.tensor_type.shape.dim
    assert dims[0].dim_param == "batch" and [d.dim_value for d in dims[1:]] == [1, 8, 8]
    properties = {p.key: p.value for p in model.metadata_props}
    assert json.loads(properties["classes"]) == ["e", "f", "g", "h"]
    assert properties["task"] == "a"
    assert b"site-packages" not in model.SerializeToString()


def test_codes_are_as_narrow_as_the_values_allow() -> None:
    from onnx import TensorProto, helper, numpy_helper

    def coded(values: np.ndarray) -> tuple[set[Any], np.ndarray]:
        tensor = numpy_helper.from_array(values, "w")
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(values.shape))]
        wanted = [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(values.shape))]
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])], "g", given, wanted, [tensor]
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = pack_weights(helper.make_model(graph, opset_imports=opset, ir_version=10))
        kinds = {t.data_type for t in model.graph.initializer}
        kinds |= {function.name for function in model.functions}
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString())
        return kinds, session.run(None, {"x": np.zeros_like(values)})[0]

    rng = np.random.default_rng(0)
    for count, size, kind in [
        (16, 301, TensorProto.UINT4),
        (17, 301, TensorProto.UINT8),  # fewer bits each would not pay for the function
        (256, 3000, TensorProto.UINT8),
        (16, 63, None),
        (300, 300, None),
        (70_000, 70_000, None),
    ]:
        values = rng.normal(size=count).astype(np.float32)[np.arange(size) % count]
        kinds, sums = coded(values)
        assert kinds == ({TensorProto.FLOAT} if kind is None else {TensorProto.FLOAT, kind})
        assert np.array_equal(sums, values)
    for share, shape, function in [
        (0.3, (40, 7, 33), "FromMask"),
        (0.02, (900, 13), "FromGaps"),
        (1e-4, (90_000,), "FromGaps"),
    ]:
        values = rng.normal(size=21).astype(np.float32)[rng.integers(21, size=shape)]
        values[rng.random(shape) >= share] = 0
        kinds, sums = coded(values)
        assert function in kinds and np.array_equal(sums, values)


@pytest.mark.slow
def test_int8_is_calibrated_and_measured(tmp_path: Path) -> None:
    store = one_task(4)
    x = raw(store, 200)
    labels = store.predict("a", x)
    plain = export.to_onnx(store, "a", tmp_path / "plain.onnx")
    small = export.to_onnx(store, "a", tmp_path / "int8.onnx", int8=x[:100])
    assert export.onnx_accuracy(plain.path, x, labels) == 1.0
    assert export.onnx_accuracy(small.path, x, labels) > 0.9
    # Ranges of activations are those of the inputs given: 0.12 here, 0.52 with black images.
    exact, found = (export.onnx_logits(p.path, x) for p in (plain, small))
    assert np.abs(found - exact).mean() < 0.25 * exact.std(0).mean()
    kinds = {t.data_type for t in onnx.load(small.path).graph.initializer}
    assert onnx.TensorProto.INT8 in kinds
    assert small.file_bytes < small.plain_bytes
    with pytest.raises(SettingError, match="calibrate"):
        export.to_onnx(store, "a", tmp_path / "none.onnx", int8=x[:0])


def test_torch_export_gives_the_same_logits(tmp_path: Path) -> None:
    store = one_task(4)
    path = export.to_torch(store, "a", tmp_path / "a.pt2").path
    module = torch.export.load(path).module()
    for count in (1, 7):
        x = torch.from_numpy(raw(store, count))
        assert torch.allclose(module(x), store.logits("a", x), atol=1e-6)


def test_a_model_without_a_record_of_its_inputs_needs_an_example(tmp_path: Path) -> None:
    store = models.store(tasks=3)
    with pytest.raises(TaskError, match="example"):
        export.to_torch(store, "task 2", tmp_path / "a.pt2")
    export.to_torch(store, "task 2", tmp_path / "a.pt2", example=models.inputs(1).numpy())
    with pytest.raises(TaskError, match="unknown task"):
        export.to_torch(store, "task 9", tmp_path / "a.pt2")
    with pytest.raises(ArchitectureError, match=r"torch\.export cannot take"):
        export.to_torch(store, "task 1", tmp_path / "a.pt2", example=torch.zeros(2, 99))


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    store = one_task(3)
    for path in (tmp_path, tmp_path / "none" / "a.onnx"):
        for write in (export.to_onnx, export.to_torch):
            with pytest.raises(SettingError, match="cannot write"):
                write(store, "a", path)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(SettingError, match=r"'onnxscript'.* -m pip install .*\[export\]"):
        export.to_onnx(one_task(3), "a", tmp_path / "a.onnx")


# All tasks.


def assert_alike(found: np.ndarray, live: np.ndarray) -> None:
    """Scores [samples, tasks] differ by 1e-4 at most, or by 2e-6 of an input's largest."""
    gap, largest = np.abs(found - live), np.abs(live).max(1, keepdims=True)
    assert (gap <= np.maximum(1e-4, 2e-6 * largest)).all(), (gap / largest).max()


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> tuple[SubnetStore, np.ndarray]:
    """Three tasks, one of them a difference to another, and raw inputs of all of them."""
    settings = {"in_features": 64, "hidden": [12, 10]}
    rebuild = {"network": "mlp", "settings": settings}
    architecture = Architecture(networks.build("mlp", **settings), rebuild=rebuild)
    shared = {"bits": 3, "density": 0.4, "post_pruning": False, "epochs": 2, "device": "cpu"}
    learner = TinySubNets(
        architecture, **shared, routing={"parts": ["energy", "inputs", "features"]}
    )
    for task in permuted(3, 200)[:2]:
        learner.learn(task)
    other = TinySubNets(
        architecture, store=learner.store, selection="magnitude", reference="previous", **shared,
        routing=learner.core.routing,
    )  # fmt: skip
    other.learn(permuted(3, 200)[2])
    inputs = torch.cat([t.test.inputs(slice(0, 40)) for t in permuted(3, 200)])
    noise = torch.randint(0, 255, (20, 64), dtype=torch.uint8)
    return learner.store, torch.cat([inputs, noise]).numpy()


@pytest.mark.slow
def test_all_tasks_in_one_file_with_routing_inside(
    routed: tuple[SubnetStore, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, inputs = routed
    done = export.to_onnx(store, None, tmp_path / "all.onnx")
    monkeypatch.setattr(export, "BATCH", 33)  # the last batch is a smaller one
    found, live = export.onnx_predict(done.path, inputs), store.predict(inputs)
    assert live.routing.rule == "energy + inputs + features"
    assert_alike(found["scores"], live.routing.scores)
    ranked = np.sort(live.routing.scores, 1)
    clear = ranked[:, -1] - ranked[:, -2] > 1e-3
    assert clear.mean() > 0.9
    assert (found["task"] == live.tasks)[clear].all()
    assert (found["label"] == live.labels)[clear].all()
    assert np.allclose(found["confidence"], live.confidence, rtol=0, atol=1e-3)
    assert np.allclose(found["probability"][clear], live.probability[clear], rtol=0, atol=1e-4)
    assert (found["unknown"] == live.unknown)[clear].mean() > 0.98
    # Every bank is there once, and a task adds its mask at one bit a weight.
    model = onnx.load(done.path)
    sizes = [len(i.raw_data) for i in model.graph.initializer if list(i.dims) == [12, 64]]
    assert len(sizes) == len(store.banks) + 1  # the third task's own values
    assert done.file_bytes < done.plain_bytes
    # For torch: the same numbers, without this package.
    program = torch.export.load(export.to_torch(store, None, tmp_path / "all.pt2").path)
    scores = program.module()(torch.from_numpy(inputs))[5]
    assert_alike(scores.numpy(), live.routing.scores)


@pytest.mark.slow
def test_all_tasks_are_exported_by_the_command(
    routed: tuple[SubnetStore, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, inputs = routed
    store.save(tmp_path / "model")
    out = tmp_path / "all.pt2"
    assert main(["export", str(tmp_path / "model"), "--all-tasks", str(out)]) == 0
    said = capsys.readouterr().out
    assert "passes of networks per input: 3" in said and out.stat().st_size > 1000
    for more in (["--task", "p0"], ["--int8", "--data", "x"]):
        with contextlib.suppress(SystemExit):
            assert main(["export", str(tmp_path / "model"), "--all-tasks", *more, str(out)]) == 2
        assert capsys.readouterr().err
    with pytest.raises(SettingError, match="int8 is for one task"):
        export.to_onnx(store, None, tmp_path / "x.onnx", int8=inputs)
    with pytest.raises(SettingError, match="given already"):
        export.to_onnx(store, "p0", tmp_path / "x.onnx", among=["p0"])
    with pytest.raises(TaskError, match="no task"):
        export.to_torch(SubnetStore(store.architecture), None, tmp_path / "x.pt2")
    stripped = SubnetStore.load(tmp_path / "model")
    odd = replace(stripped.subnet("p1"), sample=Sample(torch.uint8, (8, 8)))
    stripped.subnets["p1"] = odd
    with pytest.raises(TaskError, match="several kinds"):
        export.to_onnx(stripped, None, tmp_path / "x.onnx")


def test_all_tasks_without_records_are_routed_by_their_energies(
    routed: tuple[SubnetStore, np.ndarray],
) -> None:
    store, inputs = routed
    subnets = dict(store.subnets)
    try:
        store.subnets = {n: replace(s, routing={}) for n, s in subnets.items()}
        found = AllTasks(store, ["p2", "p0"])(torch.from_numpy(inputs))
        live = store.predict(inputs, among=["p0", "p2"])
    finally:
        store.subnets = subnets
    assert_alike(found[5].numpy(), live.routing.scores)
    assert not found[4].any()


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["head", "rank 2", "5%"])
def test_all_tasks_over_a_base_by_the_command(
    rung: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"in_features": 64, "hidden": [40, 30]}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = networks.build("mlp", **settings)
    rebuild = {"network": "mlp", "settings": settings}
    learner = TinySubNets(
        Architecture(net, rebuild=rebuild, base="frozen"), epochs=2, device="cpu",
        rungs=(rung,), price=1.0,
        routing={"parts": ["energy", "inputs", "base"]},
    )  # fmt: skip
    for task in permuted(3, 200):
        learner.learn(task)
    store = learner.store
    store.embed_base_()
    store.save(tmp_path / "model")
    heads, subnet = rung == "head", store.subnet("p2")
    assert store.is_head_alone(subnet) == heads
    assert bool(subnet.rank) == (rung == "rank 2")
    inputs = torch.cat([t.test.inputs(slice(0, 40)) for t in permuted(3, 200)])
    noise = torch.randint(0, 255, (20, 64), dtype=torch.uint8)  # with scores of many thousands
    inputs = torch.cat([inputs, noise])
    live = store.predict(inputs)
    assert live.routing.rule == "energy + inputs + base"
    assert np.abs(live.routing.scores).max() > 1000
    ranked = np.sort(live.routing.scores, 1)
    clear = ranked[:, -1] - ranked[:, -2] > 1e-5 * np.abs(ranked).max(1)
    passes = len({s.normalization for s in store.subnets.values()})  # of the base
    passes += 0 if heads else len(store.tasks)
    files = {}
    for name in ("all.onnx", "all.pt2"):
        files[name] = tmp_path / name
        command = ["export", str(tmp_path / "model"), "--all-tasks", str(files[name])]
        assert main(command) == 0
        assert f"passes of networks per input: {passes}\n" in capsys.readouterr().out
    found = export.onnx_predict(files["all.onnx"], inputs)
    assert_alike(found["scores"], live.routing.scores)
    assert clear.mean() > 0.9
    assert (found["task"] == live.tasks)[clear].all()
    assert (found["label"] == live.labels)[clear].mean() > 0.98
    program = torch.export.load(files["all.pt2"])
    assert_alike(program.module()(inputs)[5].numpy(), live.routing.scores)
    # The base is in the file once, and beside it what tasks change of it; of low rank, by factors.
    held = [t for t in program.state_dict.values() if tuple(t.shape) == (40, 64)]
    assert len(held) == (4 if rung == "5%" else 1)
