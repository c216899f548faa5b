"""Training in visible steps: schedules, the best epoch, states that carry on, and validation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import nn
from torch.nn import functional

from nets import TRAINING, Residual, data, learner, mlp, stack, task
from quick import mostly_slow
from tinysubnets.baselines.ewc import EWC
from tinysubnets.baselines.gem import GEM
from tinysubnets.baselines.joint import Naive
from tinysubnets.errors import SettingError, TaskError
from tinysubnets.method.core import SubnetTrainer
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.norms import folded
from tinysubnets.nn.topk import top_k_segments
from tinysubnets.tasks.augment import Augmentation
from tinysubnets.tasks.loader import DeviceLoader
from tinysubnets.training.evaluate import EvalResult, evaluate, pooled_stats, recalibrate_batchnorm
from tinysubnets.training.loop import Training
from tinysubnets.training.optim import OPTIMIZERS, make_optimizer
from tinysubnets.training.settings import TrainingSettings

WAYS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05},
    "adam": {"optimizer": "adam"},
    "plateau": {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "plateau"},
}


def trainer(net: nn.Module | None = None, shape: Any = (6,), **how: Any) -> SubnetTrainer:
    training = {k: how.pop(k) for k in list(how) if k in TrainingSettings.__dataclass_fields__}
    return learner(net, training=training, **how).begin(task(shape=shape))


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("bits", mostly_slow([3, 32], quick=[3]))
def test_a_restored_state_goes_on_as_if_never_interrupted(name: str, bits: int) -> None:
    settings: dict[str, Any] = WAYS[name] | {"epochs": 5, "bits": bits}
    through = trainer(Residual(), (1, 6, 6), **settings)
    reports = [through.epoch() for _ in range(5)]
    through.finish()
    first = trainer(Residual(), (1, 6, 6), **settings)
    first.epoch()
    first.epoch()
    tensors, numbers = first.state()
    first.epoch()  # what comes after must not reach the state that was taken

    second = trainer(Residual(), (1, 6, 6), **settings)
    second.restore_(tensors, numbers)
    again = [second.epoch() for _ in range(3)]
    assert second.finished
    for one, two in zip(reports[2:], again, strict=True):
        assert (one.loss, one.valid_loss, one.lr) == (
            two.loss,
            two.valid_loss,
            two.lr,
        )
    second.finish()
    stores = [trainer.core.store for trainer in (through, second)]
    assert stores[0].digest("a") == stores[1].digest("a")
    assert torch.equal(stores[0].subnet("a").mask, stores[1].subnet("a").mask)


class Wrapper(nn.Module):
    """A module around another one that only counts its calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.calls = module, 0

    def forward(self, *args: Any) -> torch.Tensor:
        self.calls += 1
        return self.module(*args)


