"""TinySubNets end to end: banks, bits, codebooks, modules, errors, and how well it learns."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nets import NETWORKS, Residual, data, learned, learner, mlp, stack, task
from tinysubnets import scenarios
from tinysubnets.errors import ArchitectureError, SettingError, TaskError
from tinysubnets.method import compress
from tinysubnets.method.compress import is_as_good, store_task_params
from tinysubnets.method.learner import TinySubNets
from tinysubnets.method.settings import VARIANTS
from tinysubnets.networks import build
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.divergence import InputStatistics
from tinysubnets.tasks.task import Split, Task
from tinysubnets.training.evaluate import EvalResult


def test_the_learner_never_sees_test_data() -> None:
    """Poisoned test labels change nothing that is learned; unreadable test inputs do not matter."""

    class Unreadable:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("test data were read")

    x, y = data(samples=60)
    labels = (y[48:], y[48:][::-1])
    tasks = [Task.from_arrays("a", x[:48], y[:48], test=(x[48:], t)) for t in labels]
    hidden = Split(Unreadable(), torch.zeros(9, dtype=torch.long))
    tasks.append(dataclasses.replace(tasks[0], test=hidden))
    digests = []
    for made in tasks:
        learn = learner()
        subnet = learned(learn, made)
        digests.append((learn.store.digest("a"), subnet.valid_accuracy, subnet.bits))
    assert digests[0] == digests[1] == digests[2]


def test_validation_labels_do_matter() -> None:
    """The comparison above can fail: what validation says decides what is kept."""
    x, y = data(samples=60)
    results = []
    for labels in (y[48:], y[48:][::-1]):
        learn = learner(training={"epochs": 4})
        learn.learn(Task.from_arrays("a", x[:48], y[:48], valid=(x[48:], labels)))
        results.append(learn.store.digest("a"))
    assert results[0] != results[1]


@functools.lru_cache
def two_tasks(name: str) -> TinySubNets:
    """A learner of tasks a and b by a network of that name, not to be changed."""
    make, shape = NETWORKS[name]
    learn = learner(make(), density=0.6)
    learn.learn(task("a", shape))
    learn.learn(task("b", shape, seed=1))
    return learn


@pytest.mark.parametrize("name", NETWORKS)
def test_one_sample_alone_and_in_a_batch(name: str) -> None:
    shape, learn = NETWORKS[name][1], two_tasks(name)
    x = torch.from_numpy(data(shape, samples=40, seed=7)[0])
    together = learn.logits("a", x)
    alone = torch.cat([learn.logits("a", x[i : i + 1]) for i in range(len(x))])
    assert (together - alone).abs().max() < 1e-5
    clear = together.topk(2).values.diff(dim=1).abs().flatten() > 1e-4
    assert torch.equal(together.argmax(1)[clear], alone.argmax(1)[clear]) and clear.sum() > 30
    shuffled = learn.logits("a", x.flip(0)).flip(0)
    assert (together - shuffled).abs().max() < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_a_task_s_module_is_plain_and_equal(name: str) -> None:
    shape, learn = NETWORKS[name][1], two_tasks(name)
    x = torch.from_numpy(data(shape, seed=7)[0])
    for task_name in ("a", "b"):
        module = learn.store.module(task_name)
        with torch.no_grad():
            assert torch.equal(module(x), learn.logits(task_name, x))
        kinds = {type(m).__module__ for m in module.modules()}
        assert not any(k.startswith("tinysubnets") for k in kinds)
        held = [*module.parameters(), *module.buffers()]
        assert held and all(type(t) in (torch.Tensor, nn.Parameter) for t in held)
        assert not module.training
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        assert torch.equal(twin(x), learn.logits("b", x))  # the store is not touched either


def test_modules_take_raw_inputs_as_the_user_has_them() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(48) % 3
    images = (rng.integers(0, 60, (48, 1, 6, 6)) + 60 * y[:, None, None, None]).astype(np.uint8)
    for rule in ("auto", None):
        learn = learner(Residual())
        learn.learn(Task.from_arrays("a", images, y, normalization=rule))
        with torch.no_grad():
            answer = learn.store.module("a")(torch.from_numpy(images))
        assert torch.equal(answer, learn.logits("a", images))
    make, _ = NETWORKS["transformer"]
    tokens, y = data("tokens")
    learn = learner(make())
    learn.learn(Task.from_arrays("a", tokens.astype(np.int16), y))
    with torch.no_grad():
        answer = learn.store.module("a")(torch.from_numpy(tokens.astype(np.int16)))
    assert torch.equal(answer, learn.logits("a", tokens))


def test_the_module_has_the_task_s_classes() -> None:
    learn = learner(mlp(classes=10))
    learn.learn(task("a", classes=4))
    module = learn.store.module("a")
    assert module.network.fc.out_features == 4  # type: ignore[union-attr]
    assert module(torch.zeros(2, 6)).shape == (2, 4)


def test_tasks_of_different_widths_live_together() -> None:
    learn = learner(mlp())
    for name, classes in (("a", 2), ("b", 5), ("c", 3)):
        learn.learn(task(name, classes=classes, samples=60))
        assert learn.logits(name, data()[0]).shape == (48, classes)
    assert learn.tasks == learn.store.tasks == ("a", "b", "c")
    assert learn.logits("a", np.zeros((0, 6), dtype=np.float32)).shape == (0, 2)


@pytest.mark.slow
def test_adaptive_bits_take_the_least_width_within_the_tolerance() -> None:
    for tolerance in (0.0, 0.03, 0.2, 1.0):
        learn = learner(
            mlp(6, 16),
            training={"epochs": 12},
            tolerance=tolerance,
            density=0.7,
            post_pruning=False,
        )
        trainer = learn.begin(task(samples=150, classes=5))
        while not trainer.finished:
            trainer.epoch()
        trainer.training.restore_best_()
        work = compress.Compressor(trainer.module, trainer.training)
        full = work.accuracy(work.weights(work.mask, None))
        enough = [
            bits
            for bits in range(2, 9)
            if work.accuracy(work.weights(work.mask, work.encode(work.mask, bits)))
            >= full - tolerance
        ]
        assert trainer.finish().bits == (enough[0] if enough else 8)


@pytest.mark.parametrize(
    ("accuracies", "first", "wanted"),
    [
        ([0.9, 0.5, 0.6, 0.896], 2, 4),
        ([0.9, 0.95], 2, 2),
        ([0.9, 0.8, 0.9], 3, 4),
        ([0.9, *[0.1] * 7], 2, 8),
    ],
)
def test_adaptive_bits_by_scripted_accuracies(
    accuracies: list[float], first: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = iter(accuracies)
    monkeypatch.setattr(compress.Compressor, "accuracy", lambda *_: next(script))
    learn = learner(mlp(6, 40), first_bits=first, tolerance=0.005, post_pruning=False)
    assert learn.learn(task()).bits == wanted
    assert next(script, None) is None


@pytest.mark.parametrize("bits", [2, 5, 32])
def test_fixed_bits(bits: int) -> None:
    learn = learner(mlp(6, 20), bits=bits, density=0.5, post_pruning=False)
    subnet = learned(learn, task())
    values = learn.store.banks[0].values
    for own, (i, j) in zip(subnet.own, learn.store.layout.segments, strict=True):
        kept = values[i:j][subnet.mask[i:j]]
        assert torch.equal(own.decode(), kept)
        assert len(kept.unique()) <= 2**bits
        if bits == 32:
            assert own.codes is None and len(kept.unique()) > 32


def test_one_codebook_per_task_or_per_layer() -> None:
    for scope, books in (("task", 1), ("layer", 2)):
        learn = learner(mlp(6, 20), bits=2, density=0.5, codebooks=scope, post_pruning=False)
        subnet = learned(learn, task())
        assert len(subnet.own) == books
        used = learn.store.banks[0].values[subnet.mask]
        assert len(used.unique()) <= 4 * books
        assert len(used.unique()) > 4 * (books - 1)


def test_few_new_weights_are_stored_as_themselves() -> None:
    learn = learner(mlp(6, 10), bits=6, density=0.5, post_pruning=False)
    subnet = learned(learn, task())
    assert [c.codes is None for c in subnet.own] == [True, True]  # 30 and 50 of 64 centroids
    free = learn.store.banks[0].values[subnet.mask]
    assert torch.equal(torch.cat([c.decode() for c in subnet.own]), free)


@pytest.mark.parametrize("task_params", ["auto", 4, 8, 16, 32])
def test_private_tensors_are_what_is_stored(task_params: int | str) -> None:
    learn = learner(Residual(), task_param_bits=task_params)
    subnet = learned(learn, task(shape=(1, 6, 6)))
    tensors = learn.store.tensors("a")
    for name, coded in subnet.task_params.items():
        assert torch.equal(tensors[name].flatten(), coded.decode())
        constant = coded.codes is not None and coded.bits == 0
        if task_params in (4, 8) and not constant:
            assert coded.grid is not None
            mantissa = coded.grid.mantissa
            assert name == "fc.weight" or mantissa == int(task_params) - 1
    if task_params == 16:
        head = subnet.task_params["fc.weight"].decode()
        assert torch.equal(head, head.half().float())


def norms(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Gains and shifts of two norms, one channel of them dead, and a head."""
    gains = torch.randn(2, 64, generator=generator).mul(0.5).exp()
    gains[0, 3], gains[1, 5] = 316.0, 1e-3  # hardly any variance; very much
    shifts = torch.randn(2, 64, generator=generator) * 0.4
    return {
        "a.weight": gains[0],
        "a.bias": shifts[0],
        "b.weight": gains[1],
        "b.bias": shifts[1],
        "b.running_mean": torch.zeros(64),
        "fc.weight": torch.randn(10, 64, generator=generator) * 0.1,
        "fc.bias": torch.randn(10, generator=generator) * 0.1,
    }


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_gains_are_rounded_by_their_share_and_offsets_by_the_typical_one(bits: int) -> None:
    exact = norms(torch.Generator().manual_seed(0))
    coded = store_task_params(exact, bits, head="fc")
    assert list(coded) == list(exact)
    assert coded["b.running_mean"].bits == 0 and len(coded["b.running_mean"].values) == 1
    for name in ("a.weight", "b.weight"):
        share = (coded[name].decode() / exact[name] - 1).abs()
        assert float(share.max()) <= 2.0**-bits  # the dead channel and the loud one too
    for name in ("a.bias", "b.bias"):
        lost = (coded[name].decode() - exact[name]).abs()
        assert float(lost.max()) <= 2.0**-bits * float(exact[name].abs().max())
        assert float(lost[exact[name].abs() < 0.25].max()) <= 2.0**-bits * 0.25
    assert coded["a.weight"].grid == coded["b.weight"].grid
    assert coded["a.bias"].grid == coded["b.bias"].grid != coded["fc.bias"].grid
    head = exact["fc.weight"].flatten()
    lost = (coded["fc.weight"].decode() - head).abs().max()
    assert float(lost) <= 0.5 * float(head.square().mean().sqrt()) / 2 ** (bits - 3)
    kept = store_task_params(exact, 32, head="fc")
    assert all(kept[n].decode().equal(exact[n].flatten()) for n in exact)


