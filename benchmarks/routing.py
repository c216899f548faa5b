"""Without the task's name: what it costs, and how well rules find the task of an input.

    python -m benchmarks.routing RUN…                       # rules on the models of finished runs
    python -m benchmarks.routing RUN… --unknown fashion-mnist --data DIR --out rules.jsonl
    python -m benchmarks.routing --speed alexnet            # ten tasks routed over one known

The models are used as they are: for every rule what tasks keep is made anew from the run's own
data, in the order of learning, as if the model had been learned with these settings. Measured is on
validation data, which rules are chosen by; `--on test` once they are.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.steps import SHAPES, time_ms
from tinysubnets import networks, scenarios
from tinysubnets.datasets.images import fit
from tinysubnets.experiments.metrics import Probe
from tinysubnets.experiments.recipe import Plan
from tinysubnets.experiments.routing import TOGETHER, Routed, without_task
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.experiments.tables import text_table
from tinysubnets.model.evaluation import auroc
from tinysubnets.model.routing import Gaussian, Record, RoutingSettings, routing_of
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import PackedMask, Sample, Subnet, code
from tinysubnets.nn.architecture import Architecture
from tinysubnets.scenarios.sets import load_set
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task

NUM_TASKS, BATCH = 10, 256
UNKNOWN_SAMPLES = 2000
IN_BATCHES = ("together", "domain-IL, together")  # columns of batches of one task
RULES: dict[str, dict[str, Any] | str] = {
    "entropy (SupSup)": "entropy",
    "energy, raw": "energy",
    "energy": {"parts": ("energy",)},
    "energy + inputs, 8": {"parts": ("energy", "inputs"), "dims": 8},
    "energy + inputs, 16": {"parts": ("energy", "inputs"), "dims": 16},
    "energy + inputs, 24": {"parts": ("energy", "inputs"), "dims": 24},
    "energy + inputs, 32": {"parts": ("energy", "inputs"), "dims": 32},
    "energy + inputs, 64": {"parts": ("energy", "inputs"), "dims": 64},
    "energy + inputs, 128": {"parts": ("energy", "inputs"), "dims": 128},
    "energy + inputs of classes, 24": {"dims": 24, "per_class": True},
    "energy + inputs of classes, 32": {"dims": 32, "per_class": True},
    "energy + inputs of classes, 64": {"dims": 64, "per_class": True},
    "energy + inputs of classes, 96": {"dims": 96, "per_class": True},
    **{
        f"energy + inputs of classes, {dims}, of them {low} frequencies": {
            "dims": dims,
            "frequencies": low,
            "per_class": True,
        }
        for dims, low in ((16, 4), (24, 6), (32, 8), (48, 8), (64, 8), (64, 16), (96, 12))
    },
    "energy + inputs, weights not fitted": {"parts": ("energy", "inputs"), "calibrate": False},
    "rotation": {"parts": ("rotation",)},  # this and the next three where rotations were learned
    "energy + rotation": {"parts": ("energy", "rotation")},
    "energy + inputs + rotation": {"parts": ("energy", "inputs", "rotation")},
    "energy + inputs + rotation, 64": {"parts": ("energy", "inputs", "rotation"), "dims": 64},
    "energy + features, 32": {"parts": ("energy", "features"), "dims": 32},
    "energy + features, 64": {"parts": ("energy", "features"), "dims": 64},
    "all, 32": {"parts": ("energy", "inputs", "features"), "dims": 32},
}


# Speed.


def ten_tasks(network: str, device: torch.device) -> tuple[SubnetStore, torch.Tensor]:
    """A store of ten random tasks that keep energies and densities, and a raw batch."""
    store = SubnetStore(Architecture(networks.build(network)), device=device)
    generator = torch.Generator().manual_seed(0)
    shapes = store.architecture.task_param_shapes(10)
    shape = SHAPES[network] if network != "mlp" else (784,)
    for number in range(NUM_TASKS):
        mask = torch.rand(store.layout.num_blocks, generator=generator) < 0.1
        values = 0.1 * torch.randn(store.layout.num_weights, generator=generator)
        new = store.layout.expand(mask if not store.banks else store.banks[0].new_blocks(mask))
        params = {
            n: code(torch.rand(int(np.prod(s)), generator=generator) + n.endswith("var"), 16)
            for n, s in shapes.items()
        }
        points = torch.randn(100, 16, generator=generator)
        record = Record(
            {"energy": 1.0, "inputs": 0.3},
            {"energy": (5.0, 2.0)},
            gaussians={"inputs": Gaussian.fit(points, torch.zeros(100, dtype=torch.int64), 1)},
        )
        store.add_(
            Subnet(
                f"task {number}",
                tuple(range(10)),
                Normalization((120.0,), (60.0,)),
                0,
                PackedMask.of(mask),
                4,
                tuple(code(values[i:j][new[i:j]], 4) for i, j in store.layout.segments),
                params,
                shapes,
                sample=Sample(torch.uint8, shape),
                routing=record.vectors(),
            )
        )
    raw = torch.randint(0, 256, (BATCH, *shape), dtype=torch.uint8, generator=generator)
    return store, raw


def over_one_task(network: str, device: torch.device, repeats: int) -> dict[str, Any]:
    """Ten tasks routed over one task known, and beside it ten calls one after the other.

    The calls take turns, so that other work on the machine slows all of them alike, and on a CPU
    the time that this process has had counts; a ratio is the median of those of the rounds. One
    task is decoded before its call, ten stay so as far as the store may keep them.
    """
    store, raw = ten_tasks(network, device)
    first = store.tasks[0]
    store.logits(first, raw)  # decoded
    calls: dict[str, Callable[[], Any]] = {
        "one": lambda: store.logits(first, raw),
        "ten_calls": lambda: [store.logits(t, raw) for t in reversed(store.tasks)],
        "routed": lambda: (store.route(raw), store.tensors(first)),
        "shortlist_of_3": lambda: (store.route(raw, shortlist=3), store.tensors(first)),
    }
    if device.type == "cuda":  # on a CPU it is never faster
        calls["stacked"] = lambda: (store.route(raw, stacked=True), store.tensors(first))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # to warm up
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(time_ms(call, device) if device.type == "cuda" else _cpu_ms(call))
    over = {name: float(np.median(np.divide(found, times["one"]))) for name, found in times.items()}
    return {
        "what": f"ten tasks routed over one known, {network}, batch {BATCH}",
        "ratio": min(over["routed"], over.get("stacked", np.inf)),
        "target": "<= 4" if device.type == "cuda" else "<= 10.5",
        **{f"{name}_ms": float(np.median(found)) for name, found in times.items()},
        **{f"{name}_over_one": ratio for name, ratio in over.items() if name != "one"},
    }


def _cpu_ms(call: Callable[[], Any]) -> float:
    """The time of the processor for one call, in milliseconds."""
    begin = time.process_time()
    call()
    return 1e3 * (time.process_time() - begin)


# Rules.


class Learned:
    """A finished run's model, its tasks, and other rules tried on it."""

    def __init__(self, folder: str, data: str | None, device: str) -> None:
        self.plan = Plan.from_dict(RunDir(folder).config())
        self.store = SubnetStore.load(Path(folder) / "model", device=device)
        recipe, self.root = self.plan.recipe, data or self.plan.data
        made = scenarios.build(recipe.scenario, recipe.data, seed=self.plan.seed, root=self.root)
        self.tasks = [made.task(i) for i in range(len(made.names))]

    def rules(self, words: Sequence[str] = ()) -> list[str]:
        """The rules that can be tried on it, all or those with one of some words."""
        turned = all(s.rotations for s in self.store.subnets.values())
        found = [r for r in RULES if turned or "rotation" not in r]
        return [r for r in found if not words or any(w in r for w in words)]

    def keep_anew_(self, settings: RoutingSettings) -> None:
        """Make what tasks keep by other settings, in the order of learning."""
        subnets = {n: replace(s, routing={}) for n, s in self.store.subnets.items()}
        self.store.subnets = {}
        for task in self.tasks:
            self.store.subnets[task.name] = subnets[task.name]
            self.store.keep_routing_(task.name, routing_of(self.store, task, settings))

    def measured(self, on: str, rule: dict[str, Any] | str, unknown: str | None) -> dict[str, Any]:
        """All numbers of one rule."""
        if not isinstance(rule, str):
            self.keep_anew_(RoutingSettings(**rule))
        name = rule if isinstance(rule, str) else None
        probes = [_probe(task, on) for task in self.tasks]
        found = without_task(self.store, probes, rule=name)
        total = self.store.ledger().total
        kept = 0.0 if name else total.routing
        dense = 32 * self.store.layout.num_weights
        row = {
            "passes": found["passes"],
            "task found": found["task_accuracy"],
            "class-IL": found["class-IL"]["average_accuracy"],
            "domain-IL": (found["domain-IL"] or {}).get("average_accuracy"),
            "together": (found["together"] or {}).get("task_accuracy"),
            "domain-IL, together": (found["together"] or {}).get("domain-IL"),
            "AUROC, tasks": (found["unknown"] or {}).get("auroc"),
            "bytes per task": kept / 8 / len(self.tasks),
            "file": (total.total - total.routing + kept) / dense,
        }
        if unknown is not None and name is None:
            row[f"AUROC, {unknown}"] = self._against(unknown, probes)
        return row

    def known_task(self, on: str) -> float:
        """The accuracy with the task known."""
        shares = []
        for task in self.tasks:
            data = _probe(task, on).data
            logits = self.store.logits(task.name, data.inputs())
            shares.append(float((logits.argmax(1) == data.labels).float().mean()))
        return float(np.mean(shares))

    def _against(self, name: str, probes: list[Probe]) -> float:
        """How well inputs of another data set are told from those of all tasks."""
        sample = self.store.subnet(self.store.tasks[0]).sample
        assert sample is not None and len(sample.shape) == 3, "images are needed"
        given = load_set(name, "test", self.root)
        if given.inputs.shape[-1] > sample.shape[-1]:
            given = load_set(name, "test", self.root, size=sample.shape[-1])
        inputs = np.asarray(fit(given.inputs[:UNKNOWN_SAMPLES], sample.shape[0], sample.shape[1]))
        strange = self.store.route(torch.from_numpy(inputs)).typicality
        known = [Routed(self.store, p).among(self.store.tasks)[0].typicality for p in probes]
        return auroc(np.concatenate(known), strange)


