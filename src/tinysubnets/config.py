"""Settings as frozen dataclasses: built from dictionaries, overridden by key=value, kept as TOML.

Every settings class stands beside the code it steers; this module knows none of them. Unknown keys
are errors that name the nearest known key, and values are checked against the annotated types.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tinysubnets.errors import SettingError, unknown

T = TypeVar("T")
MOST_THREADS = 1024  # with many more than it can start, torch ends the process
# A line of a docstring that explains one or more names, up to the next one or an empty line.
_BULLET = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*?)(?=\n- |\n\n|\n\Z|\Z)", re.M | re.S)

_SHORT_NUMBER = re.compile(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?")

# Settings of version 0.1 with another name today. Model files and run folders of that version are
# read through these tables; in recipes and assignments an old name is an error that tells the new.
_DENSE = (
    "naive", "cumulative", "independent", "replay", "gdumb", "gem", "a-gem", "ewc", "si", "lwf",
    "cwr-star",
)  # fmt: skip
_ALL = (*_DENSE, "wsn", "packnet", "ada-qpacknet")
RENAMED: dict[str, str] = {
    "tsn.balance": "tsn.density_exponent",
    "tsn.scores": "tsn.score_init",
    "tsn.warm_from": "tsn.previous_mask_of",
    "tsn.distillation": "tsn.layer_loss_weight",
    "tsn.private_bits": "tsn.task_param_bits",
    "tsn.private_tolerance": "tsn.task_param_tolerance",
    "training.learning_rate": "training.lr",
    "training.final_rate": "training.min_lr",
    "training.score_rate": "training.score_lr",
    "training.score_epsilon": "training.score_eps",
    "training.refreshes": "training.codebook_updates_per_epoch",
    "ewc.strength": "ewc.penalty_weight",
    "si.strength": "si.penalty_weight",
    "lwf.strength": "lwf.distillation_weight",
    "replay.memory": "replay.buffer_size",
    "gdumb.memory": "gdumb.buffer_size",
    "gem.memory_per_task": "gem.buffer_per_task",
    "a-gem.memory_per_task": "a-gem.buffer_per_task",
    **{f"{method}.setting": f"{method}.scenario_type" for method in _ALL},
}
# By today's name: old values with their new ones.
RENAMED_VALUES: dict[str, dict[str, str]] = {
    "tsn.score_init": {"cold": "random", "warm": "previous_mask"},
    **{f"{method}.init": {"given": "pretrained"} for method in ("tsn", *_ALL)},
    **{
        f"{method}.scenario_type": {t: f"{t}-IL" for t in ("task", "class", "domain")}
        for method in _ALL
    },
}


def modernized(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of settings as an older version wrote them, with today's names and values."""
    out: dict[str, Any] = {}
    for table, settings in values.items():
        if not isinstance(settings, Mapping):
            out[table] = settings
            continue
        fresh = {}
        for key, value in settings.items():
            name = RENAMED.get(f"{table}.{key}", f"{table}.{key}")
            if isinstance(value, str):
                value = RENAMED_VALUES.get(name, {}).get(value, value)
            fresh[name.rpartition(".")[2]] = value
        out[table] = fresh
    return out


def _new_name(path: str, fields: Iterable[str]) -> str | None:
    """Today's name of a setting that was renamed, given with or without its table."""
    known, (table, _, key) = set(fields), path.rpartition(".")
    for old, new in RENAMED.items():
        old_table, _, old_key = old.rpartition(".")
        new_key = new.rpartition(".")[2]
        if old_key == key and table in ("", old_table) and new_key in known:
            return new_key if not table else new
    return None


def build(cls: type[T], values: Mapping[str, Any] | T | None = None, where: str = "") -> T:
    """A settings dataclass made from a dictionary; nested classes from nested dictionaries."""
    if isinstance(values, cls):
        _check_finite(to_dict(values), where)
        return values
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise SettingError(
            f"{where or cls.__name__}: expected a table of settings, got {values!r}."
        )
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    kwargs = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        if key not in fields:
            if (renamed := _new_name(path, fields)) is not None:
                raise SettingError(f"the setting {path!r} is called {renamed!r} now.")
            known = [f"{where}.{n}" if where else n for n in fields]
            raise SettingError(unknown("setting", path, known, listed_by="tsn settings"))
        kwargs[key] = _coerce(value, hints[key], path)
    return cls(**kwargs)


