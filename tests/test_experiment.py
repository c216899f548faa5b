"""Experiments: a recipe run in a folder, its result, and its errors."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from run_helpers import SMALL, epochs, numbers
from tinysubnets import scenarios
from tinysubnets.errors import ArchitectureError, RunError, SettingError, TaskError
from tinysubnets.experiments import metrics, recipe
from tinysubnets.experiments import progress as display
from tinysubnets.experiments import run as experiment_module
from tinysubnets.experiments import run_dir as run_folder
from tinysubnets.experiments.recipe import Plan
from tinysubnets.experiments.run import Experiment, Finished, Note, TaskBegun, TaskLearned
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.method.core import SubnetReport
from tinysubnets.method.learner import TinySubNets
from tinysubnets.method.pruning import PruningStep
from tinysubnets.model.store import SubnetStore
from tinysubnets.tasks.task import Task
from tinysubnets.training.loop import EpochReport


def small(name: str = "permuted-digits", *more: str, method: str | None = None) -> Plan:
    """A plan that takes about a second."""
    given = [s for s in (*SMALL, *more) if name != "split-digits" or "hidden" not in s]
    return Plan(recipe.load(name, method=method, assignments=given), 1, "cpu", 1)


def run(plan: Plan, path: Path) -> tuple[list[Any], dict[str, Any]]:
    with RunDir(path) as folder:
        events = list(Experiment.begin(plan, folder).steps())
    return events, json.loads((path / "result.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], dict[str, Any]]:
    path = tmp_path_factory.mktemp("run") / "one"
    return path, *run(small(), path)


def test_events_tell_the_whole_story(finished: tuple) -> None:
    _, events, result = finished
    kinds = [type(e) for e in events]
    one_task = [TaskBegun, *[EpochReport] * 3, *[PruningStep] * 4, TaskLearned]
    assert kinds == one_task * 3 + [Finished]
    for event in events:
        if isinstance(event, TaskLearned):  # all of it, not the epochs alone
            assert event.seconds > event.report.training_seconds + event.report.pruning_seconds
    assert events[-1].result["metrics"] == result["metrics"]


def test_result_has_the_documented_fields(finished: tuple) -> None:
    _, _, result = finished
    for key in ("format", "scenario", "method", "recipe", "seed", "scenario_type", "environment"):
        assert key in result
    assert (result["scenario"], result["method"], result["seed"]) == ("permuted-digits", "tsn", 1)
    assert result["scenario_type"] == "task-IL"
    assert result["metrics"]["backward_transfer"] == 0.0
    assert result["metrics"]["forgetting"] == 0.0
    assert np.shape(result["accuracy_matrix"]) == (3, 3)
    assert result["metrics"] == metrics.summary(result["accuracy_matrix"], [10] * 3)
    for task in result["tasks"]:
        for key in (
            "bank", "bits", "density", "owned_before_pruning", "owned_after_pruning", "accuracy",
            "training_seconds", "pruning_seconds", "valid_accuracy", "reason",
        ):  # fmt: skip
            assert task[key] is not None
    assert result["environment"]["threads"] == 1
    assert len(result["divergence"]["matrix"]) == 3
    assert result["divergence"]["matrix"][2][1] > 0


def test_every_field_of_the_result_is_documented(finished: tuple) -> None:
    text = (Path(__file__).parents[1] / "docs" / "RESULTS.md").read_text(encoding="utf-8")
    _, _, result = finished
    routed = result["without_task"]
    known = (*result["metrics"], *result["tasks"][0], *result["capacity"])
    for key in (*result, *known, *routed, *routed["unknown"], *routed["domain-IL"]):
        assert f"`{key}`" in text, f"docs/RESULTS.md does not describe {key}"


def test_sizes_are_those_of_the_file(finished: tuple) -> None:
    path, _, result = finished
    size = (path / "model" / "model.safetensors").stat().st_size
    assert result["capacity"]["file_bytes"] == size
    assert result["capacity"]["file"] == size / (4 * result["ledger"]["num_weights"])
    assert result["ledger"]["total"]["total"] == 8 * size


def test_matrix_is_that_of_the_saved_model(finished: tuple) -> None:
    path, _, result = finished
    store = SubnetStore.load(path / "model")
    made = scenarios.build("permuted-digits", result["settings"]["data"], seed=1)
    for index, name in enumerate(made.names):
        probe = metrics.Probe.of(made.task(index))
        predicted = store.predict(name, probe.data.inputs())
        truth = np.array(probe.classes)[probe.data.labels.numpy()]
        assert (predicted == truth).mean() == result["accuracy_matrix"][-1][index]


def test_classes_are_counted_at_the_end(finished: tuple) -> None:
    path, _, result = finished
    store = SubnetStore.load(path / "model")
    for index, task in enumerate(result["tasks"]):
        probe = scenarios.build("permuted-digits", result["settings"]["data"], seed=1).task(index)
        assert probe.test is not None
        truth = probe.test.labels.numpy()
        answers = store.logits(task["name"], probe.test.inputs()).argmax(1).numpy()
        wanted = [
            [int(((truth == i) & (answers == j)).sum()) for j in range(10)] for i in range(10)
        ]
        assert task["confusion"] == wanted
        shares = [row[i] / sum(row) for i, row in enumerate(wanted)]
        assert task["class_accuracy"] == shares
        assert sum(row[i] for i, row in enumerate(wanted)) / 40 == task["final_accuracy"]


def test_a_run_resumed_at_its_very_end_counts_its_classes(finished: tuple, tmp_path: Path) -> None:
    with RunDir(tmp_path / "run") as folder:
        experiment = Experiment.begin(small(), folder)
        for event in experiment.steps():
            if isinstance(event, TaskLearned) and event.index == 2:
                experiment.save_()
                break
    with RunDir(tmp_path / "run") as folder:
        list(Experiment.resume(folder).steps())
    assert numbers(tmp_path / "run") == numbers(finished[0])


def test_folder_has_settings_metrics_and_log(finished: tuple) -> None:
    path, _, _ = finished
    kept = run_folder.RunDir(path).config()
    assert kept["run"]["seed"] == 1
    assert kept["training"]["epochs"] == 3
    assert recipe.load(str(path / "config.toml")).training == small().recipe.training
    lines = epochs(path)
    assert [(e["index"], e["epoch"]) for e in lines] == [
        (t, e) for t in range(3) for e in (1, 2, 3)
    ]
    assert "finished" in (path / "log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_same_seed_same_numbers(finished: tuple, tmp_path: Path) -> None:
    path, _, _ = finished
    torch.manual_seed(12345)  # nothing may depend on the global generator
    run(small(), tmp_path / "again")
    assert numbers(tmp_path / "again") == numbers(path)
    assert epochs(tmp_path / "again") == epochs(path)
    run(replace(small(), seed=2), tmp_path / "other")
    assert numbers(tmp_path / "other")["accuracy_matrix"] != numbers(path)["accuracy_matrix"]


def test_test_labels_are_never_seen_by_the_learner(
    finished: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinysubnets.scenarios import sets

    honest = sets.digits

    def poisoned(split: str) -> Any:
        found = honest(split)
        return replace(found, labels=(found.labels + 1) % 10) if split == "test" else found

    monkeypatch.setattr(sets, "digits", poisoned)
    run(small(), tmp_path / "poisoned")
    model = "model/model.safetensors"
    assert (tmp_path / "poisoned" / model).read_bytes() == (finished[0] / model).read_bytes()
    assert numbers(tmp_path / "poisoned")["metrics"] != numbers(finished[0])["metrics"]


@pytest.mark.parametrize("method", ["tsn-wr", "tsn-wr-wpp", "naive", "wsn"])
def test_other_methods_and_scenarios_run(method: str, tmp_path: Path) -> None:
    _, result = run(small("split-digits", method=method), tmp_path)
    assert result["method"] == method
    assert len(result["tasks"]) == 3
    if method != "naive":
        assert result["metrics"]["backward_transfer"] == 0.0


def test_class_incremental_runs_carry_their_setting(tmp_path: Path) -> None:
    plan = small("split-digits", "naive.scenario_type=class-IL", method="naive")
    _, result = run(plan, tmp_path)
    assert result["scenario_type"] == "class-IL"
    assert result["accuracy_matrix"][0][1] is None
    assert result["metrics"]["backward_transfer"] < 0


def test_own_tasks_without_test_data_are_measured_on_validation(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        labels = np.arange(60) % 2
        inputs = (rng.normal(size=(60, 4)) + 3 * labels[:, None]).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=labels)
    file = tmp_path / "mine.toml"
    file.write_text(
        '[tasks.a]\ndata = "a.npz"\n[tasks.b]\ndata = "b.npz"\n'
        "[network]\nhidden = [8, 8]\n[training]\nepochs = 12\n"
    )
    events, result = run(Plan(recipe.load(str(file)), 0, "cpu", 1), tmp_path / "run")
    assert result["measured_on"] == ["valid"]
    assert result["metrics"]["average_accuracy"] > 0.8
    notes = [e.text for e in events if isinstance(e, Note)]
    assert "the network mlp (in_features = 4, hidden = [8, 8]) with 96 shared" in notes[0]
    assert "chosen for 54 samples of 4" in notes[0]
    assert result["notes"] == notes[1:] and len(notes) == 2  # few samples are said of both at once
    assert "a and b have 6 validation samples each; one of these is worth 16.7 points" in notes[1]
    assert notes[1].endswith("the last epoch is kept and nothing is post-pruned")
    reports = [e.report for e in events if isinstance(e, TaskLearned)]
    assert [r.best_epoch for r in reports] == [12, 12]
    assert all(r.owned_before_pruning == r.owned_after_pruning for r in reports)


def test_running_out_of_weights_is_said_once(tmp_path: Path) -> None:
    plan = small(
        "permuted-digits", "tsn.density=1.0", "tsn.post_pruning=false", method="tsn-wr-wpp"
    )
    events, result = run(plan, tmp_path)
    notes = [e for e in events if isinstance(e, Note)]
    assert len(notes) == 1 and "no free weights" in notes[0].text
    assert result["notes"] == [notes[0].text]
    assert result["free_share"] == 0.0
    assert result["metrics"]["backward_transfer"] == 0.0


def test_finished_and_started_folders_are_refused(finished: tuple, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="finished run"), RunDir(finished[0]) as folder:
        Experiment.begin(small(), folder)
    with RunDir(tmp_path) as folder:
        Experiment.begin(small(), folder)
    with pytest.raises(RunError, match="tsn resume"), RunDir(tmp_path) as folder:
        Experiment.begin(small(), folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 0),
        ("threads", 100_000),
        ("seed", 2**64),
        ("checkpoint_seconds", -1.0),
        ("checkpoint_seconds", math.nan),
    ],
)
def test_impossible_plans_are_refused(name: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"{name} = .* is not allowed"):
        replace(small(), **{name: value})


def test_bad_settings_leave_no_run_behind(tmp_path: Path) -> None:
    plan = small("permuted-digits", "network.hiden=[5]")
    with pytest.raises(SettingError, match="hidden"), RunDir(tmp_path) as folder:
        Experiment.begin(plan, folder)
    assert not (tmp_path / "config.toml").exists()
    with pytest.raises(SettingError, match="hidden"), RunDir(tmp_path / "new") as folder:
        Experiment.begin(plan, folder)
    assert tmp_path.exists() and not (tmp_path / "new").exists()


def small_images(folder: Path) -> Plan:
    """A run of images that its network is too large for."""
    labels = np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 255, (40, 1, 8, 8), dtype=np.uint8)
    np.savez(folder / "a.npz", inputs=images, labels=labels)
    file = folder / "mine.toml"
    file.write_text(
        '[tasks.a]\ndata = "a.npz"\n[network]\nname = "small-cnn"\nimage_size = 16\n'
        "[training]\nepochs = 1\n"
    )
    return Plan(recipe.load(str(file)), 0, "cpu", 1)


def test_a_run_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = small_images(tmp_path)
    for path in (tmp_path / "runs" / "one", tmp_path / "there", tmp_path / "kept"):
        if path.name != "one":
            path.mkdir()
        if path.name == "kept":
            (path / "log.txt").write_text("of somebody else\n")
        with pytest.raises(ArchitectureError, match="fails on"), RunDir(path) as folder:
            for _ in Experiment.begin(plan, folder).steps():
                pass
    assert not (tmp_path / "runs").exists()
    assert (tmp_path / "there").is_dir() and not list((tmp_path / "there").iterdir())
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["log.txt"]
    assert (tmp_path / "kept" / "log.txt").read_text().startswith("of somebody else")
    fitting = replace(
        plan, recipe=recipe.load(plan.recipe.name, assignments=["network.image_size=8"])
    )
    run(fitting, tmp_path / "kept")
    assert (tmp_path / "kept" / "result.json").exists()


def test_a_run_that_fails_later_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first epoch, or where it was resumed, there is something to go on with."""
    path = tmp_path / "run"
    with RunDir(path) as folder:
        Experiment.begin(small(), folder)
    begin, calls = TinySubNets.begin, []

    def refused(learner: TinySubNets, task: Task, **given: Any) -> Any:
        calls.append(task.name)
        if len(calls) in (1, 3):
            raise TaskError("refused")
        return begin(learner, task, **given)

    monkeypatch.setattr(TinySubNets, "begin", refused)
    for _ in range(2):
        with pytest.raises(TaskError, match="refused"), RunDir(path) as folder:
            list(Experiment.resume(folder).steps())
    assert len(calls) == 3 and (path / "config.toml").exists()
    assert len(epochs(path)) == 3


