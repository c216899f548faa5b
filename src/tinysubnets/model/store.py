"""The store: all banks and subnets of one network, from which every learned task can be used."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, is_
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.proxy import GraphAppendingTracer, Proxy

from tinysubnets.coding.bits import pack_mask
from tinysubnets.errors import TaskError, unknown
from tinysubnets.model.bank import Bank, Base, BaseSource
from tinysubnets.model.evaluation import (
    Evaluation,
    UnknownEvaluation,
    auroc,
    evaluate,
    probabilities,
)
from tinysubnets.model.mask_references import (
    MAX_BY_MATRIX,
    MAX_SCORE_REFERENCES,
    MaskContext,
    code_mask,
    is_by_matrix,
)
from tinysubnets.model.removal import Removal, remove_, union
from tinysubnets.model.routing import COPIED_BYTES, Prediction, Record, Routing, route
from tinysubnets.model.routing import predict as predict_routed
from tinysubnets.model.size import Ledger
from tinysubnets.model.subnet import (
    BASE,
    FREE_SCORES,
    MAX_CHAIN,
    NO_BANK,
    NO_REFERENCE,
    SCORES,
    CodedMask,
    Subnet,
    distances,
    task_number,
)
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.layout import Layout
from tinysubnets.tasks.checks import MAX_NAME, as_tensor, check_text, task_and_inputs
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.rotations import joined_logits, turned
from tinysubnets.tasks.sources import batches
from tinysubnets.tasks.task import Task
from tinysubnets.training.precision import arithmetic

DEFAULT_BATCH = 500
MAX_WAITING = 16  # batches of logits that stay on the device until they are brought here
MAX_DECODED = 128  # tasks that stay decoded for their next use
DECODED_BYTES = 48 << 20  # within what a reader may take beside the model, FORMAT.md
DECODED_BYTES_GPU = 1 << 30  # to decode a task and bring it there takes longer than its pass


class Decoded(NamedTuple):
    """Tensors that stay for their next use: those of one task, or of several, stacked."""

    subnets: tuple[Subnet, ...]
    tensors: dict[str, Tensor]
    num_bytes: int

    @classmethod
    def of(cls, subnets: Sequence[Subnet], tensors: dict[str, Tensor]) -> Decoded:
        """The tensors of some subnets, and how many bytes they are."""
        return cls(tuple(subnets), tensors, sum(t.nbytes for t in tensors.values()))


class SubnetStore:
    """Banks and subnets over one architecture; the learned model.

    - `architecture`: the network as code.
    - `block`: how many neighbors of a row one bit of a mask covers.
    - `settings`: the learner's, kept so that learning can go on from a saved store.
    - `seed`: the learner's, where its tasks' mask scores start from it: a mask that stayed near its
      start is coded as a difference from it. None where there is no such seed.
    - `device`: where tasks are computed; banks and masks stay on the CPU.
    - `base`: pretrained weights that tasks may refer to.

    `subnets` are the learned tasks by name, `nameless` the weights that removed tasks left to
    others, by number. `next_number` is that of the next task: numbers are never used twice.
    `saved_as` names the file the store was loaded from or last saved as, `began_ns` when it began;
    a partial store holds one task. Tasks stay decoded, for their next use, up to `decoded_bytes`.
    `written` has the bytes of entries, in order, as they were last written; see `format.io`.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        block: int = 1,
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        base: Base | None = None,
    ) -> None:
        self.architecture = architecture
        self.layout = Layout(architecture.shared, block)
        self.settings, self.seed = dict(settings or {}), seed
        self.device = torch.device(device)
        self.banks: list[Bank] = []
        self.subnets: dict[str, Subnet] = {}
        self.nameless: dict[int, Subnet] = {}
        self.next_number = 0
        self.base = base
        self.saved_as: str | None = None
        self.is_partial = False
        self.began_ns = time.time_ns()
        self.decoded_bytes = DECODED_BYTES if self.device.type == "cpu" else DECODED_BYTES_GPU
        self._decoded: tuple[Decoded, ...] = ()  # the last tasks, in order
        self._stacked = Decoded((), {}, 0)  # those used last; they count as decoded too
        self._by_number: dict[int, Subnet] = {}  # made when a reference is first followed
        self._records: dict[str, tuple[Subnet, Record | None]] = {}  # read when first routed
        # On the device, where to bring them costs as much as a small network's pass.
        self._affine: dict[Normalization, tuple[Tensor, Tensor]] = {}
        self.written: tuple[tuple[Subnet, tuple[bytes, ...]], ...] = ()

    def __repr__(self) -> str:
        return (
            f"SubnetStore({', '.join(map(repr, self.tasks)) or 'no tasks'}; "
            f"{self.layout.num_weights:,} shared weights, {len(self.banks)} banks)"
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the learned tasks, in the order of learning."""
        return tuple(self.subnets)

    def subnet(self, task: str) -> Subnet:
        """The subnet of a learned task."""
        if not isinstance(task, str) or task not in self.subnets:
            raise TaskError(unknown("task", str(task), self.subnets))
        return self.subnets[task]

    def entries(self, bank: int | None = None) -> list[Subnet]:
        """All subnets, nameless ones too, in the order of learning; or those of one bank."""
        found = [*self.subnets.values(), *self.nameless.values()]
        found.sort(key=attrgetter("number"))
        return found if bank is None else [s for s in found if s.bank == bank]

    def members(self, bank: int) -> list[Subnet]:
        """The tasks of a bank, in the order of learning."""
        return [s for s in self.subnets.values() if s.bank == bank]

    def add_(self, subnet: Subnet) -> None:
        """Claim the subnet's new weights in its bank and keep the subnet under the next number."""
        check_text(subnet.name, "a task's name", MAX_NAME, controls=True)
        if subnet.name in self.subnets:
            raise TaskError(f"a task named {subnet.name!r} has been learned already.")
        if self.is_partial:
            raise TaskError(
                f"this store holds only the task {self.tasks[0]!r} of its model; load the whole "
                "model to learn on top of it."
            )
        subnet = replace(subnet, number=self.next_number)
        self._check_place(subnet)
        while len(self.banks) <= subnet.bank:
            self.banks.append(Bank(self.layout))
        earlier = self.entries(subnet.bank)
        if subnet.bank == NO_BANK:
            owned = union(earlier, self.layout)
        else:
            owned = pack_mask(self.banks[subnet.bank].owned.numpy())
        stored = _as_stored(subnet, self.coded_mask(subnet, earlier, owned))
        if subnet.bank != NO_BANK:
            own = [c.decode() for c in subnet.own]
            self.banks[subnet.bank].claim_(stored.mask, torch.cat(own))
        self.subnets[subnet.name] = stored
        self.next_number += 1
        self._by_number = {}

    def _check_place(self, subnet: Subnet) -> None:
        """Refuse a subnet whose bank or reference it may not use."""
        others = self.entries()
        if (subnet.reference == BASE or subnet.adds_to_base) and self.base is None:
            raise TaskError(f"task {subnet.name!r} refers to a base, and the store has none.")
        if subnet.reference is None and subnet.bank == NO_BANK:
            raise TaskError(f"task {subnet.name!r} has neither a bank nor a reference.")
        if subnet.rank and subnet.bank != NO_BANK:
            raise TaskError(f"task {subnet.name!r} is of low rank, which no bank can hold.")
        if (number := task_number(subnet.reference)) is not None:
            found = [s for s in others if s.number == number]
            if not found or found[0].isolated or subnet.isolated:
                raise TaskError(
                    f"task {subnet.name!r} refers to task number {number}, which is "
                    "not there or isolated; give the number of a learned task."
                )
            if len(self.chain(found[0])) > MAX_CHAIN:
                raise TaskError(
                    f"task {subnet.name!r} would add up more than {MAX_CHAIN} subnets; refer to a "
                    "task that refers to fewer."
                )
        alone = [s for s in others if s.bank == subnet.bank != NO_BANK]
        if alone and (subnet.isolated or any(s.isolated for s in alone)):
            raise TaskError(
                f"bank {subnet.bank} cannot be shared: an isolated task is alone in it."
            )

    def coded_mask(self, subnet: Subnet, earlier: Sequence[Subnet], owned: np.ndarray) -> CodedMask:
        """The mask against the cheapest reference, behind the earlier entries of its bank.

        The mask of the first scores is one of the references where the task learned by scores.

        - `earlier`: those entries, in order.
        - `owned`: all that their masks hold, at one bit per block.
        """
        if not subnet.has_mask:
            return CodedMask(NO_REFERENCE, b"")
        kinds = [m.coded_mask.reference for m in earlier if m.coded_mask is not None]
        score_references = sum(k in (SCORES, FREE_SCORES) for k in kinds)
        seed = self.seed if score_references < MAX_SCORE_REFERENCES else None
        context = MaskContext(
            self.layout,
            subnet.bank,
            subnet.number,
            {i: m.packed_mask.bits for i, m in enumerate(earlier) if m.has_mask},
            owned,
        )
        scored = bool(subnet.name) and subnet.bank != NO_BANK
        others = self.entries()
        used = {s.number for s in others if s.coded_mask and is_by_matrix(s.coded_mask)}
        # Isolated tasks count however they are coded: nothing of their data enters later tasks.
        count = len(used | {s.number for s in others if s.isolated})
        is_new = subnet.number == self.next_number
        by_matrix = count < MAX_BY_MATRIX if is_new else subnet.number in used
        return code_mask(subnet.mask.numpy(), context, seed if scored else None, by_matrix)

    def keep_routing_(self, task: str, vectors: Mapping[str, Tensor]) -> None:
        """Keep with a task that was just learned what recognizes its inputs; once and for all."""
        subnet = self.subnet(task)
        if subnet.routing:
            raise TaskError(f"task {task!r} keeps its routing already, which never changes.")
        kept = replace(subnet, routing=dict(vectors))
        self.subnets[task] = kept
        self._decoded = tuple(
            one._replace(subnets=(kept,)) if one.subnets[0] is subnet else one
            for one in self._decoded
        )
        self._by_number = {}

    def rename(self, old: str, new: str) -> None:
        """Give a task another name; nothing else changes."""
        subnet = self.subnet(old)
        if self.is_partial:
            raise TaskError("load the whole model to rename a task of it.")
        check_text(new, "a task's name", MAX_NAME, controls=False)
        if new in self.subnets:
            raise TaskError(f"{old!r} cannot be named {new!r}: there is a task of that name.")
        renamed = {new if n == old else n: s for n, s in self.subnets.items()}
        renamed[new] = replace(subnet, name=new)
        for name, other in renamed.items():
            decision = other.decision
            if decision is not None and decision.nearest == old:
                # The last one: a base before it may have the same name.
                head, found, tail = decision.reason.rpartition(repr(old))
                reason = f"{head}{new!r}{tail}" if found else decision.reason
                decision = replace(decision, reason=reason, nearest=new)
                renamed[name] = replace(other, decision=decision)
        self.subnets = renamed
        self.drop_caches_()

    def remove(self, name: str, *, exact: bool = False) -> Removal:
        """Take a task away; all other tasks decode to the same bits as before.

        Its name, head, task-specific parameters, memory and routing are gone, and its own weights
        are free again but for those that other tasks use.

        - `exact`: leave nothing that depends on the task's data: every later task that is not
          isolated goes too, because it was learned beside this one. An isolated task goes alone.
        """
        subnet = self.subnet(name)
        if self.is_partial:
            raise TaskError("load the whole model to remove a task from it.")
        names = [name, *(self.learned_beside(name) if exact else ())]
        removal = remove_(self, [self.subnets[n].number for n in names])
        self.drop_caches_()
        return replace(removal, names=tuple(names), exact=exact or subnet.isolated)

    def learned_beside(self, name: str) -> tuple[str, ...]:
        """The later tasks that may depend on a task's data: all but isolated ones.

        None where the task is isolated itself.
        """
        subnet = self.subnet(name)
        if subnet.isolated:
            return ()
        later = (s for s in self.subnets.values() if s.number > subnet.number)
        return tuple(s.name for s in later if not s.isolated)

    def divergences(self, task: str) -> dict[str, float]:
        """How far a task's inputs are from those of each earlier task, by what is kept of them."""
        subnet = self.subnet(task)
        if subnet.memory is None:
            return {}
        earlier = (s for s in self.subnets.values() if s.number < subnet.number)
        found = distances(subnet.memory, earlier, self.seed or 0)
        return {name: float(np.float32(d)) for name, d in found.items()}

    def weights(self, task: str) -> Tensor:
        """The task's shared weights, flat: its bank's values under its mask, else 0.

        Where the task refers to another, or to the base, they are added to that one's weights.
        """
        chain = self.chain(self.subnet(task))
        total = self.base_weights() if chain[-1].reference == BASE else None
        for entry in reversed(chain):
            if entry.adds_nothing and total is not None:
                continue
            if entry.rank and total is not None:
                total = entry.low_rank_sum(total, self.layout)
                continue
            mask = self.layout.expand(entry.mask)
            if entry.bank == NO_BANK:
                own = torch.cat([c.decode() for c in entry.own])
                values = torch.zeros(self.layout.num_weights).masked_scatter(mask, own)
            else:
                values = self.banks[entry.bank].values
            if total is None:
                total = torch.where(mask, values, torch.zeros(()))
            else:
                total = torch.where(mask, total + values, total)
        assert total is not None
        return total

    def chain(self, subnet: Subnet) -> list[Subnet]:
        """A subnet, the one it adds its weights to, and so on; the base is not among them."""
        if task_number(subnet.reference) is None:
            return [subnet]
        numbers = self._by_number  # read once: another thread may replace it
        if not numbers:
            numbers = self._by_number = {s.number: s for s in self.entries()}
        return subnet.chain(numbers)

    def drop_caches_(self) -> None:
        """Drop decoded tensors and other caches, since the subnets they were made of changed."""
        self._decoded, self._by_number, self._records = (), {}, {}
        self._stacked = Decoded((), {}, 0)
        self.written, self._affine = (), {}

    def record(self, subnet: Subnet) -> Record | None:
        """What a task keeps to recognize its inputs, on the store's device; None if nothing."""
        known, record = self._records.get(subnet.name, (None, None))
        if known is not subnet:
            record = Record.read(subnet.routing)
            record = record and record.to(self.device)
            self._records[subnet.name] = subnet, record
        return record

    def needs_base(self, task: str | None = None) -> bool:
        """Whether a task, or any of all, cannot be used without the values of the base."""
        entries = self.entries() if task is None else self.chain(self.subnet(task))
        return any(s.uses_base for s in entries)

    def base_values(self) -> Mapping[str, Tensor]:
        """The values of the base, by name; an error where they are not at hand."""
        base = self.base
        if base is None:
            raise TaskError("the values of a base are needed, and the store has none.")
        if base.values is None:
            raise TaskError(
                f"the values of the base {base.name!r} ({base.source}, SHA-256 {base.sha256}) are "
                "needed, and the model does not hold them. Give the network with its pretrained "
                "weights, or a file of them: load(…, base=…), or --base on the command line."
            )
        return base.values

    def base_weights(self) -> Tensor:
        """The shared weights of the base, flat."""
        values = self.base_values()
        return torch.cat([values[s.name].float().flatten() for s in self.layout.shared])

    def tensors(self, task: str) -> dict[str, Tensor]:
        """All tensors the network needs for a task, decoded, by the user's own names."""
        subnet = self.subnet(task)
        known = self._decoded  # read once: another thread may replace it, but changes none
        for one in known:
            if one.subnets[0] is subnet:
                return one.tensors
        tensors = self.architecture.split(self.weights(task)) | self.task_tensors(subnet)
        tensors |= self.architecture.constants
        decoded = Decoded.of((subnet,), {n: t.to(self.device) for n, t in tensors.items()})
        kept = (*known, decoded)[-MAX_DECODED:]
        size = sum(d.num_bytes for d in kept)
        if size + self._stacked.num_bytes > self.decoded_bytes:
            self._stacked = Decoded((), {}, 0)  # to stack again is cheaper than to decode
        while size > self.decoded_bytes and len(kept) > 1:
            size, kept = size - kept[0].num_bytes, kept[1:]
        self._decoded = kept
        return decoded.tensors

    def stacked(
        self, subnets: Sequence[Subnet], networks: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The tensors of some tasks [tasks, …] by name; kept for the next use where there is room.

        - `networks`: those of each task, as `tensors` gives them, all of equal shapes.
        """
        known = self._stacked
        if len(known.subnets) == len(subnets) and all(map(is_, known.subnets, subnets)):
            return known.tensors
        tensors = {n: torch.stack([t[n] for t in networks]) for n in networks[0]}
        stacked = Decoded.of(subnets, tensors)
        if stacked.num_bytes + sum(d.num_bytes for d in self._decoded) <= self.decoded_bytes:
            self._stacked = stacked
        return tensors

    def task_tensors(self, subnet: Subnet) -> dict[str, Tensor]:
        """The task-specific parameters of a task, those of the base that it uses too, by name."""
        tensors = subnet.task_tensors()
        for name in subnet.from_base():
            tensors[name] = self.base_values()[name]
        if subnet.adds_to_base:
            base = self.base_values()
            tensors |= {n: base[n] + tensors[n] for n in subnet.task_params if n in base}
        return tensors

    def is_head_alone(self, subnet: Subnet) -> bool:
        """Whether a task is the base with a head of its own: all else is the base's."""
        chain = self.chain(subnet)
        over_base = chain[-1].reference == BASE and all(s.adds_nothing for s in chain)
        return over_base and all(map(self.architecture.in_head, subnet.task_params))

    def logits(self, task: str, inputs: Any, *, batch_size: int = DEFAULT_BATCH) -> Tensor:
        """The task's logits for raw inputs, one row per sample, on the CPU.

        - `inputs`: an array, a tensor, pictures of Pillow, a data set, or a loader that does not
          shuffle.
        """
        return self._logits(self.subnet(task), inputs, batch_size)

    @arithmetic("float32", deterministic=True)
    @torch.no_grad()
    def _logits(
        self, subnet: Subnet, inputs: Any, batch_size: int, *, check_scale: bool = False
    ) -> Tensor:
        """Logits batch by batch; `check_scale` also refuses pixels that were scaled already."""
        task, tensors = subnet.name, self.tensors(subnet.name)
        parts: list[Tensor] = []
        waiting: list[Tensor] = []  # on the device: each way from it waits for all that it was told
        try:
            for raw in batches(self.nearby(inputs), batch_size, subnet.pixels):
                subnet.check_inputs(raw)
                waiting.append(self.task_logits(subnet, tensors, raw))
                if check_scale:
                    subnet.check_scale(raw)
                if len(waiting) == MAX_WAITING:
                    parts.append(torch.cat(waiting).cpu())
                    waiting.clear()
        except TypeError as error:
            raise TaskError(f"task {task!r} takes arrays or tensors of numbers: {error}") from error
        if waiting:
            parts.append(torch.cat(waiting).cpu())
        return torch.cat(parts) if parts else torch.empty(0, len(subnet.classes))

    def task_logits(self, subnet: Subnet, tensors: Mapping[str, Tensor], raw: Tensor) -> Tensor:
        """The logits of one batch of a task's raw inputs, on the store's device.

        - `tensors`: all that the network needs, by name.
        """
        if not subnet.rotations:
            return self.outputs(subnet, tensors, raw)
        seen = self.seen(subnet.normalization, raw)
        return joined_logits(
            lambda images: self.outputs(subnet, tensors, raw, images), seen, subnet.rotations
        )

    def outputs(
        self,
        subnet: Subnet,
        tensors: Mapping[str, Tensor],
        raw: Tensor,
        seen: Tensor | None = None,
    ) -> Tensor:
        """What the network gives for one batch of a task's raw inputs, on the store's device.

        - `tensors`: all that the network needs, by name.
        - `seen`: the batch as the network sees it, where it was normalized, or turned, already.
        """
        with subnet.explained(raw):
            seen = self.seen(subnet.normalization, raw) if seen is None else seen
            return self.architecture(tensors, seen)

    def seen(self, normalization: Normalization, raw: Tensor) -> Tensor:
        """A raw batch as a network sees it, on the store's device."""
        affine = self._affine.get(normalization)
        if affine is None:
            affine = self._affine[normalization] = normalization.tensors(self.device)
        return normalization.apply(raw.to(self.device), *affine)

    def nearby(self, inputs: Any) -> Any:
        """Raw inputs on the store's device where they are one small tensor, else as they are.

        One copy then serves all batches and tasks; each of its own would wait for the device.
        """
        if isinstance(inputs, Tensor) and as_tensor(inputs).nbytes <= COPIED_BYTES:
            return inputs.to(self.device)
        return inputs

    def _answers(self, task: str, inputs: Any) -> Tensor:
        """Logits for predictions: inputs in another scale, and logits that are NaN, are errors."""
        logits = self._logits(self.subnet(task), inputs, DEFAULT_BATCH, check_scale=True)
        if bad := torch.isnan(logits).any(1).nonzero().flatten().tolist():
            raise TaskError(
                f"task {task!r}: the logits of {len(bad)} samples are NaN (first: sample "
                f"{bad[0]}); look for NaN or infinite values in the inputs."
            )
        return logits

    @overload
    def predict(self, task: str, inputs: Any) -> np.ndarray: ...

    @overload
    def predict(
        self, inputs: Any, /, *, among: Sequence[str] | None = None, together: bool = False
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        task: None = None,
        inputs: Any = None,
        *,
        among: Sequence[str] | None = None,
        together: bool = False,
    ) -> Prediction: ...

    def predict(
        self,
        task: Any = None,
        inputs: Any = None,
        *,
        among: Sequence[str] | None = None,
        together: bool = False,
    ) -> np.ndarray | Prediction:
        """The user's own labels for raw inputs; `inputs` as for `logits`.

        `predict(task, inputs)` gives an array of that task's labels. `predict(inputs)` finds out
        which task each input belongs to, and gives a `Prediction`: labels, and where each came
        from. It asks the networks of all candidates.

        - `task`: the task's name; left out, or None, where it is not known.
        - `among`: the names of the tasks that it may be, where not all.
        - `together`: whether all inputs are of one task, which is far more certain.
        """
        task, inputs = task_and_inputs(task, inputs)
        if task is None:
            return predict_routed(
                self, inputs, among=among, together=together, batch_size=DEFAULT_BATCH
            )
        if among is not None or together:
            raise TaskError(f"`among` and `together` find the task; {task!r} is given already.")
        chosen = self._answers(task, inputs).argmax(1).numpy()
        return np.array(self.subnet(task).classes)[chosen]

    def route(
        self,
        inputs: Any,
        *,
        among: Sequence[str] | None = None,
        together: bool = False,
        rule: str | None = None,
        shortlist: int | None = None,
        stacked: bool = False,
        batch_size: int = DEFAULT_BATCH,
    ) -> Routing:
        """How strongly each task claims raw inputs, and which claims each most.

        Candidates are the tasks that were learned from inputs of this shape and kind. Scores of
        earlier tasks never change: with `among` they are the same to the bit after any later task.

        - `inputs`: as for `logits`.
        - `among`, `together`: as for `predict`.
        - `rule`: None scores by what the tasks keep for it. "energy", log Σ exp(logits), and
          "entropy", the least of which wins, need nothing kept, and know no unknown inputs.
        - `shortlist`: ask only the networks of so many tasks per input, those whose kept density
          of inputs is largest; not with `together`.
        - `stacked`: all networks of equal shapes in one pass, faster on a GPU; last bits of scores
          then depend on which tasks are candidates.
        """
        return route(
            self,
            inputs,
            among=among,
            together=together,
            rule=rule,
            shortlist=shortlist,
            stacked=stacked,
            batch_size=batch_size,
        )[0]

    def predict_proba(self, task: str, inputs: Any) -> np.ndarray:
        """The probability of each class for raw inputs, float32 [samples, classes].

        Columns are in the order of `store.subnet(task).classes`; `inputs` as for `logits`.
        """
        return probabilities(self._answers(task, inputs))

    def evaluate(self, task: str | Task, data: Any = None, labels: Any = None) -> Evaluation:
        """How well a task is answered: accuracy, that of each class, and the confusion matrix.

        - `task`: a learned task's name; or a `Task`, of which the test part is measured, or the
          validation part where there is none. Its training part never is: accuracy on data that a
          task was learned from says little.
        - `data`, `labels`: beside a name, the path of held-out images, in a folder per class, or of
          an .npz: their `test/` is measured where they have one, and else all of them, as by `tsn
          evaluate`. Or raw inputs and their labels; or a `Task`, a data set or a loader alone.
        """
        name, data = (task.name, task) if isinstance(task, Task) else (task, data)
        subnet = self.subnet(name)
        answers = partial(self._answers, name)
        return evaluate(answers, name, subnet.classes, data, labels, subnet)

    def evaluate_unknown(
        self, known: Any, unknown: Any, *, among: Sequence[str] | None = None
    ) -> UnknownEvaluation:
        """How well inputs that belong to no task, of another data set say, are told from others.

        - `known`: raw inputs of the tasks that nothing was learned from, as for `logits`.
        - `unknown`: foreign ones of the same shape and kind.
        - `among`: as for `predict`.
        """
        own, foreign = (self.route(inputs, among=among) for inputs in (known, unknown))
        for found, what in ((own, "known"), (foreign, "unknown")):
            if not len(found):
                raise TaskError(f"no {what} inputs are given.")
            if np.isnan(found.typicality).any():
                raise TaskError(
                    "unknown inputs cannot be told: not all tasks that may be asked keep what "
                    "recognizes their inputs. Learn with routing.parts, or name those in `among`."
                )
        return UnknownEvaluation(
            auroc(own.typicality, foreign.typicality),
            float(foreign.unknown.mean()),
            float(own.unknown.mean()),
            len(foreign),
            len(own),
        )

    def module(self, task: str) -> nn.Module:
        """A plain module for one task: raw inputs in, logits out, nothing of this package.

        It is a `torch.fx.GraphModule` around the user's own network, with the normalization inside.
        """
        net = self.architecture.build({n: t.cpu() for n, t in self.tensors(task).items()})
        root, subnet = nn.Module(), self.subnet(task)
        root.add_module("network", net)
        if subnet.normalization.mean:
            mean, factor = subnet.normalization.tensors()
            root.register_buffer("input_mean", mean)
            root.register_buffer("input_factor", factor)
        return torch.fx.GraphModule(root, _graph_of(subnet, net)).eval()

    def digest(self, task: str) -> str:
        """A hash of the task's decoded tensors: equal exactly if every bit of them is equal."""
        sha = hashlib.sha256()
        for name, tensor in sorted(self.tensors(task).items()):
            sha.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            sha.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
        return sha.hexdigest()

    def free_share(self) -> float:
        """The share of weights that no task owns, over all banks opened so far."""
        if not self.banks:
            return 1.0
        return 1.0 - sum(b.owned_share() for b in self.banks) / len(self.banks)

    def density(self, task: str) -> float:
        """The share of shared weights that the task's mask keeps."""
        return self.layout.count(self.subnet(task).mask) / self.layout.num_weights

    def ledger(self) -> Ledger:
        """What the saved model weighs, in bits, line by line and task by task."""
        from tinysubnets import format as artifact

        return artifact.encode(self).ledger

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        with_backup: bool = False,
    ) -> Path:
        """Write the model into a folder, atomically; returns the path of its file.

        - `overwrite`: whether a model that was there before this store began, or that this process
          saved, may be replaced. One that another process has put there since never is.
        - `with_backup`: keep the model that was there, for `tsn undo`; without it there is none.
        """
        from tinysubnets import format as artifact

        return artifact.save(self, folder, overwrite=overwrite, with_backup=with_backup)

    def embed_base_(self) -> None:
        """Put the base's values into every file that is saved from now on, for use without it."""
        if self.base is None:
            raise TaskError("the model has no base that could be embedded.")
        self.base_values()
        self.base = replace(self.base, embedded=True)

    def reserve(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Check now that the model can be saved in a folder later, before anything is trained.

        - `overwrite`: take note of the model that is there now, so that `save` may replace it, and
          no other that somebody puts there meanwhile.
        """
        from tinysubnets import format as artifact

        artifact.reserve(self, folder, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        net: nn.Module | Architecture | None = None,
        *,
        task: str | None = None,
        device: torch.device | str = "cpu",
        base: BaseSource | None = None,
    ) -> SubnetStore:
        """The model in a folder; `task` loads only what that one task needs.

        - `net`: your own network again; networks of this package are rebuilt by name. Where the
          model was learned over a base that it does not hold, `net` has its pretrained weights.
        - `base`: these weights by themselves: a network or its tensors by name, a file of them, or
          the name of a network, such as "timm:resnet18".
        """
        from tinysubnets import format as artifact

        return artifact.load(folder, net, task, device, base)

    def push_to_hub(
        self, repo: str, *, private: bool | None = None, token: str | None = None
    ) -> str:
        """Upload the model to the Hugging Face Hub; returns the address of the commit."""
        from tinysubnets import format as artifact

        return artifact.push(self, repo, private=private, token=token)

    @classmethod
    def from_hub(
        cls,
        repo: str,
        net: nn.Module | Architecture | None = None,
        *,
        task: str | None = None,
        device: torch.device | str = "cpu",
        revision: str | None = None,
        token: str | None = None,
        base: BaseSource | None = None,
    ) -> SubnetStore:
        """The model in a repository of the Hugging Face Hub; see `load`."""
        from tinysubnets import format as artifact

        return artifact.pull(
            repo, net, task=task, device=device, revision=revision, token=token, base=base
        )


def _graph_of(subnet: Subnet, network: nn.Module) -> torch.fx.Graph:
    """What a task's network computes of raw inputs, with the network in one piece.

    Written down without a tracer, which would record the passes of other threads, too.
    """
    graph = torch.fx.Graph()
    tracer = GraphAppendingTracer(graph)

    def value(node: torch.fx.Node) -> Any:
        """A stand-in for a tensor, whose operations become nodes of the graph."""
        return Proxy(node, tracer)

    inputs = value(graph.placeholder("inputs"))
    if subnet.normalization.mean:
        mean, factor = (value(graph.get_attr(f"input_{n}")) for n in ("mean", "factor"))
        seen = torch.mul(torch.sub(inputs.float(), mean), factor)
    else:  # tokens of any integer type, or numbers that are left as they are
        kinds = (nn.Embedding, nn.EmbeddingBag)
        embeds = any(isinstance(m, kinds) for m in network.modules())
        seen = inputs.long() if embeds else inputs.float()
    num, parts = len(subnet.classes), []
    for k in range(subnet.rotations or 1):
        image: Any = turned(seen, k)
        parts.append(value(graph.call_module("network", (image.node,))))
    logits = parts[0]
    if subnet.rotations:  # as `joined_logits` computes them
        own = [part.narrow(1, k * num, num) for k, part in enumerate(parts)]
        logits = torch.stack(own).mean(0)
    graph.output(logits.node)
    return graph


def _as_stored(subnet: Subnet, coded_mask: CodedMask) -> Subnet:
    """The subnet with every number as a file keeps it, so that saving changes nothing."""
    old = subnet.normalization
    mean, std = (tuple(float(np.float32(v)) for v in part) for part in (old.mean, old.std))
    return replace(
        subnet, normalization=Normalization(mean, std, old.trailing), coded_mask=coded_mask
    )
