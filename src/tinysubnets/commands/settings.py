"""The command `tsn settings`: every setting with its meaning, its default and what is allowed."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tinysubnets.errors import SettingError, unknown
from tinysubnets.scenarios import SCENARIOS

if TYPE_CHECKING:
    from tinysubnets.config import SettingDoc

WIDEST = 110  # columns of text, on wide terminals too
OTHERS = "The same keys are for tsn run, compare, search and learn: --set training.epochs=5."


class Table(NamedTuple):
    """Settings that belong together.

    - `names`: what shows it: its name in recipes, and that of a method, scenario or network.
    - `heading`: what it is for.
    - `settings`: one entry each, their keys with the table's name.
    """

    names: tuple[str, ...]
    heading: str
    settings: Sequence[SettingDoc]


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    shown = subparsers.add_parser(
        "settings",
        help="every setting: what it does, its default, what is allowed",
        description="Every setting with its meaning, its default and the values it may have. "
        + OTHERS,
    )
    shown.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a table (training, pruning, data, network), a method, a scenario, a network, or one "
        "setting; without it, all settings of TinySubNets",
    )
    shown.set_defaults(run=_settings)


def _settings(options: argparse.Namespace) -> int:
    tables = all_tables()
    if options.name is None:
        chosen = [t for t in tables if t.names[0] in ("training", "pruning", "tsn", "data")]
        others = [t.names[0] for t in tables if t not in chosen and t.names[0] not in SCENARIOS]
        print("\n\n".join(map(shown, chosen)))
        more = f"Settings of other methods and of networks: tsn settings NAME, {', '.join(others)}."
        print(f"\n{_filled(more)}\n{_filled(OTHERS)}")
        return 0
    chosen = [t for t in tables if options.name in t.names]
    kinds = [t for t in tables if t.names[0] not in SCENARIOS]  # which have the settings of a kind
    for table in kinds if not chosen else ():
        found = [s for s in table.settings if options.name in (s.key, s.key.partition(".")[2])]
        chosen += [table._replace(settings=found)] if found else []
    if not chosen:
        keys = {key for t in tables for s in t.settings for key in (s.key, s.key.partition(".")[2])}
        names = {name for t in tables for name in t.names}
        raise SettingError(
            unknown(
                "setting, table, method, scenario or network", options.name, keys | names
            ).partition(" Known:")[0]
            + f" tsn settings takes {', '.join(sorted(names))}, or the name of a setting."
        )
    print("\n\n".join(map(shown, chosen)))
    return 0


def all_tables() -> list[Table]:
    """Every table of settings: those of all methods, of each method, of scenarios and networks."""
    from tinysubnets import networks
    from tinysubnets.config import documented
    from tinysubnets.experiments import methods
    from tinysubnets.method.pruning import PruningSettings
    from tinysubnets.model.routing import RoutingSettings
    from tinysubnets.training.settings import TrainingSettings

    out = [
        Table(("training",), "how every task is trained", _placed(TrainingSettings, "training")),
        Table(("pruning",), "how post-pruning searches", _placed(PruningSettings, "pruning")),
        Table(
            ("routing",),
            "what is kept to find tasks without their names",
            _placed(RoutingSettings, "routing"),
        ),
    ]
    seen: dict[str, Table] = {}
    for name, line in methods.METHODS.items():
        table = methods.method(name).table
        if table in seen:  # a variant of another method
            seen[table] = seen[table]._replace(names=(*seen[table].names, name))
            continue
        entries = _placed(methods.settings_class(name), table)
        seen[table] = Table((table,) if table == name else (table, name), line, entries)
    out += seen.values()
    kinds: dict[type, list[str]] = {}
    for name, entry in SCENARIOS.items():
        kinds.setdefault(entry.kind, []).append(name)
    for kind, named in kinds.items():
        heading = f"the tasks of {', '.join(named)}"
        out.append(Table(("data",), heading, _placed(kind, "data")))
    for name, entry in SCENARIOS.items():
        entries = [
            replace(s, default=entry.defaults.get(s.key.partition(".")[2], s.default))
            for s in _placed(entry.kind, "data")
        ]
        out.append(Table((name,), entry.line, entries))
    for name in networks.names():
        entries = documented(networks.function(name), "network.")
        out.append(Table((name, "network"), networks.describe(name), entries))
    return out


def _placed(cls: type, table: str) -> list[SettingDoc]:
    """The settings of a table but for the seed, which `--seed` gives."""
    from tinysubnets.config import documented

    return [s for s in documented(cls, f"{table}.") if s.key != f"{table}.seed"]


def shown(table: Table) -> str:
    """A table as text: a line per setting, and below it what it means."""
    lines = [f"{table.names[0]}: {table.heading}"]
    width = max(len(s.key) for s in table.settings)
    for number, setting in enumerate(table.settings):
        default = "must be given" if setting.is_required else f"= {_value(setting.default)}"
        lines.append(f"  {setting.key:{width}}  {default:12}  {setting.allowed}")
        after = table.settings[number + 1 : number + 2]
        if not after or after[0].meaning != setting.meaning:
            lines.append(_filled(setting.meaning, "      "))
    return "\n".join(lines)


def _value(value: Any) -> str:
    """A default as it is written in a recipe or after --set."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _filled(text: str, indent: str = "") -> str:
    """A paragraph that fits the terminal."""
    width = min(WIDEST, max(40, shutil.get_terminal_size().columns))
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
