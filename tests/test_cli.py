"""The command line: fast help and lists, clear errors, runs, comparisons."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from held_network import held
from run_helpers import numbers, small_options, tsn, until
from tinysubnets import cli, errors, networks, scenarios
from tinysubnets.cli import main
from tinysubnets.commands import compare as compare_commands
from tinysubnets.commands import demo as demo_command
from tinysubnets.commands import run as run_commands
from tinysubnets.commands import settings as settings_command
from tinysubnets.errors import SettingError
from tinysubnets.experiments import compare, recipe, results, run_process
from tinysubnets.experiments import methods as learners

HEAVY = "{'torch', 'sklearn', 'pyarrow', 'PIL', 'matplotlib', 'jinja2', 'huggingface_hub', 'rich'}"


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["run", "--help"], ["--version"]])
def test_help_and_lists_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom tinysubnets.cli import main\n"
        f"try:\n    status = main({arguments!r})\n"
        "except SystemExit as end:\n    status = end.code\n"
        f"heavy = {HEAVY} & set(sys.modules)\n"
        "sys.exit(f'{heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_run_that_compiles_nothing_loads_no_compiler(tmp_path: Path) -> None:
    words = ["run", "permuted-digits", *small_options(), "--out", str(tmp_path / "run")]
    code = (
        f"import sys\nfrom tinysubnets.cli import main\nstatus = main({words!r})\n"
        "heavy = {'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules)\n"
        "sys.exit(f'{heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_command_prints_help(capsys: pytest.CaptureFixture) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    assert "usage: tsn" in told and "learn five" not in told and "demo" in told


@pytest.mark.parametrize(
    ("given", "meant"), [("runn", "run"), ("predct", "predict"), ("setting", "settings")]
)
def test_a_mistyped_command_is_guessed(
    given: str, meant: str, capsys: pytest.CaptureFixture
) -> None:
    assert main([given, "--out", "x"]) == 2
    assert f"unknown command {given!r}. Did you mean {meant!r}?" in capsys.readouterr().err


def test_every_setting_is_explained(capsys: pytest.CaptureFixture) -> None:
    tables = settings_command.all_tables()
    for setting in (s for t in tables for s in t.settings):
        assert setting.meaning and setting.allowed, setting.key
        assert "`" not in setting.meaning
    named = {name for table in tables for name in table.names}
    assert {*learners.METHODS, *scenarios.SCENARIOS, *networks.names(), "training"} <= named
    for words in ([], ["tsn-wr"], ["vit"]):
        assert main(["settings", *words]) == 0
        assert capsys.readouterr().out.count("\n  ") > 3


def test_defaults_and_limits_are_those_of_the_code(capsys: pytest.CaptureFixture) -> None:
    assert main(["settings", "lr"]) == 0
    told = capsys.readouterr().out
    assert "training.lr" in told and "= 0.003" in told and "more than 0" in told
    assert main(["settings", "permuted-digits"]) == 0
    assert re.search(r"data\.num_tasks += 5 +an integer of at least 1", capsys.readouterr().out)
    assert main(["settings", "ewc.fisher"]) == 0
    assert re.search(r"ewc\.fisher += exact +exact or empirical", capsys.readouterr().out)
    assert main(["settings", "training.epoch"]) == 2
    assert "Did you mean 'training.epochs'?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_ends_with_three_commands_that_work(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    monkeypatch.chdir(tmp_path)
    small = ["--set", "data.num_tasks=1", "--set", "epochs=6", "--set", "iterations=2"]
    assert main(["demo", "--no-report", *small]) == 0
    told = capsys.readouterr().out.partition("Three things to do next:")[2]
    lines = [line.strip() for line in told.splitlines() if line.startswith("  tsn ")]
    assert [line.split()[1] for line in lines] == ["inspect", "predict", "learn"]
    for line in lines:
        more = ["--set", "epochs=2"] if " learn " in line else []
        assert main([*shlex.split(line)[1:], *more]) == 0, line
        if " predict " in line:
            told = capsys.readouterr().out
            assert re.search(r"three\.png +3 ", told), told
    assert main(["demo", "--no-report", "--set", "method=nonsense"]) == 2
    assert not (tmp_path / "runs" / "demo-2" / "three.png").exists()


def test_the_demo_names_the_program_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/tsn", "demo"])
    assert demo_command.this_command() == ".venv/bin/tsn"
    monkeypatch.setattr(sys, "argv", ["/somewhere/tinysubnets/__main__.py"])
    assert demo_command.this_command() == f"{sys.executable} -m tinysubnets"


def test_list_names_everything(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert main(["list", "--data", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for name in (*scenarios.SCENARIOS, *learners.METHODS, *recipe.names()):
        assert name in text
    assert "ylecun/mnist (not there)" in text
    assert "10 x 10; MLP 784-100-100" in text


def test_list_shows_data_that_are_there(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    from data_files import mnist_like

    for split in ("train", "test"):
        mnist_like(tmp_path, split=split)
    main(["list", "--data", str(tmp_path)])
    assert f"{tmp_path}/ylecun/mnist (there)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "permuted-digit"], "Did you mean 'permuted-digits'"),
        (["run", "--method", "tns"], "Did you mean 'tsn'"),
        (["run", "--set", "training.epoch=5"], "Did you mean 'training.epochs'"),
        (["run", "--set", "epohcs=5"], "There is a setting 'training.epochs'"),
        (["run", "split-cifar100", "--set", "image_size=3"], "a setting 'data.image_size'"),
        (["run", "--set", "image_size=3"], "have 'data.image_size', 'permuted-digits' has not"),
        (["run", "split-cifar100", "--set", "data.image_size=0"], "data.image_size = 0 is not"),
        (["run", "task.toml"], "Did you mean 'tasks'?"),
        (["run", "--set", "tasks.a.data=x"], "listed in a recipe file of your own"),
        (["run", "--set", "density=.0"], "density = 0.0 is not allowed"),
        (["run", "--set", "densty=0.1"], "setting 'tsn.density'; `tsn settings` lists all."),
        (["run", "mine.tml"], "there is no file mine.tml. Did you mean 'mine.toml'?"),
        (["run", "mime.toml"], "No such file or directory. Did you mean 'mine.toml'?"),
        (["run", "mine.txt"], "a name that ends in .toml"),
        (["run", "--set", "tsn.density=0"], "density = 0"),
        (["run", "--device", "abacus"], "'auto', 'cpu' or 'cuda'"),
        (["resume", "nowhere"], "not a folder"),
        (["compare", "split-digits", "--methods", "tsn,nonsense", "--out", "x"], "unknown method"),
        (["compare", "split-digits", "--methods", "tsn,tsn", "--out", "x"], "each method once"),
        ("compare split-digits --methods tsn --out x --jobs -1".split(), "--jobs -1"),
    ],
)
def test_errors_are_one_message_and_status_2(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text('[task.a]\ndata = "photos"')
    for name in ("mine.toml", "mine.txt"):
        (tmp_path / name).write_text('scenario = "split-digits"')
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tsn: ") and said in error
    assert "Traceback" not in error
    assert not (tmp_path / "x").exists()


def test_extras_come_from_where_the_package_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        noted: str | None = None

        def read_text(self, name: str) -> str | None:
            return self.noted if name == "direct_url.json" else None

    monkeypatch.setattr(sys, "executable", "/with space/python")
    pip = "'/with space/python' -m pip install"
    clone = Path(errors.__file__).parents[2]
    assert errors.install_command("data") == f"{pip} -e '{clone}[data]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "lib" / "tinysubnets" / "errors.py"))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert errors.install_command("data") == f"{pip} 'tinysubnets[data]'"
    Installed.noted = '{"url": "https://host/it.git", "vcs_info": {"vcs": "git"}}'
    address = "tinysubnets[data] @ git+https://host/it.git"
    assert errors.install_command("data") == f"{pip} '{address}'"
    Installed.noted = '{"url": "file:///clone", "dir_info": {}}'
    assert errors.install_command("data") == f"{pip} 'tinysubnets[data] @ file:///clone'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("learn model --task a --data b --epochs 3", "It is a setting: give --set epochs=3."),
        ("run --score-lr=0.1", "It is a setting: give --set score_lr=0.1."),
        ("run --wisdom 3", "tsn run: error: unrecognized arguments: --wisdom."),
        ("run split-digits --ouut x", "--ouut x. Did you mean --out?"),
        ("evaluate model --data d --tsk=t", "usage: tsn evaluate "),
        ("evaluate model --data d --tsk=t", "--tsk=t. Did you mean --task?"),
    ],
)
def test_settings_that_are_given_as_options(
    words: str, said: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    error = capsys.readouterr().err
    assert caught.value.code == 2 and said in error
    assert ("It is a setting" in said) == ("It is a setting" in error)


def test_the_data_folder_is_kept_for_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSUBNETS_DATA", str(tmp_path))
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--no-report", *small_options()]) == 0
    assert f'data = "{tmp_path}"' in (out / "config.toml").read_text(encoding="utf-8")


def test_missing_data_are_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = tmp_path / "run"
    assert main(["run", "permuted-mnist", "--data", str(tmp_path), "--out", str(out)]) == 2
    assert "Two ways to provide it" in capsys.readouterr().err
    assert not (out / "config.toml").exists()


def test_run_shows_the_result_and_writes_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "run"
    arguments = ["run", "--out", str(out), "--device", "cpu", "--no-report", *small_options()]
    assert main([*arguments, "--seed", "5", "--method", "tsn-wr"]) == 0
    text = capsys.readouterr().out
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert (result["seed"], result["method"]) == (5, "tsn-wr")
    assert "average accuracy (ACC)" in text and "learned 3/3" in text and str(out) in text
    assert main([*arguments, "--seed", "5"]) == 2
    assert "finished run" in capsys.readouterr().err


def test_report_is_written_where_it_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--device", "cpu", *small_options()]) == 0
    assert "[report]" in capsys.readouterr().err
    assert not (out / "report.html").exists()


def test_tensorboard_is_asked_for_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--tensorboard", *small_options()]) == 2
    assert "[tensorboard]" in capsys.readouterr().err
    assert not out.exists()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from event files: steps and values by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]
    }


def test_tensorboard_reads_every_epoch(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--tensorboard", "--no-report", *small_options()]) == 0
    found, result = scalars(out / "tensorboard"), json.loads((out / "result.json").read_text())
    tracked = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for index in range(3):
        task = f"permutation-{index}"
        for name in ("loss", "valid_loss", "valid_accuracy", "lr"):
            values = [(e["epoch"], e[name]) for e in tracked if e["task"] == task]
            assert np.allclose(found[f"{task}/{name}"], values)
    first = [(after, result["accuracy_matrix"][after][0]) for after in range(3)]
    assert np.allclose(found["accuracy/task_0"], first)
    assert found["metrics/backward_transfer"] == [(0, 0.0)]


def test_a_stopped_run_has_its_epochs_in_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("something unforeseen")

    monkeypatch.setattr(results, "build", failing)
    out = tmp_path / "run"
    with pytest.raises(RuntimeError, match="unforeseen"):
        main(["run", "--out", str(out), "--tensorboard", "--no-report", *small_options()])
    assert len(scalars(out / "tensorboard")["permutation-2/loss"]) == 3


def test_resume_after_the_result_tidies_up_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), "--device", "cpu", "--no-report", *small_options()]) == 0
    before = (out / "result.json").read_bytes()
    (out / "checkpoint").mkdir()  # as a process leaves it that dies right after its result
    assert main(["resume", str(out)]) == 0
    assert "nothing to resume" in capsys.readouterr().out
    assert not (out / "checkpoint").exists()
    assert (out / "report.html").exists()
    assert (out / "result.json").read_bytes() == before


def test_out_of_memory_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(results, "build", full)
        assert main(["run", "--out", str(out), "--no-report", *small_options()]) == 2
    said = capsys.readouterr().err
    assert "out of memory" in said and f"tsn resume {out}" in said
    assert main(["resume", str(out), "--no-report"]) == 0


@pytest.mark.slow
def test_compare_runs_all_reports_failures_and_does_not_repeat(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "all"
    broken = out / "tsn" / "seed-1"
    broken.mkdir(parents=True)
    (broken / "config.toml").write_text("[run]\nformat = 99\n")
    common = ["--device", "cpu", *small_options()]
    options = ["compare", "permuted-digits", "--out", str(out), "--seeds", "2", *common]
    options += ["--methods", "tsn,naive", "--jobs", "2"]
    done = tsn(*options)
    assert done.returncode == 1, done.stderr
    assert "failed: tsn seed 1" in done.stderr and "format 99" in done.stderr
    assert (out / "tsn/seed-0/result.json").exists()
    assert (out / "naive/seed-1/result.json").exists()
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if "-IL" in line}
    assert "(1)" in rows["tsn"] and " ± " in rows["naive"] and "(2)" in rows["naive"]
    before = {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}
    assert len(before) == 3
    (broken / "config.toml").unlink()
    (out / "naive/seed-0/checkpoint").mkdir()  # left by a process that died after its result
    done = tsn(*options)
    assert done.returncode == 0, done.stderr
    assert not (out / "naive/seed-0/checkpoint").exists()
    assert f"report: {out / 'report.html'}" in done.stdout
    assert "Accuracy against bytes" in (out / "report.html").read_text(encoding="utf-8")
    assert (out / "pictures" / "accuracy-against-bytes.svg").stat().st_size > 1000
    assert main([*options, "--set", "training.epochs=9"]) == 2
    assert "training.epochs is 3 there and 9 here" in capsys.readouterr().err
    assert all(p.stat().st_mtime_ns == when for p, when in before.items())
    assert (broken / "result.json").exists()
    alone = tmp_path / "alone"
    tsn("run", "--out", str(alone), "--seed", "1", "--threads", "1", "--no-report", *common)
    assert numbers(alone) == numbers(broken)


def methods_of(text: str, *changes: str) -> list[str]:
    given = {"methods": text, "recipe": "permuted-digits", "assignments": list(changes)}
    return compare_commands.chosen_methods(argparse.Namespace(**given))


def test_compare_names_every_method_once_in_every_setting_asked_for() -> None:
    assert methods_of("all") == list(learners.METHODS)
    assert methods_of("tsn, naive:class-IL") == ["tsn", "naive:class-IL"]
    assert methods_of("tsn:task-IL,naive:task-IL") == ["tsn", "naive"]  # the recipe's own setting
    assert methods_of("naive:task-IL", "naive.scenario_type=class-IL") == ["naive:task-IL"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("naive,naive:task-IL", "not naive twice"),
        ("all,tsn", "not tsn twice"),
        ("", "give each method once"),
        ("nave:class", "unknown method 'nave'. Did you mean 'naive'"),
        ("all:class", "unknown method 'all'"),
        ("ewc:class-IL", "ewc is defined for task-IL, domain-IL"),
        ("independent:class-IL", "independent is defined for task-IL."),
        ("naive:", "naive: is not allowed"),
    ],
)
def test_compare_refuses_nonsense_before_anything_runs(text: str, said: str) -> None:
    with pytest.raises(SettingError, match=re.escape(said)):
        methods_of(text)


@pytest.mark.slow
def test_compare_runs_a_method_in_several_settings(tmp_path: Path) -> None:
    common = ["--device", "cpu", "--seeds", "1", "--no-report", *small_options()]
    methods = ["--methods", "naive:domain-IL,naive:class-IL"]
    done = tsn("compare", "permuted-digits", "--out", str(tmp_path), *methods, *common)
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("scenario type")[2]
    rows = [line.split()[:2] for line in table.splitlines() if "-IL" in line]
    assert rows == [["naive", "class-IL"], ["naive", "domain-IL"]]
    assert (tmp_path / "naive-class-IL/seed-0/result.json").exists()


@pytest.mark.slow
def test_ctrl_c_stops_a_comparison_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "all"
    command = ["compare", "permuted-digits", "--out", str(out), "--device", "cpu", "--seeds", "1"]
    command += ["--methods", "tsn", "--jobs", "1", "--no-report", *small_options()]
    command += ["--set", "network.name=held_network:build", "--threads", "1"]
    folder, hold = out / "tsn" / "seed-0", tmp_path / "hold"
    environment = held(folder / "metrics.jsonl", hold)
    process = subprocess.Popen(
        [sys.executable, "-m", "tinysubnets", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    until((folder / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGINT)
    until(lambda: "stopping" in (folder / "output.txt").read_text(), process)
    hold.unlink()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert "goes on" in said
    assert (folder / "checkpoint" / "state.json").exists()
    assert subprocess.run(process.args, env=environment, check=False).returncode == 0
    assert (folder / "result.json").exists()


@pytest.mark.slow
def test_a_reader_that_goes_away_costs_neither_the_run_nor_its_report(tmp_path: Path) -> None:
    command = ["run", "permuted-digits", "--out", str(tmp_path / "run"), *small_options()]
    process = subprocess.Popen(
        [sys.executable, "-m", "tinysubnets", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=600) == 0 and said == ""
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("words", [["list"], ["settings", "nonsense"]])
def test_a_reader_that_goes_away_ends_a_command_quietly(words: list[str]) -> None:
    """As `| head` does; the errors of the second one go to the same reader."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tinysubnets", *words]
    with tempfile.TemporaryFile() as kept:
        both = words != ["list"]
        errors = writing if both else kept
        done = subprocess.run(command, stdout=writing, stderr=errors, check=False)
        os.close(writing)
        kept.seek(0)
        assert (done.returncode, kept.read()) == (141, b"")


