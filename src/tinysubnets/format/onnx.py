"""Export of one task, or of all: ONNX with weights as codes, int8 ONNX, and `torch.export`.

Sparsity and codebooks make a file small, not a network fast: every public runtime unpacks the
weights when it loads them and computes with dense float32. For speed there is int8.

    to_onnx(store, "birds", "birds.onnx")
    to_onnx(store, "birds", "birds.onnx", int8=calibration_inputs)
    to_torch(store, "birds", "birds.pt2")
    to_onnx(store, None, "all.onnx")      # every task, and which of them an input belongs to
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets.errors import (
    ArchitectureError,
    DataError,
    SettingError,
    TaskError,
    install_command,
)
from tinysubnets.files import atomic_write
from tinysubnets.format.routed import OUTPUTS, AllTasks
from tinysubnets.model.store import SubnetStore
from tinysubnets.tasks.preprocessing import Preprocessing
from tinysubnets.text import for_markdown

OPSET = 21  # the first in which a Cast reads UINT4
EXAMPLE_BATCH = 2  # a batch of one would be taken for a constant
BATCH = 500
WARM_UP, REPEATS = 5, 50  # inputs whose time is not taken, and those whose time is
SMALLEST = 64  # tensors of fewer values are not coded
WIDTHS = (4, 8, 16)  # bits of codes that ONNX has a type for
MAX_CHANNELS = 4  # whose means and deviations are told beside the graph
DOMAIN = "tinysubnets"  # of the functions that put sparse weights together


@dataclass(frozen=True)
class Exported:
    """An exported file: where it is, its size, and that of the same graph in plain float32."""

    path: Path
    file_bytes: int
    plain_bytes: int


def to_onnx(
    store: SubnetStore,
    task: str | None,
    path: str | os.PathLike[str],
    *,
    packed: bool = True,
    int8: Any = None,
    example: Any = None,
    among: Sequence[str] | None = None,
) -> Exported:
    """Write one task as ONNX: raw inputs in, logits out, any batch size.

    - `task`: its name; None writes all tasks with routing inside, each bank once, and gives the
      outputs of `routed.AllTasks`.
    - `packed`: store weights as codes and a codebook, see `pack_weights`: the same weights, to the
      bit, put together when the file is loaded. A runtime may then fuse other operators than in the
      plain graph, so that logits differ in their last bits.
    - `int8`: raw calibration inputs; quantizes weights and activations of one task instead.
    - `example`: a raw batch, needed only where the model does not record what inputs look like.
    - `among`: without a task, the names of those to write.
    """
    _needed("onnx")
    _needed("onnxscript")
    target = _target(path)
    module, about, outputs = _module(store, task, among)
    if task is None and int8 is not None:
        raise SettingError("int8 is for one task; export all of them with codes or in float32.")
    first = next(iter(store.tasks if among is None else among)) if task is None else task
    # Optimizing folds norms into weights: good for int8, but it would destroy the codes.
    plain = _plain_onnx(module, outputs, _example(store, first, example), optimize=int8 is not None)
    for key, value in about.items():
        plain.metadata_props.add(key=key, value=value)
    plain_bytes = len(plain.SerializeToString())
    if int8 is not None:
        model = _quantized(plain, int8)
    else:
        model = pack_weights(plain) if packed else plain
    return Exported(target, _write(target, model.SerializeToString()), plain_bytes)


def to_torch(
    store: SubnetStore,
    task: str | None,
    path: str | os.PathLike[str],
    *,
    example: Any = None,
    among: Sequence[str] | None = None,
) -> Exported:
    """Write one task, or with None all of them, as a `torch.export` program for any batch size.

    The arguments are those of `to_onnx`.
    """
    target = _target(path)
    module, _, _ = _module(store, task, among)
    first = next(iter(store.tasks if among is None else among)) if task is None else task
    program = _program(module, _example(store, first, example))
    data = io.BytesIO()
    with _quiet():
        torch.export.save(program, data)
    size = _write(target, data.getvalue())
    return Exported(target, size, size)


def onnx_logits(path: str | os.PathLike[str], inputs: Any) -> np.ndarray:
    """The logits that onnxruntime computes for raw inputs."""
    return _outputs(path, inputs, None)[0]


def onnx_predict(path: str | os.PathLike[str], inputs: Any) -> dict[str, np.ndarray]:
    """What onnxruntime finds for raw inputs in a file of all tasks.

    The outputs of `routed.AllTasks` by name, tasks and labels as the user's own.
    """
    properties = _needed("onnx").load(path).metadata_props
    known = {p.key: json.loads(p.value) for p in properties if p.key != "rule"}
    if "labels" not in known:
        raise SettingError(f"{path} holds one task; its logits are given by onnx_logits.")
    found = dict(zip(OUTPUTS, _outputs(path, inputs, OUTPUTS), strict=True))
    labels = [label for _, label in known["labels"]]
    found["label"] = np.array([labels[i] for i in found["label"]])
    return found | {"task": np.array(known["tasks"])[found["task"]]}


def _outputs(
    path: str | os.PathLike[str], inputs: Any, names: Sequence[str] | None
) -> list[np.ndarray]:
    """The outputs of these names, or all of them, for raw inputs, `BATCH` at a time."""
    session, raw = _session(path), _array(inputs)
    name = session.get_inputs()[0].name
    parts = [session.run(names, {name: raw[i : i + BATCH]}) for i in range(0, len(raw), BATCH)]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _session(path: str | os.PathLike[str], threads: int | None = None) -> Any:
    """An exported file in onnxruntime on the CPU, with so many threads or as many as it takes."""
    runtime = _needed("onnxruntime")
    options = runtime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def onnx_accuracy(path: str | os.PathLike[str], inputs: Any, labels: Any) -> float:
    """The share of raw inputs that an exported task labels right, in the user's own labels."""
    onnx = _needed("onnx")
    properties = {p.key: p.value for p in onnx.load(path).metadata_props}
    classes = np.array(json.loads(properties["classes"]))
    return float((classes[onnx_logits(path, inputs).argmax(1)] == np.asarray(labels)).mean())