def test_a_later_task_that_is_refused_leaves_what_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begin = tmp_path / "run", TinySubNets.begin

    def refused(learner: TinySubNets, task: Task, **given: Any) -> Any:
        if learner.tasks:
            raise TaskError("refused")
        return begin(learner, task, **given)

    monkeypatch.setattr(TinySubNets, "begin", refused)
    plan = replace(small(), checkpoint_seconds=1e9)  # no checkpoint is written meanwhile
    with pytest.raises(TaskError, match="refused"), RunDir(path) as folder:
        list(Experiment.begin(plan, folder).steps())
    assert (path / "config.toml").exists() and (path / "log.txt").exists()
    assert len(epochs(path)) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only")]
)
def test_disk_errors_are_explained_and_lose_nothing(
    code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    honest = os.fsync
    plan = replace(small(), checkpoint_seconds=0.0)
    with RunDir(path) as folder:
        steps = Experiment.begin(plan, folder).steps()
        for _ in range(6):
            next(steps)

        def full(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=f"{said}.*tsn resume {path}$"):
            list(steps)
        monkeypatch.setattr(os, "fsync", honest)
    assert not list(path.rglob("*.tmp"))
    with RunDir(path) as folder:
        list(Experiment.resume(folder).steps())
    assert (path / "result.json").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="permission"):
        RunDir(tmp_path / "run").__enter__()
    tmp_path.chmod(0o700)


