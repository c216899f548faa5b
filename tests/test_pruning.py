"""Algorithm 2: steps are kept only if the objective rises, and only own new weights are dropped."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nets import learned, learner, mlp, stack, task
from tinysubnets import seeds
from tinysubnets.coding.masks import entropy_bits
from tinysubnets.errors import SettingError, TaskError
from tinysubnets.method import compress
from tinysubnets.method.pruning import (
    Candidate,
    Pruned,
    PruningSettings,
    post_prune,
    result_of,
    spare,
)
from tinysubnets.model import subnet
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.layout import Layout
from tinysubnets.training import stages
from tinysubnets.training.stages import SparseMatrix

PATH = (0, "task", 3)


class PreActivation(nn.Module):
    """A layer that overwrites its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.clone().relu_() if self.training else x.relu_())


def overwriting() -> nn.Module:
    return stack(nn.Linear(6, 10), PreActivation(), head=10)


def batch_norms() -> nn.Module:
    layers = [nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 10)]
    return stack(*layers, nn.BatchNorm1d(10), nn.ReLU(), head=10)


def setting(block: int = 1, owned: float = 0.3, bits: int = 4) -> tuple[Candidate, Layout]:
    layout = Layout(Architecture(mlp()).shared, block)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(layout.num_blocks, generator=generator) < 0.6
    held = torch.rand(layout.num_blocks, generator=generator) < owned
    values = torch.randn(layout.num_weights, generator=generator)
    return Candidate(mask, values, held, bits), layout


def record(candidate: Candidate, layout: Layout, accuracy: Any, **how: Any) -> Any:
    """Post-prune and write down every mask that was measured."""
    seen: list[Tensor] = []

    def measure(mask: Tensor) -> float:
        seen.append(mask.clone())
        return accuracy(mask)

    steps = post_prune(candidate, layout, PruningSettings(**how), measure, PATH)
    return result_of(steps), seen


def test_rejected_steps_are_undone() -> None:
    candidate, layout = setting()

    def only_the_first(mask: Tensor) -> float:
        return 1.0 if torch.equal(mask, candidate.mask) else 0.5

    pruned, seen = record(candidate, layout, only_the_first, iterations=20, step=0.05)
    assert torch.equal(pruned.mask, candidate.mask)
    assert pruned.num_kept == 0 and pruned.accuracy == 1.0
    # Each trial starts again from the whole mask, and is made once: 5 % of one layer.
    assert sorted(int((candidate.mask & ~m).sum()) for m in seen[1:]) == [3, 5]


def test_without_a_loss_every_step_is_kept() -> None:
    candidate, layout = setting()
    before = candidate.mask.clone()
    pruned, seen = record(candidate, layout, lambda mask: 0.8, iterations=12, step=0.05)
    assert pruned.num_kept == 12 and len(seen) == 13
    for one, two in itertools.pairwise(seen):
        assert not (two & ~one).any() and (one & ~two).any()
    assert torch.equal(candidate.mask, before)  # what is given is not changed in place


def test_smallest_weights_go_first_and_owned_ones_never() -> None:
    candidate, layout = setting()
    pruned, _ = record(candidate, layout, lambda mask: 0.8, iterations=30, step=0.05)
    dropped, own = candidate.mask & ~pruned.mask, candidate.mask & ~candidate.owned
    assert dropped.any() and not (dropped & candidate.owned).any()
    assert torch.equal(pruned.mask & candidate.owned, candidate.mask & candidate.owned)
    for i, j in layout.block_segments:
        size = candidate.values[i:j].abs()
        if dropped[i:j].any() and (own & pruned.mask)[i:j].any():
            assert size[dropped[i:j]].max() <= size[(own & pruned.mask)[i:j]].min()


def test_nothing_is_left_to_drop_at_last() -> None:
    candidate, layout = setting()
    pruned, _ = record(candidate, layout, lambda mask: 0.8, iterations=60, step=0.3)
    assert torch.equal(pruned.mask, candidate.mask & candidate.owned)