def test_values_that_are_no_numbers_are_kept_as_they_are() -> None:
    odd = {"a.bias": torch.tensor([1.0, float("inf"), 2.0]), "a.weight": torch.tensor([1.0, 2.0])}
    coded = store_task_params(odd, 4, head="fc")
    assert coded["a.bias"].decode().equal(odd["a.bias"]) and coded["a.bias"].grid is None
    assert coded["a.weight"].decode().equal(odd["a.weight"])


def test_a_sample_more_or_less_does_not_make_parameters_wider() -> None:
    exact = EvalResult(0.75, 0.8)
    assert is_as_good(EvalResult(0.748, 5.0), exact, 500, 0.002)  # within the tolerance
    assert is_as_good(EvalResult(0.744, 0.805), exact, 500, 0.002)  # three images, the same loss
    assert not is_as_good(EvalResult(0.744, 0.83), exact, 500, 0.002)  # three, and a worse loss
    assert not is_as_good(EvalResult(0.72, 0.8), exact, 500, 0.002)  # fifteen
    assert is_as_good(EvalResult(0.725, 0.8), exact, 40, 0.0)  # one of forty
    assert not is_as_good(EvalResult(0.70, 0.8), exact, 40, 0.0)  # two
    assert not is_as_good(EvalResult(0.75, float("nan")), exact, 500, 0.002)


