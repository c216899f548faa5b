"""Training steps and evaluations captured once as CUDA graphs and replayed, so that none waits.

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


WARM_UP_STEPS = 3  # allocations, library handles and compilation happen before the capture
PARALLEL_WARM_UP_STEPS = 11  # in which DistributedDataParallel measures and arranges its buckets


@contextmanager
def capturing(
    like: torch.cuda.CUDAGraph | None = None, generator: torch.Generator | None = None
) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what is launched inside, while the garbage collector rests.

    If the collector freed another graph meanwhile, the capture would fail.

    - `like`: a graph whose memory the new one shares: to get memory from the driver takes
      milliseconds.
    - `generator`: what the graph draws from beside the device's own generator.
    """
    graph, was_enabled = torch.cuda.CUDAGraph(), gc.isenabled()
    if generator is not None:
        graph.register_generator_state(generator)
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=None if like is None else like.pool()):
            yield graph
    finally:
        if was_enabled:
            gc.enable()


class CapturedFunction:
    """A function as a graph: it reads tensors that stay where they are and waits for nothing.

    It needs no gradients. Graphs that share memory (`like`) may run in any order, one at a time.
    The result is to be read before the next call: that of any of them may overwrite it.
    """

    graph: torch.cuda.CUDAGraph

    def __init__(
        self, function: Callable[[], Tensor], like: CapturedFunction | None = None
    ) -> None:
        function()  # what is made once is made before the capture
        with capturing(None if like is None else like.graph) as self.graph:
            self.result = function()

    def __call__(self) -> Tensor:
        """The function's result now."""
        self.graph.replay()
        return self.result


class CapturedStep:
    """One step of a training as a graph over fixed buffers.

    A graph repeats the same launches on the same addresses, so what differs between steps is on the
    device: the step's number, and what is looked up by it.
    """

    def __init__(self, training: Training, batch_size: int) -> None:
        self.training = training
        steps, device = training.num_steps, training.device
        self.batches = torch.zeros(steps, batch_size, dtype=torch.int64, device=device)
        self.lrs = torch.zeros(steps, device=device)
        self.step_number = torch.zeros(1, dtype=torch.int64, device=device)
        self.total_loss = torch.zeros((), device=device)
        # The rates of the optimizer's groups become tensors that every step writes anew.
        self.group_lrs = [torch.zeros((), device=device) for _ in training.optimizer.param_groups]
        for group, lr in zip(training.optimizer.param_groups, self.group_lrs, strict=True):
            group["lr"] = lr
        self._codebook_graph: torch.cuda.CUDAGraph | None = None
        training.use_fused_update_()
        self._capture()

    def run(self, batches: Tensor, lrs: list[float], codebook_steps: set[int]) -> Tensor:
        """One epoch: the sum of the losses of all its steps.

        `batches` [steps, batch size] are positions of samples, `lrs` the learning rate of each
        step, `codebook_steps` the steps before which codebooks are updated.
        """
        self.batches.copy_(batches.view_as(self.batches))
        self.lrs.copy_(torch.tensor(lrs))
        self.step_number.zero_()
        self.total_loss.zero_()
        for step in range(len(lrs)):
            if step in codebook_steps:
                self.update_codebooks_(step)
            self.graph.replay()
        return self.total_loss

    def update_codebooks_(self, step: int) -> None:
        """Fit the codebooks anew before a step, by a graph where there is one.

        The first update begins from nothing, all later ones from the last centroids, by other
        kernels. So the second update is the first that can be captured.
        """
        module = self.training.unwrapped
        if not isinstance(module, TaskModule) or not module.has_codebooks:
            return
        if self._codebook_graph is not None:
            self._codebook_graph.replay()
            return
        was_fitted = module.codebooks_fitted
        module.update_codebooks_(self.training.share_done(step))
        if was_fitted and module.can_capture_codebooks:
            with capturing() as self._codebook_graph:
                module.update_codebooks_()

    def _step(self) -> None:
        lr = self.lrs[self.step_number]
        for group, own in zip(self.training.optimizer.param_groups, self.group_lrs, strict=True):
            own.copy_((lr * group["factor"])[0])
        where = self.batches[self.step_number][0]
        self.total_loss += self.training.step(
            *self.training.train.batch(where, self.training.augmentation)
        )
        self.step_number += 1

    def _capture(self) -> None:
        """Warm up on a side stream, put everything back as it was, and capture.

        The state before the warm-up is kept on the host: a second copy on the device would be the
        peak of its memory. Tensors that are all zero are not copied.
        """
        noise = self.training.rank_noise
        before = {id(t): t.detach().cpu() for t in self._state() if bool(t.any())}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS if noise is None else PARALLEL_WARM_UP_STEPS):
                self.step_number.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.step_number.zero_()
        with capturing(generator=None if noise is None else noise.own) as self.graph:
            self._step()
        with torch.no_grad():
            for tensor in self._state():  # capturing runs nothing, but the warm-up did
                tensor.copy_(before[id(tensor)]) if id(tensor) in before else tensor.zero_()

    def _state(self) -> list[Tensor]:
        """Everything a step changes: the module's tensors and the optimizer's."""
        module = list(self.training.unwrapped.state_dict(keep_vars=True).values())
        moments = [v for s in self.training.optimizer.state.values() for v in s.values()]
        return [*module, *(v for v in moments if isinstance(v, Tensor))]
