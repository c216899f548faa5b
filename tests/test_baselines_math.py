"""The mathematics of the baselines, each against an answer known from elsewhere."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from digit_tasks import permuted, small_net, split
from tinysubnets.baselines.base import DenseTraining
from tinysubnets.baselines.cwr import merged
from tinysubnets.baselines.ewc import EWC, _mapped, _one_by_one, fisher
from tinysubnets.baselines.gem import (
    GEM,
    averaged_projection,
    flat_gradient,
    nonnegative_minimum,
    projection,
)
from tinysubnets.baselines.joint import Cumulative
from tinysubnets.baselines.lwf import LwF, LwFModule, distillation
from tinysubnets.baselines.masked import WSN, AdaQPackNetSettings, PackNet, narrowed
from tinysubnets.baselines.replay import Replay, ReplayBuffer
from tinysubnets.baselines.si import SI, consolidated
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.dense import DenseModule, Outputs
from tinysubnets.tasks.checks import class_balanced
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task

TRAINING = {"epochs": 2, "batch_size": 64}


def linear_net() -> Architecture:
    net = nn.Sequential(nn.Linear(3, 4, bias=False))
    net.add_module("fc", nn.Linear(4, 2))
    return Architecture(net)


def test_fisher_of_a_linear_softmax_model_is_the_closed_form():
    architecture = linear_net()
    tensors = {n: torch.randn_like(t) for n, t in architecture.pretrained.items()}
    x = torch.randn(50, 3)
    found = fisher(architecture, tensors, list(tensors), x, (0, 2))
    body, head = tensors["0.weight"], tensors["fc.weight"]
    h = x @ body.T
    p = (h @ head.T + tensors["fc.bias"]).softmax(1)
    # ∂ log p_y / ∂ z_k = [y = k] − p_k, so that E_y of its square is p_k (1 − p_k).
    variance = p * (1 - p)
    assert torch.allclose(found["fc.bias"], variance.mean(0), atol=1e-6)
    expected = torch.einsum("nk,nj->kj", variance, h.square()) / len(x)
    assert torch.allclose(found["fc.weight"], expected, atol=1e-5)
    spread = torch.einsum("ny,nyj->nj", p, (head[None] - (p @ head)[:, None]).square())
    expected = torch.einsum("nj,ni->ji", spread, x.square()) / len(x)
    assert torch.allclose(found["0.weight"], expected, atol=1e-5)


def test_fisher_is_taken_over_the_columns_of_the_task():
    architecture = linear_net()
    tensors = {n: torch.randn_like(t) for n, t in architecture.pretrained.items()}
    tensors["fc.weight"], tensors["fc.bias"] = torch.randn(5, 4), torch.randn(5)
    x = torch.randn(20, 3)
    found = fisher(architecture, tensors, ["fc.weight"], x, (3, 5))
    assert (found["fc.weight"][:3] == 0).all() and (found["fc.weight"][3:] > 0).all()


def test_the_empirical_fisher_is_the_mean_of_squared_gradients():
    architecture = linear_net()
    tensors = {n: torch.randn_like(t).requires_grad_() for n, t in architecture.pretrained.items()}
    x, y = torch.randn(9, 3), torch.arange(9) % 2
    plain = {n: t.detach() for n, t in tensors.items()}
    found = fisher(architecture, plain, list(tensors), x, (0, 2), y)
    expected = torch.zeros(4, 3)
    for i in range(9):
        loss = cross_entropy(architecture(tensors, x[i : i + 1]), y[i : i + 1])
        expected += torch.autograd.grad(loss, tensors["0.weight"])[0].square() / 9
    assert torch.allclose(found["0.weight"], expected, atol=1e-6)


def test_fisher_sample_by_sample_and_mapped_agree():
    architecture = linear_net()
    tensors = {n: torch.randn_like(t) for n, t in architecture.pretrained.items()}
    x, chances = torch.randn(7, 3), torch.rand(7, 2)

    def answers(weights, sample):
        return architecture(weights, sample[None])[0].log_softmax(0)

    one, other = (f(answers, tensors, x, chances) for f in (_mapped, _one_by_one))
    assert all(torch.allclose(one[n], other[n], atol=1e-5) for n in tensors)


def test_ewc_learns_a_recurrent_network():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.rnn = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True)
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.rnn(self.words(x))[0][:, -1])

    tokens = torch.randint(0, 9, (30, 5))
    learner = EWC(Architecture(Reader()), training={"epochs": 1}, fisher_samples=5)
    learner.learn(Task.from_arrays("read", tokens, torch.arange(30) % 2))
    assert learner.extra_state["importance/rnn.weight_hh_l0"].max() > 0


def test_the_penalties_of_ewc_sum_up_to_one_quadratic():
    learner = EWC(small_net(), training=TRAINING, scenario_type="domain-IL", fisher_samples=20)
    names, seen, weights = ["0.weight", "fc.bias"], [], []
    tasks = permuted()
    for task in tasks[:2]:
        before = {n: learner.extra_state.get(f"importance/{n}", torch.zeros(1)) for n in names}
        learner.learn(task)
        weights.append({n: learner.tensors[n] for n in names})
        seen.append({n: learner.extra_state[f"importance/{n}"] - before[n] for n in names})
    module = learner.begin(tasks[2]).module
    for name in names:
        parameter = next(p for p in module.parts()[name] if p.numel())
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter))
    module.zero_grad()
    module.penalty().backward()
    for name in names:
        parameter = next(p for p in module.parts()[name] if p.numel())
        expected = sum(
            learner.settings.penalty_weight * f[name] * (parameter.detach() - w[name])
            for f, w in zip(seen, weights, strict=True)
        )
        assert torch.allclose(parameter.grad, expected, rtol=1e-3, atol=1e-4)


def two_moons(count: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 3, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def si_training(penalty_weight: float, rate: float) -> DenseTraining:
    x, y = two_moons()
    task = Task("one", (0, 1), Split(x, y), Split(x, y), normalization=Normalization())
    training = {"optimizer": "sgd", "lr": rate, "min_lr": rate, "batch_size": 24}
    settings = {"penalty_weight": penalty_weight, "scenario_type": "domain-IL"}
    return SI(linear_net(), training=training, **settings).begin(task).training


def test_the_path_integral_of_si_is_that_of_a_plain_loop():
    training, (x, y) = si_training(0.7, 0.1), two_moons()
    module = training.network
    with torch.no_grad():
        for importance in module.importance:
            importance.uniform_(0, 1)
        for anchor in module.anchor:
            anchor.add_(0.05)
    weights = [w.detach().clone() for w in module.weights()]
    order = module.protected
    anchors = [a.clone() for a in module.anchor]
    omegas = [i.clone() for i in module.importance]
    path = [torch.zeros_like(w) for w in weights]
    for _ in range(5):
        training.step(x, y)
        live = dict(zip(order, [w.requires_grad_() for w in weights], strict=True))
        h = x @ live["0.weight"].T
        loss = cross_entropy(h @ live["fc.weight"].T + live["fc.bias"], y)
        gradients = torch.autograd.grad(loss, list(live.values()))
        weights = [w.detach() for w in live.values()]
        for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            step = -0.1 * (g + 2 * 0.7 * omegas[i] * (w - anchors[i]))
            path[i] += -g * step
            weights[i] = w + step
    for mine, other, w, v in zip(module.path, path, module.weights(), weights, strict=True):
        assert torch.allclose(mine, other, atol=1e-6) and torch.allclose(w, v, atol=1e-6)


def test_the_path_integrals_of_si_add_up_to_the_loss_taken_off():
    training, (x, y) = si_training(0.0, 1e-3), two_moons()
    before = training.network.loss(x, y).item()
    for _ in range(300):
        training.step(x, y)
    fallen = before - training.network.loss(x, y).item()
    total = sum(p.sum().item() for p in training.network.path)
    assert fallen > 0.005 and abs(total - fallen) < 0.01 * fallen


def test_si_divides_the_path_by_the_squared_movement():
    path, moved = torch.tensor([0.6, 0.6, -0.2]), torch.tensor([0.5, 0.0, 1.0])
    assert torch.allclose(consolidated(path, moved, 0.1), torch.tensor([0.6 / 0.35, 6.0, 0.0]))


def test_si_adds_up_the_importances_of_tasks():
    learner = SI(small_net(), training=TRAINING, scenario_type="domain-IL", penalty_weight=1.0)
    learner.learn(permuted()[0])
    first = learner.extra_state["importance/0.weight"].clone()
    assert first.max() > 0
    learner.learn(permuted()[1])
    assert (learner.extra_state["importance/0.weight"] >= first).all()


def nearest_by_trial(gradient: np.ndarray, references: np.ndarray) -> np.ndarray:
    """The nearest vector that goes against no reference: of all that lie on some of the borders."""
    best = None
    for on_border in itertools.product([False, True], repeat=len(references)):
        active = references[list(on_border)]
        found = gradient - active.T @ np.linalg.lstsq(active.T, gradient, rcond=None)[0]
        if (references @ found >= -1e-9).all() and (
            best is None or np.linalg.norm(found - gradient) < np.linalg.norm(best - gradient)
        ):
            best = found
    assert best is not None
    return best


@pytest.mark.parametrize("num", [1, 2, 5, 8])
def test_gem_satisfies_its_constraints_and_moves_least(num):
    rng = np.random.default_rng(num)
    for _ in range(5):
        references, gradient = rng.normal(size=(num, 30)), rng.normal(size=30)
        result = projection(torch.from_numpy(gradient), torch.from_numpy(references)).numpy()
        assert (references @ result >= -1e-9).all()
        assert np.allclose(result, nearest_by_trial(gradient, references))


def test_gem_leaves_a_diverged_gradient_alone():
    references = torch.tensor([[-1.0, 0.0], [float("inf"), 1.0]])
    gradient = torch.tensor([1.0, 0.0])
    assert torch.equal(projection(gradient, references, margin=0.5), gradient)


def test_gem_with_one_memory_is_a_gem():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        g, r = torch.randn(2, 40, generator=generator, dtype=torch.float64)
        assert torch.allclose(projection(g, r[None]), averaged_projection(g, r), atol=1e-12)
    g = torch.tensor([1.0, 0.0])
    assert torch.equal(averaged_projection(g, torch.tensor([1.0, 1.0])), g)
    assert torch.equal(averaged_projection(g, torch.zeros(2)), g)
    turned = averaged_projection(g, torch.tensor([-1.0, 1.0]))
    assert torch.allclose(turned, torch.tensor([0.5, 0.5]))


def test_gem_takes_parallel_references_and_a_margin():
    r = torch.tensor([[-1.0, 1.0, 0.0], [-2.0, 2.0, 0.0]], dtype=torch.float64)
    g = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    assert torch.allclose(projection(g, r), averaged_projection(g, r[0]), atol=1e-9)
    assert (r @ projection(g, r, margin=0.5) > 0.1).all()
    dual = nonnegative_minimum(np.diag([2.0, 4.0]), np.array([-2.0, 3.0]))
    assert np.allclose(dual, [1.0, 0.0])


def test_a_step_of_gem_goes_against_no_earlier_task():
    learner = GEM(
        small_net(), training=TRAINING, scenario_type="domain-IL", buffer_per_task=50, margin=0.0
    )
    for task in permuted()[:2]:
        learner.learn(task)
    training = learner.begin(permuted()[2]).training
    past, parameters = training.past, training.network.groups()["dense"]
    inputs, labels = past.inputs[:60], (past.labels[:60] + 1) % 10  # not what is remembered
    references = training.references()
    training.backward_(inputs, labels)
    own = flat_gradient(parameters)
    assert len(references) == 2 and any(float(r @ own) < 0 for r in references)
    training.step(inputs, labels)
    used = flat_gradient(parameters)
    assert all(float(r @ used) > -1e-5 for r in references)


def test_the_distillation_of_lwf_is_stationary_at_the_old_parameters():
    learner = LwF(small_net(), training=TRAINING)
    for task in split()[:2]:
        learner.learn(task)
    trainer = learner.begin(split()[2])
    module = trainer.module
    assert isinstance(module, LwFModule) and module.past_columns == ((0, 2), (2, 4))
    inputs, _ = next(iter(trainer.training.train.chunks(50)))

    def slope() -> float:
        module.zero_grad()
        old = module.architecture(module.past_tensors(), inputs)
        distillation(module(inputs), old, module.past_columns, 2.0).backward()
        return max(float(p.grad.abs().max()) for p in [*module.body, *module.old])

    assert slope() < 1e-6
    with torch.no_grad():
        module.body[0].add_(0.05 * torch.randn_like(module.body[0]))
    assert slope() > 1e-4


@pytest.mark.parametrize("seed", range(20))
def test_a_class_balanced_draw_goes_round_the_classes(seed):
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 1 + seed % 7, (50,), generator=generator) * 3
    queues = {g: (groups == g).nonzero().flatten().tolist() for g in groups.unique().tolist()}
    drawn: list[int] = []
    while any(queues.values()):  # one of every class that has any left, the earliest first
        drawn += sorted(queue.pop(0) for queue in queues.values() if queue)
    for count in (0, 1, 17, 50, 80):
        assert class_balanced(groups, count).tolist() == sorted(drawn[:count])


@pytest.mark.parametrize("scenario_type", ["task-IL", "class-IL", "domain-IL"])
@pytest.mark.parametrize("size", [60, 97])
def test_the_memory_of_replay_is_balanced_and_of_the_stated_size(scenario_type, size):
    learner = Replay(small_net(), training=TRAINING, scenario_type=scenario_type, buffer_size=size)
    for number, task in enumerate(permuted()[:2], start=1):
        learner.learn(task)
        memory = ReplayBuffer.of(learner.extra_state)
        assert len(memory) == size
        groups = memory.tasks * 100 + memory.labels % 10
        counts = groups.unique(return_counts=True)[1]
        assert len(counts) == 10 * number and counts.max() - counts.min() <= 1
        start = learner.columns(task.name)[0]
        assert (memory.labels[memory.tasks == number - 1] >= start).all()
    # What is remembered are training samples, with their own labels.
    known = {
        bytes(x.numpy()): int(y)
        for x, y in zip(task.train.inputs(), task.train.labels, strict=True)
    }
    mine = memory.tasks == 1
    for x, y in zip(memory.inputs[mine], memory.labels[mine], strict=True):
        assert known[bytes(x.numpy())] == int(y) - start
    assert learner.ledger().total.memory == 8 * size * (64 + 2 + 2)


@pytest.mark.parametrize("scenario_type", ["task-IL", "class-IL", "domain-IL"])
def test_cumulative_is_joint_training(scenario_type):
    tasks = permuted()[:2]
    learner = Cumulative(small_net(norm=True), training=TRAINING, scenario_type=scenario_type)
    for task in tasks:
        learner.learn(task)
    columns = [(0, 10), (0, 10)] if scenario_type == "domain-IL" else [(0, 10), (10, 20)]
    outputs = Outputs(columns, by_task=scenario_type == "task-IL")

    def join(part: str) -> Split:
        splits = [getattr(t, part) for t in tasks]
        labels = [s.labels + first for s, (first, _) in zip(splits, columns, strict=True)]
        shown = [
            t.normalization if scenario_type == "task-IL" else tasks[0].normalization for t in tasks
        ]
        inputs = [n(s.inputs()) for n, s in zip(shown, splits, strict=True)]
        return Split(torch.cat(inputs), torch.cat(labels))

    joint = dataclasses.replace(
        tasks[1], train=join("train"), valid=join("valid"), normalization=Normalization()
    )
    module = DenseModule(learner.architecture, learner.fresh(outputs.num), outputs)
    one_task = Cumulative(small_net(norm=True), training=TRAINING, scenario_type=scenario_type)
    one_task.learn(tasks[0])  # so that the order of samples is that of a second task
    training = DenseTraining(one_task, module, joint)
    while not training.finished:
        training.epoch()
    training.restore_best_()
    for name, tensor in training.recalibrated(module.eval_tensors()).items():
        assert torch.equal(tensor, learner.tensors[name]), name


def test_cwr_merges_rows_by_the_counts_of_their_classes():
    trained = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    fresh = merged(torch.zeros(2, 2), trained, torch.zeros(2), torch.tensor([10.0, 10.0]))
    assert torch.equal(fresh, trained - 4.0)
    again = merged(fresh, trained, torch.tensor([40.0, 0.0]), torch.tensor([10.0, 10.0]))
    assert torch.allclose(again[0], (2 * fresh[0] + trained[0] - 4) / 3)
    assert torch.equal(again[1], trained[1] - 4)


def test_the_own_weights_of_packnet_are_disjoint_and_the_largest():
    learner = PackNet(small_net(), training=TRAINING, density=0.3)
    own = []
    for task in permuted():
        learner.learn(task)
        owned = learner.store.banks[0].owned
        mask = learner.store.subnet(task.name).mask
        assert torch.equal(mask, owned)  # its own and all earlier ones
        own.append(owned.clone())
    new = [own[0], own[1] & ~own[0], own[2] & ~own[1]]
    shares = [float(n.float().mean()) for n in new]
    assert shares == pytest.approx([0.3, 0.3, 0.3], abs=0.001)
    assert not (new[0] & new[1]).any() and not (new[1] & new[2]).any()


def test_packnet_keeps_a_share_of_the_free_weights_by_magnitude():
    learner = PackNet(small_net(), training=TRAINING, density=0.5, of="free")
    learner.learn(permuted()[0])
    trainer = learner.begin(permuted()[1])
    module = trainer.module
    early = TRAINING["epochs"] - trainer.late_epochs
    while trainer.epochs_done < early:
        trainer.epoch()
    trainer.inner.training.restore_best_()  # the network that is pruned
    values = module.free.detach().abs().clone()
    trainer.prune(module, trainer.inner.training)
    for i, j in module.layout.block_segments:
        free = ~module.owned[i:j]
        kept = module.fixed[i:j] & free
        assert int(kept.sum()) == round(0.5 * int(free.sum()))
        assert values[i:j][kept].min() >= values[i:j][free & ~kept].max()


def test_the_capacity_formula_of_wsn():
    learner = WSN(small_net(), training=TRAINING, density=0.5)
    assert learner.capacity()["wsn"] == 0.0
    learner.learn(permuted()[0])
    # One mask of density ½ cannot be compressed: ½ of the weights, and one bit of 32 for each.
    assert learner.capacity()["wsn"] == pytest.approx(0.5 + 1 / 32, abs=0.001)
    assert learner.store.subnet("p0").bits == 32


class Table:
    """A stand-in for a trained subnet: the accuracy at each width of its codes."""

    mask = torch.ones(1)

    def __init__(self, **accuracies: float) -> None:
        self.table = {None: 0.9} | {int(k[1:]): v for k, v in accuracies.items()}

    def encode(self, mask, bits):
        return bits

    def weights(self, mask, own):
        return own

    def accuracy(self, weights):
        return self.table[weights]


def test_ada_qpacknet_shrinks_codes_while_accuracy_stays_within_two_points():
    settings = AdaQPackNetSettings()
    assert narrowed(Table(b6=0.9, b5=0.89, b4=0.881, b3=0.879, b2=0.9), settings)[0] == 4
    assert narrowed(Table(b6=0.5, b5=0.5), settings)[0] == 6
    assert narrowed(Table(b6=0.9, b5=0.9, b4=0.9, b3=0.9, b2=0.9), settings)[0] == 2