def build_with(
    own: type, settings: Mapping[str, Any], **tables: tuple[type, Any]
) -> tuple[Any, ...]:
    """Settings of a class and of tables beside it, each given in its table or by its bare name.

    So `epochs=3` is `training={"epochs": 3}`. Gives those of `own`, then those of each table.

    - `settings`: by bare name, of `own` or of any table.
    - `tables`: by name, the table's class, and what was given for it.
    """
    mine = {f.name for f in dataclasses.fields(own)}
    homes = {f.name: t for t, (cls, _) in tables.items() for f in dataclasses.fields(cls)}
    own_values: dict[str, Any] = {}
    bare: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for key, value in settings.items():
        if key in mine:
            own_values[key] = value
        elif key in homes:
            bare[homes[key]][key] = value
        elif (renamed := _new_name(key, mine | homes.keys())) is not None:
            raise SettingError(f"the setting {key!r} is called {renamed!r} now.")
        else:
            known = mine | homes.keys()
            raise SettingError(unknown("setting", key, known, listed_by="tsn settings"))
    built = [
        build(cls, _joined(cls, given, bare[table], table), table)
        for table, (cls, given) in tables.items()
    ]
    return (build(own, own_values), *built)


def _joined(cls: type, given: Any, bare: dict[str, Any], table: str) -> Any:
    """What was given for a table together with what was given by bare name."""
    if not bare:
        return given
    if isinstance(given, cls):
        return {f.name: getattr(given, f.name) for f in dataclasses.fields(cls)} | bare
    given = {} if given is None else given
    twice = sorted(bare.keys() & given.keys()) if isinstance(given, Mapping) else []
    if twice:
        key = twice[0]
        raise SettingError(
            f"{key} is given twice: {key}={bare[key]!r} and {table}={{{key!r}: {given[key]!r}}}."
        )
    return dict(given) | bare if isinstance(given, Mapping) else given


def _coerce(value: Any, hint: Any, path: str) -> Any:
    """The value as the annotated type, or an error that says what was given and what is allowed."""
    _check_finite(value, path)
    if hint is Any:
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, path)
    if origin is typing.Literal:
        if any(value == a and type(value) is type(a) for a in args):
            return value
        renamed = RENAMED_VALUES.get(path, {}).get(value) if isinstance(value, str) else None
        if renamed in args:
            raise SettingError(f"{path} = {value!r} is called {renamed!r} now.")
        allowed = ", ".join(repr(a) for a in args)
        raise SettingError(f"{path} = {value!r} is not allowed; choose one of {allowed}.")
    if origin in (typing.Union, types.UnionType):
        for arg in args:
            try:
                return _coerce(value, arg, path)
            except SettingError:
                continue
        raise SettingError(f"{path} = {value!r} is not allowed; expected {_describe(hint)}.")
    if origin is tuple and isinstance(value, (list, tuple)):
        inner = args[0] if args else Any
        return tuple(_coerce(v, inner, path) for v in value)
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:
            return float(value)
    if hint is int and isinstance(value, bool):
        raise SettingError(f"{path} = {value!r} is not allowed; expected an integer.")
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    if value == "none" and hint is type(None):  # TOML has no null
        return None
    raise SettingError(f"{path} = {value!r} is not allowed; expected {_describe(hint)}.")


def _check_finite(value: Any, path: str) -> None:
    """Refuse numbers that no file has a word for, in tables and lists too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_finite(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_finite(inner, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise SettingError(f"{path} = {value!r} is not allowed; expected a finite number.")


_PLURALS = {int: "integers", float: "numbers", str: "strings"}


def _describe(hint: Any) -> str:
    """The annotated type in words."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(a) for a in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_describe(a) for a in typing.get_args(hint))
    if typing.get_origin(hint) in (tuple, list, Sequence):
        (inner, *_) = typing.get_args(hint)
        return f"a list of {_PLURALS.get(inner, 'values')}"
    if typing.get_origin(hint) is dict:
        return "a table"
    names = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "a string",
        type(None): '"none"',
    }
    return names.get(hint, getattr(hint, "__name__", str(hint)))


@dataclasses.dataclass(frozen=True)
class SettingDoc:
    """One setting as people read about it.

    - `key`: its name, with dots where it is in a table of its own.
    - `default`: its value where none is given; None where it must be given, see `is_required`.
    - `allowed`: the values it may have, in words.
    - `meaning`: what it does; settings that are explained together have the same text.
    - `is_required`: whether there is no default.
    """

    key: str
    default: Any
    allowed: str
    meaning: str
    is_required: bool = False


