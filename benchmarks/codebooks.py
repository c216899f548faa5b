"""The codebook of a million weights against scikit-learn's k-means."""

from __future__ import annotations

import time
from typing import Any

import torch

from tinysubnets.nn import codebook


def against_sklearn(count: int = 1_000_000, k: int = 16) -> dict[str, Any]:
    """How much faster ours is, and both errors."""
    from sklearn.cluster import KMeans

    values = torch.randn(count, generator=torch.Generator().manual_seed(0))
    codebook.fit(values[:1000], k)
    begin = time.perf_counter()
    centroids = codebook.fit(values, k)
    ours_s = time.perf_counter() - begin
    begin = time.perf_counter()
    other = KMeans(k, n_init=1, random_state=0).fit(values.numpy()[:, None])
    theirs_s = time.perf_counter() - begin
    error = float((values - centroids[codebook.assign(values, centroids)]).square().sum())
    return {
        "what": f"codebook of {count:,} weights, k = {k}: scikit-learn's time over ours",
        "ratio": theirs_s / ours_s,
        "target": ">= 20, error below 1",
        "ours_ms": 1e3 * ours_s,
        "sklearn_ms": 1e3 * theirs_s,
        "error_ratio": error / float(other.inertia_),
    }
