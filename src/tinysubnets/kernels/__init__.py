"""Triton kernels for the training step on a GPU; importable only where Triton is installed."""

from tinysubnets.kernels.effective import FusedWeights
from tinysubnets.kernels.histograms import count_cells, extent, histogram
from tinysubnets.kernels.kmeans import divide, settle, tabulate_
from tinysubnets.kernels.optim import adam_, sgd_
from tinysubnets.kernels.topk import select, top_k_segments

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