def onnx_latency_ms(path: str | os.PathLike[str], inputs: Any) -> float:
    """The median time for one raw input in onnxruntime with one thread, in milliseconds.

    - `inputs`: raw inputs, which take turns until `REPEATS` of them are timed.
    """
    session, raw = _session(path, threads=1), _array(inputs)
    name, times = session.get_inputs()[0].name, []
    for number in range(WARM_UP + REPEATS):
        one = raw[number % len(raw)][None]
        begin = time.perf_counter()
        session.run(None, {name: one})
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times[WARM_UP:])


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
        f"Accuracy on {for_markdown(about)}. Time: the median of {REPEATS} inputs, one at a time, "
        f"in onnxruntime {_needed('onnxruntime').__version__} with one thread on "
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


def _module(
    store: SubnetStore, task: str | None, among: Sequence[str] | None
) -> tuple[nn.Module, dict[str, str], tuple[str, ...]]:
    """What is exported: a module, what a file says of it, and the names of its outputs."""
    if task is not None:
        if among is not None:
            raise SettingError(f"`among` is for all tasks; {task!r} is given already.")
        subnet = store.subnet(task)
        about = {"task": task, "classes": json.dumps(list(subnet.classes))}
        if subnet.preprocessing is not None:
            about["preprocessing"] = json.dumps(_with_resize(subnet.preprocessing))
        # Said for readers: the graph takes raw pixels and normalizes them itself.
        scale = subnet.normalization
        if 0 < len(scale.mean) <= MAX_CHANNELS:
            inside = {"mean": scale.mean, "std": scale.std, "inside": True}
            about["normalization"] = json.dumps(inside)
        return store.module(task), about, ("logits",)
    module = AllTasks(store, among).eval()
    about = {
        "tasks": json.dumps(module.tasks),
        "labels": json.dumps(module.labels),
        "rule": module.router.rule,
    }
    ways = {json.dumps(_with_resize(s.preprocessing or {})) for s in module.subnets}
    if len(ways) == 1 and ways != {"{}"}:  # else what is done depends on the task
        about["preprocessing"] = ways.pop()
    return module, about, OUTPUTS


