"""The order of packages: each imports only from those before it, lazily and for types too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinysubnets

ROOT = Path(tinysubnets.__file__).parent
ORDER = (
    "errors", "config", "seeds", "files", "text",
    "tasks", "nn", "kernels", "training", "coding", "model", "networks", "format",
    "method", "baselines", "datasets", "scenarios", "experiments", "report", "paper",
    "serving", "commands", "cli", "__main__",
)  # fmt: skip
PLACE = {name: place for place, name in enumerate(ORDER)}

# Imports against the order: (who, whom), each with its reason. All of them are inside functions.
EXCEPTIONS = {
    # Where Triton is installed the plain mathematics hands over to its twins.
    ("nn/topk.py", "kernels"): "the GPU's way to the same result",
    # The picture of accuracy against bytes shows the paper's own points beside ours.
    ("report/figures.py", "paper"): "numbers of the paper",
    # What users expect of a store: store.save(folder), SubnetStore.load(folder).
    ("model/store.py", "format"): "a store saves and loads itself",
    # And of a task: Task.from_folder(name, folder).
    ("tasks/task.py", "datasets"): "a task reads a folder of images",
    # And of measuring it: learner.evaluate(name, folder).
    ("model/evaluation.py", "datasets"): "a folder of held-out images is measured",
}


def modules() -> list[Path]:
    return [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


def unit(path: Path) -> str:
    """The module or package directly below the root that a file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(source: str) -> Iterator[str]:
    """The units of this package that a module imports anywhere: at once, lazily, for types."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            if node.module == "tinysubnets":
                yield from (a.name for a in node.names if a.name != "__version__")
            elif node.module and node.module.startswith("tinysubnets."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("tinysubnets."):
                    yield alias.name.split(".")[1]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Modules that are imported by name: "tinysubnets.kernels".
            text = node.value
            if re.fullmatch(r"tinysubnets\.\w+[\w.:]*", text):
                yield text.split(".")[1].partition(":")[0]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_backwards(path: Path) -> None:
    own, name = unit(path), str(path.relative_to(ROOT))
    assert own in PLACE, f"{own} has no place in the order of packages"
    for other in imported(path.read_text(encoding="utf-8")):
        assert other in PLACE, f"{name} imports {other}, which has no place in the order"
        if (name, other) not in EXCEPTIONS:
            assert other == own or PLACE[other] < PLACE[own], f"{name} may not import {other}"


@pytest.mark.slow
def test_every_exception_is_needed() -> None:
    found = {
        (str(path.relative_to(ROOT)), other)
        for path in modules()
        for other in imported(path.read_text(encoding="utf-8"))
    }
    assert EXCEPTIONS.keys() <= found


def test_every_package_says_what_lives_there() -> None:
    for folder in (p.parent for p in ROOT.rglob("__init__.py")):
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


def test_the_top_holds_few_files() -> None:
    assert 6 <= len([p for p in ROOT.glob("*.py")]) <= 9


def test_the_check_sees_imports() -> None:
    source = "import tinysubnets.cli\nfrom tinysubnets import model\nfrom tinysubnets.nn import x"
    assert list(imported(source)) == ["cli", "model", "nn"]
    assert list(imported("def f():\n    from tinysubnets import cli")) == ["cli"]
    assert list(imported("if TYPE_CHECKING:\n    import tinysubnets.nn.topk")) == ["nn"]
    assert list(imported('import_module("tinysubnets.kernels")')) == ["kernels"]
    assert list(imported('x = "tinysubnets.method.learner:TinySubNets"')) == ["method"]
