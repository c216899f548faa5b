"""The methods by name: TinySubNets and every rival; torch is imported only when one is built."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinysubnets import config
from tinysubnets.errors import MismatchError, SettingError, unknown
from tinysubnets.method.settings import VARIANTS

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tinysubnets.method.base import Learner
    from tinysubnets.model.bank import BaseSource
    from tinysubnets.nn.architecture import Architecture


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
    (
        "separate",
        "One small network per task, pruned and in few bits, in one file",
        "separate:SeparateNetworks",
        "separate:SeparateSettings",
    ),
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
    """The scenario types that are defined for a method."""
    return learner_class(name).scenario_types


def learner_class(name: str) -> type[Learner]:
    """The class of a method's learners."""
    found: type[Learner] = _imported(method(name).learner)
    return found


def build(
    name: str,
    architecture: Architecture,
    *,
    settings: Mapping[str, Any] | None = None,
    training: Any = None,
    pruning: Any = None,
    routing: Any = None,
    device: Any = "auto",
    seed: int = 0,
) -> Learner:
    """A new learner.

    - `settings`: those of the method's table in recipes; unknown ones are errors.
    - `training`, `pruning`, `routing`: those tables; a method ignores what it does not do.
    """
    entry = method(name)
    merged = config.merge(settings or {}, entry.overlay) | {"seed": seed}
    make: Any = learner_class(name)
    learner: Learner = make(
        architecture,
        training=training,
        pruning=pruning,
        routing=routing,
        device=device,
        **merged,
    )
    return learner


def resume(
    folder: str | os.PathLike[str],
    net: nn.Module | Architecture | None = None,
    *,
    device: str | torch.device = "auto",
    overrides: Iterable[str] = (),
    base: BaseSource | None = None,
) -> Learner:
    """The learner of a saved model, by the method that made it; see `Learner.resume`.

    - `base`: the pretrained weights that a model of subnets was learned over.
    """
    from tinysubnets.method.core import MaskedLearner

    name = made_by(folder)
    if name not in _METHODS:
        raise MismatchError(f"this model was made by {name!r}, which is no method of this version.")
    learner = learner_class(name)
    if issubclass(learner, MaskedLearner):
        return learner.resume(folder, net, device=device, overrides=overrides, base=base)
    if base is not None:
        raise MismatchError(f"base: this model was made by {name}, which knows none; leave it out.")
    return learner.resume(folder, net, device=device, overrides=overrides)


def made_by(folder: str | os.PathLike[str]) -> str | None:
    """The name of the method that saved the model in a folder."""
    from tinysubnets.baselines.dense_file import dense_method
    from tinysubnets.format.container import ModelFile, model_path
    from tinysubnets.format.io import read_settings
    from tinysubnets.method.core import method_of

    path = model_path(folder)
    if (name := dense_method(path)) is not None:
        return name
    with ModelFile(path) as file:
        return method_of(read_settings(file))


def _imported(target: str) -> Any:
    """What `package.module:name` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
