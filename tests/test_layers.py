"""The order of modules: each imports only from lines above and from the left of its own line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinysubnets

ROOT = Path(tinysubnets.__file__).parent
ORDER = """
    version errors arrays config normalisation task
    numerics kernels kmeans blocks masks codebook refresh seeds divergence augment
    coding words
    wrappable blueprint architecture layout subnet bank mask_references capacity store start
    networks
    artifact onnx_codes export
    batches validation updates capture dense_module layer_losses task_module training_settings
    training stacked pruning
    learners
    data scenarios metrics fixed_point operations
    run_folder recipe plan checkpoint results experiment runs report paper display tracking compare
    run_commands compare_commands model_commands report_commands cli __main__
""".split()  # packages count as one module; inside them anything goes
PLACE = {name: place for place, name in enumerate(ORDER)}


def modules() -> list[Path]:
    return [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


def unit(path: Path) -> str:
    """The module or package directly below the root that a file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(source: str) -> Iterator[str]:
    """The units of this package that a module imports when it is imported itself."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            if node.module == "tinysubnets":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("tinysubnets."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("tinysubnets."):
                    yield alias.name.split(".")[1]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_backwards(path: Path) -> None:
    own = unit(path)
    assert own in PLACE, f"{own} has no place in the order of modules"
    for other in imported(path.read_text(encoding="utf-8")):
        assert other in PLACE, f"{path.name} imports {other}, which has no place in the order"
        assert other == own or PLACE[other] < PLACE[own], f"{own} may not import {other}"


def test_the_check_sees_imports() -> None:
    source = "import tinysubnets.cli\nfrom tinysubnets import store\nfrom tinysubnets.task import T"
    assert list(imported(source)) == ["cli", "store", "task"]
    assert list(imported("def f():\n    from tinysubnets import cli")) == []