def in_one_process(module: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(module)


def by_the_compiler(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")  # type: ignore[return-value]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def states(running: Any) -> list[dict[str, torch.Tensor]]:
    """The state after each of two epochs."""
    out = []
    for _ in range(2):
        running.epoch()
        out.append(running.state()[0])
    return out


# The compiler itself instantiates autograd functions, which torch deprecates.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("method", mostly_slow(["tsn", "ewc", "gem"], ["tsn"]))
@pytest.mark.parametrize("wrap", [Wrapper, in_one_process, by_the_compiler])
def test_a_wrapper_around_the_module_is_trained_through_to_the_same_numbers(
    method: str, wrap: Any, process_group: None
) -> None:
    def second_task() -> Any:
        teacher: Any = learner()
        if method != "tsn":
            teacher = {"ewc": EWC, "gem": GEM}[method](Architecture(mlp()), training=TRAINING)
        teacher.learn(task("a"))
        return teacher.begin(task("b", seed=1))

    plain, wrapped = second_task(), second_task()
    wrapped.training.module = wrap(wrapped.training.module)
    for one, two in zip(states(plain), states(wrapped), strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[n], two[n]) for n in one)
    if wrap is Wrapper:
        gradients = {"tsn": 1, "ewc": 1, "gem": 2}[method]  # of the batch, and of the buffer
        assert wrapped.training.module.calls == 2 * 3 * gradients


def test_a_module_gives_logits_and_with_labels_its_loss() -> None:
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
    weights = torch.tensor([1.0, 2.0, 0.5])
    for module in (trainer().module, Naive(Architecture(mlp())).begin(task()).module):
        assert torch.equal(module(x), module.logits(x)) and module(x).shape == (5, 3)
        assert torch.equal(module(x, y, weights), module.loss(x, y, weights))
        wanted = functional.cross_entropy(module(x), y, weights)
        torch.testing.assert_close(module(x, y, weights), wanted)


def test_a_state_is_tensors_and_plain_numbers() -> None:
    running = trainer()
    running.epoch()
    tensors, numbers = running.state()
    assert all(isinstance(t, torch.Tensor) for t in tensors.values())
    assert all(type(n) in (int, float, bool) for n in numbers.values())
    assert numbers["epoch"] == 1 and any(n.startswith("optimizer.") for n in tensors)


def test_the_best_epoch_has_the_mask_of_its_own_scores() -> None:
    running = trainer(epochs=4, bits=4, score_lr=0.3, post_pruning=False)
    accuracies = iter([0.2, 0.9, 0.5, 0.5])
    running.training.validate = lambda: EvalResult(next(accuracies), 1.0)  # type: ignore[method-assign]
    masks, scores = [], []
    while not running.finished:
        running.epoch()
        masks.append(running.module.mask().clone())
        scores.append(running.module.scores.detach().clone())
    assert not torch.equal(masks[1], masks[3])
    subnet = running.core.store.subnet(running.finish().name)
    assert running.training.progress.best_epoch == 2
    assert torch.equal(running.module.scores, scores[1])
    assert torch.equal(subnet.mask, masks[1])
    for (i, j), k in zip(running.module.layout.block_segments, (18, 30), strict=True):
        best, _ = top_k_segments(scores[1][i:j].abs(), [(0, j - i, k)])
        assert torch.equal(subnet.mask[i:j], best)


def test_of_equal_accuracies_the_lower_loss_is_best() -> None:
    running = trainer(epochs=4)
    results = iter(
        [EvalResult(0.5, 2.0), EvalResult(0.5, 1.0), EvalResult(0.5, 1.5), EvalResult(0.4, 0.1)]
    )
    running.training.validate = lambda: next(results)  # type: ignore[method-assign]
    best = [running.epoch().is_best for _ in range(4)]
    assert best == [True, True, False, False]
    assert running.training.progress.best_epoch == 2


def test_cosine_goes_from_the_first_to_the_final_rate() -> None:
    running = trainer(epochs=3, lr=0.2, min_lr=0.01)
    rates = []
    plain = running.training.step

    def step(*batch: torch.Tensor) -> torch.Tensor:
        rates.append(running.training.optimizer.param_groups[0]["lr"])
        return plain(*batch)

    running.training.step = step  # type: ignore[method-assign]
    reports = [running.epoch() for _ in range(3)]
    assert len(rates) == 3 * running.training.num_steps == 9
    assert rates[0] == pytest.approx(0.2) and rates[-1] == pytest.approx(0.01)
    assert rates[4] == pytest.approx(0.105) and rates == sorted(rates, reverse=True)
    assert reports[-1].lr == pytest.approx(0.01)


def test_plateau_halves_after_six_epochs_and_ends_below_the_final_rate() -> None:
    running = trainer(epochs=100, schedule="plateau", lr=0.1, min_lr=0.02)
    losses = iter([3.0, 2.0, *[2.5] * 6, 1.0, *[1.0] * 200])
    running.training.validate = lambda: EvalResult(0.5, next(losses))  # type: ignore[method-assign]
    rates = []
    while not running.finished:
        rates.append(running.epoch().lr)
    # two better epochs, six waiting; one better epoch, then six waiting per halving
    wanted = [0.1] * 8 + [0.05] * 7 + [0.025] * 6
    assert rates == pytest.approx(wanted)
    assert not running.training.progress.waited


def test_a_constant_rate() -> None:
    running = trainer(epochs=3, schedule="constant", lr=0.03)
    assert [running.epoch().lr for _ in range(3)] == [0.03] * 3


def test_every_optimizer_that_can_be_set_can_be_made() -> None:
    names = get_args(get_type_hints(TrainingSettings)["optimizer"])
    assert set(names) == set(OPTIMIZERS)
    for name in names:
        made = make_optimizer(
            trainer().module.groups(), TrainingSettings(optimizer=name), torch.device("cpu")
        )
        assert type(made) is OPTIMIZERS[name].made
        assert isinstance(made, OPTIMIZERS[name].torch_class)
    with pytest.raises(SettingError, match=r"lamb.*Known: adam, adamw, sgd"):
        make_optimizer({}, TrainingSettings(optimizer="lamb"), torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_without_torch_s_wrappers_updates_to_the_same_bits(name: str) -> None:
    settings, device = TrainingSettings(optimizer=name, weight_decay=0.1), torch.device("cpu")
    kind, finals = OPTIMIZERS[name], []
    for make in (kind.torch_class, kind.made):
        weights = torch.nn.Parameter(torch.linspace(-1, 1, 9))
        optimizer: Any = make
        optimizer = optimizer([weights], weight_decay=0.1, **kind.arguments(settings, device))
        for step in range(3):
            optimizer.zero_grad()
            (weights * (step + 1)).sin().sum().backward()
            optimizer.step()
        again: Any = make
        again = again([weights], **kind.arguments(settings, device))
        again.load_state_dict(optimizer.state_dict())
        (weights**2).sum().backward()
        again.step()
        finals.append(weights.detach().clone())
    assert torch.equal(*finals) and not torch.equal(finals[0], torch.linspace(-1, 1, 9))


def test_scores_have_a_rate_of_their_own_and_no_decay() -> None:
    settings = {"lr": 0.02, "score_lr": 0.002, "weight_decay": 0.1}
    running = trainer(optimizer="adamw", **settings)
    running.epoch()
    groups = {id(g["params"][0]): g for g in running.training.optimizer.param_groups}
    scores, free = groups[id(running.module.scores)], groups[id(running.module.free)]
    assert scores["lr"] == pytest.approx(free["lr"] / 10)
    assert scores["weight_decay"] == 0.0 and free["weight_decay"] == 0.1


def test_a_score_rate_of_zero_keeps_the_first_mask() -> None:
    running = trainer(score_lr=0.0, post_pruning=False, bits=32)
    first = running.module.mask().clone()
    while not running.finished:
        running.epoch()
    assert torch.equal(running.core.store.subnet(running.finish().name).mask, first)


def test_order_and_dropout_follow_from_seed_task_and_epoch() -> None:
    def orders(seed: int, number: int) -> list[list[int]]:
        running = trainer(seed=seed, epochs=2)
        training = Training(
            running.module, running.task, running.training.settings, seed=seed, number=number
        )
        out = []
        for _ in range(2):
            out.append(training.order().tolist())
            training.progress.epoch += 1
        return out

    one = orders(0, 0)
    assert one == orders(0, 0) and one[0] != one[1]
    assert sorted(one[0]) == list(range(36))
    assert one != orders(1, 0) and one != orders(0, 1)


def test_augmented_training_is_repeatable() -> None:
    def run(augmentation: dict[str, Any]) -> str:
        settings = {"epochs": 1, "augmentation": augmentation}
        running = trainer(Residual(), (1, 6, 6), **settings)
        running.epoch()
        running.finish()
        return running.core.store.digest("a")

    augmentation = {"flip": True, "shift": 1}
    assert run(augmentation) == run(augmentation) != run({})


def test_batches_larger_than_the_data() -> None:
    running = trainer(batch_size=1000)
    assert running.training.num_steps == 1
    running.epoch()


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"codebook_updates_per_epoch": 0},
        {"lr": 0.0},
        {"lr": 1e-6},
        {"min_lr": -1.0},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1.0},
        {"score_lr": -1.0},
        {"optimizer": "lamb"},
        {"epochs": 1.5},
        {"epoch": 3},
    ],
)
def test_bad_training_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        learner(training=settings)


