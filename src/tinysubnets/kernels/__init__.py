"""Triton twins of `nn/` for a GPU, under the same names; importable only where Triton is installed.

A kernel works on `rows` of vectors of the same segments; training has one row. Everything stays on
the device and in fixed shapes, so that CUDA graphs can hold it.
"""

from tinysubnets.kernels.effective import FusedWeights, nearest_centroid
from tinysubnets.kernels.histograms import count_cells, extent, extent_of, histogram
from tinysubnets.kernels.kmeans import lloyd, lookup_table_, optimal_split, update_codebooks
from tinysubnets.kernels.optim import adam_, sgd_
from tinysubnets.kernels.topk import top_k_magnitudes, top_k_segments

__all__ = [
    "FusedWeights",
    "adam_",
    "count_cells",
    "extent",
    "extent_of",
    "histogram",
    "lloyd",
    "lookup_table_",
    "nearest_centroid",
    "optimal_split",
    "sgd_",
    "top_k_magnitudes",
    "top_k_segments",
    "update_codebooks",
]
