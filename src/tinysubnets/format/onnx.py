"""Export of one task: ONNX with weights as codes, int8 ONNX, and `torch.export`.

Sparsity and codebooks make a file small, not a network fast: every public runtime unpacks the
weights when it loads them and computes with dense float32. For speed there is int8.

    to_onnx(store, "birds", "birds.onnx")
    to_onnx(store, "birds", "birds.onnx", int8=calibration_inputs)
    to_torch(store, "birds", "birds.pt2")
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import ArchitectureError, SettingError, TaskError
from tinysubnets.files import atomic_write
from tinysubnets.model.store import SubnetStore
from tinysubnets.text import for_markdown

OPSET = 21  # the first in which a Cast reads UINT4
EXAMPLE_BATCH = 2  # a batch of one would be taken for a constant
BATCH = 500
SMALLEST = 64  # tensors of fewer values are not coded
WIDTHS = (4, 8, 16)  # bits of codes that ONNX has a type for


@dataclass(frozen=True)
class Exported:
    """An exported file: where it is, its size, and that of the same graph in plain float32."""

    path: Path
    file_bytes: int
    plain_bytes: int


def to_onnx(
    store: SubnetStore,
    task: str,
    path: str | os.PathLike[str],
    *,
    packed: bool = True,
    int8: Any = None,
    example: Any = None,
) -> Exported:
    """Write one task as ONNX: raw inputs in, logits out, any batch size.

    `packed` stores weights as codes of 4, 8 or 16 bits and a codebook, bit-identical in use. `int8`
    takes raw calibration inputs and quantizes weights and activations instead. `example` is a raw
    batch, needed only where the model does not record what its inputs look like.
    """
    _needed("onnx")
    _needed("onnxscript")
    target = _target(path)
    # Optimizing folds norms into weights: good for int8, but it would destroy the codes.
    plain = _plain_onnx(store, task, _example(store, task, example), optimize=int8 is not None)
    plain.metadata_props.add(key="task", value=task)
    classes = json.dumps(list(store.subnet(task).classes))
    plain.metadata_props.add(key="classes", value=classes)
    plain_bytes = len(plain.SerializeToString())
    if int8 is not None:
        model = _quantized(plain, int8)
    else:
        model = pack_weights(plain) if packed else plain
    return Exported(target, _write(target, model.SerializeToString()), plain_bytes)


def to_torch(
    store: SubnetStore, task: str, path: str | os.PathLike[str], *, example: Any = None
) -> Exported:
    """Write one task as a `torch.export` program for any batch size."""
    target = _target(path)
    program = _program(store, task, _example(store, task, example))
    data = io.BytesIO()
    with _quiet():
        torch.export.save(program, data)
    size = _write(target, data.getvalue())
    return Exported(target, size, size)


def onnx_logits(path: str | os.PathLike[str], inputs: Any, batch_size: int = BATCH) -> np.ndarray:
    """The logits that onnxruntime computes for raw inputs."""
    runtime = _needed("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    raw = _array(inputs)
    parts = [
        session.run(None, {name: raw[i : i + batch_size]})[0]
        for i in range(0, len(raw), batch_size)
    ]
    return np.concatenate(parts)


def onnx_accuracy(path: str | os.PathLike[str], inputs: Any, labels: Any) -> float:
    """The share of raw inputs that an exported task labels right, in the user's own labels."""
    onnx = _needed("onnx")
    properties = {p.key: p.value for p in onnx.load(path).metadata_props}
    classes = np.array(json.loads(properties["classes"]))
    return float((classes[onnx_logits(path, inputs).argmax(1)] == np.asarray(labels)).mean())


def onnx_latency_ms(path: str | os.PathLike[str], inputs: Any, *, repeats: int = 50) -> float:
    """The median time for one raw input in onnxruntime with one thread, in milliseconds.

    - `inputs`: raw inputs, which take turns.
    - `repeats`: how many are timed, behind a few that warm up.
    """
    runtime, raw = _needed("onnxruntime"), _array(inputs)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name, times = session.get_inputs()[0].name, []
    for number in range(repeats + 5):
        one = raw[number % len(raw)][None]
        begin = time.perf_counter()
        session.run(None, {name: one})
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times[5:])


def export_card(
    task: str, files: Mapping[str, Exported], inputs: Any, labels: Any, about: str
) -> str:
    """What exports of one task are worth, measured now, as Markdown.

    - `files`: the exports by what they are called in the table.
    - `inputs`, `labels`: raw inputs and the user's own labels to measure with.
    - `about`: what these inputs are.
    """
    lines = [
        f"# {for_markdown(task)}",
        "",
        "| | bytes | accuracy % | ms for one input |",
        "|---|---|---|---|",
    ]
    for name, done in files.items():
        accuracy = 100 * onnx_accuracy(done.path, inputs, labels)
        latency = onnx_latency_ms(done.path, inputs)
        lines.append(f"| {name} | {done.file_bytes:,} | {accuracy:.2f} | {latency:.3f} |")
    lines += [
        "",
        f"Accuracy on {for_markdown(about)}. Time: the median of 50 inputs, one at a time, in "
        f"onnxruntime {_needed('onnxruntime').__version__} with one thread on "
        f"{platform.machine() or 'this machine'}, {time.strftime('%Y-%m-%d')}.",
    ]
    return "\n".join(lines) + "\n"


def _target(path: str | os.PathLike[str]) -> Path:
    """The file to write; what cannot be written is refused before the network is traced."""
    target = Path(path)
    if target.is_dir() or not os.access(target.parent, os.W_OK):
        raise SettingError(f"cannot write {target}: give a file in a folder that can be written.")
    return target


