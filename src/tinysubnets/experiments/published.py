"""Published runs: one small JSON file for each, in `results/<table>/<run>.json`.

A file is a run's `result.json` without what no table needs (confusions, ledgers of single tasks)
and with the commit that made it. README, docs and `tsn paper` are written from these files.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tinysubnets.errors import RunError
from tinysubnets.experiments.results import RESULT, Run, checked_run
from tinysubnets.experiments.run_dir import plain
from tinysubnets.files import atomic_write

COMMIT_VARIABLE = "TINYSUBNETS_COMMIT"
MAX_BYTES = 5_000_000  # of all files together
_KEPT = (
    "format", "library", "scenario", "method", "recipe", "seed", "scenario_type", "measured_on",
    "settings", "accuracy_matrix", "matrix", "metrics", "capacity", "free_share", "notes",
    "environment", "seconds",
)  # fmt: skip
_OF_TASK = (
    "name", "samples", "accuracy", "final_accuracy", "valid_accuracy", "best_epoch",
    "training_seconds", "bank", "bits", "density", "owned_before_pruning", "owned_after_pruning",
    "pruning_seconds",
)  # fmt: skip
_OF_LEDGER = ("unit", "masks_from", "total", "raw_mask_bits", "num_weights", "file_bytes")


def source_tree() -> Path | None:
    """The folder of the source tree that this package runs from; None where it is installed."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() else None


def results_folder() -> Path | None:
    """The published runs of the source tree, or those that came with the package."""
    root = source_tree()
    places = [Path(__file__).resolve().parents[1] / "results"]
    places = places if root is None else [root / "results"]
    return next((p for p in places if p.is_dir()), None)


def current_commit() -> str | None:
    """The commit of the source tree, with "+" behind it where files were changed since.

    TINYSUBNETS_COMMIT goes before it, for a copy of the tree without its history.
    """
    if given := os.environ.get(COMMIT_VARIABLE):
        return given
    root = source_tree()
    if root is None:
        return None
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        dirty = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"], capture_output=True)
    except OSError:
        return None
    return (
        f"{head.stdout.strip()[:12]}{'+' if dirty.returncode else ''}"
        if not head.returncode
        else None
    )


def published(result: Mapping[str, Any], commit: str | None = None) -> dict[str, Any]:
    """What is published of a run's result.

    - `commit`: the one that made it; what the result itself says goes before it.
    """
    out = {k: result[k] for k in _KEPT if k in result}
    out["commit"] = result.get("commit") or commit
    out["tasks"] = [{k: task[k] for k in _OF_TASK if k in task} for task in result["tasks"]]
    ledger = result.get("ledger") or {}
    out["ledger"] = {k: ledger[k] for k in _OF_LEDGER if k in ledger}
    out["without_task"] = _without_task(result.get("without_task"))
    decisions = (result.get("divergence") or {}).get("decisions") or {}
    out["banks"] = {name: d.get("bank") for name, d in decisions.items()}
    return _rounded(out)


def _without_task(found: Any) -> dict[str, Any] | None:
    """The averages of what was measured without the task's name."""
    if not isinstance(found, dict):
        return None
    out: dict[str, Any] = {k: found.get(k) for k in ("rule", "passes", "task_accuracy")}
    for kind in ("class-IL", "domain-IL"):
        own = found.get(kind)
        numbers = ("average_accuracy", "backward_transfer", "forgetting")
        out[kind] = {k: own.get(k) for k in numbers} if isinstance(own, dict) else None
    out["unknown"] = {"auroc": (found.get("unknown") or {}).get("auroc")}
    return out


def _rounded(value: Any) -> Any:
    """Plain data with six digits after the point: a millionth of an accuracy."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    # Settings such as 1e-05 have few digits, and keep them.
    return round(value, 6) if isinstance(value, float) and abs(value) > 1e-3 else value


def publish(result: Mapping[str, Any], path: Path, commit: str | None = None) -> Path:
    """Write a run's result to its file, atomically; gives the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = plain(published(result, commit))
    atomic_write(path, (json.dumps(data, allow_nan=False) + "\n").encode())
    return path


def read_published(folders: Iterable[Path]) -> list[Run]:
    """All published runs in or below some folders, in the order of their paths."""
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            if path.name != RESULT and path.parent != folder:
                found.append(read_file(path))
    return found


def read_file(path: Path) -> Run:
    """One published run; its folder is the file's path without the ending."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    return checked_run(path.with_suffix(""), path, result)