def test_reported_accuracy_is_that_of_the_stored_task() -> None:
    for name in ("mlp", "batchnorm_resnet"):
        make, shape = NETWORKS[name]
        learn = learner(make(), training={"epochs": 4})
        made = task(shape=shape)
        learn.learn(made)
        answers = learn.logits("a", made.valid.inputs()).argmax(1)
        assert learn.reports["a"].valid_accuracy == pytest.approx(
            float((answers == made.valid.labels).float().mean())
        )


def test_banks_follow_the_divergence() -> None:
    learn = learner(mlp(), max_banks=2, threshold=3.0)
    for name, seed, offset in (("a", 0, 0.0), ("far", 1, 50.0), ("near", 0, 0.1), ("out", 2, -50)):
        learn.learn(task(name, seed=seed, offset=offset))
    banks = {t: learn.store.subnet(t).bank for t in learn.tasks}
    assert banks == {"a": 0, "far": 1, "near": 0, "out": 0}
    reasons = {t: learn.reports[t].reason for t in learn.tasks}
    assert "first" in reasons["a"] and "a new bank" in reasons["far"]
    assert "like 'a'" in reasons["near"] and "all 2 banks are open" in reasons["out"]
    decision = learn.store.subnet("out").decision
    divergences = learn.store.divergences("out")
    assert decision is not None and set(divergences) == {"a", "far", "near"}
    assert decision.nearest == min(divergences, key=divergences.__getitem__)