def test_accuracy_and_loss_by_hand() -> None:
    architecture = Architecture(mlp())
    made = task()
    tensors = {n: p.detach() for n, p in mlp().named_parameters()}
    batches = DeviceLoader(made.train, made.normalization, "cpu")
    logits = architecture(tensors, made.normalization(made.train.inputs()))
    found = evaluate(architecture, tensors, batches, batch_size=7)
    hits = (logits.argmax(1) == made.train.labels).float().mean()
    assert found.accuracy == pytest.approx(float(hits))
    assert found.loss == pytest.approx(
        float(functional.cross_entropy(logits, made.train.labels)), rel=1e-5
    )


@pytest.mark.parametrize("chunk", [36, 10])
def test_statistics_are_those_of_the_network_and_of_all_data(chunk: int) -> None:
    net = stack(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.9), head=5)
    architecture, made = Architecture(net), task()
    tensors = {n: t.detach().clone() for n, t in [*net.named_parameters(), *net.named_buffers()]}
    tensors.pop("1.num_batches_tracked")
    batches = DeviceLoader(made.train, made.normalization, "cpu")
    out = recalibrate_batchnorm(architecture, tensors, batches, None, chunk)
    hidden = made.normalization(made.train.inputs()) @ tensors["0.weight"].T + tensors["0.bias"]
    torch.testing.assert_close(out["1.running_mean"], hidden.mean(0))
    if chunk == 36:
        torch.testing.assert_close(out["1.running_var"], hidden.var(0))
    else:  # pooled over chunks: the correction for small samples differs a little
        torch.testing.assert_close(out["1.running_var"], hidden.var(0), rtol=0.15, atol=0)
    assert torch.equal(tensors["1.running_mean"], torch.zeros(5))  # the given ones are untouched
    few = recalibrate_batchnorm(architecture, tensors, batches, 9)
    assert not torch.equal(few["1.running_mean"], out["1.running_mean"])


