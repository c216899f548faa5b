"""Triton kernels for the training step on a GPU; importable only where Triton is installed."""

from tinysubnets.kernels.centres import histogram, settle
from tinysubnets.kernels.select import select, top_k_segments
from tinysubnets.kernels.updates import adam_, sgd_
from tinysubnets.kernels.weights import FusedWeights

__all__ = [
    "FusedWeights",
    "adam_",
    "histogram",
    "select",
    "settle",
    "sgd_",
    "top_k_segments",
]