def test_lines_of_metrics_are_json_even_when_training_diverges(tmp_path: Path) -> None:
    with RunDir(tmp_path) as folder:
        folder.track({"loss": float("nan"), "rate": float("inf"), "epoch": 1})
    assert epochs(tmp_path) == [{"loss": None, "rate": None, "epoch": 1}]


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="not a folder"):
        RunDir(tmp_path / "file").__enter__()


def test_summary_shows_everything(finished: tuple) -> None:
    text = display.summary(finished[2])
    for part in ("average accuracy", "BWT", "FWT", "bank 0", "codes", "masks", "still free"):
        assert part in text
    size, dense = finished[2]["ledger"]["file_bytes"], 4 * finished[2]["ledger"]["num_weights"]
    instead = f"3 tasks in {size / 1000:.1f} kB instead of {dense / 1000:.1f} kB"
    assert 0 < text.index(instead) < text.index("%")  # bytes before percentages
    assert "3 permutation-2" in text and "nothing forgotten" in text
    assert "worked example" not in text and "view" not in text
    larger = finished[2] | {"ledger": finished[2]["ledger"] | {"file_bytes": 99_000}}
    told = f"3 tasks in 99.0 kB; {dense / 1000:.1f} kB are the weights of one dense network;"
    assert told in display.summary(larger)
    assert f"{100 * finished[2]['metrics']['average_accuracy']:.2f} %" in text
    assert "right on average, nothing" in text and "on test data" in text
    text = display.summary(finished[2] | {"measured_on": ["valid"]})
    assert "right on average on validation data, nothing" in text
    learned = next(e for e in finished[1] if isinstance(e, TaskLearned))
    assert "validation" not in display.describe_task(learned)
    unseen = display.describe_task(replace(learned, measured_on="valid"))
    assert " % on validation data; bank 0" in unseen