def test_chunks_count_by_their_size() -> None:
    parts = [torch.randn(size, 5) + size for size in (2, 7, 3)]
    found = [(len(p), {"n.running_mean": p.mean(0), "n.running_var": p.var(0)}) for p in parts]
    out, whole = pooled_stats(found), torch.cat(parts)
    torch.testing.assert_close(out["n.running_mean"], whole.mean(0))
    within = sum(len(p) * p.var(0) for p in parts) / len(whole)
    between = sum(len(p) * (p.mean(0) - whole.mean(0)).square() for p in parts) / len(whole)
    torch.testing.assert_close(out["n.running_var"], within + between, rtol=1e-4, atol=1e-5)
    assert out["n.running_var"].dtype == torch.float32


def test_the_stored_statistics_are_those_of_the_final_subnet() -> None:
    running = trainer(Residual(), (1, 6, 6), bits=3, task_param_bits=32)
    while not running.finished:
        running.epoch()
    running.finish()
    store, architecture = running.core.store, running.core.architecture
    trained = {n: t.detach() for n, t in running.module.tensors(store.weights("a")).items()}
    again = recalibrate_batchnorm(architecture, trained, running.training.train, None)
    expected, stored = folded(architecture, again), store.tensors("a")
    for spec in architecture.task_params:
        torch.testing.assert_close(stored[spec.name], expected[spec.name], rtol=1e-6, atol=1e-7)
    stale = folded(architecture, trained)
    assert any(not torch.allclose(stored[n], stale[n], rtol=1e-3) for n in stale)


def test_reports_say_what_happened() -> None:
    running = trainer(epochs=2)
    one, two = running.epoch(), running.epoch()
    assert (one.task, one.epoch, two.epoch, two.epochs) == ("a", 1, 2, 2)
    assert one.is_best and one.loss > 0 and 0 <= one.valid_accuracy <= 1
    assert running.training.progress.seconds >= two.seconds > 0


def test_two_learners_side_by_side_do_not_meet() -> None:
    """Tasks trained in turn, an epoch each, end as if trained one after the other."""
    alone = [trainer(Residual(), (1, 6, 6), seed=s) for s in (0, 1)]
    for running in alone:
        while not running.finished:
            running.epoch()
        running.finish()
    turns = [trainer(Residual(), (1, 6, 6), seed=s) for s in (0, 1)]
    while not turns[0].finished:
        for running in turns:
            running.epoch()
    for one, two in zip(alone, turns, strict=True):
        two.finish()
        assert one.core.store.digest("a") == two.core.store.digest("a")
    x, _ = data((1, 6, 6))
    assert not torch.equal(alone[0].core.store.logits("a", x), alone[1].core.store.logits("a", x))


