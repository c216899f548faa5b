"""What a run's model is worth when nobody tells the task: measured at its end, beside all else.

Every task's network answers for all test data once. Outputs of a task never change, so that what
candidates would have won after the first tasks follows from the same numbers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinysubnets.experiments import metrics
from tinysubnets.model.evaluation import auroc
from tinysubnets.model.routing import Claims, Router, Routing, candidates, decide

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.model.subnet import Subnet

TOGETHER = 16  # inputs of one task that are routed as a batch
BINS = 10  # of the histogram of confidences
BASELINE = "entropy"  # the rule of SupSup, for comparison
DECODED_BYTES = 1 << 30  # that tasks may take while they are measured


class Routed:
    """What all tasks of a store say to one task's test data, and who wins.

    - `probe`: the data and their labels.
    - `rule`: as for `SubnetStore.route`.
    """

    def __init__(self, store: SubnetStore, probe: metrics.Probe, rule: str | None = None) -> None:
        self.store, self.probe, self.rule = store, probe, rule
        self.subnets, _ = candidates(store, probe.data.inputs(slice(0, metrics.CHUNK)), None)
        self.claims = self._claims(self.subnets)
        self.labels = probe.data.labels
        self._last: tuple[tuple[str, ...], tuple[Routing, Claims]] | None = None

    def _claims(self, subnets: Sequence[Subnet]) -> Claims:
        """What some tasks say, read batch by batch: large test sets stay on disk."""
        data = self.probe.data
        size = metrics.CHUNK if self.store.device.type == "cuda" else metrics.CHUNK // 4
        raw = (data.inputs(slice(i, i + size)) for i in range(0, len(data), size))
        router = Router(self.store, subnets, self.rule, also=(BASELINE,))
        return router.claims(raw, batch_size=size)

    def among(self, names: Sequence[str]) -> tuple[Routing, Claims]:
        """Who wins if these are the candidates, as far as they take such inputs.

        The answer is kept until others are the candidates.
        """
        key = tuple(names)
        if self._last is None or self._last[0] != key:
            self._last = key, self._among(names)
        return self._last[1]

    def _among(self, names: Sequence[str]) -> tuple[Routing, Claims]:
        places = [i for i, s in enumerate(self.subnets) if s.name in names]
        router = Router(self.store, [self.subnets[i] for i in places], self.rule)
        if set(router.weights) <= set(self.claims.parts):
            claims = self.claims.of(places)
        else:
            claims = self._claims(router.subnets)  # these keep a part that others do not
        return decide(router, claims), claims

    def right(
        self, names: Sequence[str], scenario_type: str, together: int = 1, rule: str | None = None
    ) -> float:
        """The share of right answers among some tasks.

        - `scenario_type`: "task" asks for the task alone, "class-IL" for task and class,
          "domain-IL" for the label, wherever it came from.
        - `together`: so many inputs, spread over the data, are routed as one batch; those that are
          left over do not count.
        - `rule`: "entropy" lets the least entropy win, whatever tasks keep.
        """
        routing, claims = self.among(names)
        count = len(routing) // together
        scores = routing.scores if rule is None else claims.parts[rule].numpy()
        scores = scores[: count * together].reshape(together, count, -1)
        chosen = np.tile(scores.sum(0).argmax(1), together)  # sample i is in batch i % count
        if scenario_type == "task":
            return float(_is_task(routing, self.probe.name)[chosen].mean())
        answers = claims.answers.numpy()[np.arange(len(chosen)), chosen]
        classes = [self.store.subnet(n).classes for n in routing.candidates]
        # Classes of equal names have equal numbers, whichever task they are of.
        numbers = {c: i for i, c in enumerate(dict.fromkeys(itertools.chain(*classes)))}
        table = np.full((len(classes), max(map(len, classes))), -1)
        for row, own in zip(table, classes, strict=True):
            row[: len(own)] = [numbers[c] for c in own]
        wanted = np.array([numbers.get(c, -2) for c in self.probe.classes])
        right = table[chosen, answers] == wanted[self.labels[: len(chosen)].numpy()]
        if scenario_type == "class-IL":
            right &= _is_task(routing, self.probe.name)[chosen]
        return float(right.mean())


def _is_task(routing: Routing, name: str) -> np.ndarray:
    """Which of the candidates is the task of that name, bool [candidates]."""
    return np.array([candidate == name for candidate in routing.candidates])


def _counts(routing: Routing, names: Sequence[str]) -> list[int]:
    """How many inputs each task of some names wins."""
    counts = np.bincount(routing.chosen, minlength=len(routing.candidates)).tolist()
    won = dict(zip(routing.candidates, counts, strict=True))
    return [won.get(name, 0) for name in names]


def without_task(
    store: SubnetStore, probes: Sequence[metrics.Probe], *, rule: str | None = None
) -> dict[str, Any]:
    """Everything that is measured of a finished model without the task's name, as plain data.

    docs/RESULTS.md describes every field.

    - `probes`: the test data of all tasks, in the order of learning.
    """
    begin, usual = time.perf_counter(), store.decoded_bytes
    store.decoded_bytes = max(usual, DECODED_BYTES)  # each task answers for every task's data
    try:
        routed = [Routed(store, probe, rule) for probe in probes]
    finally:
        store.decoded_bytes = usual
    names = [p.name for p in probes]
    same = len({frozenset(p.classes) for p in probes}) == 1
    types = ("class-IL", "domain-IL") if same else ("class-IL",)
    # In this order the answers among all tasks, with which the rows end, are used while kept.
    matrices = _matrices(routed, names, types)
    final = [r.among(names)[0] for r in routed]
    together = _together(routed, names, types)
    entropy_rule = {
        "task_accuracy" if t == "task" else t: float(
            np.mean([r.right(names, t, rule=BASELINE) for r in routed])
        )
        for t in ("task", *types)
    }
    found = [_is_task(f, p.name)[f.chosen] for f, p in zip(final, probes, strict=True)]
    out: dict[str, Any] = {
        "rule": final[0].rule,
        "passes": Router(store, list(store.subnets.values()), rule).passes(),
        "task_accuracy": float(np.mean([f.mean() for f in found])),
        "confusion": [_counts(f, names) for f in final],
        "confidence": _confidences(final, found),
        "unknown": _unknown(routed, names, final),
        "together": together,
        "entropy_rule": entropy_rule,
    }
    for scenario_type in ("class-IL", "domain-IL"):
        out[scenario_type] = None
        if scenario_type in types:
            matrix = matrices[scenario_type]
            summary = metrics.summary(matrix, [len(p.classes) for p in probes])
            kept = ("average_accuracy", "backward_transfer", "forgetting")
            out[scenario_type] = {k: summary[k] for k in kept} | {"matrix": matrix}
    return out | {"seconds": time.perf_counter() - begin}


def _matrices(
    routed: Sequence[Routed], names: Sequence[str], types: Sequence[str]
) -> dict[str, list[metrics.Row]]:
    """The accuracy on task j among the first i tasks, up to the diagonal; None above it."""
    rows: dict[str, list[metrics.Row]] = {t: [] for t in types}
    for last in range(len(names)):
        above: metrics.Row = [None] * (len(names) - last - 1)
        first = names[: last + 1]
        cells = [[r.right(first, t) for t in types] for r in routed[: last + 1]]
        for place, scenario_type in enumerate(types):
            rows[scenario_type].append([*(c[place] for c in cells), *above])
    return rows


def _confidences(final: Sequence[Routing], found: Sequence[np.ndarray]) -> dict[str, Any]:
    """How many inputs have which confidence, where their task was found and where not."""
    edges = np.linspace(0, 1, BINS + 1)
    shares, right = np.concatenate([f.confidence for f in final]), np.concatenate(found)
    return {
        "edges": [round(float(e), 3) for e in edges],
        "right": np.histogram(shares[right], edges)[0].tolist(),
        "wrong": np.histogram(shares[~right], edges)[0].tolist(),
    }


def _unknown(
    routed: Sequence[Routed], names: Sequence[str], final: Sequence[Routing]
) -> dict[str, Any] | None:
    """How well inputs of a task are recognized as unknown when it is no candidate.

    Each task is left out in turn: its inputs are unknown, those of all others are not. None where
    there is one task alone, or nothing is kept that tells.
    """
    if len(names) < 2 or any(np.isnan(f.typicality).any() for f in final):
        return None
    areas, refused = [], []
    for left_out, theirs in enumerate(routed):
        others = [n for n in names if n != names[left_out]]
        strange = theirs.among(others)[0]
        known = [r.among(others)[0].typicality for i, r in enumerate(routed) if i != left_out]
        areas.append(auroc(np.concatenate(known), strange.typicality))
        refused.append(float(strange.unknown.mean()))
    return {
        "auroc": float(np.mean(areas)),
        "auroc_per_task": areas,
        "refused": float(np.mean(refused)),
        "own_refused": float(np.mean([f.unknown.mean() for f in final])),
    }


def _together(
    routed: Sequence[Routed], names: Sequence[str], types: Sequence[str]
) -> dict[str, Any] | None:
    """How well batches are answered that are known to come from one task each."""
    if any(len(r.labels) < TOGETHER for r in routed):
        return None
    out: dict[str, Any] = {"size": TOGETHER}
    for key in ("task", *types):
        shares = [r.right(names, key, TOGETHER) for r in routed]
        out["task_accuracy" if key == "task" else key] = float(np.mean(shares))
    return out
