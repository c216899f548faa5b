"""Weights of an ONNX graph as codes: Gather(codebook, Cast(codes)) in the place of float32 values.

The codebook holds every distinct value of a tensor, bit by bit, so the graph computes the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SMALLEST = 64  # tensors of fewer values are left alone
WIDTHS = (4, 8, 16)


def pack_weights(model: Any) -> Any:
    """A copy of an ONNX model whose float32 weights are codes wherever that is smaller."""
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