@pytest.mark.parametrize("memory", ["statistics", "samples"])
def test_memory_of_either_kind_decides_the_same(memory: Any) -> None:
    learn = learner(mlp(), memory=memory, memory_samples=12)
    learn.learn(task("a"))
    learn.learn(task("b", seed=1, offset=50.0))
    kept = learn.store.subnet("a").memory
    if memory == "samples":
        assert isinstance(kept, torch.Tensor) and kept.shape == (12, 6)
        inputs = task("a").train.inputs()
        assert all((inputs == row).all(1).any() for row in kept)
    else:
        assert isinstance(kept, InputStatistics)
    assert learn.store.subnet("b").bank == 1


def test_variants() -> None:
    for name, settings in VARIANTS.items():
        learn = learner(mlp(), **settings)
        for number in range(2):
            learn.learn(task(f"t{number}", seed=number, offset=50.0 * number))
        assert len(learn.store.banks) == (2 if name == "tsn" else 1)
        assert (learn.store.subnet("t0").memory is None) == (name != "tsn")
        assert learn.settings.post_pruning == (name != "tsn-wr-wpp")


def test_no_memory_of_earlier_tasks() -> None:
    learn = learner(mlp(), **VARIANTS["tsn-wr"])
    learn.learn(task("a"))
    going_on = TinySubNets(learn.architecture, store=learn.store, training=learn.training)
    assert "nothing to compare" in going_on.begin(task("b", seed=1)).decision.reason


def snapshot(learn: TinySubNets) -> tuple[Any, ...]:
    store = learn.store
    digests = [store.digest(t) for t in store.tasks]
    owned = [int(b.owned.sum()) for b in store.banks]
    return store.tasks, digests, owned, dict(learn.reports), torch.random.get_rng_state().tolist()


def test_bad_tasks_leave_the_learner_unchanged() -> None:
    learn = learner(mlp())
    learn.learn(task("first"))
    before = snapshot(learn)
    bad: list[tuple[Any, type[Exception], str]] = [
        (task("first", seed=1), TaskError, "learned already"),
        (task("b", (7,)), ArchitectureError, r"shape \(2, 7\)"),
        (task("b", (2, 8)), ArchitectureError, "fails"),
        (task("b", "tokens"), ArchitectureError, "int64"),
        ("first", TaskError, "Task is needed"),
    ]
    for made, error, message in bad:
        with pytest.raises(error, match=message):
            learn.learn(made)
        assert snapshot(learn) == before