def documented(made: Any, prefix: str = "") -> list[SettingDoc]:
    """Every setting of a settings dataclass or of a function, with what its docstring says of it.

    Docstrings have lines such as "- `lr`, `min_lr`: the learning rate …"; those of base classes
    count too. What is allowed is what the class itself says when it refuses a value.
    """
    hints = typing.get_type_hints(made)
    texts = _meanings(made)
    out = []
    for name, parameter in inspect.signature(made).parameters.items():
        hint, default = hints.get(name, Any), parameter.default
        if dataclasses.is_dataclass(hint):
            out += documented(hint, f"{prefix}{name}.")
            continue
        if isinstance(made, type):  # a default that is made anew for each has no other place
            field = next(f for f in dataclasses.fields(made) if f.name == name)
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
        is_required = default is parameter.empty
        allowed = _allowed(made, name, hint)
        shown = None if is_required else default
        out.append(SettingDoc(f"{prefix}{name}", shown, allowed, texts.get(name, ""), is_required))
    return out


def _meanings(made: Any) -> dict[str, str]:
    """What the docstrings of a class and its bases, or of a function, say of each name."""
    found: dict[str, str] = {}
    for source in reversed(made.__mro__) if isinstance(made, type) else (made,):
        text = (
            inspect.getdoc(source) if source is made else source.__doc__ and inspect.getdoc(source)
        )
        for names, meaning in _BULLET.findall(f"{text or ''}\n"):
            for name in re.findall(r"`(\w+)`", names):
                found[name] = " ".join(meaning.split()).replace("`", "")
    return found


def _allowed(made: Any, name: str, hint: Any) -> str:
    """The values that a setting may have: its type, and what a refusal of a wild number says."""
    wild: Any = -(10**9)
    if isinstance(made, type) and any(t in (int, float) for t in (hint, *typing.get_args(hint))):
        try:
            build(made, {name: wild})
        except SettingError as error:
            named, _, told = str(error).rpartition("give ")
            if re.search(rf"\b{name} ?=", named):
                return told.partition(" (now")[0].rstrip(".")
    values = [a for h in (hint, *typing.get_args(hint)) for a in typing.get_args(h)]
    if values and typing.get_origin(hint) is typing.Literal:
        return " or ".join([", ".join(map(str, values[:-1])), str(values[-1])])
    return _describe(hint).replace("'", "").replace('"', "")


def num_cores() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(count: Any) -> None:
    """Refuse a number of CPU threads that torch cannot have."""
    is_whole = isinstance(count, int) and not isinstance(count, bool)
    if not is_whole or not 1 <= count <= MOST_THREADS:
        raise SettingError(f"threads = {count!r} is not allowed; give 1 to {MOST_THREADS:,}.")


def to_dict(settings: Any) -> dict[str, Any]:
    """The settings as plain nested dictionaries, with None written as "none" as in TOML files."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = list(value)
        out[field.name] = "none" if value is None else value
    return out


def override(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of nested settings with `a.b=value` assignments applied; values are read as TOML."""
    out = _deep_copy(values)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        keys = [k.strip() for k in path.split(".")]
        if not separator or not all(keys):
            raise SettingError(
                f"cannot read the setting {assignment!r}; write key=value, "
                "for example training.epochs=5."
            )
        table = out
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise SettingError(f"{path}: {key!r} is a value, not a table of settings.")
        table[keys[-1]] = _parse(text.strip())
    return out


def _parse(text: str) -> Any:
    """A value written as in TOML, or else the text itself, so that quotes are optional.

    Numbers may be as in Python, too: .1 and 1. are 0.1 and 1.0.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return float(text) if _SHORT_NUMBER.fullmatch(text) else text


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _deep_copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with those of `extra` laid over those of `base`."""
    out = _deep_copy(base)
    for key, value in extra.items():
        old = out.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        out[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return out


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Nested settings as TOML text: plain values first, then one table per dictionary."""
    plain = {k: v for k, v in values.items() if not isinstance(v, Mapping)}
    lines = [f"{_toml_key(k)} = {_toml_value(v)}" for k, v in plain.items()]
    for key, value in values.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{_toml_key(key)}"
            lines += ["", f"[{name}]", to_toml(value, f"{name}.").rstrip()]
    return "\n".join(lines).strip() + "\n"


def _toml_key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else _toml_string(key)


def _toml_string(text: str) -> str:
    """A basic TOML string; control characters and quotes escaped."""
    out = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in out) + '"'


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _toml_string(value)
    raise SettingError(f"cannot write {value!r} as TOML.")
