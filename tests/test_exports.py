"""The public names: complete, loaded lazily, documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tinysubnets
from tinysubnets import errors


def test_all_names_of_the_table_are_exported_and_no_others() -> None:
    assert set(tinysubnets.__all__) == {*tinysubnets._HOME, "__version__"}
    assert len(tinysubnets.__all__) == len(set(tinysubnets.__all__))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(tinysubnets.__file__).read_text(encoding="utf-8"))
    guarded = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {
        alias.name: node.module
        for node in ast.walk(guarded)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"tinysubnets.{home}" for name, home in tinysubnets._HOME.items()}


@pytest.mark.parametrize("name", sorted(set(tinysubnets.__all__) - {"__version__"}))
def test_every_name_loads_and_says_what_it_is(name: str) -> None:
    value = getattr(tinysubnets, name)
    assert value.__name__ == name
    assert value.__module__.startswith("tinysubnets")
    assert (inspect.getdoc(value) or "").strip()


def test_every_error_is_exported() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, (errors.TinySubNetsError, Warning))
    }
    assert raised <= set(tinysubnets.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="TinySubnet"):
        _ = tinysubnets.TinySubnet
    assert dir(tinysubnets) == sorted(tinysubnets.__all__)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, tinysubnets; heavy = {'torch', 'numpy', 'pyarrow', 'PIL', 'matplotlib',"
        "'jinja2', 'huggingface_hub', 'sklearn', 'onnx'} & set(sys.modules); sys.exit(len(heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


EXTRAS = (
    "fastapi", "huggingface_hub", "jinja2", "onnx", "optuna", "PIL", "pyarrow", "tensorboard",
    "uvicorn",
)  # fmt: skip


def test_no_module_of_a_public_name_imports_an_extra_when_it_is_imported() -> None:
    for home in set(tinysubnets._HOME.values()):
        path = Path(tinysubnets.__file__).parent / f"{home.replace('.', '/')}.py"
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                found = {alias.name.partition(".")[0] for alias in node.names}
            else:
                found = {(getattr(node, "module", None) or "").partition(".")[0]}
            assert not found & set(EXTRAS), path


@pytest.mark.slow
def test_the_core_works_without_the_extras() -> None:
    code = (
        "import sys\n"
        f"for name in {EXTRAS}:\n"
        "    sys.modules[name] = None\n"
        "import tinysubnets\n"
        "for name in tinysubnets.__all__:\n"
        "    getattr(tinysubnets, name)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_benchmarks_begin_without_the_extras_that_a_machine_for_training_lacks() -> None:
    code = (
        "import sys\n"
        f"for name in {(*EXTRAS, 'ray', 'pydantic', 'timm', 'torchvision')}:\n"
        "    sys.modules[name] = None\n"
        "import benchmarks.__main__, benchmarks.pretrained, benchmarks.routing_goals\n"
    )
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
