"""What a task starts from: a pure function of seed, bank, task number and store."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nets import NETWORKS, Encoder, Residual, data, learner, mlp, stack, task
from tinysubnets.errors import MismatchError, SettingError
from tinysubnets.method.learner import TinySubNets
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState, InitKey, bound_of, initial_state, scores_from_mask
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.topk import top_k_segments

GOLDEN_FREE = [-0.39779913425445557, 0.5830234885215759, -0.6023926138877869]
GOLDEN_SCORES = [-0.5115312337875366, 0.49839767813682556, -0.2792265713214874]


def start(net: nn.Module | None = None, *, block: int = 1, **how: Any) -> InitialState:
    architecture = Architecture(mlp() if net is None else net)
    init_key = InitKey(**({"seed": 0, "bank": 0, "task": 0} | how))
    return initial_state(architecture, Layout(architecture.shared, block), init_key, 3)


def same(a: InitialState, b: InitialState) -> bool:
    task_params = all(
        torch.equal(a.task_params[n], b.task_params[n]) for n in a.task_params | b.task_params
    )
    return torch.equal(a.scores, b.scores) and torch.equal(a.free, b.free) and task_params


def test_golden_values() -> None:
    """The same on every machine and for ever: a file made today is read like this tomorrow."""
    made = start()
    assert made.free[:3].tolist() == GOLDEN_FREE
    assert made.scores[:3].tolist() == GOLDEN_SCORES


def test_a_pure_function_of_seed_bank_and_task() -> None:
    torch.manual_seed(1)
    one = start()
    torch.manual_seed(2)
    np.random.seed(3)
    assert same(one, start())
    for other in ({"seed": 1}, {"bank": 1}, {"task": 1}):
        changed = start(**other)
        assert not torch.equal(one.free, changed.free)
        assert not torch.equal(one.scores, changed.scores)
        assert not torch.equal(one.task_params["fc.weight"], changed.task_params["fc.weight"])


def test_the_network_s_own_random_weights_do_not_matter() -> None:
    for make in (mlp, Residual, Encoder, NETWORKS["lstm"][0]):
        torch.manual_seed(1)
        one = make()
        torch.manual_seed(2)
        assert same(start(one), start(make())), make


def test_a_bias_of_one_element_is_no_constant() -> None:
    def net() -> nn.Module:
        return stack(nn.Linear(6, 4), nn.Linear(4, 1), nn.PReLU(), head=1)

    torch.manual_seed(1)
    one = net()
    torch.manual_seed(2)
    assert same(start(one), start(net()))
    assert start(net()).task_params["1.bias"].tolist() == [0.0]
    assert start(net()).task_params["2.weight"].tolist() == [0.25]  # the layer's own constant


def test_task_params_start_as_their_layers_do() -> None:
    task_params = start(Residual()).task_params
    assert (task_params["norm1.weight"] == 1).all() and (task_params["norm1.bias"] == 0).all()
    assert (task_params["norm1.running_mean"] == 0).all() and (
        task_params["norm1.running_var"] == 1
    ).all()
    assert task_params["fc.weight"].shape == (3, 36) and task_params["fc.weight"].std() > 0
    token = start(Encoder()).task_params["token"]
    assert token.shape == (1, 1, 8) and 0 < token.abs().max() < 0.04


def test_scales() -> None:
    assert bound_of((8, 6), "kaiming") == math.sqrt(3 / 6)
    assert bound_of((8, 6, 3, 3), "kaiming") == math.sqrt(3 / 54)
    assert bound_of((8, 6), "xavier") == math.sqrt(6 / 14)
    made = start(scale="xavier")
    assert made.free[:60].abs().max() <= math.sqrt(6 / 16)
    assert made.free[:60].abs().max() > 0.9 * math.sqrt(6 / 16)


def test_one_score_per_block() -> None:
    assert start(block=8).scores.shape == (10 * 1 + 10 * 2,)
    assert torch.equal(start(block=8).free, start().free)


def test_warm_scores_put_an_earlier_mask_on_top() -> None:
    architecture = Architecture(mlp())
    layout = Layout(architecture.shared)
    fresh = start().scores
    mask = torch.rand(layout.num_blocks, generator=torch.Generator().manual_seed(1)) < 0.3
    warm = scores_from_mask(fresh, mask, layout)
    for i, j in layout.block_segments:
        best, _ = top_k_segments(warm[i:j].abs(), [(0, j - i, int(mask[i:j].sum()))])
        assert torch.equal(best, mask[i:j])
        assert torch.equal(warm[i:j].abs().sort().values, fresh[i:j].abs().sort().values)
        assert torch.equal(warm[i:j] < 0, fresh[i:j] < 0)


@pytest.mark.parametrize("previous_mask_of", ["last", "similar"])
def test_warm_learners_start_from_a_learned_mask(previous_mask_of: str) -> None:
    learn = learner(
        score_init="previous_mask", previous_mask_of=previous_mask_of, max_banks=2, threshold=1e9
    )
    learn.learn(task("a", offset=0.0))
    learn.learn(task("b", seed=1, offset=9.0))
    trainer = learn.begin(task("c", seed=2, offset=0.0))
    example = learn.store.subnet("b" if previous_mask_of == "last" else "a").mask
    assert trainer.decision.nearest == "a"
    assert (trainer.module.mask() & example).sum() == example.sum()


def digests(learn: TinySubNets) -> list[str]:
    return [learn.store.digest(t) for t in learn.store.tasks]


def learn_two(**settings: Any) -> TinySubNets:
    learn = learner(Residual(), density=0.4, **settings)
    for number, name in enumerate("ab"):
        learn.learn(task(name, (1, 6, 6), seed=number))
    return learn


def test_learning_twice_gives_the_same_bits() -> None:
    torch.manual_seed(1)
    one = digests(learn_two())
    torch.manual_seed(2)
    np.random.seed(2)
    random.seed(2)
    assert digests(learn_two()) == one
    assert digests(learn_two(seed=1)) != one


def test_unrelated_calls_change_nothing() -> None:
    wanted = digests(learn_two())
    learn = learner(Residual(), density=0.4)
    learn.begin(task("unfinished", (1, 6, 6), seed=5)).epoch()
    learn.learn(task("a", (1, 6, 6), seed=0))
    x, _ = data((1, 6, 6))
    learn.predict("a", x)
    learn.store.module("a")
    learn.ledger()
    trainer = learn.begin(task("b", (1, 6, 6), seed=1))
    while not trainer.finished:
        torch.rand(7)
        trainer.epoch()
        learn.logits("a", x)
        with pytest.raises(SettingError):
            learner(density=2.0)
    trainer.finish()
    assert digests(learn) == wanted


def test_global_generators_are_left_alone() -> None:
    learn = learner(Residual(), density=0.4)
    states = (torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    for number, name in enumerate("ab"):
        learn.learn(task(name, (1, 6, 6), seed=number))
    learn.predict("a", data((1, 6, 6))[0])
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]


def test_global_generators_are_left_alone_by_an_epoch_that_fails() -> None:
    learn = learner(Residual())
    trainer = learn.begin(task("a", (1, 6, 6)))
    state = torch.random.get_rng_state()
    trainer.module.loss = lambda *_: [torch.rand(1), 1 // 0]  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.epoch()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert caught.value is not None and learn.store.tasks == ()


def test_given_weights_are_where_free_values_start() -> None:
    net = mlp()
    learn = learner(net, init="pretrained")
    trainer = learn.begin(task("a"))
    flat = torch.cat([net.get_submodule(n).weight.detach().flatten() for n in ("0", "2")])
    assert torch.equal(trainer.module.free, flat)
    task_params = dict(zip(trainer.module.names, trainer.module.task_params, strict=True))
    assert torch.equal(task_params["0.bias"], net.get_submodule("0").bias)
    assert not torch.equal(task_params["fc.weight"], net.fc.weight)  # its classes are others
    wide = learn.begin(task("b", classes=4))
    task_params = dict(zip(wide.module.names, wide.module.task_params, strict=True))
    assert task_params["fc.weight"].shape == (4, 10)
    assert learn.store.base is not None and len(learn.store.base.sha256) == 64


def test_given_weights_are_taken_when_the_learner_is_made() -> None:
    net = mlp()
    learn = learner(net, init="pretrained")
    assert learn.store.base is not None
    with torch.no_grad():
        net.get_submodule("0").weight.zero_()
    assert learn.begin(task("a")).module.free[:60].any()
    other = learner(net, init="pretrained").store.base
    assert other is not None and other.sha256 != learn.store.base.sha256


def test_going_on_from_other_given_weights_is_refused() -> None:
    net = mlp()
    learn = learner(net, init="pretrained")
    learn.learn(task("a"))
    TinySubNets(Architecture(net), init="pretrained", store=learn.store)
    with pytest.raises(MismatchError, match="pretrained"):
        TinySubNets(Architecture(mlp()), init="pretrained", store=learn.store)


def test_going_on_with_other_blocks_is_refused() -> None:
    learn = learner(block=8)
    with pytest.raises(SettingError, match="block=8"):
        TinySubNets(learn.architecture, store=learn.store)


@pytest.mark.parametrize("block", [1, 4])
def test_the_first_mask_is_the_best_of_a_pretrained_network(block: int) -> None:
    net = mlp()
    with torch.no_grad():
        net.get_submodule("0").weight[0] = 0.0
    module = learner(net, init="pretrained", density=0.3, block=block).begin(task("a")).module
    layout, mask = module.layout, module.mask()
    size = layout.sum(module.free.detach().abs()) / layout.block_sizes
    for (i, j), keep in zip(layout.block_segments, layout.keep(0.3), strict=True):
        assert size[i:j][mask[i:j]].min() >= size[i:j][~mask[i:j]].max()
        assert int(mask[i:j].sum()) == keep
    assert (module.scores > 0).all()  # 0 has no gradient
