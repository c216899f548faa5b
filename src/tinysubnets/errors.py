"""The closed list of errors that this package raises on purpose.

    TinySubNetsError
    ├── SettingError        a setting, name or recipe key that does not exist or is out of range
    ├── ArchitectureError   a network that cannot be wrapped or does not fit the data
    ├── TaskError           data or a task name that cannot be learned or is unknown
    ├── CapacityError       no free weights left where the chosen sharing needs them
    ├── DataError           a data set that is missing, incomplete or corrupt
    ├── RunError            a run folder that is busy, foreign or cannot be written
    └── ArtifactError       a model file, one of:
        ├── FormatError     not a model of ours, or of an unknown format version
        ├── DamageError     truncated, padded, altered or inconsistent
        ├── MismatchError   the network given does not match the recorded one
        └── ConflictError   saving would overwrite a model this store did not come from

There are two warnings: `CapacityWarning` says, once, that a bank has run out of free weights,
`FewSamplesWarning` that a folder holds too few images to choose anything by.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

FEW_NAMES = 12  # that are listed in an error where a command lists them as well


class TinySubNetsError(Exception):
    """Anything this package raises on purpose."""


class SettingError(TinySubNetsError, ValueError):
    """A setting, name or recipe key that does not exist or is out of range."""


class ArchitectureError(TinySubNetsError, ValueError):
    """A network that cannot be wrapped or does not fit the data."""


class TaskError(TinySubNetsError, ValueError):
    """Data or a task name that cannot be learned or is unknown."""


class CapacityError(TinySubNetsError, RuntimeError):
    """No free weights are left where the chosen kind of sharing needs them."""


class DataError(TinySubNetsError, RuntimeError):
    """A data set that is missing, incomplete or corrupt."""


class RunError(TinySubNetsError, RuntimeError):
    """A run folder that is busy, foreign or cannot be written."""


class ArtifactError(TinySubNetsError, RuntimeError):
    """A model file that cannot be read or written."""


class FormatError(ArtifactError):
    """Not a model of ours, or of an unknown format version."""


class DamageError(ArtifactError):
    """A model file that is truncated, padded, altered or inconsistent."""


class MismatchError(ArtifactError):
    """The network given does not match the one the model was made with."""


class ConflictError(ArtifactError):
    """Saving would overwrite a model that this store was not loaded from."""


class CapacityWarning(UserWarning):
    """A bank has no free weights left; learning goes on by mask alone."""


class FewSamplesWarning(UserWarning):
    """A task has too few validation samples to choose an epoch by, or weights to prune."""


def check_setting(name: str, value: object, is_fine: bool, allowed: str) -> None:
    """Refuse the value of a setting, and say what is allowed."""
    if not is_fine:
        raise SettingError(f"{name} = {value!r} is not allowed; give {allowed}.")


def unknown(kind: str, name: Any, known: Iterable[str], listed_by: str = "") -> str:
    """The message for a name that does not exist: what was given, the nearest name, all names.

    - `name`: what was given, which need not be a string where it comes from a file.
    - `listed_by`: a command that lists all names, which is told instead of more than a few.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1) if isinstance(name, str) else []
    hint = f" Did you mean {close[0]!r}?" if close else ""
    if listed_by and (close or len(names) > FEW_NAMES):
        return f"unknown {kind} {name!r}.{hint} `{listed_by}` lists all."
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}."


def not_installed(what: str, package: str | None, extra: str) -> str:
    """The message for a package that is missing: what needs it, and how to install it.

    - `extra`: the extra of this package that brings it.
    """
    install = install_command(extra)
    return f"{what} needs {package}, which is not installed. Install it with: {install}"


def install_command(extra: str) -> str:
    """The command that installs an extra for the Python that runs, from where the package is from.

    There is no release to take it from by name: it is the clone that runs, or the address that pip
    has noted.
    """
    pip = f"{shlex.quote(sys.executable or 'python')} -m pip install"
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file() and (clone / "src").is_dir():
        return f"{pip} -e {shlex.quote(f'{clone}[{extra}]')}"
    return f"{pip} {shlex.quote(f'tinysubnets[{extra}]{_address()}')}"


def _address() -> str:
    """Where pip has the package from, as it takes it again; empty for one from an index."""
    from importlib import metadata  # takes its time, and only errors need it

    try:
        noted = metadata.distribution("tinysubnets").read_text("direct_url.json")
        told = json.loads(noted or "{}")
        vcs = told.get("vcs_info", {})
        prefix = f"{vcs['vcs']}+" if vcs else ""
        return f" @ {prefix}{told['url']}"
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        return ""
