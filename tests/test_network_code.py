"""A network without values takes the tensors of a pass and is empty again after it."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from nets import NETWORKS, Residual, TiedEmbedding, mlp, stack, task
from tinysubnets.nn.architecture import Architecture, StatelessModule


def tensors_of(net: nn.Module, factor: float = 1.0) -> dict[str, Tensor]:
    """Copies of all that the network holds, floats times a factor."""
    found = [*net.named_parameters(), *net.named_buffers()]
    kept = {n: t.detach().clone() for n, t in found if not n.endswith("num_batches_tracked")}
    return {n: t * factor if t.is_floating_point() else t for n, t in kept.items()}


def is_empty(net: nn.Module) -> bool:
    return all(t.is_meta for t in [*net.parameters(), *net.buffers()])


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_a_functional_call_and_leaves_nothing_behind(name: str) -> None:
    make, shape = NETWORKS[name]
    blueprint, x = StatelessModule(make(), "eval"), task(shape=shape).train.inputs()
    for factor in (1.0, 0.5):  # what one call leaves behind would show in the next
        tensors = tensors_of(make(), factor)
        assert torch.equal(blueprint(tensors, x), functional_call(blueprint.net, tensors, (x,)))
        assert is_empty(blueprint.net)


def test_gradients_reach_the_tensors_given() -> None:
    net = TiedEmbedding()
    blueprint, x = StatelessModule(net, "train"), task(shape="tokens").train.inputs()
    given = {n: t.requires_grad_() for n, t in tensors_of(net).items()}
    blueprint(given, x).sum().backward()
    net(x).sum().backward()
    for name, parameter in net.named_parameters():  # the tied matrix gets both of its parts
        assert torch.equal(given[name].grad, parameter.grad), name  # type: ignore[arg-type]


def test_tied_layers_and_tied_buffers_are_filled_in_all_their_places() -> None:
    layer, norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
    net = stack(layer, norm, nn.Tanh(), layer, norm, nn.BatchNorm1d(6), head=6).eval()
    assert isinstance(net[5], nn.BatchNorm1d)
    net[5].running_mean = norm.running_mean
    tensors = tensors_of(net)
    tensors["1.running_mean"] += 1.0
    blueprint, x = StatelessModule(net, "eval"), torch.randn(4, 6)
    with torch.no_grad():
        output = blueprint(tensors, x)
        norm.running_mean.add_(1.0)  # type: ignore[union-attr]
        assert torch.equal(output, net(x))


def test_modes_differ_in_dropout_and_in_statistics() -> None:
    net, x = Residual(), torch.randn(8, 1, 6, 6)
    outputs, means = {}, {}
    for mode in ("train", "eval", "calibrate"):
        tensors = tensors_of(net)
        torch.manual_seed(1)
        outputs[mode] = StatelessModule(net, mode)(tensors, x)
        means[mode] = tensors["norm1.running_mean"]
    hidden = net.stem(x).mean((0, 2, 3))
    assert torch.equal(means["eval"], torch.zeros(4))
    torch.testing.assert_close(means["train"], 0.1 * hidden)
    torch.testing.assert_close(means["calibrate"], hidden)
    net.train()
    net.drop.eval()
    torch.testing.assert_close(outputs["calibrate"], net(x))
    assert not torch.equal(outputs["train"], outputs["calibrate"])  # dropout is off there


def test_a_failed_pass_leaves_nothing_behind() -> None:
    net = mlp()
    blueprint, tensors = StatelessModule(net, "eval"), tensors_of(net)
    with pytest.raises(RuntimeError, match="shape"):
        blueprint(tensors, torch.zeros(2, 7))
    assert is_empty(blueprint.net)
    x = torch.randn(2, 6)
    assert torch.equal(blueprint(tensors, x), net(x))


def test_a_pass_within_a_pass_does_not_disturb_it() -> None:
    net = mlp()
    inner: list[Any] = []
    blueprint, tensors, x = StatelessModule(net, "eval"), tensors_of(net), torch.randn(2, 6)

    def hook(*_: Any) -> None:
        if not inner:
            inner.append(None)
            inner.append(blueprint(tensors_of(net, 2.0), x))

    blueprint.net.get_submodule("0").register_forward_hook(hook)
    assert torch.equal(blueprint(tensors, x), net(x))
    assert torch.equal(inner[1], functional_call(net, tensors_of(net, 2.0), (x,)))
    assert is_empty(blueprint.net)


def test_threads_do_not_see_each_other_s_tensors() -> None:
    net = mlp()
    blueprint, x, wrong = StatelessModule(net, "eval"), torch.randn(2, 6), []
    meet = threading.Barrier(2, timeout=0.2)

    def hook(*_: Any) -> None:
        try:
            meet.wait()  # were both in the network at once, they would meet here
        except threading.BrokenBarrierError:
            return
        wrong.append("both at once")

    blueprint.net.get_submodule("0").register_forward_hook(hook)

    def work(factor: float) -> None:
        tensors = tensors_of(net, factor)
        if not torch.allclose(blueprint(tensors, x), functional_call(net, tensors, (x,))):
            wrong.append(f"factor {factor}")

    threads = [threading.Thread(target=work, args=(f,)) for f in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and is_empty(blueprint.net)


class Traceable(nn.Module):
    """A network with a matrix of its own; once traced, its copies hold it in another place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.fc = nn.Linear(6, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]  # a type as text could not be pickled
        return self.fc((x @ self.weight).relu())


def sent(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))


@pytest.mark.parametrize("make", [mlp, lambda: fx.symbolic_trace(Traceable())])
@pytest.mark.parametrize("copied", [copy.deepcopy, sent])
def test_copies_work_and_are_independent(
    make: Callable[[], nn.Module], copied: Callable[[Any], Any]
) -> None:
    net = make()
    architecture, tensors, x = Architecture(net), tensors_of(net), torch.randn(2, 6)
    other = copied(architecture)
    for mode in ("train", "eval", "calibrate"):
        assert torch.equal(other(tensors, x, mode), net(x))
    mine, its = architecture.code("eval"), other.code("eval")
    assert is_empty(its) and not set(mine.parameters()) & set(its.parameters())


def test_runs_can_be_mapped_over() -> None:
    net = TiedEmbedding()
    blueprint, x = StatelessModule(net, "train"), task(shape="tokens").train.inputs()
    rows = [tensors_of(net, f) for f in (1.0, 2.0)]
    stacked = {n: torch.stack([r[n] for r in rows]) for n in rows[0]}
    together = torch.vmap(blueprint, in_dims=(0, None))(stacked, x)
    for run, row in enumerate(rows):
        torch.testing.assert_close(together[run], blueprint(row, x))
    assert is_empty(blueprint.net)