def _write(target: Path, data: bytes) -> int:
    """Put an export in its place, whole or not at all; gives its size."""
    try:
        atomic_write(target, data)
    except OSError as error:
        raise SettingError(
            f"{target} was not written: {error.strerror}. What was there is as it was."
        ) from error
    return len(data)


def _plain_onnx(store: SubnetStore, task: str, example: Tensor, *, optimize: bool) -> Any:
    """The exported graph with float32 weights."""
    program = _program(store, task, example)
    with _quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            optimize=optimize,
            opset_version=OPSET,
            input_names=["inputs"],
            output_names=["logits"],
            verbose=False,
        )
    if exported is None:
        raise ArchitectureError("torch.onnx gave no graph for this network.")
    model = exported.model_proto
    # Where each node came from: half the file, and paths of this machine.
    for part in (model, model.graph, *model.graph.node, *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def _program(store: SubnetStore, task: str, example: Tensor) -> Any:
    """The task as an exported program whose batch size is open."""
    batch = torch.export.Dim("batch")
    try:
        with _quiet():
            return torch.export.export(
                store.module(task), (example,), dynamic_shapes=({0: batch},), strict=False
            )
    except Exception as error:
        raise ArchitectureError(
            f"torch.export cannot take this network with an open batch size: {error}"
        ) from error


def _example(store: SubnetStore, task: str, example: Any) -> Tensor:
    """A raw batch to trace with, from what the model records of its inputs."""
    if example is not None:
        batch = example if isinstance(example, Tensor) else torch.from_numpy(np.asarray(example))
        return torch.cat([batch[:1]] * EXAMPLE_BATCH)
    sample = store.subnet(task).sample
    if sample is None:
        raise TaskError(
            f"the model does not record what inputs of task {task!r} look like; give a raw "
            "batch as `example`."
        )
    return torch.zeros((EXAMPLE_BATCH, *sample.shape), dtype=sample.dtype)


def _quantized(plain: Any, calibration: Any) -> Any:
    """The graph in static int8, with ranges from raw calibration inputs."""
    onnx = _needed("onnx")
    quantization = _needed("onnxruntime.quantization")
    raw = _array(calibration)
    if len(raw) == 0:
        raise SettingError("int8 needs raw inputs to calibrate with; some hundred are enough.")
    batches = iter([{"inputs": raw[i : i + BATCH]} for i in range(0, len(raw), BATCH)])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[name-defined]
        """The calibration inputs in batches, as onnxruntime asks for them."""

        def get_next(self) -> Any:
            return next(batches, None)

    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, target = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        onnx.save(plain, source)
        quantization.quantize_static(
            source,
            target,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        model = onnx.load(target)
    known = {p.key for p in model.metadata_props}
    for entry in plain.metadata_props:
        if entry.key not in known:
            model.metadata_props.add(key=entry.key, value=entry.value)
    return model


def _array(inputs: Any) -> np.ndarray:
    return inputs.detach().cpu().numpy() if isinstance(inputs, Tensor) else np.asarray(inputs)


def _needed(name: str) -> Any:
    """A module of the optional dependencies, or an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingError(
            f"export needs the package {name.partition('.')[0]!r}: "
            "pip install 'tinysubnets[export]'."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own deprecations and notes to itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "root", "")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def pack_weights(model: Any) -> Any:
    """A copy of an ONNX model whose float32 weights are codes wherever that is smaller.

    Gather(codebook, Cast(codes)) takes the place of the values. The codebook holds every distinct
    value of a tensor, bit by bit, so the graph computes the same.
    """
    import onnx

    packed = onnx.ModelProto()
    packed.CopyFrom(model)
    graph = packed.graph
    kept, nodes = [], []
    for initializer in graph.initializer:
        coded = _coded(initializer) if initializer.data_type == onnx.TensorProto.FLOAT else None
        if coded is None:
            kept.append(initializer)
        else:
            tensors, own = coded
            kept += tensors
            nodes += own
    rest = list(graph.node)
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend([*nodes, *rest])
    onnx.checker.check_model(packed)
    return packed


def _coded(initializer: Any) -> tuple[list[Any], list[Any]] | None:
    """The codes and codebook of a tensor, and the nodes that put it together; None if larger."""
    from onnx import TensorProto, helper, numpy_helper

    values = np.ascontiguousarray(numpy_helper.to_array(initializer))
    bits, codes = np.unique(values.view(np.uint32).reshape(-1), return_inverse=True)
    width = next((w for w in WIDTHS if len(bits) <= 1 << w), None)
    if values.size < SMALLEST or width is None:
        return None
    if 32 * len(bits) + width * values.size >= 32 * values.size:
        return None
    name, dims = initializer.name, list(values.shape)
    kinds = {4: TensorProto.UINT4, 8: TensorProto.UINT8, 16: TensorProto.UINT16}
    data = _packed(codes.reshape(-1), width)
    tensors = [
        helper.make_tensor(f"{name}.codes", kinds[width], dims, data, raw=True),
        numpy_helper.from_array(bits.view(np.float32), f"{name}.codebook"),
    ]
    nodes = [
        helper.make_node("Cast", [f"{name}.codes"], [f"{name}.index"], to=TensorProto.INT32),
        helper.make_node("Gather", [f"{name}.codebook", f"{name}.index"], [name]),
    ]
    return tensors, nodes


def _packed(codes: np.ndarray, width: int) -> bytes:
    """Codes as ONNX stores them: little-endian, two to a byte at 4 bits, the first one low."""
    if width > 4:
        return codes.astype(f"<u{width // 8}").tobytes()
    pairs = np.zeros(-(-len(codes) // 2) * 2, np.uint8)
    pairs[: len(codes)] = codes
    return (pairs[0::2] | pairs[1::2] << 4).tobytes()
