"""The space of a search: which settings of a recipe are tried, and in which ranges.

    [search]
    tsn.density = "0.01..0.3 log"     a range; "log" draws evenly over orders of magnitude
    tsn.block = "1,2,4"               a choice, also written [1, 2, 4]

The same is given on the command line by `--space "tsn.density=0.01..0.3 log"`. What is given is the
whole space; where nothing is, every method has one of its own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinysubnets import config, networks
from tinysubnets.errors import SettingError, unknown
from tinysubnets.experiments import methods
from tinysubnets.experiments.recipe import Recipe, build_architecture, complete, placed
from tinysubnets.experiments.results import flat

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(\s+log)?")
_LOOKS_LIKE_RANGE = re.compile(r"\.\.")
_TABLES = ("training", "pruning", "network")  # beside the method's own


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`; integers where both are written so.

    `is_log` draws evenly over orders of magnitude.
    """

    low: float | int
    high: float | int
    is_log: bool = False

    @property
    def examples(self) -> tuple[Any, ...]:
        """Values that must be allowed for all to be: both ends."""
        return self.low, self.high

    def __contains__(self, value: object) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high  # type: ignore[operator]

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{' log' if self.is_log else ''}"


@dataclass(frozen=True)
class Choices:
    """Some values, with no order among them."""

    values: tuple[Any, ...]

    @property
    def examples(self) -> tuple[Any, ...]:
        """Values that must be allowed for all to be: each of them."""
        return self.values

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ",".join(str(v) for v in self.values)


Space = dict[str, Range | Choices]  # by dotted setting, such as "tsn.density"


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with other values of some settings, given by their dotted names; checked."""
    values = recipe.as_dict()
    for name, value in settings.items():
        *tables, key = name.split(".")
        table = values
        for part in tables:
            table = table.setdefault(part, {})
        table[key] = value
    return complete(recipe.name, values)


# --------------------------------------------------------------------------------------------------
# Reading a space


def read_space(
    recipe: Recipe,
    given: Sequence[str],
    table: Mapping[str, Any],
    *,
    shape: tuple[int, ...],
    num_tasks: int,
) -> Space:
    """The space of a search, every value that it can give checked.

    - `recipe`: what is searched around.
    - `given`: the texts of `--space`, each `key=range`.
    - `table`: the recipe's [search]; entries of other methods are left out, so that one recipe can
      have spaces for many.
    - `shape`, `num_tasks`: of the inputs [1, …], and of the scenario.
    """
    network = _network(recipe, shape)
    known = _known(recipe, network)
    texts: dict[str, Any] = {}
    for text in given:
        key, equals, value = placed(text, recipe.method).partition("=")
        if not equals or not key.strip() or not value.strip():
            raise SettingError(
                f"cannot read --space {text!r}; write key=low..high or key=a,b,c, for example "
                '--space "tsn.density=0.01..0.3 log".'
            )
        if key.strip() in texts:
            raise SettingError(f"--space gives {key.strip()} twice; give it once.")
        texts[key.strip()] = value.strip()
    if not texts:
        tables = flat(dict(table))
        others = {methods.method(m).table for m in methods.METHODS}
        others -= {methods.method(recipe.method).table}
        texts = {k: v for k, v in tables.items() if k.partition(".")[0] not in others}
    if not texts:
        texts = default_space(recipe, network, num_tasks)
    space = {}
    for key, value in texts.items():
        _check_key(key, recipe, known)
        space[key] = read_values(key, value, known[key])
    _check_values(recipe, space, shape)
    return space


def read_values(key: str, given: Any, current: Any = None) -> Range | Choices:
    """What is tried of one setting.

    - `key`: its dotted name, for errors.
    - `given`: "low..high", "low..high log", "a,b,c", or a list.
    - `current`: its value now; where that is a fraction, a range of whole numbers is one too.

    >>> read_values("a.b", "1..8"), read_values("a.b", "2,4")
    (Range(low=1, high=8, is_log=False), Choices(values=(2, 4)))
    """
    if isinstance(given, str) and (found := _RANGE.fullmatch(given.strip())):
        return _range(key, given, found, is_float=isinstance(current, float))
    if isinstance(given, str) and _LOOKS_LIKE_RANGE.search(given):
        raise SettingError(
            f'{key} = {given!r} is no range; write "low..high" or "low..high log" with two numbers.'
        )
    values = tuple(given) if isinstance(given, (list, tuple)) else _listed(str(given))
    if not values:
        raise SettingError(f"{key} = {given!r} leaves nothing to try; write a,b,c or low..high.")
    twice = [v for i, v in enumerate(values) if v in values[:i]]
    if twice:
        raise SettingError(f"{key} = {given!r} has {twice[0]!r} twice; give each value once.")
    return Choices(values)


def _range(key: str, given: str, found: re.Match[str], *, is_float: bool) -> Range:
    low, high = (float(found[i]) for i in (1, 2))
    whole = all(re.fullmatch(r"[-+]?\d+", found[i]) for i in (1, 2)) and not is_float
    if not low < high:
        raise SettingError(f"{key} = {given!r} is empty: {found[1]} is not below {found[2]}.")
    if found[3] and low <= 0:
        raise SettingError(
            f"{key} = {given!r}: a logarithmic range begins above 0. Leave out log, or raise it."
        )
    return Range(int(low) if whole else low, int(high) if whole else high, bool(found[3]))


def _listed(text: str) -> tuple[Any, ...]:
    """Values divided by commas, as TOML writes them; quotes around strings may be left out."""
    try:
        return tuple(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        parts = [part.strip() for part in text.split(",")]
        return tuple(config.override({}, [f"x={p}"])["x"] for p in parts if p)


def own_settings(recipe: Recipe, space: Space, shape: tuple[int, ...]) -> dict[str, Any]:
    """The recipe's own values of what is searched, those that the space holds."""
    known = _known(recipe, _network(recipe, shape))
    return {key: known[key] for key, allowed in space.items() if known[key] in allowed}


