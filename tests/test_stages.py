"""Stage by stage: the answers of the whole network, without computing what did not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nets import learned, mlp, stack
from nets import learner as make_learner
from nets import task as make_task
from tinysubnets import networks
from tinysubnets.method import compress
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.loader import DeviceLoader
from tinysubnets.tasks.task import Task
from tinysubnets.training import evaluate, stages
from tinysubnets.training.stages import (
    ChangedInputError,
    SparseMatrix,
    StagedEvaluation,
    stages_of,
)

SAMPLES = 48


class PreActivation(nn.Module):
    """A block that overwrites its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.relu_())


def with_norms() -> nn.Module:
    layers = [nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 10)]
    return stack(*layers, nn.BatchNorm1d(10), nn.Dropout(), nn.Linear(10, 10), head=10)


def nested() -> nn.Module:
    inside = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Sequential(nn.Linear(10, 10)))
    return stack(nn.Linear(6, 10), nn.ReLU(), inside, head=10)


def images() -> nn.Module:
    return networks.build("resnet18", classes=3, in_channels=1, width=4)


def problem(net: nn.Module, shape: tuple[int, ...]) -> tuple[Architecture, dict[str, Tensor], Task]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(160, *shape, generator=generator)
    labels = torch.randint(0, 3, (160,), generator=generator)
    task = Task.from_arrays("t", inputs, labels)
    tensors = {n: t.detach().clone() for n, t in net.state_dict().items()}
    return Architecture(net), tensors, task


def staged(
    architecture: Architecture, task: Task, remembered_bytes: int = 1 << 24
) -> tuple[StagedEvaluation, DeviceLoader, DeviceLoader]:
    train = DeviceLoader(task.train, task.normalization, "cpu")
    valid = DeviceLoader(task.valid, task.normalization, "cpu")
    made = StagedEvaluation(
        architecture,
        stages_of(architecture),
        train,
        valid,
        samples=SAMPLES,
        precision="float32",
        remembered_bytes=remembered_bytes,
    )
    return made, train, valid


def keys(architecture: Architecture, tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {s.name: tensors[s.name].numpy().tobytes() for s in architecture.shared}


@pytest.mark.parametrize("remembered_bytes", [0, 6000, 1 << 24])
@pytest.mark.parametrize("batch", [2000, 20])  # 20: statistics pooled over three batches
@pytest.mark.parametrize(
    ("make", "shape"), [(mlp, (6,)), (with_norms, (6,)), (nested, (6,)), (images, (1, 8, 8))]
)
def test_counts_are_those_of_the_whole_network(
    make, shape, batch: int, remembered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "EVAL_BATCH", batch)
    architecture, tensors, task = problem(make(), shape)
    made, train, valid = staged(architecture, task, remembered_bytes)
    generator = torch.Generator().manual_seed(1)
    for step in range(8):
        if step:  # change one shared tensor; every other time take the change back
            name = architecture.shared[step * 5 % len(architecture.shared)].name
            before = tensors
            lost = torch.rand(tensors[name].shape, generator=generator) < 0.2
            tensors = tensors | {name: tensors[name].masked_fill(lost, 0.0)}
        own = evaluate.recalibrate_batchnorm(architecture, tensors, train, SAMPLES, batch)
        whole = evaluate.count_correct(architecture, own, valid, batch_size=batch)
        parts = made.count(tensors, keys(architecture, tensors))
        if len(shape) == 1:
            assert torch.equal(whole, parts)
        else:  # channels last: other sums
            torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-4)
        if step % 2:
            tensors = before


