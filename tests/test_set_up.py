"""The set-up by `make`: what is fetched is shown, a torch that is there is taken, no more."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tinysubnets

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import set_up  # noqa: E402


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What the set-up would have pip install; nothing is installed."""
    seen: list[list[str]] = []
    monkeypatch.setattr(set_up, "made", lambda folder: folder.mkdir() or folder / "bin" / "python")
    monkeypatch.setattr(set_up, "show_and_install", lambda _, given: seen.append(given))
    monkeypatch.setattr(set_up, "installed", lambda *_: None)
    return seen


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> str:
    """Set an environment up; gives its constraints."""
    monkeypatch.setattr(sys, "argv", ["set_up.py", *words, "--venv", str(folder)])
    set_up.main()
    return (folder / "constraints.txt").read_text(encoding="utf-8")


def test_the_build_without_cuda_comes_from_pytorch_s_own_index(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pins = run(monkeypatch, tmp_path / "env", "report", "--torch", "cpu")
    version = set_up.pinned()["torch"]
    index = "https://download.pytorch.org/whl/cpu"
    assert commands[0] == [f"torch=={version}", "--index-url", index]
    assert commands[1][-2:] == ["-e", f"{ROOT}[report]"] and f"torch=={version}\n" in pins
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert index in makefile and "make demo TORCH=cpu" in (ROOT / "README.md").read_text()


def test_a_torch_that_is_there_is_taken_whatever_its_version(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(set_up, "torch_to_take", lambda _: "2.12.7+rocm")
    pins = run(monkeypatch, tmp_path / "env", "report", "--take-torch")
    assert "torch==2.12.7+rocm\n" in pins and "triton" not in pins and "numpy==" in pins
    assert len(commands) == 1
    plain = run(monkeypatch, tmp_path / "other", "all,dev")
    assert f"torch=={set_up.pinned()['torch']}\n" in plain and "triton==" in plain


def test_the_environment_finds_the_torch_of_the_python_that_sets_it_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert set_up.installed(python, "torch") is None
    version = set_up.torch_to_take(python)
    assert version is not None and "nothing of PyTorch is fetched" in capsys.readouterr().out
    assert set_up.installed(python, "torch") == version
    monkeypatch.setattr(set_up, "is_new_enough", lambda _: False)
    assert set_up.torch_to_take(python) is None


def test_versions_are_compared_as_numbers() -> None:
    assert set_up.is_new_enough("2.11.0") and set_up.is_new_enough("2.13.0+cpu")
    assert set_up.is_new_enough("3.0.0a0") and not set_up.is_new_enough("2.9.1")


def test_what_is_fetched_is_shown_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels: list[dict[str, Any]] = []
    for name, size in [("torch", 800_000_000), ("nvidia-cublas", 500_000_000), ("numpy", 1000)]:
        file = tmp_path / name
        with file.open("wb") as opened:
            opened.truncate(size)  # a hole: it takes no room
        about = {"name": name, "version": "1.0"}
        link = {"url": file.as_uri()}
        wheels.append({"metadata": about, "download_info": link, "is_direct": False})
    wheels.append(
        {
            "metadata": {"name": "gone", "version": "1.0"},
            "download_info": {"url": (tmp_path / "none").as_uri()},
            "is_direct": False,
        }
    )
    set_up.show([set_up.described(wheel) for wheel in wheels])
    told = capsys.readouterr().out
    assert "4 packages, 1.3 GB and 1 of unknown size" in told
    assert re.search(r"torch 1\.0 +800\.0 MB", told) and re.search(r"numpy 1\.0 +1 kB", told)
    assert "TORCH=cpu" in told
    set_up.show([("numpy 1.0", 1000, False)])
    assert "TORCH=cpu" not in capsys.readouterr().out


def test_system_packages_are_installed_by_ci_alone(tmp_path: Path) -> None:
    """The programs it could find are fakes that write down how they were called."""
    called = tmp_path / "called"
    for name in ("apt-get", "sudo", "id"):
        fake = tmp_path / "bin" / name
        fake.parent.mkdir(exist_ok=True)
        said = "echo 0" if name == "id" else f'echo {name} "$@" >> {called}'
        fake.write_text(f"#!/bin/sh\n{said}\n", encoding="utf-8")
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "bin" / "cat").symlink_to("/bin/cat")

    def install(**env: str) -> str:
        given = {k: v for k, v in os.environ.items() if k != "CI"}
        given |= env | {"PATH": str(tmp_path / "bin")}
        script = [str(ROOT / "scripts" / "install_chromium.sh")]
        done = subprocess.run(
            ["/bin/sh", *script], env=given, capture_output=True, text=True, check=True
        )
        return done.stderr

    told = install()
    assert not called.exists()
    assert "WILL BE SKIPPED" in told and "sudo apt-get install" in told and "chromium" in told
    assert install(CI="true") == ""
    assert "apt-get install --no-install-recommends chromium" in called.read_text()


def test_nothing_else_of_the_set_up_installs_system_packages() -> None:
    for name in ("Makefile", "scripts/set_up.py"):
        assert not re.search(
            r"\b(apt|apt-get|brew|dnf|sudo)\b", (ROOT / name).read_text(encoding="utf-8")
        ), name


def test_what_is_said_of_versions_is_the_same_everywhere() -> None:
    yaml = pytest.importorskip("yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if ":: 3." in c]
    assert tried["python"] == named
    oldest, newest = tried["torch"]
    assert f"torch>={oldest.removesuffix('.0')}" in project["dependencies"]
    assert newest == set_up.pinned()["torch"]
    steps = [step.get("run", "") for step in workflow["jobs"]["test"]["steps"]]
    assert steps[-2:] == ["make demo TORCH=cpu", "make test TORCH=cpu"]
    assert workflow["jobs"]["test"]["env"]["CI"] == "true"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == tinysubnets.__version__ and cited["license"] == project["license"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert cited["preferred-citation"]["title"] in readme
