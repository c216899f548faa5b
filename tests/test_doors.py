"""What users give: names, labels, arrays and seeds that could not be kept are refused at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import models
from data_files import encode, pixels
from tinysubnets.cli import main
from tinysubnets.errors import RunError, TaskError
from tinysubnets.experiments.results import read_run
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.tasks.task import Task

X = np.random.default_rng(0).random((40, 3), dtype=np.float32)
Y = np.array([0, 1] * 20)


def task(name: Any = "t", inputs: Any = X, labels: Any = Y, **more: Any) -> Task:
    return Task.from_arrays(name, inputs, labels, **more)


@pytest.mark.parametrize(
    "name", ["", "x" * 501, "half \ud800", "bell \x07", "line\n", "\x9b2J", 3, None, ["a"], b"a"]
)
def test_names_that_cannot_be_kept_are_refused(name: Any) -> None:
    with pytest.raises(TaskError, match="a task's name"):
        task(name)
    with pytest.raises(TaskError, match="a task's name"):
        Task(name, (0, 1), task().train, task().valid)


@pytest.mark.parametrize("name", ["x" * 500, "日本語 👩\u200d🔬", "a b/c|d"])
def test_other_names_are_learned_and_saved(name: str, tmp_path: Path) -> None:
    assert task(name).name == name
    store = models.store(tasks=1)
    models.add_task(store, 1, name=name, classes=(name, "b", "c"))
    models.add_task(store, 3)  # whose record names its nearest
    store.save(tmp_path)
    assert name in models.SubnetStore.load(tmp_path).tasks


@pytest.mark.parametrize(
    "name",
    [
        " ",
        "\u202e",
        "\ufeff",
        "task 0\u200b",
        "\u2028",
        "\u00ad",
        "\u3164",
        "\u0301",
        "\u200d",
        "a\u202eb",
    ],
)
def test_names_that_could_be_taken_for_others_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="nobody sees"):
        task(name)
    store = models.store(tasks=1)
    with pytest.raises(TaskError, match="nobody sees"):
        store.rename("task 0", name)
    models.add_task(store, 1, name=name)  # as a file may have it
    store.save(tmp_path)
    store = models.SubnetStore.load(tmp_path)
    assert name in store.tasks
    store.rename(name, "seen")
    assert store.tasks == ("task 0", "seen")


@pytest.mark.parametrize("label", ["half \ud800", "x" * 1001])
def test_labels_that_cannot_be_kept_are_refused(label: str) -> None:
    with pytest.raises(TaskError, match="a label"):
        task(labels=np.array(["a", label] * 20))


def test_labels_that_together_are_too_long_are_refused() -> None:
    labels = np.array([f"{i:0900}" for i in range(1400) for _ in range(2)])
    with pytest.raises(TaskError, match="labels take"):
        task(inputs=np.zeros((2800, 2), np.float32), labels=labels)


def test_labels_may_hold_line_ends() -> None:
    assert task(labels=np.array(["\n", "\t"] * 20)).classes == ("\t", "\n")


LABELS: dict[str, Any] = {
    "that floats merge": Y * 1e30,
    "near each other but large": (Y + 2.0**53 + 2),
    "masked": np.ma.masked_array(Y, mask=[True] + [False] * 39),
    "bytes of no text": np.array([b"\xff", b"a"] * 20),
    "ragged": [[0], [1, 2]] * 20,
    "a single one": 3,
    "on the meta device": torch.zeros(40, device="meta"),
    "sparse": torch.tensor(Y).to_sparse(),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_that_would_be_misread_are_refused(kind: str) -> None:
    with pytest.raises(TaskError, match="task 't'"):
        task(labels=LABELS[kind])
    with pytest.raises(TaskError, match="task 't'"):
        task(valid=(X, LABELS[kind]))


def test_bytes_are_labels_where_they_are_text() -> None:
    labels = np.array(["é".encode(), b"b"] * 20)
    made = task(labels=labels, valid=(X, labels))
    assert made.classes == ("b", "é") and len(made.valid) == 40


INPUTS: dict[str, Callable[[], Any]] = {
    "masked": lambda: np.ma.masked_array(X, mask=X > 0.9),
    "a single number": lambda: np.float32(3),
    "a tensor of one number": lambda: torch.tensor(3.0),
    "ragged": lambda: [[1.0], [2.0, 3.0]] * 20,
    "on the meta device": lambda: torch.zeros(40, 3, device="meta"),
    "sparse": lambda: torch.tensor(X).to_sparse(),
    "sparse rows": lambda: torch.tensor(X).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.tensor(X), 0.1, 0, torch.quint8),
}


@pytest.mark.filterwarnings("ignore")  # of torch, about the oddities themselves
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_without_plain_values_are_refused(kind: str) -> None:
    inputs = INPUTS[kind]()
    with pytest.raises(TaskError, match="task 't'"):
        task(inputs=inputs)
    store = models.store(tasks=1)
    with pytest.raises(TaskError):
        store.predict("task 0", inputs)


def test_a_mask_that_masks_nothing_is_fine() -> None:
    assert len(task(inputs=np.ma.masked_array(X, mask=False)).train) == 36


@pytest.mark.parametrize("seed", [1.5, "a", None, 2**63, -(2**64), True, [1]])
def test_odd_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(TaskError, match="seed"):
        task(seed=seed)


@pytest.mark.parametrize("name", [["a"], {}, 3])
def test_a_task_that_is_no_name_is_unknown(name: Any) -> None:
    with pytest.raises(TaskError, match="unknown task"):
        models.store(tasks=1).predict(name, models.inputs())


NESTED = "[" * 100_000 + "]" * 100_000
RESULT = {"scenario": "s", "method": "m", "seed": 0, "metrics": {}, "tasks": []}


@pytest.mark.parametrize(
    "text",
    [
        NESTED,
        "[]",
        json.dumps(RESULT | {"accuracy_matrix": 3}),
        json.dumps(RESULT | {"accuracy_matrix": [[0.5], ["x"]]}),
        json.dumps(RESULT | {"accuracy_matrix": [], "tasks": [3]}),
        json.dumps(RESULT | {"accuracy_matrix": [], "seed": "x"}),
    ],
)
def test_results_that_are_none_are_errors_of_ours(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunError):
        read_run(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("tsn: ")


def test_a_deeply_nested_config_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"a = {NESTED}")
    with RunDir(tmp_path) as run, pytest.raises(RunError):
        run.config()


def foreign_run(folder: Path) -> Path:
    """A run in `folder` / "run" whose network would be imported; a file tells whether it was."""
    ran = folder / "ran"
    sys.modules.pop("evil_network", None)  # of another test, from another folder
    (folder / "evil_network.py").write_text(f"open({str(ran)!r}, 'w').close()\ndef net(): pass\n")
    given = ["--set", "training.epochs=1", "--set", "data.num_tasks=1", "--no-report"]
    assert main(["run", "permuted-digits", *given, "--out", str(folder / "run")]) == 0
    (folder / "run" / "result.json").unlink()
    config = folder / "run" / "config.toml"
    text = config.read_text()
    assert 'name = "' in text
    start = text.index("[network]")
    place = text.index('name = "', start)
    end = text.index("\n", place)
    config.write_text(text[:place] + 'name = "evil_network:net"' + text[end:])
    return ran


def test_resume_does_not_import_what_a_folder_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = foreign_run(tmp_path)
    capsys.readouterr()
    assert main(["resume", "run"]) == 2
    assert "--trust" in capsys.readouterr().err and not ran.exists()
    assert main(["resume", "run", "--trust"]) == 2  # what it names is no network
    assert ran.exists()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_resume_asks_on_a_terminal_before_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = foreign_run(tmp_path)

    def told(answer: bytes) -> str:
        """What the command says to a user who types that."""
        keyboard, terminal = os.openpty()
        with open(terminal) as typed, open(os.dup(terminal), "w") as shown:
            monkeypatch.setattr("sys.stdin", typed)
            monkeypatch.setattr("sys.stderr", shown)
            os.write(keyboard, answer)
            assert main(["resume", "run"]) == 2  # refused, or no network
        said = b""
        with suppress(OSError):  # the end of what was shown
            while part := os.read(keyboard, 1 << 16):
                said += part
        os.close(keyboard)
        return said.decode()

    question = "asks to import and run 'evil_network:net'. Do you trust this folder? [y/N]"
    for answer in (b"n\n", b"\n", b"sure\n", b"\x04"):  # the last one is Ctrl-D
        said = told(answer)
        assert question in said and "tsn resume --trust" in said
        assert not ran.exists()
    said = told(b"Yes\n")
    assert question in said and "tsn resume --trust" not in said
    assert ran.exists()


# Pipes, for whose other end nobody waits


BASE = ["--data", "good", "--base", "small-cnn", "--weights"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "PIPE.toml"],
        ["resume", "folder"],
        ["report", "folder"],
        ["predict", "model", "--task", "one", "folder/a/1.png"],
        ["predict", "model", "--task", "one", "folder"],
        ["predict", "model", "--task", "one", "PIPE.npz"],
        ["evaluate", "model", "--task", "one", "--data", "folder"],
        ["evaluate", "model", "--task", "one", "--data", "PIPE.npz"],
        ["learn", "model", "--task", "two", "--data", "folder"],
        ["learn", "model", "--task", "two", "--data", "PIPE.npz"],
        ["learn", "new", "--task", "two", *BASE, "PIPE.pth"],
        ["learn", "new", "--task", "two", *BASE, "PIPE.safetensors"],
    ],
    ids=" ".join,
)
def test_a_pipe_among_inputs_is_an_error(
    words: list[str],
    is_link: bool,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(pictures, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    folder = {"resume": "folder/config.toml", "report": "folder/result.json"}
    for name in ("folder/a/1.png", folder.get(words[0]), words[-1]):
        if name and "." in name and not os.path.lexists(name):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).symlink_to(Path("pipe").absolute()) if is_link else os.mkfifo(name)
    with ended_after(60):
        assert main(words) == 2
    assert "not a plain file" in capsys.readouterr().err


@contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    """What takes longer, such as waiting for ever, is an error."""

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of the task "one", learned from pictures, and these."""
    place = tmp_path_factory.mktemp("pictures")
    for name in "ab":
        (place / "good" / name).mkdir(parents=True)
        for i in range(30):
            shown = pixels(1, (8, 8), seed=i)[0] // 2 + 100 * (name == "b")
            (place / "good" / name / f"{i}.png").write_bytes(encode(shown, "PNG"))
    (place / "mine.toml").write_text('[tasks.one]\ndata = "good"\n[training]\nepochs = 1\n')
    words = ["run", str(place / "mine.toml"), "--out", str(place / "model"), "--device", "cpu"]
    assert main([*words, "--no-report"]) == 0
    return place
