"""The result of a run as plain data: `result.json`; docs/RESULTS.md describes every field."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tinysubnets import metrics
from tinysubnets.run_folder import plain
from tinysubnets.version import __version__

if TYPE_CHECKING:
    from tinysubnets.plan import Plan

FORMAT = 1


def build(
    plan: Plan,
    learner: Any,
    probes: Sequence[metrics.Probe],
    sizes: Sequence[dict[str, int]],
    matrix: list[metrics.Row],
    model_bytes: int | None,
) -> dict[str, Any]:
    """Everything a run came to; seconds are the only numbers that differ when it is repeated."""
    ledger = learner.ledger() if hasattr(learner, "ledger") else learner.store.ledger()
    if model_bytes is not None and getattr(ledger, "file_bytes", 0) is None:
        ledger = replace(ledger, file_bytes=model_bytes)
    ledger = ledger if isinstance(ledger, dict) else ledger.as_dict()
    recipe = plan.recipe
    return {
        "format": FORMAT,
        "library": __version__,
        "scenario": recipe.scenario,
        "method": recipe.method,
        "recipe": recipe.name,
        "seed": plan.seed,
        "setting": getattr(learner, "setting", "task-incremental"),
        "measured_on": sorted({p.measured_on for p in probes}),
        "settings": recipe.as_dict(),
        "accuracy_matrix": matrix,
        "metrics": metrics.summary(matrix, [len(p.classes) for p in probes]),
        "tasks": [
            _task(learner, probe, size, matrix[i][i], matrix[-1][i])
            for i, (probe, size) in enumerate(zip(probes, sizes, strict=True))
        ],
        "capacity": {
            name: ledger.get(name) for name in ("file", "paper", "worked_example", "file_bytes")
        }
        | ({"wsn": learner.wsn_capacity()} if hasattr(learner, "wsn_capacity") else {}),
        "free_share": learner.store.free_share() if hasattr(learner, "store") else None,
        "ledger": ledger,
        "divergence": divergence(learner, [p.name for p in probes]),
        "environment": environment(plan),
    }


def _task(
    learner: Any,
    probe: metrics.Probe,
    sizes: dict[str, int],
    accuracy: float | None,
    final: float | None,
) -> dict[str, Any]:
    """One task's line: its data, its accuracy when learned and at the end, the learner's report."""
    report = asdict(learner.reports[probe.name])
    return {
        "name": probe.name,
        "classes": list(probe.classes),
        "samples": dict(sizes),
        "measured_on": probe.measured_on,
        "accuracy": accuracy,
        "final_accuracy": final,
    } | {k: v for k, v in report.items() if k != "name"}


def divergence(learner: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """How far each task was from the earlier ones, and which bank that led to."""
    subnets = getattr(getattr(learner, "store", None), "subnets", {})
    decisions = {n: subnets[n].decision for n in names if n in subnets and subnets[n].decision}
    if not decisions:
        return None
    matrix = [
        [decisions[row].divergences.get(column) if row in decisions else None for column in names]
        for row in names
    ]
    return {
        "threshold": getattr(learner.settings, "threshold", None),
        "matrix": matrix,
        "decisions": {
            n: {"bank": d.bank, "reason": d.reason, "nearest": d.nearest}
            for n, d in decisions.items()
        },
    }


def environment(plan: Plan) -> dict[str, Any]:
    """The machine and versions a run was made with."""
    import numpy as np
    import torch

    device = plan.device
    if device.startswith("cuda"):
        device = f"{device} ({torch.cuda.get_device_name()})"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
    }


def to_json(result: dict[str, Any]) -> str:
    """The result as JSON text; what is not a number is null, since JSON has no NaN."""
    return json.dumps(plain(result), indent=1, allow_nan=False) + "\n"