def _network(recipe: Recipe, shape: tuple[int, ...]) -> str:
    """The name of the recipe's network, chosen by the inputs where the recipe leaves it open."""
    made = build_architecture(recipe, shape, 0).rebuild
    assert made is not None
    return str(made["network"])


def _known(recipe: Recipe, network: str) -> dict[str, Any]:
    """All settings that can be searched, with their values now; None where one must be given."""
    values = recipe.as_dict()
    own = methods.method(recipe.method).table
    known = flat({table: values[table] for table in (own, *_TABLES)})
    of_network = dict.fromkeys(networks.settings(network)) | networks.defaults(network)
    return {f"network.{key}": value for key, value in of_network.items()} | known


def _check_key(key: str, recipe: Recipe, known: Mapping[str, Any]) -> None:
    """Refuse a setting that does not exist or cannot be searched."""
    table, _, name = key.partition(".")
    method = methods.method(recipe.method)
    if table == method.table and name in method.overlay:
        raise SettingError(
            f"{key} cannot be searched: {recipe.method} fixes it at {method.overlay[name]!r}."
        )
    if key in known:
        return
    if table in ("data", "scenario", "method"):
        raise SettingError(
            f"{key} cannot be searched: all trials of a search are of the same tasks and method. "
            "Set it by --set or --method, and search once for each."
        )
    of_methods = {methods.method(m).table: m for m in methods.METHODS}
    if table in of_methods and table != method.table:
        raise SettingError(
            f"{key} is a setting of {of_methods[table]}, and this search is of {recipe.method}. "
            f"Add --method {of_methods[table]}, or leave it out."
        )
    raise SettingError(unknown("setting to search", key, known, listed_by="tsn settings"))


def _check_values(recipe: Recipe, space: Space, shape: tuple[int, ...]) -> None:
    """Refuse values that a trial could not be run with, before the first one runs."""
    for key, allowed in space.items():
        for value in allowed.examples:
            tried = with_settings(recipe, {key: value})
            if key.startswith("network."):
                build_architecture(tried, shape, 0)


# --------------------------------------------------------------------------------------------------
# The spaces that methods have of their own


def default_space(recipe: Recipe, network: str, num_tasks: int) -> dict[str, str]:
    """The space of a recipe that gives none: its method's dials, learning rate, epochs, dropout.

    - `network`: the name of the network; dropout is searched where it has such a setting.
    - `num_tasks`: methods with disjoint tasks have that many parts of a network to give.
    """
    space = dict(_own_dials(recipe, num_tasks))
    lr, epochs = float(recipe.training["lr"]), int(recipe.training["epochs"])
    low = max(lr / 5, float(recipe.training["min_lr"]))
    space["training.lr"] = f"{low:.6g}..{lr * 5:.6g} log"
    space["training.epochs"] = _choice({max(1, epochs // 2), epochs, 2 * epochs})
    if "dropout" in networks.settings(network):
        own = recipe.network.get("dropout")
        space["network.dropout"] = _choice({0.0, 0.1, 0.25, 0.5} | ({own} if own else set()))
    return space


def _own_dials(recipe: Recipe, num_tasks: int) -> Mapping[str, str]:
    table = methods.method(recipe.method).table
    if table == "tsn":
        # With "auto" the width is chosen task by task, from `first_bits` up.
        bits = ("first_bits", "2,3,4") if recipe.learner["bits"] == "auto" else ("bits", "2,3,4,6")
        return {
            "tsn.density": "0.01..0.5 log",
            "tsn.density_exponent": "0.0..0.8",
            "tsn.block": "1,2,4",
            f"tsn.{bits[0]}": bits[1],
        }
    if table in ("packnet", "ada-qpacknet"):  # tasks share nothing: together at most everything
        return {f"{table}.density": f"{0.1 / num_tasks:.4g}..{1 / num_tasks:.4g} log"}
    dials = {
        "wsn": {"density": "0.02..0.8 log"},
        "separate": {"density": "0.05..1 log", "bits": "1,2,3,4"},
        "ewc": {"penalty_weight": "0.1..10000 log"},
        "si": {"penalty_weight": "0.01..100 log"},
        "lwf": {"distillation_weight": "0.1..30 log"},
        "replay": {"buffer_size": "50..5000 log"},
        "gdumb": {"buffer_size": "50..5000 log"},
        "gem": {"buffer_per_task": "16..1024 log"},
        "a-gem": {"buffer_per_task": "16..1024 log"},
    }
    return {f"{table}.{key}": text for key, text in dials.get(table, {}).items()}


def _choice(values: Iterable[float]) -> str:
    return ",".join(str(v) for v in sorted(values))