def test_unknown_tasks_get_the_nearest_name() -> None:
    learn = learner(mlp())
    learn.learn(task("flowers"))
    x, _ = data()
    calls = [learn.logits, learn.predict, lambda t, _: learn.store.module(t)]
    for call in [*calls, lambda t, _: learn.store.digest(t)]:
        with pytest.raises(TaskError, match="Did you mean 'flowers'"):
            call("flower", x)
    with pytest.raises(TaskError, match="give its name"):
        learn.logits(None, x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0.0}, "density = 0"),
        ({"density": 1.5}, "above 0, at most 1"),
        ({"density": -0.1}, "density"),
        ({"density": float("nan")}, "density"),
        ({"density": "half"}, "expected a number"),
        ({"densty": 0.5}, "Did you mean 'density'"),
        ({"bit": 4}, "Did you mean 'bits'"),
        ({"bits": 0}, "bits = 0"),
        ({"bits": 9}, "1 to 8"),
        ({"bits": True}, "bits"),
        ({"sharing": "some"}, "'values', 'none'"),
        ({"block": 0}, "block"),
        ({"max_banks": 0}, "max_banks"),
        ({"memory": None}, "memory"),
        ({"memory_samples": 1}, "memory_samples"),
        ({"score_init": "hot"}, "'random', 'previous_mask'"),
        ({"init": "random"}, "'seeded', 'pretrained'"),
        ({"task_param_bits": 3}, "task_param_bits"),
        ({"layer_loss_weight": -1.0}, "layer_loss_weight"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"threshold": -1.0}, "threshold"),
        ({"training": {"epoch": 3}}, "Did you mean 'training.epochs'"),
        ({"pruning": {"steps": 3}}, "Did you mean 'pruning.step'"),
        ({"device": "cdua"}, "device"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TinySubNets(Architecture(mlp()), **settings)


def test_a_trainer_over_a_store_that_moved_on_is_refused() -> None:
    learn = learner(mlp())
    late, early = learn.begin(task("late")), learn.begin(task("early", seed=1))
    for trainer in (early, late):
        while not trainer.finished:
            trainer.epoch()
    early.finish()
    before = snapshot(learn)
    with pytest.raises(TaskError, match="begin it again"):
        late.finish()
    with pytest.raises(TaskError, match="begin it again"):
        early.finish()
    assert snapshot(learn) == before


def test_what_is_learned_is_frozen() -> None:
    learn = learner(mlp())
    subnet = learned(learn, task("a"))
    with pytest.raises(AttributeError):
        subnet.bits = 3  # type: ignore[misc]
    with pytest.raises(TaskError, match="learned already"):
        learn.store.add_(subnet)


def test_density_is_the_share_kept() -> None:
    for density, block in itertools.product((0.1, 0.5, 1.0), (1, 4)):
        net = stack(nn.Linear(6, 10), nn.ReLU(), head=10)
        learn = learner(net, density=density, block=block, post_pruning=False)
        mask = learned(learn, task()).mask
        assert int(mask.sum()) == round(density * (60 if block == 1 else 20))


@pytest.fixture(scope="module")
def permuted() -> list[Task]:
    scenario = scenarios.build("permuted-digits", seed=0)
    return [scenario.task(i) for i in range(len(scenario.names))]


def digit_learner(**settings: Any) -> TinySubNets:
    return TinySubNets(Architecture(build("mlp", in_features=64, hidden=(100, 100))), **settings)


def test_inputs_that_do_not_fit_are_named_in_prediction() -> None:
    teacher = learner()
    teacher.learn(task())
    with pytest.raises(TaskError, match=r"cannot take torch\.float32 inputs of shape \(2, 5\)"):
        teacher.predict("a", torch.zeros(2, 5))


def test_a_bare_network_is_refused_with_the_cure() -> None:
    with pytest.raises(ArchitectureError, match=r"not Sequential; wrap the network: Architecture"):
        TinySubNets(mlp())  # type: ignore[arg-type]