@pytest.mark.parametrize("objective", ["sparsity", "bytes"])
@pytest.mark.parametrize("block", [1, 3])
def test_equals_the_algorithm_written_out(objective: Any, block: int) -> None:
    candidate, layout = setting(block)
    reference = candidate.mask.roll(1)
    candidate = Candidate(candidate.mask, candidate.values, candidate.owned, 4, (reference,))
    reward = {"sparsity": 1 / 160, "bytes": 4 / (32 * 160)}[objective] * block
    worth = torch.rand(layout.num_blocks, generator=torch.Generator().manual_seed(1))
    worth = torch.where(worth < 0.9, 0.3, 4.0) * reward  # few weights are worth keeping

    def accuracy(mask: Tensor) -> float:
        return float(worth[mask].sum())

    how: dict[str, Any] = {"iterations": 40, "step": 0.03, "alpha": 0.9, "beta": 0.6}
    settings = PruningSettings(objective=objective, **how)
    pruned, _ = record(candidate, layout, accuracy, objective=objective, **how)

    def gamma(mask: Tensor) -> float:
        sizes = layout.block_sizes
        if objective == "sparsity":
            rest = 1 - float(sizes[mask | candidate.owned].sum()) / 160
        else:
            own = int(sizes[mask & ~candidate.owned].sum()) * 4
            ones = int(mask.sum()), int((mask ^ reference).sum())
            masks = min(entropy_bits(count, len(mask)) for count in ones)
            rest = 1 - (own + masks) / (32 * 160)
        assert spare(mask, candidate, layout, settings) == pytest.approx(rest)
        return 0.9 * accuracy(mask) + 0.6 * rest

    best, kept = candidate.mask.clone(), 0
    for pick in seeds.uniform(40, *PATH, "pruning"):
        i, j = layout.block_segments[int(pick * 2)]
        size = layout.sum(candidate.values.abs())
        own = [n for n in range(i, j) if best[n] and not candidate.owned[n]]
        trial = best.clone()
        for n in sorted(own, key=lambda n: float(size[n]))[: max(1, round(0.03 * (j - i)))]:
            trial[n] = False
        if gamma(trial) > gamma(best):
            best, kept = trial, kept + 1
    assert torch.equal(pruned.mask, best) and pruned.num_kept == kept
    assert 0 < kept < 40  # some steps were kept and some undone


def test_equal_is_not_better() -> None:
    """A step that wins exactly what it loses is undone."""
    candidate, layout = setting()
    pruned, _ = record(candidate, layout, lambda mask: 0.8, iterations=10, beta=0.0)
    assert pruned.num_kept == 0 and torch.equal(pruned.mask, candidate.mask)


