"""Learners: objects that learn tasks one after the other, by the name of their method.

Every learner has `begin(task)` (a lesson of visible steps), `learn(task)`, `logits(task, inputs)`,
`predict(task, inputs)`, `tasks`, `reports`, `ledger()` and `save(folder)`; `setting` says whether
it is told the task ("task-IL", the default) or not. `state()` gives everything it has
learned as tensors and plain data, and `restore_()` takes it back. Torch is imported only when a
learner is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinysubnets import config
from tinysubnets.errors import SettingError, unknown
from tinysubnets.method.settings import VARIANTS

if TYPE_CHECKING:
    from tinysubnets.nn.architecture import Architecture


__all__ = ["METHODS", "build", "method", "scenario_types", "settings_class"]


@dataclass(frozen=True)
class Method:
    """One method: a line about it, where its learner and settings live, its table in recipes.

    `overlay` holds the settings that make the method what it is; they win over a recipe's.
    """

    line: str
    learner: str
    settings: str
    table: str
    overlay: Mapping[str, Any] = field(default_factory=dict)


def _tsn(name: str, line: str) -> Method:
    return Method(
        line,
        "tinysubnets.method.learner:TinySubNets",
        "tinysubnets.method.settings:TSNSettings",
        "tsn",
        VARIANTS[name],
    )


_DENSE = "base:DenseSettings"
_MEMORY = "replay:ReplaySettings"


def _baseline(name: str, line: str, learner: str, settings: str) -> Method:
    place = "tinysubnets.baselines."
    return Method(line, place + learner, place + settings, name)


_BASELINES = (
    ("wsn", "WSN: a learned mask per task, 32-bit weights", "masked:WSN", "masked:WSNSettings"),
    ("packnet", "Prune by magnitude, freeze, go on", "masked:PackNet", "masked:PackNetSettings"),
    (
        "ada-qpacknet",
        "Disjoint weights per task, few and in few bits",
        "masked:AdaQPackNet",
        "masked:AdaQPackNetSettings",
    ),
    ("naive", "Plain training, one task after the other: forgets", "joint:Naive", _DENSE),
    ("cumulative", "Joint training on all data so far", "joint:Cumulative", _DENSE),
    ("independent", "One network per task: the upper bound", "joint:Independent", _DENSE),
    ("replay", "A small balanced memory joins every batch", "replay:Replay", _MEMORY),
    ("gdumb", "A fresh network trained on a balanced memory alone", "replay:GDumb", _MEMORY),
    ("gem", "Gradients go against no earlier task's memory", "gem:GEM", "gem:GEMSettings"),
    ("a-gem", "Gradients do not go against the memory's average", "gem:AGEM", "gem:AGEMSettings"),
    ("ewc", "Weights held by their Fisher information", "ewc:EWC", "ewc:EWCSettings"),
    ("si", "Weights held by their path integrals", "si:SI", "si:SISettings"),
    ("lwf", "Old outputs distilled on new data", "lwf:LwF", "lwf:LwFSettings"),
    ("cwr-star", "A frozen body, output rows merged task by task", "cwr:CWRStar", _DENSE),
)

_METHODS: dict[str, Method] = {
    "tsn": _tsn("tsn", "TinySubNets: masks, weight sharing, quantization, banks, post-pruning"),
    "tsn-wr": _tsn("tsn-wr", "TinySubNets with one bank and no task memory"),
    "tsn-wr-wpp": _tsn("tsn-wr-wpp", "TinySubNets with one bank and without post-pruning"),
} | {entry[0]: _baseline(*entry) for entry in _BASELINES}

METHODS: dict[str, str] = {name: entry.line for name, entry in _METHODS.items()}


def method(name: str) -> Method:
    """The method of that name."""
    if name not in _METHODS:
        raise SettingError(unknown("method", name, _METHODS))
    return _METHODS[name]


def settings_class(name: str) -> type:
    """The settings dataclass of a method."""
    return _imported(method(name).settings)


def scenario_types(name: str) -> tuple[str, ...]:
    """The settings that a method defines: task, class, domain; those with masks, task alone."""
    return tuple(getattr(_imported(method(name).learner), "scenario_types", ("task-IL",)))


def build(
    name: str,
    architecture: Architecture,
    *,
    settings: Mapping[str, Any] | None = None,
    training: Any = None,
    pruning: Any = None,
    device: Any = "cpu",
    seed: int = 0,
) -> Any:
    """A new learner; `settings` are those of its recipe table, unknown ones are errors."""
    entry = method(name)
    merged = config.merge(settings or {}, entry.overlay) | {"seed": seed}
    learner = _imported(entry.learner)
    return learner(architecture, training=training, pruning=pruning, device=device, **merged)


def _imported(target: str) -> Any:
    """What `package.module:name` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