def test_plain_display_tells_tasks_and_time_left(finished: tuple, capsys: Any) -> None:
    with display.PlainDisplay(every_seconds=0.0) as shown:
        for event in finished[1]:
            shown.show(event)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * (3 + 4 + 1)
    assert "task 1/3 permutation-0: epoch 1/3  loss" in lines[0] and "left" in lines[0]
    assert "task 1/3 permutation-0: post-pruning 1/4" in lines[3] and "left" in lines[3]
    assert re.match(r"learned 1/3 permutation-0 in \d+\.\d s: accuracy", lines[7])


def epoch(number: int, epochs: int = 4) -> EpochReport:
    return EpochReport("a", number, epochs, 1.0, 1.0, 0.5, 1e-3, 1.0, True)


def test_time_left_counts_what_follows_the_epochs() -> None:
    """Two tasks of four epochs of 1 s each, then 1 s of coding, ten pruning steps and measuring."""
    now = 0.0

    def pass_by(seconds: float, event: Any) -> float | None:
        nonlocal now
        now += seconds
        clock.see(event)
        return clock.seconds_left

    clock = display.Clock(lambda: now)
    assert pass_by(5.0, TaskBegun(0, 2, "a", 2, 9, 0, 4)) is None  # whatever came before
    for number in (1, 2, 3, 4):
        assert pass_by(1.0, epoch(number)) == pytest.approx(8 - number) and clock.is_least
    assert pass_by(1.0, PruningStep(1, 10, 0.5, 0)) == pytest.approx(4.0) and clock.is_least
    # A second step tells how long all take: 1 + 10 * 2, of this task and again of the next one.
    left = pass_by(2.0, PruningStep(2, 10, 0.5, 1))
    assert not clock.is_least and left == pytest.approx(4 + (21 - 3) + 21)
    for number in range(3, 11):
        pass_by(2.0, PruningStep(number, 10, 0.5, 1))
    report = SubnetReport("a", 0.5, 1, 4.0, 0, "", 4, 0.1, 0.1, 0.1, 21.0)
    assert pass_by(3.0, TaskLearned(0, 2, report, [0.5, None], 26.0)) == pytest.approx(4 + 22)
    assert pass_by(0.0, TaskBegun(1, 2, "b", 2, 9, 0, 4)) == pytest.approx(4 + 22)
    assert pass_by(1.0, epoch(1)) == pytest.approx(3 + 22)
    said = display.describe_step(PruningStep(3, 10, 0.5, 1), clock)
    assert said == "post-pruning 3/10  valid 50.00 %  25 s left"
    assert "in 26.0 s: accuracy 50.00 %" in display.describe_task(
        TaskLearned(0, 2, report, [0.5, None], 26.0)
    )


