"""Searches: reproducible, killed and gone on with, blind to test data, and what they end with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from data_files import encode, mnist_like, pixels
from run_helpers import children_of, halt, until
from tinysubnets.cli import main
from tinysubnets.errors import SettingError
from tinysubnets.experiments import recipe, search_space
from tinysubnets.experiments.methods import METHODS
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.experiments.search import (
    Search,
    TrialEnded,
    TrialResult,
    TrialWent,
    best_below,
    is_hopeless,
    pareto_front,
    parse_size,
)
from tinysubnets.experiments.search_space import Choices, Range, read_space, read_values
from tinysubnets.experiments.trial import Failed, Partial, SearchPlan, attempt
from tinysubnets.scenarios import sets

optuna = pytest.importorskip("optuna")

TINY = (
    "data.num_tasks=3",
    "data.train_limit=60",
    "data.test_limit=40",
    "training.epochs=2",
    "network.hidden=[20]",
    "pruning.iterations=2",
)
SPACE = {"tsn.density": Range(0.05, 0.6, is_log=True), "tsn.block": Choices((1, 2))}
NUM_TRIALS = 13  # the sampler models what it has seen from the eleventh on
NUM_FEW = 4


def options(out: Path, *more: str, trials: int = 3) -> list[str]:
    """The words of a search that takes a few seconds."""
    words = ["search", "permuted-digits", "--out", str(out), "--device", "cpu", "--seeds", "100"]
    words += ["--trials", str(trials), "--space", "tsn.density=0.05..0.6 log"]
    words += ["--space", "tsn.block=1,2", *(p for text in TINY for p in ("--set", text))]
    return [*words, *more]


def plan(method: str = "tsn", **more: Any) -> SearchPlan:
    chosen = recipe.load("permuted-digits", method=method, assignments=TINY)
    given: dict[str, Any] = {"space": SPACE, "seeds": (100,), "first": {"tsn.density": 0.3}}
    return SearchPlan(recipe=chosen, **(given | {"num_trials": 3} | more))


def run(plan: SearchPlan, path: Path) -> list[Any]:
    """A search to its end; all of its events."""
    with RunDir(path) as folder, Search(plan, folder) as search:
        return list(search.steps())


def stored(path: Path) -> Any:
    """The study of a folder, opened by Optuna alone."""
    return optuna.load_study(study_name="tsn search", storage=f"sqlite:///{path / 'study.db'}")


def done(path: Path) -> list[tuple[Any, ...]]:
    """What the trials of a study tried and came to, but for those that were cut off."""
    trials = [t for t in stored(path).trials if t.state.name in ("COMPLETE", "PRUNED")]
    return [(t.params, t.state.name, t.values, t.user_attrs["steps"]) for t in trials]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of a few trials, which the sampler has not begun to model."""
    path = tmp_path_factory.mktemp("searches") / "short"
    assert main(options(path, trials=NUM_FEW)) == 0
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that nothing has disturbed."""
    path = tmp_path_factory.mktemp("searches") / "whole"
    assert main(options(path, trials=NUM_TRIALS)) == 0
    return path


# What a search ends with


@pytest.mark.slow
def test_the_study_is_one_that_optuna_reads(short: Path) -> None:
    study = stored(short)
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert len(study.trials) == NUM_FEW
    assert study.trials[0].params == {"tsn.density": 0.3, "tsn.block": 1}  # the recipe's own first
    assert {tuple(t.params) for t in study.trials} == {("tsn.density", "tsn.block")}
    assert all(t.number in {b.number for b in study.best_trials} for t in front_of(study))


def front_of(study: Any) -> list[Any]:
    done = [t for t in study.trials if t.state.name == "COMPLETE"]
    results = [TrialResult(t.number, t.params, t.values[0], int(t.values[1])) for t in done]
    return [study.trials[r.number] for r in pareto_front(results)]


@pytest.mark.slow
def test_the_best_recipe_runs_and_weighs_what_the_search_says(short: Path, tmp_path: Path) -> None:
    text = (short / "best.toml").read_text(encoding="utf-8")
    best = max(front_of(stored(short)), key=lambda t: t.values[0])
    assert tomllib.loads(text)["tsn"]["density"] == best.params["tsn.density"]
    assert f"{int(best.values[1]):,} bytes" in text
    words = ["run", str(short / "best.toml"), "--out", str(tmp_path / "run"), "--no-report"]
    assert main([*words, "--seed", "100", "--device", "cpu"]) == 0
    model = tmp_path / "run" / "model" / "model.safetensors"
    assert model.stat().st_size == best.values[1]
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    valid = [task["valid_accuracy"] for task in result["tasks"]]
    assert best.values[0] == pytest.approx(sum(valid) / len(valid))


def test_the_picture_shows_every_complete_trial(short: Path) -> None:
    tree = ElementTree.parse(short / "front.svg")
    notes = [e.text or "" for e in tree.iter("{http://www.w3.org/2000/svg}title")]
    complete = [t.number for t in stored(short).trials if t.state.name == "COMPLETE"]
    shown = {note.partition(":")[0] for note in notes if note.startswith("trial ")}
    assert shown == {f"trial {number}" for number in complete}


def test_a_finished_search_tells_again_and_takes_another_budget(
    short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smallest = front_of(stored(short))[0]
    before, budget = done(short), f"{int(smallest.values[1])}"
    assert main(options(short, "--budget", budget, trials=NUM_FEW)) == 0
    told = capsys.readouterr().out
    assert f"{smallest.number} (best)" in told and "tsn run" in told
    assert done(short) == before
    assert main(options(short, "--budget", "10", trials=NUM_FEW)) == 1
    told = capsys.readouterr().out
    assert "no trial is below the budget of 10 B" in told and "run the smallest" in told
    density = tomllib.loads((short / "best.toml").read_text(encoding="utf-8"))["tsn"]["density"]
    assert density == smallest.params["tsn.density"]
    assert main(options(short, trials=NUM_FEW)) == 0  # for the tests that follow


@pytest.mark.slow
def test_two_searches_give_equal_trials(short: Path, tmp_path: Path) -> None:
    assert main(options(tmp_path / "again", trials=3)) == 0
    assert done(tmp_path / "again") == done(short)[:3]


@pytest.mark.slow
def test_two_longer_searches_give_equal_trials(whole: Path, tmp_path: Path) -> None:
    assert main(options(tmp_path / "again", trials=NUM_TRIALS)) == 0
    assert done(tmp_path / "again") == done(whole)
    assert main(options(tmp_path / "other", "--seed", "1", trials=3)) == 0
    assert done(tmp_path / "other")[1:] != done(whole)[1:3]


def test_a_folder_of_another_search_or_of_a_run_is_refused(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(short, "--set", "training.lr=0.01")) == 2
    assert "training.lr is 0.003 there and 0.01 here" in capsys.readouterr().err
    (tmp_path / "config.toml").write_text("", encoding="utf-8")
    assert main(options(tmp_path)) == 2
    assert "holds a run" in capsys.readouterr().err
    (tmp_path / "config.toml").unlink()
    (tmp_path / "study.db").write_bytes(b"no database at all, but long enough to be read" * 50)
    assert main(options(tmp_path)) == 2
    assert "cannot be opened as a study" in capsys.readouterr().err


# Test data


@pytest.mark.slow
def test_test_data_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = sets.digits

    def poisoned(split: str) -> Any:
        assert split == "train", "test data were read"
        return honest(split)

    monkeypatch.setattr(sets, "digits", poisoned)
    assert main(options(tmp_path / "permuted", trials=1)) == 0
    words = options(tmp_path / "split", "--method", "tsn-wr", trials=1)
    assert main(["search", "split-digits", *words[2:]]) == 0
    with pytest.raises(AssertionError, match="test data were read"):
        main(["run", "permuted-digits", "--out", str(tmp_path / "run")])


def searches_but_does_not_run(folder: Path, text: str) -> None:
    """That a recipe can be searched, but not run, which reads its poisoned test data."""
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    words = ["search", str(folder / "mine.toml"), "--trials", "1", "--seeds", "1"]
    assert main([*words, "--space", "tsn.block=1,2", "--out", str(folder / "search")]) == 0
    assert main(["run", str(folder / "search" / "best.toml"), "--out", str(folder / "run")]) == 2


@pytest.mark.slow
def test_test_data_of_own_files_are_never_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    poison = np.array([object()], dtype=object)  # reading it is an error
    for name in ("one", "two"):
        inputs, labels = rng.random((60, 16), dtype=np.float32), np.arange(60) % 3
        arrays = {"inputs": inputs, "labels": labels}
        np.savez(tmp_path / name, **arrays, test_inputs=poison, test_labels=poison)
    text = '[tasks.one]\ndata = "one.npz"\n[tasks.two]\ndata = "two.npz"\n[training]\nepochs = 1\n'
    searches_but_does_not_run(tmp_path, text)


@pytest.mark.slow
def test_test_pictures_of_own_folders_are_never_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        for number, picture in enumerate(pixels(36, (8, 8))):
            for split, data in (("train", encode(picture)), ("test", b"no picture")):
                path = tmp_path / name / split / f"class {number % 3}" / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    text = '[tasks.one]\ndata = "one"\n[tasks.two]\ndata = "two"\n[training]\nepochs = 1\n'
    text += '[data]\nimage_size = 8\nchannels = 1\n[network]\nname = "small-mlp"\n'
    searches_but_does_not_run(tmp_path, text)


@pytest.mark.slow
def test_test_data_in_parquet_are_never_read(tmp_path: Path) -> None:
    mnist_like(tmp_path, 200)
    test = tmp_path / "ylecun/mnist/mnist/test-00000-of-00001.parquet"
    test.write_bytes(b"no parquet")
    given = ["--data", str(tmp_path), "--set", "data.num_tasks=2", "--set", "training.epochs=1"]
    words = ["search", "permuted-mnist", "--trials", "1", "--seeds", "1", *given]
    assert main([*words, "--space", "tsn.block=1,2", "--out", str(tmp_path / "search")]) == 0
    assert main(["run", "permuted-mnist", *given, "--out", str(tmp_path / "run")]) == 2


# Stopped, killed, and gone on with


def start(out: Path, *more: str, trials: int = NUM_TRIALS) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tinysubnets", *options(out, *more, trials=trials)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def is_midway(out: Path, at_least: int = 2) -> Callable[[], bool]:
    """Whether some trials are complete and another one has learned its first task."""

    def look() -> bool:
        try:
            with closing(sqlite3.connect(f"file:{out / 'study.db'}?mode=ro", uri=True)) as base:
                count = "select count(*) from trials where state = 'COMPLETE'"
                steps = (
                    "select count(*) from trials join trial_user_attributes a using (trial_id) "
                    "where state = 'RUNNING' and a.key = 'steps'"
                )
                return bool(
                    base.execute(count).fetchone()[0] >= at_least
                    and base.execute(steps).fetchone()[0]
                )
        except sqlite3.Error:
            return False

    return look


@pytest.mark.slow
def test_a_killed_search_goes_on_as_if_nothing_had_happened(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    for at_least in (1, 3):  # killed twice
        process = start(out)
        halt(is_midway(out, at_least), process)
        process.kill()
        process.communicate()
        assert "RUNNING" in [t.state.name for t in stored(out).trials]
    assert main(options(out, trials=NUM_TRIALS)) == 0
    states = [t.state.name for t in stored(out).trials]
    assert states.count("FAIL") == 2 and not {"RUNNING", "WAITING"} & set(states)
    assert done(out) == done(whole)
    assert not list(out.glob(".trial-*")), "what a killed trial left is removed"


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "stopped"
    process = start(out)
    halt(is_midway(out), process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    told, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "The same command goes on with it." in said and "valid %" in told
    states = [t.state.name for t in stored(out).trials]
    assert "RUNNING" not in states and states[-1] == "WAITING"
    assert main(options(out, trials=NUM_TRIALS)) == 0
    assert done(out) == done(whole)


def test_ctrl_c_before_any_trial_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinysubnets.experiments import search

    def stopped(*_: object) -> Iterator[Partial]:
        os.kill(os.getpid(), signal.SIGINT)
        yield Partial(1, 4, 0.5, 10)

    monkeypatch.setattr(search, "attempt", stopped)
    assert main(options(tmp_path / "s")) == 130
    assert "The same command goes on with it." in capsys.readouterr().err
    assert [t.state.name for t in stored(tmp_path / "s").trials] == ["FAIL", "WAITING"]


@pytest.mark.slow
def test_trials_in_processes_survive_the_death_of_one(tmp_path: Path) -> None:
    ended = []
    with RunDir(tmp_path / "jobs") as folder:
        with Search(plan(jobs=2, num_trials=4), folder) as search:
            is_killed = False
            for event in search.steps():
                if isinstance(event, TrialWent) and not is_killed:
                    is_killed = True
                    os.kill(active_children()[0].pid or 0, signal.SIGKILL)
                if isinstance(event, TrialEnded):
                    ended.append(event)
            assert search.num_begun == 4
    lost = [e for e in ended if e.state == "failed"]
    assert len(lost) == 1 and "status -9; it will be tried again" in lost[0].detail
    trials = stored(tmp_path / "jobs").trials
    again = [t for t in trials if t.user_attrs.get("again_of") == lost[0].number]
    assert len(again) == 1 and again[0].params == trials[lost[0].number].params
    assert len(done(tmp_path / "jobs")) == 4
    assert not active_children()


@pytest.mark.slow
@pytest.mark.skipif(not children_of(os.getpid()).exists(), reason="finds processes by /proc")
def test_processes_end_with_a_search_that_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = start(out, "--jobs", "2", trials=200)
    until(is_midway(out), process)
    listed = children_of(process.pid).read_text(encoding="utf-8")
    assert len(listed.split()) >= 2
    process.kill()
    process.communicate()
    end = time.monotonic() + 600
    while any(is_alive(int(number)) for number in listed.split()):
        assert time.monotonic() < end, "a process outlives its search"
        time.sleep(0.1)
    before = len(done(out))
    assert main(options(out, "--jobs", "2", trials=before + 2)) == 0
    assert len(done(out)) == before + 2


def is_alive(number: int) -> bool:
    try:
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


# Trials


def last(plan: SearchPlan, settings: dict[str, Any], folder: Path) -> Any:
    return list(attempt(plan, settings, folder))[-1]


@pytest.mark.slow
def test_what_was_forgotten_counts(tmp_path: Path) -> None:
    chosen = plan("naive", seeds=(100,))
    rows = [m for m in attempt(chosen, {}, tmp_path) if isinstance(m, Partial)]
    assert [m.step for m in rows] == [1, 2, 3]
    kept = [m for m in attempt(plan("independent"), {}, tmp_path) if isinstance(m, Partial)]
    assert kept[0].accuracy == rows[0].accuracy
    long = ("training.epochs=30", *TINY[:3], TINY[4])
    forgets, remembers = (
        last(
            replace(chosen, recipe=recipe.load("permuted-digits", method=m, assignments=long)),
            {},
            tmp_path,
        )
        for m in ("naive", "independent")
    )
    assert forgets.accuracy < remembers.accuracy - 0.1
    assert forgets.size_bytes < remembers.size_bytes


@pytest.mark.slow
def test_a_trial_is_the_mean_over_seeds_and_the_largest_file(tmp_path: Path) -> None:
    one, two = (last(plan(seeds=(seed,)), {}, tmp_path) for seed in (100, 101))
    both = last(plan(seeds=(100, 101)), {}, tmp_path)
    assert both.step == both.num_steps == 6
    assert both.accuracy == pytest.approx((one.accuracy + two.accuracy) / 2)
    assert both.size_bytes == max(one.size_bytes, two.size_bytes)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_trial_that_cannot_be_run_fails_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(last(plan(), {"tsn.density": 7.0}, tmp_path), Failed)
    space: dict[str, Any] = {"ada-qpacknet.density": Choices((0.1, 1.0))}
    many = ("data.num_tasks=6", "ada-qpacknet.max_banks=1", "ada-qpacknet.pruning_tolerance=0.0")
    chosen = recipe.load("permuted-digits", method="ada-qpacknet", assignments=(*TINY, *many))
    full = replace(plan(), recipe=chosen, space=space, first={"ada-qpacknet.density": 1.0})
    ended = [e for e in run(replace(full, num_trials=4), tmp_path / "s") if type(e) is TrialEnded]
    assert ended[0].state == "failed" and "no bank has free weights" in ended[0].detail
    assert [e.state for e in ended].count("complete") >= 1
    assert len(ended) == 4  # it is no use to try such a trial again


@pytest.mark.slow
def test_hopeless_trials_are_given_up(tmp_path: Path) -> None:
    good = [Partial(i, 4, 0.9, 1000 * i) for i in (1, 2, 3, 4)]
    assert not is_hopeless(Partial(1, 4, 0.1, 5000), [good])  # too early to tell
    assert is_hopeless(Partial(2, 4, 0.1, 2000), [good])
    assert not is_hopeless(Partial(2, 4, 0.1, 1999), [good])  # bad, but small
    assert not is_hopeless(Partial(2, 4, 0.89, 5000), [good])  # large, but within the margin
    assert not is_hopeless(Partial(4, 4, 0.1, 9000), [good])  # it is finished
    assert not is_hopeless(Partial(3, 4, 0.1, 9000), [good[:2], []])
    # Learning nothing at all, with the same bytes, after a trial that does learn.
    space: dict[str, Any] = {"training.lr": Choices((0.01, 1e-5))}
    chosen = recipe.load("permuted-digits", method="naive", assignments=[*TINY, "training.lr=0.01"])
    settings = {"space": space, "first": {"training.lr": 0.01}, "num_trials": 6}
    run(replace(plan(**settings), recipe=chosen), tmp_path / "s")
    found = {(t.params["training.lr"], t.state.name) for t in stored(tmp_path / "s").trials}
    assert found == {(0.01, "COMPLETE"), (1e-5, "PRUNED")}
    pruned = [t for t in stored(tmp_path / "s").trials if t.state.name == "PRUNED"]
    assert all(len(t.user_attrs["steps"]) == 2 for t in pruned)


def test_the_front_and_the_best_below_a_budget() -> None:
    places = [(0.5, 300), (0.6, 100), (0.6, 90), (0.9, 400), (0.9, 500), (0.95, 1000)]
    results = [TrialResult(i, {}, *place) for i, place in enumerate(places)]
    assert [r.number for r in pareto_front(results)] == [2, 3, 5]
    best = {b: best_below(results, b) for b in (None, 999, 400, 399, 89)}
    assert {b: r and r.number for b, r in best.items()} == {
        None: 5, 999: 3, 400: 3, 399: 2, 89: None,
    }  # fmt: skip


# The space


def test_what_can_be_written_as_a_space() -> None:
    assert read_values("k", "0.01..0.3 log") == Range(0.01, 0.3, is_log=True)
    assert read_values("k", "1..8") == Range(1, 8)
    assert isinstance(read_values("k", "1..8", current=2.0).low, float)  # type: ignore[union-attr]
    assert read_values("k", "1e-4..1e-2 log") == Range(1e-4, 1e-2, is_log=True)
    assert read_values("k", "1,2,4") == read_values("k", [1, 2, 4]) == Choices((1, 2, 4))
    assert read_values("k", "random, previous_mask") == Choices(("random", "previous_mask"))
    assert read_values("k", "[100, 100],[50]") == Choices(([100, 100], [50]))
    assert read_values("k", "auto,4") == Choices(("auto", 4))


@pytest.mark.slow
def test_lists_are_searched_too(tmp_path: Path) -> None:
    words = options(tmp_path / "s", trials=3)
    words = [w for w in words if "tsn." not in w and w != "--space"]
    assert (
        main([*words, "--space", "network.hidden=[20],[10,10]", "--space", "tsn.bits=auto,4"]) == 0
    )
    tried = {t.params["network.hidden"] for t in stored(tmp_path / "s").trials}
    assert tried <= {"[20]", "[10, 10]"}
    hidden = tomllib.loads((tmp_path / "s" / "best.toml").read_text())["network"]["hidden"]
    assert hidden in ([20], [10, 10])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_space_of_its_own(method: str) -> None:
    chosen = recipe.load("permuted-digits", method=method)
    space = read_space(chosen, [], {}, shape=(1, 1, 8, 8), num_tasks=5)
    own = {"naive", "cumulative", "independent", "cwr-star"}
    tables = {key.partition(".")[0] for key in space}
    assert {"training", "network"} <= tables
    assert (len(tables) == 2) == (method in own)
    assert search_space.own_settings(chosen, space, (1, 1, 8, 8)).keys() >= {"training.lr"}


@pytest.mark.slow
def test_a_recipe_may_have_a_space(tmp_path: Path) -> None:
    text = 'scenario = "permuted-digits"\n[search]\ntsn.density = "0.1..0.5"\n'
    text += '"tsn.block" = [1, 2]\newc.penalty_weight = "1..10 log"\n'
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    words = ["search", str(tmp_path / "mine.toml"), *options(tmp_path / "s", trials=2)[2:]]
    at = words.index("--space")
    assert main(words[:at] + words[at + 4 :]) == 0
    space = stored(tmp_path / "s").user_attrs["about"]["space"]
    assert space == {"tsn.density": "0.1..0.5", "tsn.block": "1,2"}
    assert recipe.load(str(tmp_path / "mine.toml")).method == "tsn"  # `tsn run` takes it


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--space", "tsn.densty=0.1..0.2"], "Did you mean 'tsn.density'?"),
        (["--space", "network.dropuot=0.1..0.2"], "Did you mean 'network.dropout'?"),
        (["--space", "ewc.penalty_weight=1..2"], "is a setting of ewc, and this search is of tsn"),
        (["--space", "data.num_tasks=1..2"], "cannot be searched"),
        (["--space", "training.lr=0.2..0.1"], "is empty: 0.2 is not below 0.1"),
        (["--space", "training.lr=0.1..0.1"], "is empty"),
        (["--space", "training.lr=0..1 log"], "begins above 0"),
        (["--space", "training.lr=a..b"], "is no range"),
        (["--space", "training.lr=1..2..3"], "is no range"),
        (["--space", "training.lr"], "write key=low..high"),
        (["--space", "training.lr= "], "write key=low..high"),
        (["--space", "training.lr=,"], "leaves nothing to try"),
        (["--space", "tsn.first_bits=2,2"], "has 2 twice"),
        (["--space", "tsn.block=1,2"], "--space gives tsn.block twice"),
        (["--space", "tsn.first_bits=2..99"], "first_bits = 99"),
        (["--space", "tsn.first_bits=0.5..3"], "tsn.first_bits = 0.5 is not allowed"),
        (["--space", "network.dropout=0.5..1.5"], "rates lie in"),
        (["--method", "tsn-wr", "--space", "tsn.max_banks=1,2"], "tsn-wr fixes it at 1"),
        (["--budget", "much"], "'much' is no size"),
        (["--budget", "0"], "at least 1"),
        (["--budget=-5kB"], "is no size"),
        (["--budget", "5 kiloparsec"], "is no size"),
        (["--trials", "0"], "--trials 0"),
        (["--jobs", "0"], "--jobs 0"),
        (["--threads", "0"], "--threads 0"),
        (["--seeds", "1,x"], "give different integers"),
        (["--seeds", "1,1"], "give different integers"),
        (["--set", "tsn.densty=1"], "Did you mean 'tsn.density'?"),
        (["--set", "search=1"], "search = 1 is not allowed"),
        (["--method", "tns"], "Did you mean 'tsn'?"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(tmp_path / "search", *more)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


def test_sizes() -> None:
    assert [parse_size(s) for s in ("100kB", "2.5MB", "4096", " 1 KiB ", ".5 kb")] == [
        100_000, 2_500_000, 4096, 1024, 500,
    ]  # fmt: skip
    with pytest.raises(SettingError, match="no size"):
        parse_size("1e")


def test_without_optuna_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(options(tmp_path / "s")) == 2
    assert "[search]" in capsys.readouterr().err


def test_nothing_else_needs_optuna() -> None:
    package = Path(search_space.__file__).parent.parent
    users = [p for p in package.rglob("*.py") if "import optuna" in p.read_text(encoding="utf-8")]
    assert [p.name for p in users] == ["search.py"]
    code = "import sys, tinysubnets.cli as c; c.parser(); sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_no_trial_at_all_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinysubnets.experiments import search

    def fails(*_: object) -> Iterator[Failed]:
        yield Failed("no luck")

    monkeypatch.setattr(search, "attempt", fails)
    assert main(options(tmp_path / "s")) == 2
    assert "no trial was completed; the last one failed: no luck" in capsys.readouterr().err


# Studies that somebody else has written


def spoilt(short: Path, folder: Path, statement: str) -> Path:
    """A copy of a search whose study was changed by SQL."""
    shutil.copytree(short, folder)
    with closing(sqlite3.connect(folder / "study.db")) as database:
        assert database.execute(statement).rowcount > 0
        database.commit()
    return folder


SPOILT = {
    "about is text": "update study_user_attributes set value_json = '\"a\"' where key = 'about'",
    "about is a list": "update study_user_attributes set value_json = '[1]' where key = 'about'",
    "about is no JSON": "update study_user_attributes set value_json = '{' where key = 'about'",
    "one objective": "delete from study_directions where objective = 1",
    "the other way": "update study_directions set direction = 'MINIMIZE'",
    "steps are text": "update trial_user_attributes set value_json = '\"a\"' where key = 'steps'",
    "a step is text": "update trial_user_attributes set value_json = '[\"a\"]' where key = 'steps'",
    "no steps": "delete from trial_user_attributes where key = 'steps'",
    "one value": "delete from trial_values where objective = 1",
    "no settings": "delete from trial_params",
    "odd settings": "update trial_params set distribution_json = '{}'",
}


@pytest.mark.parametrize("kind", SPOILT)
def test_studies_that_are_none_of_ours_are_refused(
    kind: str, short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = spoilt(short, tmp_path / "search", SPOILT[kind])
    assert main(options(folder, trials=NUM_FEW)) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"tsn: {folder.resolve() / 'study.db'} cannot be the study of this search"
    )
