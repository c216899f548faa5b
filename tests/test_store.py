"""The store: what claiming a task does to it, and how its tasks are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import models
from nets import NETWORKS, data, learner, task
from tinysubnets.errors import TaskError
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.mask_references import (
    MAX_MAGNITUDE,
    MAX_SCORE_REFERENCES,
    MaskContext,
    code_mask,
    read_mask,
)
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import FIRST_MEMBER, FREE_SCORES, NO_REFERENCE, OWNED, SCORES
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitKey, initial_scores
from tinysubnets.nn.layout import Layout
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task


def pack(mask: np.ndarray) -> np.ndarray:
    return np.packbits(mask, bitorder="little")


def test_masks_are_kept_at_one_bit_each() -> None:
    store = models.store(tasks=2)
    subnet = store.subnet("task 0")
    assert subnet.mask.dtype == torch.bool and len(subnet.mask) == store.layout.num_blocks
    assert subnet.packed_mask.bits.nbytes == -(-store.layout.num_blocks // 8)
    assert np.array_equal(pack(subnet.mask.numpy()), subnet.packed_mask.bits)


def test_claimed_weights_and_owned_blocks() -> None:
    store = models.store(tasks=4)
    for number, bank in enumerate(store.banks):
        masks = [s.mask for s in store.members(number)]
        assert torch.equal(bank.owned, torch.stack(masks).any(0))
        assert not bank.values[~store.layout.expand(bank.owned)].any()
    free = [1 - b.owned_share() for b in store.banks]
    assert store.free_share() == pytest.approx(sum(free) / 2)
    assert SubnetStore(models.architecture()).free_share() == 1.0


def test_numbers_are_kept_as_a_file_keeps_them() -> None:
    store = SubnetStore(models.architecture())
    given = Normalization((0.1,), (0.3,))
    models.add_task(store, 0, normalization=given)
    kept = store.subnet("task 0").normalization
    assert kept.mean == (float(np.float32(0.1)),) and kept.std == (float(np.float32(0.3)),)
    for ours, theirs in zip(kept.tensors(), given.tensors(), strict=True):
        assert torch.equal(ours, theirs)


def test_every_kind_of_reference_is_used_where_it_is_cheapest() -> None:
    store = models.reference_store()
    kinds = [s.coded_mask.reference for s in store.subnets.values() if s.coded_mask]
    assert kinds == [SCORES, SCORES, FREE_SCORES, OWNED, FIRST_MEMBER, FIRST_MEMBER + 1, 0]


def test_the_cheapest_reference_is_taken() -> None:
    architecture = models.architecture()
    layout = Layout(architecture.shared, 1)
    rng = np.random.default_rng(0)
    mask = rng.random(layout.num_blocks) < 0.3
    shares = (0.3, 0.02, 0.1, 0.4, 0.2)
    near = {i: mask ^ (rng.random(len(mask)) < share) for i, share in enumerate(shares)}
    far, nothing = rng.random(len(mask)) < 0.3, np.zeros(len(mask), np.bool_)

    def reference(members: dict[int, np.ndarray]) -> int:
        packed = {i: pack(m) for i, m in members.items()}
        context = MaskContext(layout, 0, len(members), packed, pack(nothing))
        coded = code_mask(mask, context, None)
        assert np.array_equal(read_mask(coded, context), mask)
        return coded.reference

    assert reference(near) == FIRST_MEMBER + 1
    assert reference(near | {5: ~mask}) == FIRST_MEMBER + 5  # everything differs, and so nothing
    assert reference({0: mask, 1: mask}) == FIRST_MEMBER
    assert reference({0: far}) == reference({}) == NO_REFERENCE


def test_a_mask_reads_back_at_its_place() -> None:
    store = models.reference_store()
    members: dict[int, np.ndarray] = {}
    owned = np.zeros(store.layout.num_blocks, np.bool_)
    for number, subnet in enumerate(store.subnets.values()):
        context = MaskContext(store.layout, 0, number, members, pack(owned))
        assert subnet.coded_mask is not None
        assert np.array_equal(read_mask(subnet.coded_mask, context), subnet.mask.numpy())
        members[number] = subnet.packed_mask.bits
        owned |= subnet.mask.numpy()


def test_magnitudes_order_blocks_as_their_scores_do() -> None:
    architecture = models.architecture()
    layout = Layout(architecture.shared, 1)
    context = MaskContext(layout, 1, 5, {}, np.zeros(0, np.uint8))
    scores = initial_scores(architecture, layout, InitKey(99, 1, 5)).abs()
    for tensor, (start, stop) in enumerate(layout.block_segments):
        sizes = context.magnitudes(99, tensor)
        assert sizes.min() >= 0 and sizes.max() <= MAX_MAGNITUDE
        order = np.argsort(sizes, kind="stable")
        assert (np.diff(scores[start:stop].numpy()[order]) >= 0).all()


def test_an_empty_tensor_in_a_mask_needs_no_scores() -> None:
    architecture = models.architecture()
    layout = Layout(architecture.shared, 1)
    context = MaskContext(layout, 0, 0, {}, np.zeros(-(-layout.num_blocks // 8), np.uint8))
    mask = np.zeros(layout.num_blocks, np.bool_)
    start, stop = layout.block_segments[0]
    sizes = context.magnitudes(3, 0)
    mask[start:stop] = sizes >= np.sort(sizes)[-20]
    coded = code_mask(mask, context, 3)
    assert coded.reference == SCORES and coded.magnitudes[1] == MAX_MAGNITUDE + 1
    assert np.array_equal(read_mask(coded, context), mask)


def test_few_masks_of_a_bank_are_made_from_scores() -> None:
    """Masks that equal their first scores are coded against them three times, then no more."""
    store = SubnetStore(models.architecture(), seed=models.SEED)
    layout = store.layout
    for number in range(5):
        context = MaskContext(layout, 0, number, {}, np.zeros(0, np.uint8))
        parts = [context.magnitudes(7, t) > 1 << 23 for t in range(len(layout.shared))]
        models.add_masked(store, 20 + 2 * number, torch.from_numpy(np.concatenate(parts)))
    kinds = [s.coded_mask.reference for s in store.subnets.values() if s.coded_mask]
    assert [k in (SCORES, FREE_SCORES) for k in kinds] == [True] * 3 + [False] * 2
    assert MAX_SCORE_REFERENCES == 3


def test_without_a_seed_no_mask_is_made_from_scores() -> None:
    store = SubnetStore(models.architecture())
    models.add_task(store, 0)
    coded = store.subnet("task 0").coded_mask
    assert coded is not None and coded.reference == NO_REFERENCE


def test_a_name_is_learned_once_and_unknown_names_are_said() -> None:
    store = models.store(tasks=1)
    with pytest.raises(TaskError, match="learned already"):
        models.add_task(store, 0)
    with pytest.raises(TaskError, match="Did you mean 'task 0'"):
        store.subnet("task O")


@pytest.mark.parametrize("kind", ["mlp", "conv2d", "transformer", "batchnorm_resnet"])
def test_a_plain_module_computes_the_same(kind: str) -> None:
    build, shape = NETWORKS[kind]
    learn = learner(build(), density=0.5)
    learn.learn(task("a", shape))
    x = torch.from_numpy(data(shape, seed=4)[0])
    module = learn.store.module("a")
    assert isinstance(module, torch.fx.GraphModule) and not module.training
    assert torch.equal(module(x), learn.store.logits("a", x))
    assert "tinysubnets" not in module.code


def test_inputs_without_normalization_stay_as_they_are() -> None:
    learn = learner(density=0.5)
    x, y = data((6,))
    learn.learn(Task.from_arrays("a", x, y, normalization=None, valid=0.25))
    module = learn.store.module("a")
    raw = torch.from_numpy(x)
    assert torch.equal(module(raw), learn.store.logits("a", raw))


def test_what_a_task_s_inputs_look_like_is_recorded(tmp_path: Path) -> None:
    learn = learner(density=0.5)
    learn.learn(task("a"))
    learn.save(tmp_path)
    again = SubnetStore.load(tmp_path, Architecture(NETWORKS["mlp"][0]()))
    for store in (learn.store, again):
        sample = store.subnet("a").sample
        assert sample is not None and (sample.dtype, sample.shape) == (torch.float32, (6,))


def test_inputs_that_broadcasting_would_take_are_refused() -> None:
    rng = np.random.default_rng(0)
    images = rng.random((40, 3, 8, 8), dtype=np.float32)
    labels = np.array(["a", "b"] * 20)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=3), torch.nn.Flatten())
    net.add_module("fc", torch.nn.Linear(16, 2))
    made = TinySubNets(Architecture(net), training={"epochs": 1}, pruning={"iterations": 1})
    made.learn(Task.from_arrays("one", images, labels))
    assert len(made.predict("one", images[:2])) == 2
    for wrong in (images[:, :1], images[0, 0]):
        with pytest.raises(TaskError, match="3 channels"):
            made.logits("one", wrong)
    cures = {
        r"without an axis of samples: give inputs\[None\]": images[0],
        r"channels are last\. Give inputs\.transpose\(0, 3, 1, 2\)": images.transpose(0, 2, 3, 1),
        r"one image with its channels last.*transpose\(2, 0, 1\)\[N": images[0].transpose(1, 2, 0),
    }
    for said, given in cures.items():
        for ask in (made.logits, made.predict, made.predict_proba):
            with pytest.raises(TaskError, match=said):
                ask("one", given)
    with pytest.raises(TaskError, match="text is given where numbers are needed"):
        made.predict("one", "photo.png")
    images[3, 0, 0, 0] = np.nan
    assert made.logits("one", images).isnan().any()
    with pytest.raises(TaskError, match=r"1 samples are NaN \(first: sample 3\)"):
        made.predict("one", images)


def test_things_are_shown_in_one_line() -> None:
    made = learner(NETWORKS["mlp"][0]())
    made.learn(task("one"))
    shown = [made, made.store, made.store.subnet("one"), task("two")]
    for each in shown:
        assert "one" in repr(each) or "two" in repr(each)
        assert "\n" not in repr(each) and len(repr(each)) < 400 and "tensor(" not in repr(each)