def _with_resize(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """What is done to pictures of any size."""
    try:
        return Preprocessing.from_dict(preprocessing).for_any_size().as_dict()
    except DataError:
        return dict(preprocessing)  # of another version


def _plain_onnx(
    module: nn.Module, outputs: tuple[str, ...], example: Tensor, *, optimize: bool
) -> Any:
    """The exported graph with float32 weights."""
    program = _program(module, example)
    with _quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            optimize=optimize,
            opset_version=OPSET,
            input_names=["inputs"],
            output_names=list(outputs),
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


def _program(module: nn.Module, example: Tensor) -> Any:
    """A module as an exported program whose batch size is open."""
    batch = torch.export.Dim("batch")
    try:
        with _quiet():
            return torch.export.export(
                module, (example,), dynamic_shapes=({0: batch},), strict=False
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
            f"export needs the package {name.partition('.')[0]!r}, which is not installed. "
            f"Install it with: {install_command('export')}"
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

    The codebook holds every distinct value of a tensor, bit by bit, so the graph computes the same.
    Three ways to put a tensor together, of which the smallest is taken:

    - Gather(codebook, Cast(codes)), with codes of 4, 8 or 16 bits for every value;
    - codes for values other than 0 alone, and a bit for every value that says which they are;
    - the same with the gaps between them instead of the bits.

    The last two are functions of the model, with codes and gaps as bit planes: as many bits each as
    they need. A runtime computes all of it once, when it loads the file. Names inside are short.
    """
    ways = ((), ("FromMask",), ("FromGaps",), ("FromMask", "FromGaps"))
    # A function takes some bytes itself: for a small network one, or none, may be better than two.
    packed = min((_packed_with(model, names) for names in ways), key=lambda m: m.ByteSize())
    importlib.import_module("onnx").checker.check_model(packed)
    return packed


def _packed_with(model: Any, functions: tuple[str, ...]) -> Any:
    """The packed copy of a model, which uses these functions alone."""
    import onnx

    packed = onnx.ModelProto()
    packed.CopyFrom(model)
    graph = packed.graph
    kept, nodes = [], []
    for initializer in graph.initializer:
        is_float = initializer.data_type == onnx.TensorProto.FLOAT
        coded = _coded(initializer, functions) if is_float else None
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
    _shorten_names(graph)
    if functions:
        packed.functions.extend(_function(name) for name in ("Unpack", *functions))
        packed.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return packed


def _coded(initializer: Any, functions: tuple[str, ...]) -> tuple[list[Any], list[Any]] | None:
    """What a tensor is put together from, and the nodes that do it; None if that is larger."""
    from onnx import numpy_helper

    values = np.ascontiguousarray(numpy_helper.to_array(initializer))
    if values.size < SMALLEST:
        return None
    found = [*_every_value(initializer.name, values)]
    found += _few_values(initializer.name, values, functions)
    found.sort(key=lambda way: sum(part.ByteSize() for parts in way for part in parts))
    if not found or sum(t.ByteSize() for t in found[0][0]) >= initializer.ByteSize():
        return None
    return found[0]


def _every_value(name: str, values: np.ndarray) -> Iterator[tuple[list[Any], list[Any]]]:
    """A code for each value, 0 as well, unless there are too many."""
    from onnx import TensorProto, helper, numpy_helper

    bits, codes = np.unique(values.view(np.uint32).reshape(-1), return_inverse=True)
    width = next((w for w in WIDTHS if len(bits) <= 1 << w), None)
    if width is None:
        return
    kinds = {4: TensorProto.UINT4, 8: TensorProto.UINT8, 16: TensorProto.UINT16}
    data = _packed(codes.reshape(-1), width)
    tensors = [
        helper.make_tensor(f"{name}.codes", kinds[width], list(values.shape), data, raw=True),
        numpy_helper.from_array(bits.view(np.float32), f"{name}.codebook"),
    ]
    nodes = [
        helper.make_node("Cast", [f"{name}.codes"], [f"{name}.index"], to=TensorProto.INT32),
        helper.make_node("Gather", [f"{name}.codebook", f"{name}.index"], [name]),
    ]
    yield tensors, nodes


def _few_values(
    name: str, values: np.ndarray, functions: tuple[str, ...]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Codes for what is not 0, with a bit for every value or with the gaps between."""
    from onnx import helper, numpy_helper

    flat = values.view(np.uint32).reshape(-1)
    places = np.flatnonzero(flat)
    if not len(places) or values.size >= 1 << 31:
        return
    bits, codes = np.unique(flat[places], return_inverse=True)
    gaps = np.diff(places, prepend=-1) - 1
    counts = np.array([len(places), *values.shape], np.int64)
    for function in functions:
        parts = {
            "places": _planes(flat != 0 if function == "FromMask" else gaps),
            "codes": _planes(codes.reshape(-1)),
            "codebook": bits.view(np.float32),
            "counts": counts,
        }
        tensors = [numpy_helper.from_array(part, f"{name}.{key}") for key, part in parts.items()]
        given = [tensor.name for tensor in tensors]
        yield tensors, [helper.make_node(function, given, [name], domain=DOMAIN)]


def _planes(numbers: np.ndarray) -> np.ndarray:
    """Numbers as bit planes, uint8 [bits, ceil(n / 8)]: the lowest bits first, eight to a byte."""
    width = max(1, int(numbers.max()).bit_length())
    bits = (numbers.astype(np.int64) >> np.arange(width)[:, None]) & 1
    return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")


# Integers from their bit planes. ONNX has no operator that unpacks bits: shift each byte by 0
# to 7 and take the last bit.
_UNPACK = """
Unpack (planes) => (numbers) {
    two = Constant <value = int64[1] {2}> ()
    shifts = Constant <value = uint8[8] {0, 1, 2, 3, 4, 5, 6, 7}> ()
    two8 = Constant <value = uint8 {2}> ()
    rows = Constant <value = int64[2] {0, -1}> ()
    bytes = Unsqueeze (planes, two)
    shifted = BitShift <direction = "RIGHT"> (bytes, shifts)
    bits = Mod (shifted, two8)
    flat = Reshape (bits, rows)
    wide = Cast <to = 6> (flat)
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    size = Shape <start = 0, end = 1> (planes)
    width = Squeeze (size)
    each = Range (zero, width, one)
    each32 = Cast <to = 6> (each)
    two32 = Constant <value = int32 {2}> ()
    powers = Pow (two32, each32)
    first = Constant <value = int64[1] {1}> ()
    column = Unsqueeze (powers, first)
    parts = Mul (wide, column)
    start = Constant <value = int64[1] {0}> ()
    numbers = ReduceSum <keepdims = 0> (parts, start)
}
"""
# A tensor from the places of its values, their codes, a codebook, and [number of values, *shape].
_FROM_PLACES = """
%s (places, codes, codebook, counts) => (values) {
    start = Constant <value = int64[1] {0}> ()
    first = Constant <value = int64[1] {1}> ()
    last = Constant <value = int64[1] {9223372036854775807}> ()
    count = Slice (counts, start, first)
    shape = Slice (counts, first, last)
    numbers = tinysubnets.Unpack (places)
    padded = tinysubnets.Unpack (codes)
    index = Slice (padded, start, count)
    chosen = Gather (codebook, index)
    %s
    values = Reshape (flat, shape)
}
"""
# What is done with `numbers` and `chosen` to get `flat`. Not NonZero, which onnxruntime would
# compute in every run.
_PLACES = {
    "FromMask": """
    all = ReduceProd <keepdims = 1> (shape)
    mask = Slice (numbers, start, all)
    axis = Constant <value = int64 {0}> ()
    counted = CumSum (mask, axis)
    rank = Mul (counted, mask)
    none = Constant <value = float[1] {0}> ()
    choices = Concat <axis = 0> (none, chosen)
    flat = Gather (choices, rank)
    """,
    "FromGaps": """
    gaps = Slice (numbers, start, count)
    one = Constant <value = int32 {1}> ()
    steps = Add (gaps, one)
    axis = Constant <value = int64 {0}> ()
    sums = CumSum (steps, axis)
    at = Sub (sums, one)
    all = ReduceProd <keepdims = 1> (shape)
    zeros = ConstantOfShape (all)
    flat = ScatterElements (zeros, at, chosen)
    """,
}


def _function(name: str) -> Any:
    """A function of the model, with short names: each of them stands in the file."""
    from onnx import parser

    text = _UNPACK if name == "Unpack" else _FROM_PLACES % (name, _PLACES[name])
    imports = f'<opset_import: ["" : {OPSET}, "{DOMAIN}" : 1], domain: "{DOMAIN}">'
    made = parser.parse_function(imports + text)
    names = {key: key for key in (*made.input, *made.output)}
    for node in made.node:
        for key in node.output:
            names.setdefault(key, f"_{len(names):x}")
    for node in made.node:
        _rename(node, names)
    return made


def _shorten_names(graph: Any) -> None:
    """Give everything inside a graph a short name; inputs, outputs and subgraphs keep theirs."""
    if any(
        attribute.HasField("g") or attribute.graphs for n in graph.node for attribute in n.attribute
    ):
        return
    names = {"": ""} | {value.name: value.name for value in (*graph.input, *graph.output)}
    for initializer in graph.initializer:
        initializer.name = names.setdefault(initializer.name, f"_{len(names):x}")
    for node in graph.node:
        for key in node.output:
            names.setdefault(key, f"_{len(names):x}")
        node.name = ""
        _rename(node, names)


def _rename(node: Any, names: Mapping[str, str]) -> None:
    given, made = [names[key] for key in node.input], [names[key] for key in node.output]
    del node.input[:], node.output[:]
    node.input.extend(given)
    node.output.extend(made)


def _packed(codes: np.ndarray, width: int) -> bytes:
    """Codes as ONNX stores them: little-endian, two to a byte at 4 bits, the first one low."""
    if width > 4:
        return codes.astype(f"<u{width // 8}").tobytes()
    pairs = np.zeros(-(-len(codes) // 2) * 2, np.uint8)
    pairs[: len(codes)] = codes
    return (pairs[0::2] | pairs[1::2] << 4).tobytes()