def test_bytes_see_what_sparsity_does_not() -> None:
    """Leaving a mask like an earlier one saves codes, but the difference costs more."""
    layout = Layout(Architecture(mlp()).shared)
    mask = torch.arange(160) % 2 == 0
    values = torch.randn(160, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(160, dtype=torch.bool)
    candidate = Candidate(mask, values, none, 2, (mask.clone(),))
    how: dict[str, Any] = {"iterations": 5, "step": 0.01}
    by_share, _ = record(candidate, layout, lambda mask: 0.8, objective="sparsity", **how)
    by_bytes, _ = record(candidate, layout, lambda mask: 0.8, objective="bytes", **how)
    assert by_share.num_kept == 5 and by_bytes.num_kept == 0


def test_blocks_are_ranked_by_the_sum_of_their_weights() -> None:
    candidate, layout = setting(block=3, owned=0.0)
    pruned, seen = record(candidate, layout, lambda mask: 0.8, iterations=1, step=1e-9)
    (gone,) = (candidate.mask & ~pruned.mask).nonzero().flatten().tolist()
    sums = layout.sum(candidate.values.abs())
    segment = next((i, j) for i, j in layout.block_segments if i <= gone < j)
    inside = [n for n in range(*segment) if candidate.mask[n]]
    assert gone == min(inside, key=lambda n: float(sums[n])) and len(seen) == 2


def test_every_step_is_seen_before_it_is_tried() -> None:
    candidate, layout = setting()
    settings = PruningSettings(iterations=5, step=0.05)
    steps = list(post_prune(candidate, layout, settings, lambda mask: 0.8, PATH))
    assert [(s.step, s.steps, s.accuracy) for s in steps] == [(n, 5, 0.8) for n in range(1, 6)]
    assert [s.num_kept for s in steps] == [0, 1, 2, 3, 4]  # each makes more weights spare


def test_a_task_that_is_overtaken_between_two_steps_is_refused() -> None:
    learn = learner(mlp(), pruning={"iterations": 3})
    trainer = learn.begin(task("late"))
    while not trainer.finished:
        trainer.epoch()
    steps = trainer.finishing()
    assert next(steps).step == 1
    learn.learn(task("first", seed=1))
    with pytest.raises(TaskError, match="begin it again"):
        list(steps)
    assert learn.tasks == ("first",)


def test_layers_are_picked_by_seed() -> None:
    candidate, layout = setting()
    masks = [
        result_of(
            post_prune(
                candidate, layout, PruningSettings(iterations=9), lambda m: 1.0, (seed, "task", 0)
            )
        ).mask
        for seed in (0, 0, 1)
    ]
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize(
    "settings",
    [{"iterations": -1}, {"step": 0.0}, {"step": 1.5}, {"alpha": -1}, {"objective": "size"}],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        learner(pruning=settings)


@pytest.mark.parametrize("objective", ["sparsity", "bytes"])
def test_a_learner_prunes_before_it_owns(objective: str) -> None:
    pruning = {"iterations": 25, "step": 0.05, "objective": objective}
    learn = learner(mlp(), density=0.6, max_banks=1, pruning=pruning, bits=4)
    owned = torch.zeros(160, dtype=torch.bool)
    for number in range(2):
        subnet = learned(learn, task(f"t{number}", seed=number))
        report = learn.reports[f"t{number}"]
        assert report.owned_after_pruning < report.owned_before_pruning
        assert int(subnet.mask.sum()) < 96
        assert subnet.num_new == int((subnet.mask & ~owned).sum())
        owned |= subnet.mask
    assert torch.equal(learn.store.banks[0].owned, owned)
    assert float(owned.float().mean()) == pytest.approx(report.owned_after_pruning)


@pytest.mark.parametrize("objective", ["sparsity", "bytes"])
def test_bytes_are_counted_against_earlier_masks(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, ...]] = []

    def watched(candidate: Candidate, *rest: Any) -> Any:
        seen.append(candidate.references)
        return post_prune(candidate, *rest)

    monkeypatch.setattr(compress, "post_prune", watched)
    learn = learner(mlp(), max_banks=1, pruning={"iterations": 2, "objective": objective})
    first = learned(learn, task("a"))
    learn.learn(task("b", seed=1))
    assert seen[0] == ()
    assert [m.tolist() for m in seen[1]] == [first.mask.tolist()] * (objective == "bytes")


def test_pruning_can_be_left_out() -> None:
    learn = learner(mlp(), density=0.6, post_pruning=False)
    subnet = learned(learn, task())
    assert int(subnet.mask.sum()) == 96
    assert learn.reports["a"].owned_after_pruning == learn.reports["a"].owned_before_pruning == 0.6


@pytest.mark.parametrize("make", [mlp, batch_norms, overwriting])
@pytest.mark.parametrize("sparse", [False, True])
def test_stages_make_the_decisions_of_the_whole_network(
    make: Any, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks, products = [], []
    if sparse:  # as if layers were large, and little of them was kept
        monkeypatch.setattr(stages, "SPARSE_FROM", 1)
        monkeypatch.setattr(stages, "SPARSE_BELOW", 1.0)
    real = SparseMatrix.without
    monkeypatch.setattr(
        SparseMatrix, "without", lambda *parts: products.append(parts) or real(*parts)
    )
    for whole in (False, True):
        if whole:
            assert bool(products) == (sparse and torch.backends.mkl.is_available())
            monkeypatch.setattr(compress, "stages_of", lambda architecture: [])
        learn = learner(make(), density=0.6, max_banks=1, pruning={"step": 0.03}, bits=4)
        masks.append([learned(learn, task(f"t{n}", seed=n)).mask for n in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(*masks, strict=True))
    assert all(int(m.sum()) < 0.6 * len(m) for m in masks[0])


@pytest.mark.parametrize("dropped", [(), (1,)])
def test_codebooks_of_layers_that_lose_nothing_stay(
    dropped: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they would be fitted anew to is what they were fitted to."""
    fitted: list[Tensor] = []
    real = subnet.fit

    def counted(values: Tensor, k: int) -> Tensor:
        fitted.append(values)
        return real(values, k)

    def prune(work: Any, *_: Any, **__: Any) -> Any:
        """Take one block away from each of some layers."""
        mask = work.mask.clone()
        for number in dropped:
            i, j = work.layout.block_segments[number]
            mask[i + mask[i:j].nonzero()[0]] = False
        yield from ()
        return Pruned(mask, 0, 0.0)

    monkeypatch.setattr(subnet, "fit", counted)
    monkeypatch.setattr(compress.Compressor, "prune", prune)
    taught = learner(bits=2)
    taught.learn(task())
    layers = len(taught.store.layout.shared)
    assert len(fitted) == layers + len(dropped)
    own = taught.store.subnet("a").own
    assert len(own[1].decode()) == len(fitted[1]) - len(dropped)
