"""Separate networks: every task has one of its own, compressed as ours are.

What anyone can do without sharing anything: a small network per task, its weights in few bits and
few of them kept, coded by the same codec into one file. The line to beat at equal kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tinysubnets.baselines.masked import MaskedBaseline, as_trained
from tinysubnets.errors import SettingError
from tinysubnets.method.banks import new_bank
from tinysubnets.method.base import ScenarioType
from tinysubnets.method.compress import TaskParamSettings
from tinysubnets.method.core import SubnetTrainer, at_once
from tinysubnets.model.subnet import BankDecision
from tinysubnets.nn.magnitude import MagnitudeModule, MagnitudePruning
from tinysubnets.tasks.task import Task


@dataclass(frozen=True)
class SeparateSettings:
    """How each network is compressed.

    - `density`: the share of its weights that are kept; 1 prunes nothing.
    - `density_exponent`: above 0 small layers stay denser, by their size to this power.
    - `bits`: the width of a code, 1 to 8, trained in during the second half; 32 quantizes nothing.
    - `task_param_bits`, `task_param_tolerance`: as for TinySubNets.
    - `init`, `scale`: where values start from, and how wide the random ones are spread.
    - `scenario_type`: "task-IL": the task of an input is known.
    """

    density: float = 1.0
    density_exponent: float = 0.2
    bits: int = 2
    task_param_bits: Literal["auto"] | int = "auto"
    task_param_tolerance: float = 0.002
    init: Literal["seeded", "pretrained"] = "seeded"
    scale: Literal["kaiming", "xavier", "he"] = "kaiming"
    scenario_type: ScenarioType = "task-IL"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise SettingError(
                f"density = {self.density!r} is not allowed; give a share above 0, at most 1."
            )
        if self.bits not in (*range(1, 9), 32):
            raise SettingError(f"bits = {self.bits!r} is not allowed; give 1 to 8, or 32.")


class SeparateNetworks(MaskedBaseline):
    """A learner that trains a network of its own for every task; it forgets and shares nothing."""

    name: ClassVar[str] = "separate"
    settings_class: ClassVar[type] = SeparateSettings
    settings: SeparateSettings

    def _begin(self, task: Task) -> SubnetTrainer:
        """Set up the training of a fresh network, pruned and quantized on the way."""
        settings, bank = self.settings, new_bank(self.store)
        pruning = MagnitudePruning(settings.density, settings.density_exponent, settings.bits)
        start = self.core.initial_state(task, bank)
        module = MagnitudeModule(self.architecture, self.store.layout, start, None, pruning)
        return SubnetTrainer(
            self.core,
            task,
            BankDecision(bank, "a network of its own"),
            module,
            at_once(lambda trained: as_trained(trained, settings.bits)),
            task_params=TaskParamSettings(settings.task_param_bits, settings.task_param_tolerance),
            reports=self.reports,
        )
