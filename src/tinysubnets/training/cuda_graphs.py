"""Training steps and measurements recorded once as CUDA graphs and replayed, so that none waits.

Everything of a step is inside its graph: picking the batch, augmentation, forward, backward, the
optimizer and the learning rate. Between replays the host only counts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinysubnets.nn.masked import TaskModule

if TYPE_CHECKING:
    from tinysubnets.training.loop import Training


WARM_UP_STEPS = 3  # allocations, library handles and compilation happen before the recording


@contextmanager
def capturing(like: torch.cuda.CUDAGraph | None = None) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what is launched inside, while the garbage collector rests.

    A dead graph that it happened to free meanwhile would spoil the recording. The graph shares the
    memory of another one, where given: to get memory from the driver takes milliseconds.
    """
    graph, was_enabled = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=None if like is None else like.pool()):
            yield graph
    finally:
        if was_enabled:
            gc.enable()


class CapturedFunction:
    """A function as a graph: it reads tensors that stay where they are and waits for nothing.

    It needs no gradients. Recordings that share memory may run in any order, one at a time. The
    result is to be read before the next call: that of any of them may overwrite it.
    """

    graph: torch.cuda.CUDAGraph

    def __init__(
        self, function: Callable[[], Tensor], like: CapturedFunction | None = None
    ) -> None:
        function()  # what is made once is made before the recording
        with capturing(None if like is None else like.graph) as self.graph:
            self.result = function()

    def __call__(self) -> Tensor:
        """The function's result now."""
        self.graph.replay()
        return self.result


class CapturedStep:
    """One step of a training as a graph over fixed buffers: order, rates and a counter."""

    def __init__(self, training: Training, batch_size: int) -> None:
        self.training = training
        steps, device = training.num_steps, training.device
        self.order = torch.zeros(steps, batch_size, dtype=torch.int64, device=device)
        self.rates = torch.zeros(steps, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.total = torch.zeros((), device=device)
        self.rate = [torch.zeros((), device=device) for _ in training.optimizer.param_groups]
        for group, rate in zip(training.optimizer.param_groups, self.rate, strict=True):
            group["lr"] = rate
        self._refresh: torch.cuda.CUDAGraph | None = None
        training.use_fused_update_()
        self._record()

    def run(self, order: Tensor, rates: list[float], refresh_at: set[int]) -> Tensor:
        """One epoch: the sum of the losses of all its steps."""
        self.order.copy_(order.view_as(self.order))
        self.rates.copy_(torch.tensor(rates))
        self.counter.zero_()
        self.total.zero_()
        for step in range(len(rates)):
            if step in refresh_at:
                self.update_codebooks_()
            self.graph.replay()
        return self.total

    def update_codebooks_(self) -> None:
        """Fit the codebooks anew: first by search, then warm, and from then on by a graph."""
        module = self.training.unwrapped
        if not isinstance(module, TaskModule) or not module.has_codebooks:
            return
        if self._refresh is not None:
            self._refresh.replay()
            return
        was_fitted = module.codebooks_fitted
        module.update_codebooks_()
        if was_fitted and module.can_capture_codebooks:
            with capturing() as self._refresh:
                module.update_codebooks_()

    def _step(self) -> None:
        rate = self.rates[self.counter]
        for group, own in zip(self.training.optimizer.param_groups, self.rate, strict=True):
            own.copy_((rate * group["factor"])[0])
        where = self.order[self.counter][0]
        self.total += self.training.step(
            *self.training.train.batch(where, self.training.augmentation)
        )
        self.counter += 1

    def _record(self) -> None:
        """Warm up on a side stream, put everything back as it was, and record.

        What was waits on the host: a second copy on the device would be the peak of its memory.
        Moments that are still zero are not even copied.
        """
        before = {id(t): t.detach().cpu() for t in self._state() if bool(t.any())}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self.counter.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.counter.zero_()
        with capturing() as self.graph:
            self._step()
        with torch.no_grad():
            for tensor in self._state():  # recording runs nothing, but the warm-up did
                tensor.copy_(before[id(tensor)]) if id(tensor) in before else tensor.zero_()

    def _state(self) -> list[Tensor]:
        """Everything a step changes: the module's tensors and the optimizer's."""
        module = list(self.training.unwrapped.state_dict(keep_vars=True).values())
        moments = [v for s in self.training.optimizer.state.values() for v in s.values()]
        return [*module, *(v for v in moments if isinstance(v, Tensor))]
