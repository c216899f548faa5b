"""A forger of model files: anything in them can be changed, and all hashes are right again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinysubnets.format import ModelFile
from tinysubnets.format.container import assemble

Sections = dict[str, list[bytes]]
Change = Callable[[dict[str, Any], Sections], None]


def opened(path: Path) -> tuple[dict[str, Any], Sections]:
    """The config and all sections of a model file."""
    with ModelFile(path) as file:
        sections = {kind: [file.section(kind)] for kind in file.scheme.common}
        for kind in file.scheme.kinds:
            sections[kind] = [file.section(kind, i) for i in range(file.num_tasks)]
        config = {k: v for k, v in file.config.items() if k != "index"}
    return config, sections


def forged(path: Path, change: Change, out: Path) -> Path:
    """A model file with something changed and every hash correct."""
    config, sections = opened(path)
    change(config, sections)
    out.write_bytes(b"".join(assemble(config, sections, len(sections["masks"]))))
    return out
