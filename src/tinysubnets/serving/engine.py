"""What answers: the model that is served, its next version beside it, and inputs in batches.

A request takes the model of its moment and keeps it to its end, so a file that is replaced
meanwhile neither drops nor mixes answers. All networks run in one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tinysubnets.errors import ArtifactError, TaskError, TinySubNetsError
from tinysubnets.format import ModelFile, limits, model_path, read_contents
from tinysubnets.format.folder import store_of
from tinysubnets.model.bank import BaseSource
from tinysubnets.model.store import SubnetStore
from tinysubnets.serving.metrics import Metrics

Stamp = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Served:
    """One version of the model.

    - `identity`: the hash that stands for the file, hexadecimal.
    - `file_bytes`: its size.
    - `task_bytes`: the bytes of the file that belong to each task alone.
    """

    store: SubnetStore
    identity: str
    file_bytes: int
    task_bytes: dict[str, int]


class Models:
    """The model that is served now, and the watch for a file in its place.

    - `where`: a model folder, the folder of a finished run, or a model file.
    - `net`: the user's own network, where it is one.
    - `base`: the base that tasks were learned over, where the file does not hold it.
    - `device`: where networks run.
    - `memory_bytes`: what tasks that stay decoded for their next use may take.
    - `say`: told of each file that is taken over or refused.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        net: nn.Module | None = None,
        base: BaseSource | None = None,
        device: torch.device | str = "cpu",
        memory_bytes: int = 1 << 29,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._where, self._net, self._base, self._device = where, net, base, device
        self._memory_bytes, self._say = memory_bytes, say
        self.metrics = Metrics()
        self._stamp = _stamp(model_path(where))
        self.current = self._load()
        self.refused: str | None = None  # why the file that lies there now is not served
        self._stop = threading.Event()

    def _load(self) -> Served:
        with limits.guarded(), ModelFile(model_path(self._where)) as file:
            contents = read_contents(file)
            store = store_of(contents, self._net, self._device, self._base)
            if store.needs_base():
                store.base_weights()  # to miss it now, not when somebody asks
            store.saved_as = file.identity
            store.decoded_bytes = self._memory_bytes
            sizes = {}
            for place, entry in enumerate(contents.manifest.tasks):
                own = {kind: file.size(kind, place) for kind in file.scheme.kinds}
                sizes[entry.name] = sum(own.values()) + file.scheme.index_bytes(own)
            sizes.pop("", None)  # weights without a name
            return Served(store, file.identity, file.file_bytes, sizes)

    def look(self) -> bool:
        """Take over the model file if it was replaced; gives whether a new one is served.

        It is loaded beside the one that is served, which stays if the new one cannot be read.
        """
        stamp = _stamp(model_path(self._where))
        if stamp == self._stamp:
            return False
        self._stamp = stamp  # of before it is read: if it changes meanwhile, the next look sees it
        try:
            if stamp == ():
                raise ArtifactError("there is no model file any more.")
            served = self._load()
            if not served.store.tasks:
                raise ArtifactError("the model has no tasks.")
        except (TinySubNetsError, OSError) as error:
            self.refused = str(error)
            self.metrics.count("tsn_reloads_total", result="refused")
            self._say(f"the new model file is not served, the one before is: {error}")
            return False
        self.refused = None
        if served.identity == self.current.identity:
            return False
        self.current = served
        self.metrics.count("tsn_reloads_total", result="taken")
        self._say(f"took over a new model file: {len(served.store.tasks)} tasks")
        return True

    @contextlib.contextmanager
    def watched(self, seconds: float) -> Iterator[None]:
        """Look every so many seconds, in a thread of its own, while the block runs."""
        thread = threading.Thread(target=self._watch, args=(seconds,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            self.look()


def _stamp(path: Path) -> Stamp:
    """What tells a file from another in its place; empty where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Routed(NamedTuple):
    """The task that claims an input most, how sure that is, and whether none does."""

    task: str
    confidence: float
    is_unknown: bool


class Busy(Exception):
    """More requests wait than are allowed."""


@dataclass(eq=False)
class _Waiting:
    """Inputs on their way through a network; all of one version, task, shape and type.

    Without a task the answer is which task each input is of: what `store.route` tells.
    """

    served: Served
    task: str | None
    inputs: np.ndarray  # [samples, ...]
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)

    def key(self) -> tuple[object, ...]:
        """What inputs of one batch have in common."""
        return id(self.served), self.task, self.inputs.shape[1:], self.inputs.dtype


class Batcher:
    """Inputs of many requests, put together into few batches.

    A batch goes as soon as `max_samples` inputs wait, or `window` seconds after its first one came;
    at once where the batch before had one request and nobody else waits. Whatever comes while the
    network is at work waits for the next.

    - `max_waiting`: requests that may wait; one more is `Busy`.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        max_samples: int = 64,
        window: float = 0.002,
        max_waiting: int = 256,
    ) -> None:
        self.metrics, self.max_samples, self.window = metrics, max_samples, window
        self.max_waiting = max_waiting
        self._waiting: list[_Waiting] = []
        self._arrived, self._full = asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")

    def __len__(self) -> int:
        return len(self._waiting)

    async def probabilities(self, served: Served, task: str, inputs: np.ndarray) -> np.ndarray:
        """The probability of each class, float32 [samples, classes]."""
        found: np.ndarray = await self._answered(served, task, inputs)
        return found

    async def routed(self, served: Served, inputs: np.ndarray) -> list[Routed]:
        """Which task each input is of."""
        found: list[Routed] = await self._answered(served, None, inputs)
        return found

    async def _answered(self, served: Served, task: str | None, inputs: np.ndarray) -> Any:
        if len(self._waiting) >= self.max_waiting:
            raise Busy
        waiting = _Waiting(served, task, inputs)
        self._waiting.append(waiting)
        self._arrived.set()
        if self._num_samples() >= self.max_samples:
            self._full.set()
        return await waiting.answer

    def _num_samples(self) -> int:
        return sum(len(w.inputs) for w in self._waiting)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer while the block runs."""
        worker = asyncio.create_task(self._work())
        try:
            yield
        finally:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker
            self._thread.shutdown()

    async def _work(self) -> None:
        loop, batch = asyncio.get_running_loop(), self._next()
        while True:
            await self._arrived.wait()
            if len(batch) > 1 or len(self._waiting) > 1:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self.window)
            batch = self._next()
            if not batch:
                continue
            try:
                answers = await loop.run_in_executor(self._thread, _answers, batch)
            except Exception as error:  # of a kind that nobody foresaw: the server goes on
                answers = [error] * len(batch)
            self.metrics.observe("tsn_batch_samples", sum(len(w.inputs) for w in batch))
            for waiting, answer in zip(batch, answers, strict=True):
                if waiting.answer.done():  # the client has gone
                    continue
                if isinstance(answer, Exception):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(answer)

    def _next(self) -> list[_Waiting]:
        """The requests that go with the one that waits longest; those of clients gone go away."""
        alive = [w for w in self._waiting if not w.answer.done()]
        batch: list[_Waiting] = []
        rest, samples = [], 0
        for waiting in alive:
            fits = samples + len(waiting.inputs) <= self.max_samples or not batch
            if fits and waiting.key() == alive[0].key():
                batch.append(waiting)
                samples += len(waiting.inputs)
            else:
                rest.append(waiting)
        self._waiting = rest
        if not rest:
            self._arrived.clear()
        if self._num_samples() < self.max_samples:
            self._full.clear()
        return batch


def _answers(batch: list[_Waiting]) -> list[Any]:
    """What each request's inputs get; an error only to whom it belongs."""
    first, bounds = batch[0], np.cumsum([len(w.inputs) for w in batch])[:-1]
    try:
        inputs = np.concatenate([w.inputs for w in batch]) if len(batch) > 1 else first.inputs
        if first.task is not None:
            return list(np.split(first.served.store.predict_proba(first.task, inputs), bounds))
        found = first.served.store.route(inputs)
        rows = zip(
            found.tasks.tolist(), found.confidence.tolist(), found.unknown.tolist(), strict=True
        )
        routed = [Routed(*row) for row in rows]
        starts = [0, *bounds.tolist(), len(routed)]
        return [routed[i:j] for i, j in pairwise(starts)]
    except (TaskError, MemoryError) as error:
        if len(batch) == 1:
            return [error]
        return [answer for waiting in batch for answer in _answers([waiting])]