class Endless:
    """A run that goes on until it is asked to stop."""

    def __init__(self) -> None:
        self.stopped, self.progress = 0, "at work"

    def poll(self) -> int | None:
        return 130 if self.stopped else None

    def stop(self) -> None:
        self.stopped += 1


def test_a_comparison_that_nobody_reads_stops_its_runs_first(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    runs = [Endless(), Endless()]
    jobs = [compare.Job("tsn", i, tmp_path / str(i), ()) for i in range(2)]
    comparison = compare.Comparison(jobs, 2, argparse.Namespace(start=lambda *_: waiting.pop()))
    waiting = list(runs)
    with pytest.raises(BrokenPipeError):
        compare.run_all(comparison, Gone())
    assert [run.stopped for run in runs] == [1, 1]
    assert [job.state for job in jobs] == ["stopped", "stopped"]


@pytest.mark.parametrize("status", [130, -2])
def test_a_run_that_is_stopped_has_not_failed(status: int, tmp_path: Path) -> None:
    class Ended(Endless):
        def poll(self) -> int | None:
            return status  # of one that Ctrl-C reached, maybe while Python was starting

    job = compare.Job("tsn", 0, tmp_path, ())
    comparison = compare.Comparison([job], 1, argparse.Namespace(start=lambda *_: Ended()))
    shown = io.StringIO()
    compare.run_all(comparison, shown)
    assert shown.getvalue().splitlines() == ["tsn seed 0: running", "tsn seed 0: stopped"]
    assert comparison.is_done and job.state == "stopped"


def test_summary_of_nothing(tmp_path: Path) -> None:
    assert compare.summary(tmp_path, ["tsn"]) == "no run was finished."


def test_last_epoch_of_a_run_in_progress(tmp_path: Path) -> None:
    assert run_process.last_epoch(tmp_path) == "preparing"
    line = {"index": 1, "task": "b", "epoch": 2, "epochs": 9, "valid_accuracy": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n" + '{"half a li')
    assert run_process.last_epoch(tmp_path) == "task 2 b, epoch 2/9, valid 50.0 %"


def test_runs_side_by_side_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")  # the user's own wish counts
    found = run_process.environment(3)
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("3", "7")
    assert "OMP_NUM_THREADS" not in run_process.environment(None)
    parser = argparse.ArgumentParser()
    compare_commands.add_parsers(parser.add_subparsers())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    given = "compare permuted-digits --methods tsn --out nowhere --device cpu"
    for more, threads in (("--jobs 4", 2), ("--jobs 16", 1), ("--jobs 1", None), ("", 1)):
        options = parser.parse_args([*given.split(), *more.split()])
        comparison = compare_commands.planned(options, ["tsn"])
        assert {job.threads for job in comparison.jobs} == {threads}
        assert all("--threads" not in job.arguments for job in comparison.jobs)


def test_compare_passes_its_options_on() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    run_commands.add_parsers(commands)
    compare_commands.add_parsers(commands)
    given = "compare split-digits --methods tsn --out o --data d --set training.epochs=5"
    options = parser.parse_args([*given.split(), "--tensorboard", "--matrix", "last"])
    made = compare_commands.run_arguments(options, "tsn", 3)
    again = parser.parse_args(list(made))
    assert (again.recipe, again.method, again.seed) == ("split-digits", "tsn", 3)
    assert (again.data, again.assignments) == ("d", ["training.epochs=5"])
    assert again.no_report and again.tensorboard and again.threads is None
    assert again.matrix == "last"
    made = compare_commands.run_arguments(options, "naive:class-IL", 0)
    again = parser.parse_args(list(made))
    assert again.method == "naive" and again.assignments[-1] == "naive.scenario_type=class-IL"


KEPT = """
import resource
import numpy as np
from tinysubnets.cli import keep_freed_memory

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def fetched() -> int:
    before = faults()
    for _ in range(10):
        np.ones(1 << 23)  # 64 MiB, freed at once
    return faults() - before

without = fetched()
print(without, fetched() if keep_freed_memory() and fetched() >= 0 else -1)
"""


def test_commands_that_train_keep_the_memory_that_they_free() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True, check=True
    )
    without, kept = map(int, done.stdout.split())
    if kept < 0:
        pytest.skip("C's memory manager is not glibc's")
    assert kept < without / 10  # pages fetched from the system


@pytest.mark.parametrize(
    ("command", "is_kept"),
    [*((c, True) for c in cli.TRAINING), ("predict", False), ("serve", False), ("--help", False)],
)
def test_only_a_process_that_trains_keeps_its_memory(
    command: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none that calls `main` for something of its own."""
    kept: list[str] = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: kept.append(command))
    monkeypatch.setattr(cli, "_main", lambda words: 0)
    main([command])
    assert kept == []
    monkeypatch.setattr(sys, "argv", ["tsn", command])
    main()
    assert kept == [command] * is_kept
    assert set(cli.TRAINING) <= set(cli._built()[1])


def test_a_folder_is_no_recipe_and_the_error_says_what_to_do_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, inside, hint in (
        ("run", "config.toml", "tsn resume"),
        ("garden", "model.safetensors", "tsn learn"),
        ("photos", "a.png", "write a TOML file"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / inside).write_text("")
        assert main(["run", str(folder)]) == 2
        said = capsys.readouterr().err
        assert "is a folder, not a recipe" in said and hint in said


def test_a_run_does_not_go_into_a_folder_with_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_text("")
    assert main(["run", "permuted-digits", "--out", str(tmp_path)]) == 2
    assert "holds a model that no run has made" in capsys.readouterr().err
    assert [f.name for f in tmp_path.iterdir()] == ["model.safetensors"]