@pytest.mark.parametrize("bits", [3, 32])
def test_diverged_training_says_what_to_do_and_leaves_the_learner_alone(bits: int) -> None:
    running = trainer(bits=bits, epochs=3, optimizer="sgd", lr=1e30, min_lr=1e29)
    with pytest.raises(TaskError, match=r"diverged.*Lower training\.lr"):
        while not running.finished:
            running.epoch()
    assert running.core.store.tasks == ()


@pytest.mark.parametrize("post_pruning", [False, True])
def test_what_is_kept_is_measured_exactly_whatever_training_is(post_pruning: bool) -> None:
    """Epochs and trials of post-pruning are only compared with one another."""
    seen = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 5)
            self.fc = nn.Linear(5, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            flags = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
            seen.append((self.training, any(flags), torch.backends.cudnn.benchmark))
            return self.fc(self.body(inputs).relu())

    running = trainer(Watching(), epochs=1, precision="tf32", post_pruning=post_pruning)
    seen.clear()
    running.epoch()
    assert {tuple(how) for training, *how in seen if training} == {(True, True)}
    assert {tuple(how) for training, *how in seen if not training} == {(True, False)}
    seen.clear()
    running.finish()
    running.core.store.logits("a", torch.zeros(2, 6))
    evaluated = {tuple(how) for _, *how in seen}
    assert evaluated == ({(False, False), (True, False)} if post_pruning else {(False, False)})


@pytest.mark.parametrize(("views", "last"), [(False, True), (True, False)])
def test_images_come_channels_last_where_the_network_takes_them(views: bool, last: bool) -> None:
    made = task("a", shape=(3, 8, 8))
    batches = DeviceLoader(made.train, made.normalization, "cpu")
    convolution = nn.Conv2d(3, 4, 3)

    def network(inputs: torch.Tensor) -> torch.Tensor:
        out = convolution(inputs)
        return out.view(len(out), -1) if views else out.flatten(1)

    plain = batches.batch(torch.arange(5))[0]
    batches.prefer_channels_last_(network)
    inputs = batches.batch(torch.arange(5))[0]
    assert inputs.is_contiguous(memory_format=torch.channels_last) == last
    assert torch.equal(inputs, plain)
    for fill in ("black", "mean"):
        changed = batches.batch(torch.arange(5), Augmentation(flip=True, shift=1, fill=fill))[0]
        assert changed.is_contiguous(memory_format=torch.channels_last) == last


class ViewsInTraining(nn.Module):
    """A network whose training alone views activations, which channels last do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(144, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = self.convolution(inputs)
        return self.fc(out.view(len(out), -1) if self.training else out.flatten(1))


def test_a_network_that_views_in_training_alone_is_trained() -> None:
    one = learner(ViewsInTraining())
    one.learn(task("a", shape=(3, 8, 8)))
    assert one.tasks == ("a",)


def losses(*pairs: tuple[float, float]) -> Any:
    """Validation results in order: accuracy and loss of each epoch."""
    found = iter([EvalResult(accuracy, loss) for accuracy, loss in pairs])
    return lambda: next(found)


EPOCHS = ((0.5, 3.0), (0.8, 2.0), (0.8, 1.0), (0.9, 1.5), (0.9, math.inf), (0.7, 1.1))


@pytest.mark.parametrize(
    ("kept_epoch", "samples", "best"),
    [
        ("accuracy", 48, 4),
        ("loss", 48, 3),
        ("last", 48, 6),
        ("auto", 48, 6),  # 12 of them to validate with
        ("auto", 400, 4),
        ("last", 400, 6),
    ],
)
def test_the_epoch_that_is_kept(
    kept_epoch: str, samples: int, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = learner(training={"epochs": 6, "kept_epoch": kept_epoch})
    made = learn.begin(task(samples=samples))
    monkeypatch.setattr(made.training, "validate", losses(*EPOCHS))
    reports = [made.epoch() for _ in range(6)]
    assert made.training.progress.best_epoch == best
    assert [r.epoch for r in reports if r.is_best][-1] == best
