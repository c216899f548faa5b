"""TinySubNets: Algorithm 1 of the paper.

    learner = TinySubNets(Architecture(net, head="fc"), density=0.1)
    learner.learn(task)

For every task: choose a bank, build what is trained over it, train, choose the bit-width,
post-prune, encode, and add the subnet to the store, for ever.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tinysubnets import config
from tinysubnets.errors import SettingError
from tinysubnets.method.banks import choose_bank, new_bank, remember
from tinysubnets.method.base import State, check_task, warn_of_few_samples
from tinysubnets.method.compress import Compressed, Compressor, TaskParamSettings
from tinysubnets.method.core import (
    Continued,
    MaskedCore,
    MaskedLearner,
    SubnetReport,
    SubnetTrainer,
)
from tinysubnets.method.difference import begin_difference
from tinysubnets.method.ladder import LadderTrainer, check_price
from tinysubnets.method.progress import OnEpoch, learning
from tinysubnets.method.pruning import PruningSettings, PruningStep
from tinysubnets.method.settings import TSNSettings
from tinysubnets.model.routing import RoutingSettings
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BankDecision
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState, scores_from_mask
from tinysubnets.nn.masked import Compression, TaskModule
from tinysubnets.tasks.task import Task
from tinysubnets.training.settings import TrainingSettings


class TinySubNets(MaskedLearner):
    """A learner of many tasks in one network that forgets nothing.

    - `architecture`: the network, wrapped: `Architecture(net, head="fc")`.
    - `training`, `pruning`: how tasks are trained, and how Algorithm 2 searches.
    - `routing`: what is kept with a task to recognize its inputs without its name.
    - `device`: "cpu", "cuda", or "auto" for a GPU if there is one.
    - `store`: a store to go on from.
    - `settings`: those of `TSNSettings` by name, and those of `training` and `pruning` too:
      `epochs=3` is `training={"epochs": 3}`.
    """

    name: ClassVar[str] = "tsn"
    settings_class: ClassVar[type] = TSNSettings
    settings: TSNSettings
    pruning: PruningSettings

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: PruningSettings | Mapping | None = None,
        routing: RoutingSettings | Mapping | None = None,
        device: str | torch.device = "auto",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        own, trained, self.pruning = config.build_with(
            TSNSettings,
            settings,
            training=(TrainingSettings, training),
            pruning=(PruningSettings, pruning),
        )
        core = MaskedCore(
            architecture,
            own,
            trained,
            block=own.block,
            device=device,
            store=store,
            routing=routing,
            takes_base=True,
        )
        check_price(own, core.frozen_base)
        record = {"tsn": own, "training": trained, "pruning": self.pruning}
        super().__init__(core, own, {table: config.to_dict(s) for table, s in record.items()})
        self.continued = Continued() if own.score_init == "continue" else None

    @classmethod
    def _from_record(
        cls, store: SubnetStore, record: Mapping[str, Any], device: str | torch.device
    ) -> Self:
        return cls(
            store.architecture,
            training=record.get("training"),
            pruning=record.get("pruning"),
            routing=record.get("routing"),
            device=device,
            store=store,
            **record["tsn"],
        )

    def learn(
        self,
        task: Task,
        *,
        progress: bool | None = None,
        on_epoch: OnEpoch | None = None,
        threads: int | None = None,
        isolated: bool | None = None,
    ) -> SubnetReport:
        """Algorithm 1 for one task: learn it to its end and keep it for ever.

        - `progress`: whether epochs are shown, live on a terminal and as plain lines elsewhere;
          None shows them on a terminal alone.
        - `on_epoch`: called with every epoch's `EpochReport`, say to log it. What it raises ends
          learning, and the task is not kept.
        - `threads`: of torch on the CPU meanwhile; None takes one for networks of fewer than
          250,000 shared weights, as `tsn run` does, and else leaves the number as it is.
        - `isolated`: whether it gets a bank for itself; by default as the settings say.
        """
        warn_of_few_samples(self, task, stacklevel=3)
        num, known = self.architecture.num_shared, self._finish_seconds()
        with learning(task, num, progress, on_epoch, threads, known) as see:
            # Choose a bank, and build what is trained over it.
            trainer = self.begin(task, isolated=isolated)
            while not trainer.finished:
                see(trainer.epoch())  # scores, free weights and task-specific parameters together
            if isinstance(trainer, LadderTrainer):
                trainer.finish()  # keeps the rung it stands on
            else:
                for step in trainer.finishing():  # of the best epoch: `compress`, then claimed
                    see(step)
        return self.reports[task.name]

    def _finish_seconds(self) -> float | None:
        """How long post-pruning took for earlier tasks; None where that is not known."""
        if self.pruning.iterations == 0:
            return 0.0
        known = [r.pruning_seconds for r in self.reports.values() if r.pruning_seconds > 0]
        return sum(known) / len(known) if known else None

    def begin(self, task: Task, *, isolated: bool | None = None) -> SubnetTrainer | LadderTrainer:
        """Check a task, choose its bank and set up its training; nothing is learned yet.

        - `isolated`: whether it gets a bank for itself; by default as the settings say.
        """
        with self.core.turn.taken():
            check_task(task, self.tasks)
            return self._begin(task, isolated=isolated)

    def _begin(self, task: Task, *, isolated: bool | None = None) -> SubnetTrainer | LadderTrainer:
        """Choose the task's bank and set up its training."""
        settings = self.settings
        isolated = settings.isolated if isolated is None else isolated
        if self.continued is not None:
            self._check_continued(isolated)
        if settings.selection == "magnitude" or self.core.frozen_base:
            return begin_difference(self, task, isolated)
        # Nothing of an isolated task enters a later one, so nothing is kept to compare it by.
        memory = None if isolated else remember(task, settings)
        decision = (
            BankDecision(new_bank(self.store), "isolated: a bank of its own")
            if isolated
            else choose_bank(self.store, memory, settings)
        )
        return SubnetTrainer(
            self.core,
            task,
            decision,
            self._module(task, decision),
            lambda trained: self.compress(trained, decision.bank),
            task_params=TaskParamSettings(settings.task_param_bits, settings.task_param_tolerance),
            reports=self.reports,
            memory=memory,
            isolated=isolated,
            continued=self.continued,
        )

    def _check_continued(self, isolated: bool) -> None:
        """Refuse what scores and free values that go on from task to task cannot serve."""
        assert self.continued is not None
        if isolated or self.core.frozen_base:
            what = "an isolated task" if isolated else "a frozen base"
            raise SettingError(
                f"score_init = 'continue' carries what earlier tasks learned into the next one, "
                f"which {what} rules out; give score_init = 'random' or 'previous_mask'."
            )
        self.continued.check(self.store)

    def state(self) -> State:
        """The store as the bytes of its file, the reports, and what scores go on from."""
        tensors, numbers = super().state()
        if self.continued is not None:
            carried, entries = self.continued.state()
            return tensors | carried, numbers | entries
        return tensors, numbers

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of the same method on the same architecture."""
        super().restore_(tensors, numbers)
        if self.continued is not None:
            self.continued.restore_(tensors, numbers.get("continued", ()))

    def _module(self, task: Task, decision: BankDecision) -> TaskModule:
        """What is trained over the bank: mask ⊙ where(owned, bank value, Q(free value))."""
        settings, layout = self.settings, self.store.layout
        bank = self.core.bank(decision.bank)
        keep = layout.keep(settings.density, settings.density_exponent)
        free = bank.free_per_tensor()
        if settings.sharing == "none":
            keep = tuple(min(k, f) for k, f in zip(keep, free, strict=True))
        elif sum(free) == 0:
            self.core.warn_full(decision.bank)
        compression = Compression(
            keep,
            settings.width_in_training,
            settings.sharing == "values",
            settings.codebooks,
            settings.layer_loss_weight,
            settings.layer_loss,
            settings.quantization == "in_place",
        )
        start = self._initial_state(task, decision)
        return TaskModule(self.architecture, layout, bank.values, bank.owned, start, compression)

    def compress(
        self, trained: Compressor, bank: int, *, post_pruning: bool = True
    ) -> Generator[PruningStep, None, Compressed]:
        """Choose the bit-width, post-prune in visible steps, and encode what is left.

        - `post_pruning`: whether to, where the settings ask for it.
        """
        settings = self.settings
        if settings.bits == "auto":
            bits, own = trained.choose_bits(settings.first_bits, settings.tolerance)
        else:
            bits, own = int(settings.bits), trained.encode(trained.mask, int(settings.bits))
        num_valid = len(trained.training.valid)
        wanted = settings.post_pruning and post_pruning
        if not wanted or num_valid < self.pruning.min_valid:
            return Compressed(trained.mask, bits, own)
        begin = time.perf_counter()
        # Only bytes depend on other masks, and to bring them here takes time.
        others = self.store.members(bank) if self.pruning.objective == "bytes" else []
        pruned = yield from trained.prune(
            own,
            bits,
            self.pruning,
            references=tuple(s.mask for s in others),
            path=(settings.seed, "task", self.store.next_number),
        )
        own = trained.encode(pruned.mask, bits, own)  # the codebooks fit what is left
        return Compressed(pruned.mask, bits, own, time.perf_counter() - begin)

    def _initial_state(self, task: Task, decision: BankDecision) -> InitialState:
        """What training starts from; with "previous_mask" an earlier task's mask is on top.

        With "continue" scores and free values are those that the bank's last task ended with.
        """
        start, store = self.core.initial_state(task, decision.bank), self.store
        if self.continued is not None:
            return self.continued.start(decision.bank, start)
        members = store.members(decision.bank)
        if self.settings.score_init == "random" or not members:
            return start
        example = members[-1]
        if self.settings.previous_mask_of == "similar" and decision.nearest is not None:
            near = store.subnet(decision.nearest)
            example = near if near.bank == decision.bank else example
        scores = scores_from_mask(start.scores, example.mask, store.layout)
        return InitialState(scores, start.free, start.task_params)
