"""Triton kernels for the training step on a GPU; importable only where Triton is installed."""

from tinysubnets.kernels.centres import divide, settle, tabulate_
from tinysubnets.kernels.histograms import count_cells, extent, histogram
from tinysubnets.kernels.select import select, top_k_segments
from tinysubnets.kernels.updates import adam_, sgd_
from tinysubnets.kernels.weights import FusedWeights

__all__ = [
    "FusedWeights",
    "adam_",
    "count_cells",
    "divide",
    "extent",
    "histogram",
    "select",
    "settle",
    "sgd_",
    "tabulate_",
    "top_k_segments",
]
