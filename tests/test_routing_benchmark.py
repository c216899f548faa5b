"""The benchmarks of routing: other rules on finished models, the choice among them, the cost."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_runs import make_run
from tinysubnets.model.routing import RoutingSettings

sys.path[:0] = [str(Path(__file__).parent.parent)]

from benchmarks import routing, routing_goals  # noqa: E402


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> routing.Learned:
    folder = make_run(tmp_path_factory.mktemp("runs") / "tsn-wr", "tsn-wr")
    return routing.Learned(str(folder), None, "cpu")


def test_what_is_kept_anew_is_what_learning_would_have_kept(learned: routing.Learned) -> None:
    before = dict(learned.store.subnets)
    learned.keep_anew_(RoutingSettings(parts=("energy",)))
    assert list(learned.store.subnets) == list(before)
    for subnet in learned.store.subnets.values():
        assert set(subnet.routing) == {"score", "energy"}
    learned.keep_anew_(RoutingSettings())
    for name, subnet in before.items():
        again = learned.store.subnet(name).routing
        assert again.keys() == subnet.routing.keys()
        assert all(torch.equal(again[k], v) for k, v in subnet.routing.items())


def test_rules_are_compared_in_tables_that_keep_batches_apart(learned: routing.Learned) -> None:
    rules = learned.rules(["SupSup", "inputs, 24"])
    assert rules == ["entropy (SupSup)", "energy + inputs, 24"]
    rows = [
        {"run": "one", "rule": r} | learned.measured("valid", routing.RULES[r], None) for r in rules
    ]
    assert all(row["passes"] == 3 and 0 < row["class-IL"] <= row["domain-IL"] for row in rows)
    assert rows[0]["bytes per task"] == 0 < rows[1]["bytes per task"]
    single, batches = routing.tables(rows, ("run", "rule"), list(rows[0])).split("\n\n")
    assert "together" not in single and "class-IL" in single and "passes" in single
    assert batches.startswith("batches of 16 inputs") and "class-IL" not in batches
    assert f"{100 * rows[1]['together']:.2f}" in batches
    assert f"{100 * rows[1]['class-IL']:.2f}" in single
    none = [row | dict.fromkeys(routing.IN_BATCHES) for row in rows]
    assert "batches" not in routing.tables(none, ("run", "rule"), list(rows[0]))


def row(variant: str, rule: str, seed: int, **numbers: Any) -> dict[str, Any]:
    about = {"scenario": "cifar-alexnet", "variant": variant, "rule": rule, "seed": seed}
    usual = {"on": "valid", "task known": 0.80, "file": 0.10, "together": 0.99}
    return about | usual | numbers


def test_the_choice_is_the_best_that_keeps_accuracy_and_bytes() -> None:
    rows = [
        row("plain", "a", 100, **{"class-IL": 0.40}),
        row("plain", "a", 101, **{"class-IL": 0.50}),
        row("plain", "b", 100, **{"class-IL": 0.49}),
        row("plain", "b", 101, **{"class-IL": 0.43}),
        # Better, and too large; better, and worse where the task is known; the best, on test data.
        row("rotations", "a", 100, **{"class-IL": 0.60, "file": 0.13}),
        row("rotations, one pass", "a", 100, **{"class-IL": 0.60, "task known": 0.794}),
        row("plain", "a", 0, **{"class-IL": 0.90, "on": "test"}),
    ]
    assert routing_goals.chosen("cifar-alexnet", rows) == ("plain", "b")
    allowed = row("rotations", "b", 100, **{"class-IL": 0.47, "file": 0.12, "task known": 0.7951})
    assert routing_goals.chosen("cifar-alexnet", [*rows, allowed]) == ("rotations", "b")
    assert routing_goals.chosen("five-datasets", rows) is None
    single, batches = routing_goals.shown("cifar-alexnet", rows).split("\n\n")
    assert "99.00" in batches and "99.00" not in single and "together" not in single
    assert len(single.splitlines()) == len(rows) + 2


@pytest.mark.slow
def test_ten_tasks_are_timed_over_one() -> None:
    threads = torch.get_num_threads()
    found = routing.over_one_task("mlp", torch.device("cpu"), repeats=2)
    assert torch.get_num_threads() == threads
    assert "mlp" in found["what"] and found["target"] == "<= 10.5"
    for name in ("ten_calls", "routed", "shortlist_of_3"):
        assert found[f"{name}_ms"] > 0 and found[f"{name}_over_one"] > 0
    assert found["ratio"] == found["routed_over_one"]
    store, raw = routing.ten_tasks("mlp", torch.device("cpu"))
    assert len(store.tasks) == 10 and len(raw) == 256
    assert store.route(raw[:4]).rule == "energy + inputs"


def test_rows_are_added_once(tmp_path: Path) -> None:
    path = tmp_path / "routing.jsonl"
    assert routing_goals.read(path) == []
    for value in (0.4, 0.5):
        routing_goals._add(path, row("plain", "a", 100, **{"class-IL": value}))
    routing_goals._add(path, row("plain", "b", 100, **{"class-IL": 0.3}))
    assert [r["class-IL"] for r in routing_goals.read(path)] == [0.5, 0.3]


def test_runs_are_compared_by_every_rule_asked_for(
    learned: routing.Learned, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", "tsn-wr")
    options = argparse.Namespace(
        runs=[str(folder)], data=None, device="cpu", on="valid", rules=["raw"], unknown=None
    )
    known, energy = routing.compared(options)
    assert known["rule"] == "task known" and energy["rule"] == "energy, raw"
    assert energy["class-IL"] <= known["class-IL"] == pytest.approx(learned.known_task("valid"))
