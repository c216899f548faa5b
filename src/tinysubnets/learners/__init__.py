"""Learners: objects that learn tasks one after the other, by the name of their method.

Every learner has `begin(task)` (a lesson of visible steps), `learn(task)`, `logits(task, inputs)`,
`predict(task, inputs)`, `tasks`, `reports`, `ledger()` and `save(folder)`; `setting` says whether it
is told the task ("task-incremental", the default) or not. `state()` gives everything it has learned
as tensors and plain data, and `restore_()` takes it back. Torch is imported only when one is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinysubnets import config
from tinysubnets.errors import SettingError, unknown
from tinysubnets.learners.settings import VARIANTS

if TYPE_CHECKING:
    from tinysubnets.architecture import Architecture

__all__ = ["METHODS", "build", "method", "settings_class"]


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
        "tinysubnets.learners.tsn:TinySubNets",
        "tinysubnets.learners.settings:TSNSettings",
        "tsn",
        VARIANTS[name],
    )


_METHODS: dict[str, Method] = {
    "tsn": _tsn("tsn", "TinySubNets: masks, weight sharing, quantization, banks, post-pruning"),
    "tsn-wr": _tsn("tsn-wr", "TinySubNets with one bank and no task memory"),
    "tsn-wr-wpp": _tsn("tsn-wr-wpp", "TinySubNets with one bank and without post-pruning"),
}

METHODS: dict[str, str] = {name: entry.line for name, entry in _METHODS.items()}


def method(name: str) -> Method:
    """The method of that name."""
    if name not in _METHODS:
        raise SettingError(unknown("method", name, _METHODS))
    return _METHODS[name]


def settings_class(name: str) -> type:
    """The settings dataclass of a method."""
    return _imported(method(name).settings)


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