def test_only_what_follows_a_change_is_computed() -> None:
    architecture, tensors, task = problem(nested(), (6,))
    made, _, _ = staged(architecture, task)
    names = [s.name for s in architecture.shared]
    assert len(names) == len(made.stages) == 3

    def computed(values: dict[str, Tensor]) -> int:
        before = made.num_computed
        made.count(values, keys(architecture, values))
        return made.num_computed - before

    first, middle, last = ({n: tensors[n] * 2} for n in names)
    assert computed(tensors) == 3 and computed(tensors) == 0
    assert computed(tensors | last) == 1
    assert computed(tensors | middle) == 2
    assert computed(tensors | first) == 3
    assert computed(tensors | first | last) == 1  # the first two are those of the rejected trial
    assert computed(tensors) == 0


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no sparse products here")
def test_large_layers_of_which_little_is_kept_are_sparse_products() -> None:
    size = 600
    net = stack(nn.Linear(6, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), head=size)
    architecture, tensors, task = problem(net, (6,))
    made, _, valid = staged(architecture, task)
    small, large = (s.name for s in architecture.shared)
    assert sum((s.matrices for s in made.stages), ()) == (small, large)
    generator = torch.Generator().manual_seed(2)
    kept = torch.rand(size, size, generator=generator) < 0.05
    tensors[large] = torch.where(kept, 20 * tensors[large], 0.0)
    matrix = SparseMatrix.of(tensors[large])
    assert matrix is not None and len(matrix.places) == int(kept.sum())
    lost = torch.rand(size, size, generator=generator) < 0.5
    thinner = tensors | {large: tensors[large].masked_fill(lost, 0.0)}
    assert torch.equal(matrix.without(lost).to_dense(), thinner[large])
    told = keys(architecture, tensors)
    whole = evaluate.count_correct(architecture, thinner, valid)
    counts = made.count(tensors | {large: matrix.without(lost)}, told)
    torch.testing.assert_close(counts, whole, rtol=1e-4, atol=1e-4)
    assert not torch.equal(made.count(tensors, told | {large: b""}), counts)  # the whole matrix
    (stage,) = (s for s in made.stages if s.matrices == (large,))
    for shape in ((5, size), (2, 3, size)):  # as of a dense layer, so that it can be viewed
        x = torch.randn(shape, generator=generator)
        outputs = [
            architecture(tensors | {large: w}, x, "eval", stage.parts["eval"][0])
            for w in (thinner[large], matrix.without(lost))
        ]
        torch.testing.assert_close(*outputs)
        assert outputs[1].is_contiguous() and outputs[1].shape == shape
    for other in (tensors[small], torch.ones(size, size), torch.zeros(size, size, 1)):
        assert SparseMatrix.of(other) is None  # small, full, no matrix


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no sparse products here")
def test_infinite_activations_are_seen_by_sparse_products_too() -> None:
    """A weight that is 0 makes NaN of them, as in the whole network."""
    size = 600
    net = stack(nn.Linear(6, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), head=size)
    architecture, tensors, task = problem(net, (6,))
    made, _, valid = staged(architecture, task)
    large = architecture.shared[-1].name
    tensors[large] = torch.where(torch.arange(size) % 20 == 1, tensors[large], 0.0)
    tensors["0.bias"][0] = torch.inf  # and nothing is kept of that column
    matrix = SparseMatrix.of(tensors[large])
    assert matrix is not None
    few = matrix.without(torch.zeros(size, size, dtype=torch.bool))
    counts = made.count(tensors | {large: few}, keys(architecture, tensors))
    whole = evaluate.count_correct(architecture, tensors, valid)
    assert not whole[1].isfinite() and not counts[1].isfinite() and counts[0] == whole[0]


def test_a_network_that_is_no_chain_has_no_stages() -> None:
    vit = networks.build("vit", classes=3, in_channels=1, image_size=8, width=8, depth=1, heads=2)
    assert stages_of(Architecture(vit)) == []
    tied = stack(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10), head=10)
    tied[2].weight = tied[0].weight
    assert stages_of(Architecture(tied)) == []


def test_writing_into_an_input_is_noticed() -> None:
    net = stack(nn.Linear(6, 10), PreActivation(), head=10)
    architecture, tensors, task = problem(net, (6,))
    made, _, _ = staged(architecture, task)
    with pytest.raises(ChangedInputError):
        made.count(tensors, keys(architecture, tensors))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no sparse products here")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_left_of_a_difference_is_the_reference(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it loses a weight its sparse reference stays; in bfloat16 nothing is sparse at all."""
    monkeypatch.setattr(stages, "SPARSE_FROM", 1)
    monkeypatch.setattr(stages, "SPARSE_BELOW", 1.0)
    made, real = [], SparseMatrix.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        SparseMatrix, "of", classmethod(lambda cls, weight: made.append(1) or real(cls, weight))
    )
    masks, counts = [], []
    chosen = {"selection": "magnitude", "reference": "similar", "density": 0.4, "bits": 2}
    pruning = {"iterations": 30, "step": 0.1}
    for is_whole in (False, True):
        if is_whole:
            monkeypatch.setattr(compress, "stages_of", lambda architecture: [])
        training = {"precision": precision, "epochs": 4}
        learn = make_learner(mlp(), training=training, pruning=pruning, **chosen)
        masks.append([learned(learn, make_task(f"t{n}", seed=n)).mask for n in range(3)])
        counts.append(len(made))
    assert learn.store.subnet("t1").reference is not None
    assert all(torch.equal(a, b) for a, b in zip(*masks, strict=True))
    # Two layers of the first task; those of others have something of it below.
    assert counts == ([2, 2] if precision == "float32" else [0, 0])
