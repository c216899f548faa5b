"""Export of one task: ONNX with weights as codes, int8 ONNX, and `torch.export`.

Sparsity and codebooks make a file small, not a network fast: every public runtime unpacks the
weights when it loads them and computes with dense float32. For speed there is int8.

    to_onnx(store, "birds", "birds.onnx")
    to_onnx(store, "birds", "birds.onnx", int8=calibration_inputs)
    to_torch(store, "birds", "birds.pt2")
"""

from tinysubnets.export.formats import Exported, onnx_accuracy, onnx_logits, to_onnx, to_torch

__all__ = ["Exported", "onnx_accuracy", "onnx_logits", "to_onnx", "to_torch"]
