"""What the tables need beyond `result.json`: measured on the saved model and the run's own data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets import scenarios
from tinysubnets.errors import TinySubNetsError
from tinysubnets.experiments.results import Run
from tinysubnets.model.subnet import NO_BANK

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.paper.operations import Operations
    from tinysubnets.tasks.task import Task


class Measured:
    """A run opened for measuring: its model, and its tasks made again from the recipe and seed.

    `data` is the local folder of data sets; None looks where `tsn run` looked.
    """

    def __init__(self, run: Run, data: str | Path | None = None) -> None:
        self.run, self.data = run, data

    @cached_property
    def store(self) -> SubnetStore | None:
        """The saved model, if it is one of subnets."""
        return self.run.store()

    @cached_property
    def tasks(self) -> list[Task] | None:
        """The run's tasks; None where their data are not to be had."""
        try:
            scenario = scenarios.build(
                self.run.scenario,
                self.run.settings.get("data") or {},
                seed=self.run.seed,
                root=self.data,
            )
            return [scenario.task(i) for i in range(len(scenario.names))]
        except TinySubNetsError:
            return None

    @property
    def published(self) -> dict[str, Any]:
        """What was measured on the model of a published run, which is not kept itself."""
        return dict(self.run.result.get("measured_on_model") or {})

    def as_published(self, widths: Sequence[int]) -> dict[str, Any]:
        """All that is measured here as plain data, for a file without its model.

        - `widths`: of activations and weights in fixed point, in bits.
        """
        costs = self.operations()
        products = None
        if costs is not None:
            products = [[[p.layer, p.kind, p.macs, p.density] for p in c.products] for c in costs]
        return {
            "operations": products,
            "with_references": True,  # weights that a difference is added to are counted
            "uncounted": sorted({name for c in costs or () for name in c.uncounted}),
            "fixed_point": {str(bits): self.fixed_point(bits) for bits in widths},
        }

    @property
    def _has_differences(self) -> bool:
        """Whether some tasks are differences to others."""
        return any(task.get("bank") == NO_BANK for task in self.run.tasks)

    def operations(self) -> list[Operations] | None:
        """What one sample of each task costs; None without model or data."""
        from tinysubnets.paper.operations import Operations, Product, task_operations

        kept = self.published.get("operations")
        if self._has_differences and not self.published.get("with_references"):
            kept = None  # their masks alone were counted before
        if kept is not None:
            uncounted = tuple(self.published.get("uncounted") or ())
            return [Operations(tuple(Product(*p) for p in task), uncounted) for task in kept]
        store, tasks = self.store, self.tasks
        if store is None or tasks is None:
            return None
        samples = [(t.name, t.valid.inputs(slice(0, 1))) for t in tasks if t.name in store.tasks]
        return [task_operations(store, name, sample) for name, sample in samples]

    def fixed_point(self, bits: int | None) -> float | None:
        """The mean accuracy over tasks with activations and weights of so many bits."""
        from tinysubnets.paper.fixed_point import BATCHNORM_SAMPLES, fixed_point_accuracy

        kept = (self.published.get("fixed_point") or {}).get(str(bits))
        if kept is not None:
            return float(kept)
        store, tasks = self.store, self.tasks
        if store is None or tasks is None:
            return None
        values = []
        for task in tasks:
            calibration = task.valid.inputs(slice(0, BATCHNORM_SAMPLES))
            split = task.valid if task.test is None else task.test
            values.append(fixed_point_accuracy(store, task.name, calibration, split, bits))
        return sum(values) / len(values)


def mean_bits(run: Run) -> float | None:
    """The mean bit-width of a run's tasks."""
    widths = [float(t["bits"]) for t in run.tasks if t.get("bits") is not None]
    return sum(widths) / len(widths) if widths else None


def total_seconds(run: Run, key: str) -> float | None:
    """The sum over tasks of some seconds."""
    values = [float(t[key]) for t in run.tasks if t.get(key) is not None]
    return sum(values) if values else None


def ledger_share(run: Run, part: str) -> float | None:
    """One line of the ledger over the dense float32 shared weights."""
    ledger = run.result.get("ledger") or {}
    bits, weights = (ledger.get("total") or {}).get(part), ledger.get("num_weights")
    return None if bits is None or not weights else float(bits) / (32.0 * weights)


def sparsity_before(run: Run) -> float | None:
    """Υ at the end less what post-pruning has freed; None as for `sparsity`.

    Each task's part is counted when it is freed, also where a later task owns it again.
    """
    after, freed = sparsity(run), 0.0
    for task in run.tasks:
        before, left = (task.get(f"owned_{when}_pruning") for when in ("before", "after"))
        if before is None or left is None:
            return None
        freed += float(before) - float(left)
    banks = {t.get("bank") for t in run.tasks}
    return None if after is None else after - freed / max(1, len(banks))  # banks are of one size


def sparsity(run: Run) -> float | None:
    """Υ at the end: the share of weights that no task owns, over all banks.

    None where tasks are differences, or networks of their own: they own nothing in common.
    """
    value = run.result.get("free_share")
    is_owned = run.setting_of("tsn", "selection") != "magnitude"
    return float(value) if value is not None and is_owned else None


def has_post_pruning(run: Run) -> bool:
    """Whether the tasks of a run were post-pruned."""
    return run.method != "tsn-wr-wpp" and run.setting_of("tsn", "post_pruning") is not False


def parameters(run: Run) -> float | None:
    """Millions of "parameters" as the paper counts them: file bytes over 4."""
    size = run.size_bytes
    return None if size is None else size / 4e6