def _probe(task: Task, on: str) -> Probe:
    data: Split | None = task.valid if on == "valid" else task.test
    assert data is not None, "the tasks have no test data"
    return Probe(task.name, task.classes, data, on)


def compared(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for every run and rule."""
    for folder in options.runs:
        learned = Learned(folder, options.data, options.device)
        about = {"run": folder, "seed": learned.plan.seed, "on": options.on}
        yield about | {"rule": "task known", "class-IL": learned.known_task(options.on)}
        for label in learned.rules(options.rules):
            rule = RULES[label]
            yield about | {"rule": label} | learned.measured(options.on, rule, options.unknown)


def main() -> None:
    """Compare rules on the models of finished runs."""
    parser = argparse.ArgumentParser(prog="benchmarks.routing", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folders of finished runs")
    parser.add_argument("--speed", choices=("mlp", "alexnet"), help="time ten tasks instead")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of --speed (default: 7)")
    parser.add_argument("--on", choices=("valid", "test"), default="valid")
    parser.add_argument("--rules", nargs="*", default=(), metavar="WORD", help="rules with a word")
    parser.add_argument("--unknown", metavar="SET", help="another data set, as unknown inputs")
    parser.add_argument("--data", metavar="DIR", help="local folder of data sets")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="add the rows to this file, one JSON a line")
    options = parser.parse_args()
    if options.speed:
        torch.set_num_threads(1 if options.device == "cpu" else torch.get_num_threads())
        row = over_one_task(options.speed, torch.device(options.device), options.repeats)
        print(json.dumps(row, indent=1))
        return
    rows: list[dict[str, Any]] = []
    for row in compared(options):
        rows.append(row)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    columns = list(dict.fromkeys(k for row in rows for k in row if k not in ("seed", "on")))
    print(tables(rows, ("run", "rule"), columns))


def tables(rows: Sequence[Mapping[str, Any]], labels: Sequence[str], columns: Sequence[str]) -> str:
    """Rows as a table of single inputs, and one of batches of one task: never side by side."""
    single = [c for c in columns if c not in (*labels, *IN_BATCHES)]
    found = [_table(rows, labels, single)]
    in_batches = [r for r in rows if any(r.get(c) is not None for c in IN_BATCHES)]
    if in_batches:
        text = _table(
            in_batches, [*labels, *(c for c in ("seed", "on") if c in columns)], IN_BATCHES
        )
        found.append(f"batches of {TOGETHER} inputs that are known to be of one task\n{text}")
    return "\n\n".join(found)


def _table(rows: Sequence[Mapping[str, Any]], labels: Sequence[str], columns: Sequence[str]) -> str:
    cells = [[_shown(row.get(c), c) for c in (*labels, *columns)] for row in rows]
    return text_table(cells, [*labels, *columns], num_labels=len(labels))


def _shown(value: Any, column: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    whole = column in ("seed", "passes", "bytes per task")
    return f"{value:.0f}" if whole else f"{100 * value:.2f}"


if __name__ == "__main__":
    main()