def test_before_anything_is_known_the_time_left_is_a_bound() -> None:
    times = iter(range(10))
    clock = display.Clock(lambda: next(times))
    clock.see(TaskBegun(0, 1, "a", 2, 9, 0, 4))
    clock.see(epoch(1))
    assert display.describe_step(epoch(1), clock).endswith("  3 s of epochs left")


def test_live_display_survives_all_events(finished: tuple, capsys: Any) -> None:
    with display.LiveDisplay() as shown:
        for event in (*finished[1], Note("a note")):
            shown.show(event)
    assert "learned 3/3" in capsys.readouterr().out


@pytest.mark.slow
def test_defaults_reach_the_promised_accuracy(tmp_path: Path) -> None:
    _, result = run(Plan(recipe.load(), 0, "cpu", 1), tmp_path)
    assert result["metrics"]["average_accuracy"] >= 0.95
    assert result["metrics"]["backward_transfer"] == 0.0
    _, alone = run(Plan(recipe.load(method="independent"), 0, "cpu", 1), tmp_path / "alone")
    fall = alone["metrics"]["average_accuracy"] - result["metrics"]["average_accuracy"]
    assert fall <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diagonal", "last"])
def test_fewer_cells_are_the_same_numbers_with_an_honest_label(
    kind: Any, finished: tuple, tmp_path: Path
) -> None:
    _, _, full = finished
    assert full["matrix"] == "full"
    events, result = run(replace(small(), matrix=kind), tmp_path)
    assert result["matrix"] == kind
    for i, row in enumerate(result["accuracy_matrix"]):
        measured = [i == 2 or (kind == "diagonal" and i == j) for j in range(3)]
        known = zip(full["accuracy_matrix"][i], measured, strict=True)
        expected = [v if m else None for v, m in known]
        assert row == expected
    assert result["metrics"]["average_accuracy"] == full["metrics"]["average_accuracy"]
    assert result["metrics"]["backward_transfer"] is None
    assert result["tasks"][0]["accuracy"] == result["accuracy_matrix"][0][0]
    text = display.summary(result)
    assert f"--matrix {kind}" in text and "not measured" in text and "needs --matrix full" in text
    learned = [display.describe_task(e) for e in events if isinstance(e, TaskLearned)]
    assert ("not measured" in learned[0]) == (kind == "last")
    assert (tmp_path / "config.toml").read_text().count(f'matrix = "{kind}"') == 1


def test_runs_of_many_tasks_do_not_measure_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_module, "MAX_FULL", 2)
    _, result = run(small(), tmp_path)
    assert result["matrix"] == "diagonal" and result["accuracy_matrix"][1][0] is None
