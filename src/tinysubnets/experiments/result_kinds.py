"""What a `result.json` must look like: the kind of every value, looked at before anything is drawn.

A result may come from anywhere, so that no table or picture takes a value on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinysubnets.errors import RunError
from tinysubnets.experiments import metrics

CAPACITY_VIEWS = ("file", "paper", "worked_example", "printed", "file_bytes")

# What may stand where: its name in errors, and whether a value is of the kind.
Kind = tuple[str, Callable[[Any], bool]]


def _numbers(words: str, least: float, most: float, types: tuple[type, ...] = (int, float)) -> Kind:
    """Finite numbers of a range; True and False are none."""
    return words, lambda value: type(value) in types and least <= value <= most


_MOST = 2**53  # far beyond any size or time, and drawings are exact up to here
_ROUNDING = 1e-6  # by which a mean of shares may be off
TEXT: Kind = ("text", lambda value: isinstance(value, str))
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
TABLE: Kind = ("a table", lambda value: isinstance(value, dict))
LIST: Kind = ("a list", lambda value: isinstance(value, list))
LABEL: Kind = ("text or an integer", lambda value: type(value) in (int, str))
CELLS: Kind = (f"one of {', '.join(metrics.MATRICES)}", lambda value: value in [*metrics.MATRICES])
INTEGER = _numbers("an integer of 64 bits", -(2**63), 2**63 - 1, (int,))
COUNT = _numbers("a count", 0, _MOST, (int,))
AMOUNT = _numbers("a number from 0 on", 0, _MOST)
NUMBER = _numbers("a finite number", -_MOST, _MOST)
SHARE = _numbers("a number from 0 to 1", -_ROUNDING, 1 + _ROUNDING)
CHANGE = _numbers("a number from -1 to 1", -1 - _ROUNDING, 1 + _ROUNDING)
PRODUCT: Kind = (
    "a list of layer, kind, products and density",
    lambda value: (
        isinstance(value, list)
        and len(value) == 4
        and all(k[1](v) for k, v in zip((TEXT, TEXT, AMOUNT, SHARE), value, strict=True))
    ),
)

# By place, what holds others before them; * stands for every entry of a list or table. What has
# no line here is only shown, or looked at by whoever draws it.
NEEDED = ("scenario", "method", "seed", "accuracy_matrix", "metrics", "tasks")
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("scenario", "method", "recipe", "library", "commit"), TEXT),
    **dict.fromkeys(("scenario_type", "setting"), TEXT),
    "seed": INTEGER,
    "seconds": AMOUNT,
    "free_share": SHARE,
    "matrix": CELLS,
    "measured_on": LIST,
    "measured_on.*": TEXT,
    "notes": LIST,
    "notes.*": TEXT,
    "accuracy_matrix": LIST,
    "accuracy_matrix.*": LIST,
    "accuracy_matrix.*.*": SHARE,
    "metrics": TABLE,
    "metrics.*": CHANGE,
    "metrics.average_accuracy": SHARE,
    "metrics.average_accuracy_over_time": SHARE,
    "tasks": LIST,
    "tasks.*": TABLE,
    **{f"tasks.*.{name}": TEXT for name in ("name", "measured_on", "reason")},
    **{f"tasks.*.{name}": SHARE for name in ("accuracy", "final_accuracy", "valid_accuracy")},
    **{f"tasks.*.{name}": SHARE for name in ("density", "new_share")},
    **{f"tasks.*.owned_{when}_pruning": SHARE for when in ("before", "after")},
    **{f"tasks.*.{name}_seconds": AMOUNT for name in ("training", "pruning")},
    "tasks.*.bank": INTEGER,
    "tasks.*.bits": AMOUNT,
    "tasks.*.best_epoch": COUNT,
    "tasks.*.classes": LIST,
    "tasks.*.classes.*": LABEL,
    "tasks.*.samples": TABLE,
    "tasks.*.samples.*": COUNT,
    "tasks.*.rungs": LIST,
    "tasks.*.rungs.*": TABLE,
    "tasks.*.rungs.*.name": TEXT,
    "tasks.*.rungs.*.taken": FLAG,
    "tasks.*.rungs.*.valid_accuracy": SHARE,
    "tasks.*.rungs.*.seconds": AMOUNT,
    "tasks.*.rungs.*.valid_loss": AMOUNT,
    **{f"tasks.*.rungs.*.{name}": NUMBER for name in ("gain", "extra_bytes", "file_bytes")},
    "capacity": TABLE,
    "capacity.*": AMOUNT,
    "ledger": TABLE,
    "ledger.masks_from": TEXT,
    **{f"ledger.{name}": AMOUNT for name in (*CAPACITY_VIEWS, "num_weights")},
    "ledger.total": TABLE,
    "ledger.total.*": AMOUNT,
    "ledger.tasks": TABLE,
    "ledger.tasks.*": TABLE,
    "ledger.tasks.*.*": AMOUNT,
    "without_task": TABLE,
    "without_task.rule": TEXT,
    "without_task.passes": AMOUNT,
    "without_task.task_accuracy": SHARE,
    "without_task.confidence": TABLE,
    "without_task.confidence.edges": LIST,
    "without_task.confidence.edges.*": SHARE,
    **{f"without_task.confidence.{name}": LIST for name in ("right", "wrong")},
    **{f"without_task.confidence.{name}.*": COUNT for name in ("right", "wrong")},
    **{f"without_task.{name}-IL": TABLE for name in ("class", "domain")},
    **{f"without_task.{name}-IL.average_accuracy": SHARE for name in ("class", "domain")},
    **{f"without_task.{name}-IL.backward_transfer": CHANGE for name in ("class", "domain")},
    **{f"without_task.{name}-IL.forgetting": CHANGE for name in ("class", "domain")},
    "without_task.unknown": TABLE,
    "without_task.unknown.auroc": SHARE,
    "without_task.entropy_rule": TABLE,
    "without_task.entropy_rule.*": SHARE,
    "without_task.together": TABLE,
    "without_task.together.*": AMOUNT,
    "divergence": TABLE,
    "divergence.threshold": NUMBER,
    "divergence.matrix": LIST,
    "divergence.matrix.*": LIST,
    "divergence.matrix.*.*": NUMBER,
    "divergence.decisions": TABLE,
    "divergence.decisions.*": TABLE,
    "divergence.decisions.*.bank": INTEGER,
    "divergence.decisions.*.reason": TEXT,
    "banks": TABLE,
    "banks.*": INTEGER,
    "settings": TABLE,
    "settings.data": TABLE,
    "settings.data.datasets": LIST,
    "settings.network": TABLE,
    "environment": TABLE,
    "environment.device": TEXT,
    "environment.jobs": COUNT,
    "measured_on_model": TABLE,
    "measured_on_model.fixed_point": TABLE,
    "measured_on_model.fixed_point.*": SHARE,
    "measured_on_model.uncounted": LIST,
    "measured_on_model.uncounted.*": TEXT,
    "measured_on_model.operations": LIST,
    "measured_on_model.operations.*": LIST,
    "measured_on_model.operations.*.*": PRODUCT,
}
# Numbers that were not defined are null, and so is what a whole run lacks; these never are.
_NEVER_NULL = {
    *NEEDED,
    "accuracy_matrix.*",
    "tasks.*",
    "tasks.*.name",
    "tasks.*.classes.*",
    "tasks.*.rungs.*",
    "ledger.tasks.*",
    "divergence.matrix.*",
    "divergence.decisions.*",
    "measured_on.*",
    "measured_on_model.uncounted.*",
    "measured_on_model.operations.*",
    "measured_on_model.operations.*.*",
    *(f"without_task.confidence.{name}.*" for name in ("edges", "right", "wrong")),
}
OF_EPOCH: dict[str, Kind] = {"task": TEXT, "epoch": AMOUNT, "valid_accuracy": SHARE}


def check_kinds(path: Path, result: dict[str, Any]) -> None:
    """Refuse a result whose parts are not of the kinds that every table and picture expects."""
    if wrong := first_wrong(result, KINDS, _NEVER_NULL):
        raise RunError(f"{path} is damaged: {wrong}.")
    count = len(result["tasks"])
    squares = {"accuracy_matrix": result["accuracy_matrix"]}
    if matrix := (result.get("divergence") or {}).get("matrix"):
        squares["divergence.matrix"] = matrix
    for name, rows in squares.items():
        if not count or [len(row) for row in rows] != [count] * count:
            raise RunError(
                f"{path} is damaged: {name} has not one row and one column for each of the "
                f"{count} tasks."
            )


def first_wrong(value: Any, kinds: Mapping[str, Kind], never_null: Collection[str]) -> str | None:
    """What is not of its kind in plain data, in words; None where all is as it should be.

    What holds nothing below a place has nothing wrong there.

    - `kinds`: by place, as `KINDS` has them.
    - `never_null`: places whose value must be there, if that which holds it is.
    """
    for place, (words, fits) in kinds.items():
        for shown, found in _at(value, place.split(".")):
            is_fine = place not in never_null if found is None else fits(found)
            if not is_fine:
                what = "not there" if found is None else _short(found)
                return f"{shown} is {what}, and should be {words}"
    return None


def _at(value: Any, names: Sequence[str], shown: str = "") -> Iterator[tuple[str, Any]]:
    """The values at a place of plain data, each with its path; None for what is not there."""
    if not names:
        yield shown.removeprefix("."), value
        return
    name, rest = names[0], names[1:]
    if isinstance(value, list) and name == "*":
        for i, entry in enumerate(value):
            yield from _at(entry, rest, f"{shown}[{i}]")
    elif isinstance(value, dict):
        for key in value if name == "*" else (name,):
            yield from _at(value.get(key), rest, f"{shown}.{key}")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"
