"""A ladder: a task pays only for what gains.

It first tries what is nearly free and goes on to what costs more: its head on the weights that are
there, then on what an earlier task has made of them, then its own scales and shifts. A rung is
climbed where validation accuracy gains what its bytes are priced at, and more than chance would:
few samples to validate with cannot tell a small gain from luck. Where they cannot tell, and bytes
are worth less than that, the validation loss decides.

Differences come last, the densest first: where that one gains nothing, none will. Each sparser one
goes on from it, pruned further, and takes its place where that saves more than it loses at the same
price. Sparse differences that are trained by themselves gain less, since a few weights learn little
in the steps that are left once they are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from tinysubnets.errors import SettingError, TaskError
from tinysubnets.format.io import encode
from tinysubnets.method.base import State
from tinysubnets.method.core import MaskedCore, RungReport, SubnetReport, SubnetTrainer
from tinysubnets.method.pruning import result_of
from tinysubnets.method.settings import Rung, TSNSettings
from tinysubnets.model.removal import copied, without
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import Subnet
from tinysubnets.nn.magnitude import MagnitudeModule
from tinysubnets.tasks.task import Task
from tinysubnets.training.loop import EpochReport

BASE_PRICE = 0.02  # points per kilobyte over a base, where none is set
LEAST_GAIN = 2  # validation samples: one more that is right is luck, however few are wrong

MakeRung = Callable[[Rung, bool, bool, MagnitudeModule | None], SubnetTrainer | None]


def price_of(settings: TSNSettings, frozen_base: bool) -> float:
    """How many points of validation accuracy a kilobyte must gain; 0 where nothing is priced."""
    if settings.price is not None:
        return settings.price
    return BASE_PRICE if frozen_base else 0.0


def check_price(settings: TSNSettings, frozen_base: bool) -> None:
    """Refuse a price where there is no ladder to climb."""
    refers = settings.selection == "magnitude" and settings.reference != "none"
    if settings.price and not frozen_base and not refers:
        raise SettingError(
            f"price = {settings.price} needs weights that a task can start from: an architecture "
            "with base='frozen', or selection = 'magnitude' and reference = 'previous' or "
            "'similar'."
        )


def gain_by_chance(accuracy: float, samples: int) -> float:
    """Points that a rung which is no better may seem to gain: one standard error.

    Two networks that are equally good disagree on about as many samples as one of them has wrong.

    >>> round(gain_by_chance(0.6, 30), 1), gain_by_chance(0.9, 1000)  # 12 and 100 are wrong
    (11.5, 1.0)
    >>> gain_by_chance(0.99, 100)  # one is wrong
    2.0
    """
    return 100 * max(LEAST_GAIN, math.sqrt(num_wrong(accuracy, samples))) / samples


def loss_by_chance(loss: float, samples: int) -> float:
    """By how much the mean loss may seem to fall where nothing is better: one standard error.

    Losses of samples, and their differences between two networks, are about as large as their mean.

    >>> loss_by_chance(0.5, 100)
    0.05
    """
    return loss / math.sqrt(samples)


def num_wrong(accuracy: float, samples: int) -> int:
    """How many samples an accuracy leaves."""
    return round((1 - accuracy) * samples)


def in_order_of_training(rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
    """Rungs without a difference, then differences from the densest on, each pruned from the last.

    >>> rungs = Rung("head"), Rung("2%", 0.02), Rung("5%", 0.05)
    >>> [(r.name, r.first) for r in in_order_of_training(rungs)]
    [('head', 1.0), ('5%', 1.0), ('2%', 0.05)]
    """
    out = [r for r in rungs if r.density == 0]
    denser: Rung | None = None
    for rung in reversed([r for r in rungs if r.density > 0]):
        first = 1.0 if denser is None else denser.density
        out.append(replace(rung, first=first, is_first_difference=denser is None))
        denser = rung
    return tuple(out)


@dataclass(frozen=True)
class Climbed:
    """The rung that a task stands on: its trained module, and what the store would keep of it."""

    place: int
    has_norms: bool
    reuses: bool
    trainer: SubnetTrainer
    subnet: Subnet
    file_bytes: int

    @property
    def module(self) -> MagnitudeModule:
        """What the next rung goes on from."""
        assert isinstance(self.trainer.module, MagnitudeModule)
        return self.trainer.module


class LadderTrainer:
    """One task climbing a ladder: epochs of one rung after the other, then `finish()`.

    The first rung is always climbed. What does not pay is left out. The climb ends where so few
    validation samples are wrong that nothing could be gained, and behind a difference that no
    sparser one can better: it gains no more than chance would, so little that a sparser one could
    not pay, or less than a denser one that is kept.

    - `rungs`: from the cheapest to the dearest; differences are trained from the dearest on.
    - `make`: sets up the training of a rung, with own norms or without, over an earlier task or
      not, from an earlier module; None where there is nothing to train.
    - `price`: points of validation accuracy that a kilobyte must gain.
    - `isolated`: whether nothing of other tasks may enter what is decided.
    """

    def __init__(
        self,
        core: MaskedCore,
        task: Task,
        rungs: tuple[Rung, ...],
        make: MakeRung,
        price: float,
        reports: dict[str, SubnetReport],
        *,
        isolated: bool = False,
    ) -> None:
        self.rungs = in_order_of_training(rungs)
        self.core, self.task, self.make = core, task, make
        self.price, self.reports = price, reports
        self.results: list[RungReport] = []
        self.climbed: Climbed | None = None
        self._last: MagnitudeModule | None = None  # trained, and what the next rung goes on from
        self._entries, self._sizes = core.entry_marks(), FileSizes(core.store, isolated)
        self._place: int | None = None
        self._current: SubnetTrainer | None = None
        self._begin(0)

    @property
    def rung(self) -> Rung | None:
        """The rung that is being trained; None where the climb is over."""
        return None if self._place is None else self.rungs[self._place]

    @property
    def training(self) -> Any:
        """The training of the rung at work, or of the one that is kept."""
        trainer = self._current or (None if self.climbed is None else self.climbed.trainer)
        assert trainer is not None
        return trainer.training

    @property
    def module(self) -> MagnitudeModule:
        """What is being trained, or was trained and is kept."""
        module = self.training.unwrapped
        assert isinstance(module, MagnitudeModule)
        return module

    @property
    def epochs_done(self) -> int:
        """How many epochs have been trained, on all rungs together."""
        now = 0 if self._current is None else self._current.epochs_done
        return sum(r.epochs for r in self.results) + now

    @property
    def finished(self) -> bool:
        """Whether the climb is over, so that `finish()` is next."""
        return self._current is None

    def epoch(self) -> EpochReport:
        """Train one epoch of the rung at work and validate; the last one decides on the rung."""
        with self.core.turn.taken(self):
            if self._current is None or self.rung is None:
                raise TaskError(f"the climb of {self.task.name!r} is over; finish() is next.")
            before, name = sum(r.epochs for r in self.results), self.rung.name
            report = self._current.training.epoch()
            if self._current.finished:
                self._settle()
            epochs = before + report.epochs
            return replace(report, epoch=before + report.epoch, epochs=epochs, stage=name)

    def finish(self) -> SubnetReport:
        """Keep the rung that the task stands on: it is learned."""
        with self.core.turn.taken(self, is_last=True):
            if self._current is not None:
                if self._current.epochs_done or self.climbed is None:
                    self._settle()
                self._place = self._current = None
            assert self.climbed is not None
            self.core.check_entries(self._entries, self.task)
            report = self.climbed.trainer.keep(self.climbed.subnet, 0.0)
            place = max(i for i, r in enumerate(self.results) if r.taken)
            before = sum(r.epochs for r in self.results[:place])
            report = replace(
                report,
                best_epoch=before + self.results[place].best_epoch,
                training_seconds=sum(r.seconds for r in self.results),
                rungs=tuple(self.results),
            )
            self.reports[self.task.name] = report
            return report

    def _begin(self, place: int) -> None:
        """Set up a rung, or the next one where there is nothing in it, from where the task stands.

        Behind the last rung the climb is over.
        """
        self.core.check_entries(self._entries, self.task)
        self._place = self._current = None
        while self._current is None and place < len(self.rungs):
            made = self.make(self.rungs[place], *self._kind(self.rungs[place]), self._last)
            if made is not None:
                self._place, self._current = place, made
            place += 1

    def _kind(self, rung: Rung) -> tuple[bool, bool]:
        """Whether a rung has own norms, and whether it reuses, from where the task stands."""
        before = self.climbed
        has_norms = rung.has_norms or (before is not None and before.has_norms)
        return has_norms, rung.reuses or (before is not None and before.reuses)

    def _settle(self) -> None:
        """Decide on the rung that was trained, and begin the next one or end the climb."""
        assert self._current is not None and self._place is not None
        trainer, place, rung = self._current, self._place, self.rungs[self._place]
        subnet = self._candidate(trainer)
        result = self._result(rung, trainer, subnet)
        self.results.append(result)
        if result.taken and subnet is not None:
            kind = self._kind(rung)
            self.climbed = Climbed(place, *kind, trainer, subnet, result.file_bytes)
        if result.taken or rung.density > 0:
            assert isinstance(trainer.module, MagnitudeModule)
            self._last = trainer.module
        ends = rung.density > 0 and (subnet is None or self._is_last(place, result))
        self._begin(len(self.rungs) if ends or self._is_at_the_top() else place + 1)
        if self.climbed is not None:
            kept = self._explained(self.climbed.trainer, self.climbed.subnet)
            self.climbed = replace(self.climbed, subnet=kept)

    def _explained(self, trainer: SubnetTrainer, subnet: Subnet) -> Subnet:
        """A subnet with what each rung gave in the reason for its place."""
        reason = f"{trainer.decision.reason}; {told(self.results)}"
        decision = replace(trainer.decision, reason=reason, bank=subnet.bank)
        return replace(subnet, decision=decision)

    def _candidate(self, trainer: SubnetTrainer) -> Subnet | None:
        """What the store would keep of a rung; None where that is nothing that can be used."""
        try:
            return result_of(trainer.candidate())[0]
        except TaskError:
            if self.climbed is None:
                raise
            return None

    def _result(self, rung: Rung, trainer: SubnetTrainer, subnet: Subnet | None) -> RungReport:
        progress, before = trainer.training.progress, self.climbed
        accuracy, size = 0.0, 0 if before is None else before.file_bytes
        if subnet is not None:
            accuracy = subnet.valid_accuracy
            size = self._sizes.added_bytes(subnet)
        gain, extra = 100 * accuracy, size
        if before is not None:
            gain = 100 * (accuracy - before.subnet.valid_accuracy)
            extra = size - before.file_bytes
        result = RungReport(
            name=rung.name,
            valid_accuracy=accuracy,
            file_bytes=size,
            gain=gain,
            extra_bytes=extra,
            taken=False,
            epochs=progress.epoch,
            best_epoch=progress.best_epoch,
            seconds=progress.seconds,
            valid_loss=progress.best_loss if math.isfinite(progress.best_loss) else None,
        )
        pays = subnet is not None and gain >= self.price * extra / 1000
        taken = before is None or (pays and self._is_gain(result))
        return replace(result, taken=taken or (subnet is not None and self._loss_tells(result)))

    def _loss_tells(self, result: RungReport) -> bool:
        """Whether accuracy cannot tell a rung from the last one climbed, and its loss is lower.

        Not of sparse differences, each of which comes in the place of another.
        """
        before = self._ground()
        if before is None or self.rungs[self._place_of(result.name)].density > 0:
            return False
        if before.valid_loss is None or result.valid_loss is None:
            return False
        samples = len(self.task.valid)
        chance = gain_by_chance(before.valid_accuracy, samples)
        fallen = before.valid_loss - result.valid_loss
        if abs(result.gain) > chance or fallen <= loss_by_chance(before.valid_loss, samples):
            return False
        return self.price * result.extra_bytes / 1000 <= chance

    def _ground(self) -> RungReport | None:
        """The rung that differences begin from; None where the first rung is one.

        They are added to it, or come in the place of its factors where it is of low rank.
        """
        below = {r.name for r in self.rungs if r.density == 0}
        return next((r for r in reversed(self.results) if r.taken and r.name in below), None)

    def _is_gain(self, result: RungReport) -> bool:
        """Whether a rung is better than what it is added to, by more than chance would have it.

        That a difference is worth it, the denser one in whose place it comes has shown.
        """
        ground, climbed = self._ground(), self.climbed
        if ground is None:
            return True
        gain = 100 * (result.valid_accuracy - ground.valid_accuracy)
        if climbed is not None and self.rungs[climbed.place].density > 0:
            return gain > 0
        chance = gain_by_chance(ground.valid_accuracy, len(self.task.valid))
        return gain > 0 and gain >= chance - 1e-9  # whole samples, but for rounding

    def _is_at_the_top(self) -> bool:
        """Whether too few validation samples are wrong for any further rung to be a gain."""
        ground, climbed = self._ground(), self.climbed
        if ground is None or climbed is None or self.rungs[climbed.place].density > 0:
            return False
        return num_wrong(ground.valid_accuracy, len(self.task.valid)) < LEAST_GAIN

    def _is_last(self, place: int, result: RungReport) -> bool:
        """Whether no sparser difference than the one just trained is worth a try."""
        ground, sparser = self._ground(), self.rungs[place + 1 :]
        if not sparser:
            return True
        assert self.climbed is not None
        if ground is None or (not result.taken and self.rungs[self.climbed.place].density > 0):
            return not result.taken
        # A sparser one gains no more, and takes at least its share of the bytes: of all, where it
        # comes in the place of factors, whose bytes it saves.
        gain = 100 * (result.valid_accuracy - ground.valid_accuracy)
        share = min(r.density for r in sparser) / self.rungs[place].density
        if self.rungs[self._place_of(ground.name)].rank:
            least = share * result.file_bytes - ground.file_bytes
        else:
            least = share * (result.file_bytes - ground.file_bytes)
        return not self._is_gain(result) or gain < self.price * least / 1000

    def state(self) -> State:
        """Everything needed to go on with this trainer later, taken between two epochs."""
        numbers: dict[str, Any] = {
            "results": [asdict(r) for r in self.results],
            "rung": None if self.rung is None else self.rung.name,
            "climbed": None,
            "training": None,
        }
        tensors: dict[str, Tensor] = {}
        if self._current is not None:
            own, numbers["training"] = self._current.training.state()
            tensors |= {f"rung.{n}": t for n, t in own.items()}
        if self.climbed is not None:
            numbers["climbed"] = self.rungs[self.climbed.place].name
            numbers["has_norms"] = self.climbed.has_norms
            numbers["reuses"] = self.climbed.reuses
            state = self.climbed.module.state_dict()
            tensors |= {f"climbed.{n}": t.detach().clone() for n, t in state.items()}
        return tensors, numbers

    def restore_(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a state of a trainer of the same task and the same store."""
        climb = f"the climb of {self.task.name!r} was begun"
        if "rung" not in numbers:  # rungs were counted, and came in another order
            raise TaskError(
                f"{climb} by an earlier version, whose rungs came in another order; begin the run "
                "anew."
            )
        known = [r.name for r in self.rungs]
        for name in (numbers["rung"], numbers["climbed"]):
            if name is not None and name not in known:
                raise TaskError(
                    f"{climb} with a rung {name!r}, which is none of {', '.join(known)}; give the "
                    "same rungs, or begin the run anew."
                )
        factors = [n for n in tensors if n.endswith(".factors")]
        if any(f"{n.removesuffix('factors')}steps" not in tensors for n in factors):
            raise TaskError(
                f"{climb} by an earlier version, which did not round factors in training; begin "
                "the run anew."
            )

        def part(prefix: str) -> dict[str, Tensor]:
            return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}

        self.results = [RungReport(**r) for r in numbers["results"]]
        self.climbed = self._last = self._current = self._place = None
        if numbers["climbed"] is not None:
            self.climbed = self._climbed_again(part("climbed."), numbers)
            self._last = self.climbed.module
        if numbers["rung"] is not None:
            self._begin(self._place_of(numbers["rung"]))
            assert self._current is not None
            self._current.training.restore_(part("rung."), numbers["training"])

    def _place_of(self, name: str) -> int:
        """Where a rung of a state stands."""
        return [r.name for r in self.rungs].index(name)

    def _climbed_again(self, state: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Climbed:
        """The rung that a task stood on, compressed anew from its trained module."""
        place = self._place_of(numbers["climbed"])
        has_norms, reuses = bool(numbers["has_norms"]), bool(numbers["reuses"])
        trainer = self.make(self.rungs[place], has_norms, reuses, None)
        assert trainer is not None
        trainer.module.load_state_dict(state)
        result = next(r for r in reversed(self.results) if r.taken)
        subnet = self._explained(trainer, result_of(trainer.candidate())[0])
        return Climbed(place, has_norms, reuses, trainer, subnet, result.file_bytes)


def told(results: list[RungReport]) -> str:
    """What each rung gave, in a few words.

    >>> told([RungReport("head", 0.9, 5000, 90.0, 5000, True, 2, 2, 1.0)])
    'head 90.0 %'
    """
    first = results[0]
    words = [f"{first.name} {100 * first.valid_accuracy:.1f} %"]
    for result in results[1:]:
        mark = "" if result.taken else ", no"
        words.append(
            f"{result.name} {result.gain:+.1f} for {result.extra_bytes / 1000:.1f} kB{mark}"
        )
    return "; ".join(words)


class FileSizes:
    """What candidates for a store would add to its file, all weighed over the same tasks.

    Without isolated tasks, and for one without any: all that the config says is deflated together,
    so that what a task adds would depend on what is said of them, and with it which rung is taken.
    """

    def __init__(self, store: SubnetStore, isolated: bool) -> None:
        gone = [s.number for s in store.subnets.values() if isolated or s.isolated]
        self.ground = without(store, gone)
        if self.ground.base is not None:  # embedded or not, it is the same for all
            self.ground.base = replace(self.ground.base, embedded=False)
        self.file_bytes = encode(self.ground).ledger.file_bytes or 0

    def added_bytes(self, subnet: Subnet) -> int:
        """By how much the file grows with a further subnet."""
        trial = copied(self.ground)
        trial.add_(subnet)
        return (encode(trial).ledger.file_bytes or 0) - self.file_bytes
