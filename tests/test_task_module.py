"""The trained module: its gradients in closed form, its masks, its layer-wise loss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nets import NETWORKS, Encoder, mlp, stack, task
from tinysubnets.model.bank import Bank
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitKey, initial_state
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.masked import Compression, TaskModule


def make(
    net: nn.Module,
    *,
    block: int = 1,
    density: float = 0.5,
    owned: float = 0.4,
    classes: int = 3,
    **how: Any,
) -> TaskModule:
    """A module over a bank of which some blocks are owned already."""
    architecture = Architecture(net)
    layout = Layout(architecture.shared, block)
    generator = torch.Generator().manual_seed(0)
    bank = Bank(layout)
    mask = torch.rand(layout.num_blocks, generator=generator) < owned
    bank.claim_(mask, torch.randn(int(layout.expand(mask).sum()), generator=generator))
    start = initial_state(architecture, layout, InitKey(0, 0, 1), classes)
    keep = layout.keep(density)
    if not how.get("share", True):
        keep = tuple(min(k, f) for k, f in zip(keep, bank.free_per_tensor(), strict=True))
    module = TaskModule(
        architecture, layout, bank.values, bank.owned, start, Compression(keep, **how)
    )
    module.update_codebooks_()
    return module


def batch(shape: tuple[int, ...] | str = (6,)) -> tuple[Tensor, Tensor]:
    made = task(shape=shape)
    return made.normalization(made.train.inputs()), made.train.labels


CASES = list(itertools.product([1, 3], [2, 4, 32], [True, False]))


@pytest.mark.parametrize(("block", "bits", "share"), CASES)
def test_gradients_equal_the_closed_form(block: int, bits: int, share: bool) -> None:
    module = make(mlp(), block=block, bits=bits, share=share)
    x, y = batch()
    module.loss(x, y).backward()
    weights = module.final_weights().requires_grad_()
    loss = functional.cross_entropy(module.architecture(module.tensors(weights), x, "train"), y)
    (g,) = torch.autograd.grad(loss, weights)
    kept, owned = module.layout.expand(module.mask()), module.owned_weights
    values = torch.where(owned, module.bank_values, module.quantized())
    assert torch.equal(module.free.grad, torch.where(kept & ~owned, g, 0.0))
    assert torch.equal(module.scores.grad, module.layout.sum(g * values) * module.scores.sign())
    assert (module.free.grad[owned] == 0).all() and module.free.grad.any()


@pytest.mark.parametrize(("block", "bits", "share"), CASES)
def test_gradients_equal_those_of_the_formula_in_words(block: int, bits: int, share: bool) -> None:
    """mask ⊙ where(owned, bank value, Q(free)), both straight through, left to autograd."""
    module = make(mlp(), block=block, bits=bits, share=share)
    x, y = batch()
    module.loss(x, y).backward()
    free, scores = (p.detach().clone().requires_grad_() for p in (module.free, module.scores))
    quantized = module.quantized() + (free - free.detach())
    mask = module.layout.expand(module.mask() + (scores.abs() - scores.abs().detach()))
    weights = mask * torch.where(module.owned_weights, module.bank_values, quantized)
    logits = module.architecture(module.tensors(weights), x, "train")
    functional.cross_entropy(logits, y).backward()
    torch.testing.assert_close(module.free.grad, free.grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(module.scores.grad, scores.grad, rtol=1e-5, atol=1e-7)


def test_what_is_owned_is_no_parameter() -> None:
    module = make(mlp())
    before = module.bank_values.clone()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5)
    x, y = batch()
    for _ in range(3):
        optimizer.zero_grad()
        module.loss(x, y).backward()
        optimizer.step()
    assert torch.equal(module.bank_values, before)
    trained = {id(p) for group in module.groups().values() for p in group}
    assert trained == {id(p) for p in module.parameters() if p.requires_grad}


@pytest.mark.parametrize("seed", range(3))
def test_scores_find_the_best_mask(seed: int) -> None:
    """A teacher uses 24 of 72 weights; over the same weights, scores alone find which."""
    net = stack(nn.Linear(12, 6, bias=False), head=6)
    module = make(net, density=1 / 3, owned=1.0, bits=32)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(72, generator=generator)
    weights += weights.sign() * 0.3  # every weight matters
    module.bank_values.copy_(weights)
    best = torch.zeros(72, dtype=torch.bool)
    best[torch.randperm(72, generator=generator)[:24]] = True
    teacher = torch.where(best, weights, 0.0).view(6, 12)
    with torch.no_grad():
        signs = torch.where(torch.rand(72, generator=generator) < 0.5, -1.0, 1.0)
        module.scores.copy_(module.scores.abs() * signs)
    assert not torch.equal(module.mask(), best)
    optimizer = torch.optim.SGD([module.scores], lr=0.03)
    for _ in range(500):
        x = torch.randn(64, 12, generator=generator)
        optimizer.zero_grad()
        error = x @ (module.effective().view(6, 12) - teacher).T
        error.square().mean().backward()
        optimizer.step()
    assert torch.equal(module.mask(), best)


def test_the_mask_has_exactly_k_and_only_free_blocks_where_asked() -> None:
    module = make(mlp(), density=0.3, share=False)
    for (i, j), k in zip(module.layout.block_segments, module.compression.keep, strict=True):
        assert int(module.mask()[i:j].sum()) == k
    assert not (module.mask() & module.owned).any()


def test_going_forward_weights_are_what_is_stored() -> None:
    module = make(mlp(), bits=3)
    used = module.effective().detach()
    assert torch.equal(used, module.final_weights())
    own = module.layout.expand(module.mask()) & ~module.owned_weights
    for row, (i, j) in enumerate(module.codebook_segments):
        assert torch.isin(used[i:j][own[i:j]], module.centroids[row]).all()
    kept_owned = module.layout.expand(module.mask()) & module.owned_weights
    assert torch.equal(used[kept_owned], module.bank_values[kept_owned])
    outside = used[~module.layout.expand(module.mask())]
    assert not outside.any() and not torch.signbit(outside).any()


def test_codebooks_are_fitted_to_own_kept_weights_alone() -> None:
    module = make(mlp(), bits=2)
    before = module.centroids.clone()
    own = module.layout.expand(module.mask()) & ~module.owned_weights
    with torch.no_grad():
        module.free[~own] += 5.0  # owned or not kept
    module.codebooks_fitted = False
    module.update_codebooks_()
    assert torch.equal(module.centroids, before)
    with torch.no_grad():
        module.free[own] += 5.0
    module.update_codebooks_()
    assert not torch.equal(module.centroids, before)


def test_one_codebook_for_all_layers() -> None:
    module = make(mlp(), bits=2, scope="task")
    assert module.centroids.shape == (1, 4)
    own = module.layout.expand(module.mask()) & ~module.owned_weights
    assert torch.isin(module.effective().detach()[own], module.centroids).all()


@pytest.mark.parametrize("form", ["both", "commit"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_layer_wise_loss_works_for_every_kind_of_layer(name: str, form: str) -> None:
    build, shape = NETWORKS[name]
    module = make(build(), density=0.9, bits=2, layer_loss_weight=1.0, layer_loss=form)
    x, y = batch(shape)
    torch.manual_seed(1)
    loss = module.loss(x, y)
    loss.backward()
    assert loss.isfinite() and module.free.grad.isfinite().all()
    assert not any(m._forward_hooks for m in module.architecture.code("train").modules())


def test_attention_is_compared_with_its_whole_full_self() -> None:
    """With all weights kept and unquantized, both sides are equal and the extra loss is 0."""
    net = Encoder()
    net.encoder.layers[0].eval()
    plain = make(net, density=1.0, bits=32)
    distilled = make(net, density=1.0, bits=32, layer_loss_weight=100.0)
    x, y = batch("tokens")
    for module in (plain, distilled):
        for part in module.architecture.code("train").modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
    torch.testing.assert_close(plain.loss(x, y), distilled.loss(x, y), rtol=1e-6, atol=1e-6)


def test_class_weights_enter_the_loss() -> None:
    module = make(mlp())
    x, y = batch()
    weights = torch.tensor([5.0, 1.0, 1.0])
    wanted = functional.cross_entropy(module(x), y, weights)
    assert torch.equal(module.loss(x, y, weights), wanted)
    assert not torch.equal(module.loss(x, y), wanted)
