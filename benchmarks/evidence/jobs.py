"""The runs behind the published tables, as lists of jobs in the order in which they are worth most.

Recipes are chosen on validation data with development seeds (100 and up; lists named `choose-…`)
and measured once on test seeds 0 to 4. Seconds are estimates for one run with twelve at once on an
H200, or for one CPU core where a list is meant for cores; `run.py LIST --dry-run` adds them up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "results"
TEST_SEEDS = (0, 1, 2, 3, 4)
DEVELOPMENT_SEED = 100


@dataclass(frozen=True)
class Job:
    """One run: what is published as `results/<table>/<name>.json`.

    - `settings`: assignments `key=value` over the recipe.
    - `seconds`: how long it takes, estimated.
    """

    table: str
    name: str
    recipe: str
    method: str
    seed: int
    settings: tuple[str, ...] = ()
    seconds: int = 60

    @property
    def key(self) -> str:
        """Its place among the results."""
        return f"{self.table}/{self.name}"

    @property
    def measures_model(self) -> bool:
        """Whether operations, fixed point and latency are measured on its model before it goes."""
        tables = ("paper-permuted-mnist", "paper-split-cifar100")
        first = self.seed == 0 and self.table.startswith("equal-kilobytes")
        return self.method.startswith("tsn") and (self.table in tables or first)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a process of its own."""
        return asdict(self)


def _seeds(
    table: str, label: str, recipe: str, method: str, seeds: tuple[int, ...],
    settings: tuple[str, ...] = (), seconds: int = 60,
) -> Iterator[Job]:  # fmt: skip
    for seed in seeds:
        yield Job(table, f"{label}-s{seed}", recipe, method, seed, settings, seconds)


# 1. Equal kilobytes: ours and separate small networks on one axis, on test seeds, with transfer.

_SMALL = "best/split-cifar100"
_MLP = "best/permuted-mnist"
_MLP_OF_PAPER = "best/permuted-mnist-paper-network"


def equal_kilobytes() -> Iterator[Job]:
    """The frontier on test seeds; `…-alone` is every task by the same recipe without the others."""
    table = "equal-kilobytes-cifar100"
    ours = ((24, 0.02), (16, 0.02), (32, 0.04), (8, 0.05))
    points: list[tuple[str, str, tuple[str, ...]]] = [
        (f"tsn-w{w}-d{d:g}", "tsn", (f"network.width={w}", f"tsn.density={d}")) for w, d in ours
    ]
    rivals = ((16, 0.15, 1), (16, 0.07, 1), (24, 0.15, 1), (8, 0.25, 1))
    rivals += ((24, 0.07, 1), (32, 0.05, 1), (8, 1.0, 2))
    for width, density, bits in rivals:
        own = (f"network.width={width}", f"separate.density={density}", f"separate.bits={bits}")
        label = f"separate-w{width}-d{density:g}-b{bits}"
        points.append((label, "separate", (*own, "separate.scale=he")))
    for width in (24, 16):
        alone = (f"network.width={width}", "tsn.reference=none")
        points.append((f"tsn-w{width}-alone", "tsn", alone))
    for label, method, own in points:
        yield from _seeds(table, label, _SMALL, method, TEST_SEEDS, own, 30)
    paper_network = "best/split-cifar100-paper-network"
    yield from _seeds(table, "tsn-alexnet", paper_network, "tsn-wr", TEST_SEEDS, (), 60)
    isolated = ("tsn.isolated=true",)
    yield from _seeds(
        table, "tsn-alexnet-alone", paper_network, "tsn-wr", TEST_SEEDS[:1], isolated, 60
    )
    table = "equal-kilobytes-mnist"
    yield from _seeds(table, "tsn-wr", _MLP, "tsn-wr", TEST_SEEDS, (), 220)
    denser = ("tsn.density=0.0258", "routing.parts=[]")  # in as many bytes
    yield from _seeds(table, "tsn-wr-no-routing", _MLP, "tsn-wr", TEST_SEEDS, denser, 220)
    signs = "best/permuted-mnist-paper-network-signs"
    yield from _seeds(table, "tsn-wr-paper-network-signs", signs, "tsn-wr", TEST_SEEDS, (), 250)
    # Sparse signs of a network like ours would be the same runs: no task refers to another here.
    for width, density, bits in ((100, 0.03, 2), (24, 1.0, 4)):
        own = (
            f"network.hidden=[{width}, {width}]",
            f"separate.density={density}",
            "separate.density_exponent=0.2",
            f"separate.bits={bits}",
        )
        label = f"separate-w{width}-d{density:g}-b{bits}"
        yield from _seeds(table, label, _MLP, "separate", TEST_SEEDS, own, 180)
    yield from _seeds(table, "tsn-wr-paper-network", _MLP_OF_PAPER, "tsn-wr", TEST_SEEDS, (), 400)


# The recipes of two more scenarios, with the same training: small residual networks of signs.
_FIVE = ("mnist", "emnist-letters", "fashion-mnist", "cifar10", "notmnist-small")
_FIVE_SET = (
    "scenario=five-datasets",
    f"data.datasets={json.dumps(_FIVE)}",
    "training.batch_size=256",
    "training.augmentation.flip=false",  # letters have a left and a right
    "training.augmentation.shift=2",
    "routing.dims=64",  # where files are large, more dimensions are nearly free
)
_TINY_SET = ("scenario=tiny-imagenet", "data.dataset=tiny-imagenet")
_SIGNS = ("separate.scale=he", "separate.bits=1")


def _ours(width: int, density: float, first: float, *others: str) -> tuple[str, ...]:
    sizes = (f"network.width={width}", f"tsn.density={density}", f"tsn.first_density={first}")
    return (*sizes, *others)


def _rival(width: int, density: float, *others: str) -> tuple[str, ...]:
    return (f"network.width={width}", f"separate.density={density}", *_SIGNS, *others)


def _candidates(
    table: str, common: tuple[str, ...], labels: Mapping[str, tuple[str, ...]], seconds: int
) -> Iterator[Job]:
    """Settings to choose among on validation data, with the development seed."""
    for label, own in labels.items():
        method = label.partition("-")[0]
        settings = (*common, "data.test=false", *own)
        yield Job(table, label, _SMALL, method, DEVELOPMENT_SEED, settings, seconds)


def choose_five_datasets() -> Iterator[Job]:
    """Ours and separate networks on five data sets.

    In ten epochs, and where the weight decay is less also in twenty: an easy first task can lose
    whole layers to a strong decay, which later tasks then lack.
    """
    labels = {
        "tsn-w24-d0.05": _ours(24, 0.05, 0.05),
        "tsn-w24-d0.05-similar": _ours(24, 0.05, 0.05, "tsn.reference=similar"),
        "tsn-w24-d0.08": _ours(24, 0.08, 0.05),
        "tsn-w32-d0.04": _ours(32, 0.04, 0.04),
        "separate-w24-d0.1": _rival(24, 0.1),
        "separate-w24-d0.05": _rival(24, 0.05),
        "separate-w32-d0.05": _rival(32, 0.05),
        "separate-w16-d0.1": _rival(16, 0.1),
    }
    for decay in ("5e-4", "1.5e-3"):
        less = (f"training.weight_decay={decay}", "training.epochs=20", "routing.dims=96")
        labels |= {
            f"tsn-w32-d0.05-decay-{decay}": _ours(32, 0.05, 0.05, *less),
            f"separate-w32-d0.05-decay-{decay}": _rival(32, 0.05, *less),
        }
    common = (*_FIVE_SET, "training.epochs=10")
    yield from _candidates("choose-five-datasets", common, labels, 60)


def find_five_datasets() -> Iterator[Job]:
    """How often the task is found on five data sets, by a network for a CPU core: one test seed.

    From some of the training images, and from all of them. The network is small and its training
    short: accuracy is not the question here.
    """
    small = ("training.batch_size=128", "training.epochs=3", "training.precision=float32")
    found = ("routing.dims=64", "routing.frequencies=8", "routing.per_class=true")
    settings = (*_FIVE_SET, *_ours(8, 0.2, 0.2, *small, *found))
    for label, own, seconds in (
        ("tsn-w8-d0.2-12000-images", ("data.train_limit=12000",), 400),
        ("tsn-w8-d0.2", (), 1200),
    ):
        table = "find-five-datasets"
        yield from _seeds(table, label, _SMALL, "tsn", (0,), (*settings, *own), seconds)


def choose_tiny_imagenet() -> Iterator[Job]:
    """Ours and separate networks on the first eight tasks of Tiny-ImageNet.

    First with images halved by the network's first layer, then whole.
    """
    ours = {
        "tsn-w24-d0.02": _ours(24, 0.02, 0.3),
        "tsn-w32-d0.02": _ours(32, 0.02, 0.3),
        "tsn-w24-d0.04": _ours(24, 0.04, 0.3),
        "tsn-w16-d0.04": _ours(16, 0.04, 0.3),
    }
    rivals = {f"separate-w{w}-d{d:g}": _rival(w, d) for w, d in ((16, 0.07), (16, 0.15))}
    halved = {k: (*v, "network.stride=2") for k, v in (ours | rivals).items()}
    kept = ("tsn-w24-d0.02", "tsn-w16-d0.04", *rivals)
    whole = {f"{k}-whole-images": (ours | rivals)[k] for k in kept}
    whole["separate-w8-d0.25-whole-images"] = _rival(8, 0.25)
    common = (*_TINY_SET, "data.num_tasks=8")
    yield from _candidates("choose-tiny-imagenet", common, halved | whole, 30)


def choose_alexnet() -> Iterator[Job]:
    """The paper's AlexNet as differences of signs: four tasks of split CIFAR-100."""
    common = (
        "tsn.selection=magnitude",
        "tsn.reference=previous",
        "tsn.bits=1",
        "tsn.first_bits=1",
        "tsn.training_bits=1",
        "tsn.post_pruning=false",
        "tsn.scale=he",
        "tsn.difference_decay=1e-3",
        "tsn.density_exponent=0.2",
        "training.epochs=50",
        "training.precision=bfloat16",
        "training.augmentation.fill=mean",
        "data.num_tasks=4",
        "data.test=false",
    )
    slow = ("training.warmup_epochs=1",)
    sgd = (
        *slow,
        "training.optimizer=sgd",
        "training.momentum=0.9",
        "training.nesterov=true",
        "training.lr=0.05",
        "training.weight_decay=4e-3",
    )
    labels: dict[str, tuple[float, float, tuple[str, ...]]] = {
        "d0.01-first0.1": (0.01, 0.1, sgd),
        "d0.01-first0.05": (0.01, 0.05, sgd),
        "d0.005-first0.1": (0.005, 0.1, sgd),
        "d0.01-first0.1-decay-1e-3": (0.01, 0.1, (*sgd, "training.weight_decay=1e-3")),
        "d0.01-first0.1-adam": (0.01, 0.1, (*slow, "training.lr=2e-3", "training.weight_decay=0")),
        "d0.01-first0.1-no-dropout": (0.01, 0.1, (*sgd, "network.dropout=0")),
    }
    recipe = "best/split-cifar100-paper-network"
    for label, (density, first, how) in labels.items():
        settings = (*common, *how, f"tsn.density={density}", f"tsn.first_density={first}")
        yield Job("choose-alexnet", f"tsn-{label}", recipe, "tsn", DEVELOPMENT_SEED, settings, 60)


def check_tried(table: str, label: str) -> None:
    """Refuse to measure on test data what has no result on validation data."""
    if not (RESULTS / table / f"{label}.json").exists():
        raise NotChosenError(f"{label} was not tried: run the list {table} first.")


def equal_kilobytes_tiny() -> Iterator[Job]:
    """The whole of Tiny-ImageNet on test seeds, ours and separate networks, as was chosen.

    What is measured here must have been tried on validation data.
    """
    table = "equal-kilobytes-tiny-imagenet"
    for label, own in (
        ("tsn-w24-d0.02", _ours(24, 0.02, 0.3)),
        ("separate-w16-d0.15", _rival(16, 0.15)),
        ("separate-w16-d0.07", _rival(16, 0.07)),
    ):
        check_tried("choose-tiny-imagenet", f"{label}-whole-images")
        method = label.partition("-")[0]
        yield from _seeds(table, label, _SMALL, method, (0, 1, 2), (*_TINY_SET, *own), 220)


# 2. The paper's own protocol.

_TF32 = ("training.precision=tf32",)
_AT_HAND = ("mnist", "emnist-letters", "fashion-mnist", "cifar10-small", "notmnist-small")
_STAND_INS = f"data.datasets={json.dumps(_AT_HAND)}"


def paper() -> Iterator[Job]:
    """`paper/*` on permuted MNIST and split CIFAR-100: three seeds, without post-pruning one."""
    for scenario, seconds in (("permuted-mnist", 240), ("split-cifar100", 420)):
        recipe = f"paper/{scenario}"
        for method in ("tsn-wr", "tsn"):
            yield from _seeds(
                f"paper-{scenario}", method, recipe, method, (0, 1, 2), _TF32, seconds
            )
        yield from _seeds(
            f"paper-{scenario}", "tsn-wr-wpp", recipe, "tsn-wr-wpp", (0,), _TF32, seconds
        )
        for label, change in (
            ("tsn-wr-no-layer-loss", "tsn.layer_loss_weight=0"),
            ("tsn-wr-layer-loss-1", "tsn.layer_loss_weight=1"),
            ("tsn-wr-commit", "tsn.layer_loss=commit"),
        ):
            yield from _seeds(
                f"paper-{scenario}", label, recipe, "tsn-wr", (0,), (*_TF32, change), seconds
            )


def paper_large() -> Iterator[Job]:
    """TSN-wr by the paper's recipe on five data sets and the whole of Tiny-ImageNet, one seed."""
    yield Job(
        "paper-five-datasets",
        "tsn-wr-stand-ins-s0",
        "paper/five-datasets",
        "tsn-wr",
        0,
        (*_TF32, _STAND_INS),
        900,
    )
    yield Job("paper-tiny-imagenet", "tsn-wr-s0", "paper/tiny-imagenet", "tsn-wr", 0, _TF32, 1500)


def paper_bits() -> Iterator[Job]:
    """TSN-wr by the paper's recipes with codes of other widths, one seed: its Table 6."""
    for scenario, widths, data, seconds in (
        ("permuted-mnist", (3, 5), (), 240),
        ("split-cifar100", (3, 5), (), 420),
        ("five-datasets", (3, 5), (_STAND_INS,), 900),
        ("tiny-imagenet", (3, 4), (), 1500),  # the recipe's own are 5
    ):
        for bits in widths:
            settings = (*_TF32, *data, f"tsn.bits={bits}")
            name, recipe = f"{scenario}-{bits}-bits-s0", f"paper/{scenario}"
            yield Job("paper-bits", name, recipe, "tsn-wr", 0, settings, seconds)


# 3. The main table: every method at its best.

_CIFAR = "best/split-cifar100-paper-network"
_CIFAR_SET = ("training.epochs=20", "network.dropout=1.0", "training.lr=3e-3")
_MNIST_SET = ("training.epochs=10",)
_RATES = ("training.lr=1e-3", "training.lr=3e-3", "training.lr=1e-2", "training.lr=3e-4")
_DENSITIES = (0.035, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Row:
    """A row of the main table.

    - `values`: of its main dial, one of which validation chooses; "a.b=1 c=2" sets `a.c` as well.
    - `fixed`: what else is set, whatever the value.
    """

    method: str
    values: tuple[str, ...]
    fixed: tuple[str, ...] = ()


def _row(method: str, key: str, values: tuple[float, ...]) -> Row:
    return Row(method, tuple(f"{key}={v}" for v in values))


_ROWS: dict[str, Row] = {
    "naive": Row("naive", _RATES),
    "cumulative": Row("cumulative", _RATES),
    "independent": Row("independent", _RATES),
    "replay": Row("replay", _RATES),
    "ewc": _row("ewc", "ewc.penalty_weight", (10.0, 100.0, 300.0, 1000.0)),
    "si": _row("si", "si.penalty_weight", (0.1, 0.3, 1.0, 3.0)),
    "packnet": Row(
        "packnet",
        tuple(
            f"packnet.{v}"
            for v in ("density=0.05", "density=0.1", "density=0.2 of=free", "density=0.5 of=free")
        ),
    ),
    "wsn": _row("wsn", "wsn.density", _DENSITIES),
    # Its tasks share nothing: with more than a tenth each, ten do not fit.
    "ada-qpacknet": _row("ada-qpacknet", "ada-qpacknet.density", (0.05, 0.1, 0.025, 0.075)),
    "separate": _row("separate", "separate.density", (0.02, 0.05, 0.1, 0.3)),
    "tsn-wr": _row("tsn-wr", "tsn.density", (0.02, 0.035, 0.07, 0.15)),
    "tsn": _row("tsn", "tsn.density", (0.02, 0.035, 0.07, 0.15)),
}
# Permuted MNIST alone: values beyond the end of a dial that was best there; dense networks of half
# the width and 4 bits; signs as in our own recipe, which is not of this network.
_MORE_VALUES = {
    "naive": ("training.lr=1e-4",),
    "ewc": ("ewc.penalty_weight=3.0", "ewc.penalty_weight=30.0"),
}
_MNIST_ROWS: dict[str, Row] = {
    "separate-small": Row(
        "separate",
        (
            "separate.density=0.1",
            "separate.density=0.3",
            "separate.density=1.0",
            "separate.density=1.0 training.lr=1e-3",
        ),
        ("network.hidden=[48, 48]", "separate.bits=4"),
    ),
    "tsn-wr-signs": Row(
        "tsn-wr",
        tuple(f"tsn.density={v}" for v in (0.02, 0.03, 0.05, 0.1)),
        (
            "tsn.selection=magnitude",
            "tsn.density_exponent=0.25",
            "tsn.bits=1",
            "tsn.post_pruning=false",
        ),
    ),
}


def rows_of(data: str) -> dict[str, Row]:
    """The rows of a main table, by their labels."""
    if data != "mnist":
        return _ROWS
    longer = {
        label: replace(_ROWS[label], values=(*_ROWS[label].values, *values))
        for label, values in _MORE_VALUES.items()
    }
    return _ROWS | longer | _MNIST_ROWS


# Rivals by our codec: weights in 4 bits where theirs have 32, task-specific parameters rounded.
SAME_CODEC = {
    "wsn": ("wsn.bits=4", "wsn.task_param_bits=auto", "wsn.density_exponent=0.7"),
    "packnet": ("packnet.bits=4", "packnet.task_param_bits=auto"),
    "ada-qpacknet": ("ada-qpacknet.task_param_bits=auto",),
}
OWN_NORMS = ("naive", "replay", "ewc", "si")  # dense methods that can have norms per task
_OTHER_TYPES = {
    "cifar100": {m: ("class-IL",) for m in ("naive", "cumulative", "replay")},
    "mnist": {
        "naive": ("class-IL", "domain-IL"),
        "cumulative": ("class-IL", "domain-IL"),
        "replay": ("class-IL", "domain-IL"),
        "ewc": ("domain-IL",),
        "si": ("domain-IL",),
    },
}
_SECONDS = {"cumulative": 220, "wsn": 92, "ewc": 100}  # others about 75, on CIFAR-100


def _place(data: str) -> tuple[str, tuple[str, ...]]:
    return (_CIFAR, _CIFAR_SET) if data == "cifar100" else (_MLP_OF_PAPER, _MNIST_SET)


def assignments(value: str) -> tuple[str, ...]:
    """The assignments of a dial's value; what has no table of its own is of the first one's."""
    first, *others = value.split(" ")
    table = first.partition(".")[0]
    return (first, *(o if "." in o.partition("=")[0] else f"{table}.{o}" for o in others))


def _choose(data: str) -> Iterator[Job]:
    """All values of all dials on the first four tasks, with the development seed.

    Without test data, so that all accuracies are of validation data, also those in the end.
    """
    recipe, common = _place(data)
    short = (*common, "data.num_tasks=4", "data.test=false")
    for label, row in rows_of(data).items():
        for number, value in enumerate(row.values):
            settings = (*short, *row.fixed, *assignments(value))
            seconds = _SECONDS.get(row.method, 75) * 4 // 10 if data == "cifar100" else 50
            name = f"{label}-{number}"
            yield Job(
                f"choose-{data}", name, recipe, row.method, DEVELOPMENT_SEED, settings, seconds
            )


class NotChosenError(LookupError):
    """Runs on test seeds were asked for before validation has chosen their settings."""


def scores(data: str, results: Path) -> dict[str, dict[str, float]]:
    """The validation accuracy of every value of every row that was tried, by the row's label."""
    found: dict[str, dict[str, float]] = {}
    for label, row in rows_of(data).items():
        for number, value in enumerate(row.values):
            path = results / f"choose-{data}" / f"{label}-{number}.json"
            if not path.exists():
                continue
            result = json.loads(path.read_text(encoding="utf-8"))
            if result["measured_on"] != ["valid"]:
                raise SystemExit(f"{path} was measured on test data: nothing is chosen by it.")
            for key, wanted in (one.split("=", 1) for one in assignments(value)):
                table, _, name = key.partition(".")
                used = result["settings"].get(table, {}).get(name)
                if used not in (wanted, _number(wanted)):
                    raise SystemExit(f"{path} is of {key}={used}, its place is that of {wanted}.")
            found.setdefault(label, {})[value] = result["metrics"]["average_accuracy"]
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def chosen(data: str, results: Path | None = None) -> Mapping[str, str]:
    """For every row tried with all values that with the best validation accuracy."""
    tried = scores(data, results or RESULTS)
    rows = rows_of(data)
    whole = {label: v for label, v in tried.items() if len(v) == len(rows[label].values)}
    return {label: max(values, key=lambda v: values[v]) for label, values in whole.items()}


def _settings(data: str, label: str) -> tuple[str, ...]:
    """What a row of the main table sets, with the value that validation chose."""
    row, values = rows_of(data)[label], chosen(data)
    if label not in values:
        raise NotChosenError(f"no value of {label} is chosen: run the list choose-{data} first.")
    return (*_place(data)[1], *row.fixed, *assignments(values[label]))


def _main(data: str) -> Iterator[Job]:
    """Every method with its chosen dial on the test seeds, also without the task where defined."""
    recipe, table = _place(data)[0], f"main-{data}"
    for label, row in rows_of(data).items():
        settings = _settings(data, label)
        seconds = _SECONDS.get(row.method, 75) if data == "cifar100" else 120
        yield from _seeds(table, label, recipe, row.method, TEST_SEEDS, settings, seconds)
        for kind in _OTHER_TYPES[data].get(label, ()):
            own = (*settings, f"{row.method}.scenario_type={kind}")
            name = f"{label}-{kind}"
            yield from _seeds(table, name, recipe, row.method, TEST_SEEDS, own, seconds)
    for method in OWN_NORMS if data == "cifar100" else ():  # the small MLP has no norms
        own = (*_settings(data, method), f"{method}.norms=per_task")
        yield from _seeds(table, f"{method}-own-norms", recipe, method, TEST_SEEDS, own, 75)
    for method, codec in SAME_CODEC.items():
        own = (*_settings(data, method), *codec)
        yield from _seeds(table, f"{method}-same-codec", recipe, method, TEST_SEEDS, own, 80)
    # The spread of initialization alone: one class order, five seeds of learning; and of class
    # orders alone: one seed of learning, five of the data. Their first runs are the same.
    table, own = f"spread-{data}", _settings(data, "tsn-wr")
    fixed = (*own, "data.seed=0")
    yield from _seeds(table, "tsn-wr-one-order", recipe, "tsn-wr", TEST_SEEDS, fixed, 75)
    for seed in TEST_SEEDS:
        name, drawn = f"tsn-wr-one-start-data{seed}-s0", (*own, f"data.seed={seed}")
        yield Job(table, name, recipe, "tsn-wr", 0, drawn, 75)


# 4. Curves over densities.


def _curves(data: str) -> Iterator[Job]:
    recipe, common = _place(data)
    rows = rows_of(data)
    for label in ("tsn-wr", "wsn", "packnet", "ada-qpacknet", "separate", *_MNIST_ROWS):
        for number, value in enumerate(rows[label].values if label in rows else ()):
            settings = (*common, *rows[label].fixed, *assignments(value))
            name, method = f"{label}-{number}", rows[label].method
            yield from _seeds(f"curves-{data}", name, recipe, method, TEST_SEEDS[:3], settings, 75)


# 5. One blind transfer, and what banks and bit-widths decide.


def blind_transfer() -> Iterator[Job]:
    """The CIFAR-100 recipes of the main table, unchanged, on Tiny-ImageNet of 20 × 10, once."""
    recipe = _place("cifar100")[0]
    data = (
        "scenario=tiny-imagenet",
        "data.dataset=tiny-imagenet",
        "data.classes_per_task=10",
        "data.image_size=32",
    )
    for label, row in rows_of("cifar100").items():
        settings = (*data, *_settings("cifar100", label))
        seconds = 2 * _SECONDS.get(row.method, 75)
        yield Job("blind-transfer", f"{label}-s0", recipe, row.method, 0, settings, seconds)


def unlike_tasks() -> Iterator[Job]:
    """Banks and adaptive bit-width, each switched off, on a stream of unlike tasks."""
    recipe = "best/five-datasets-local"
    whole = (
        "tsn.max_banks=2",
        "tsn.memory=statistics",
        "tsn.threshold=50",
        "tsn.bits=auto",
        "tsn.first_bits=1",
    )
    for label, changes in (
        ("all", ()),
        ("one-bank", ("tsn.max_banks=1",)),
        ("four-bits", ("tsn.bits=4",)),
        ("one-bank-four-bits", ("tsn.max_banks=1", "tsn.bits=4")),
    ):
        yield from _seeds("unlike-tasks", label, recipe, "tsn", (0, 1, 2), (*whole, *changes), 400)


# 6. Longer sequences.


def long() -> Iterator[Job]:
    """A hundred tasks of permuted MNIST; CIFAR-100 in 20 tasks of five classes, or superclasses."""
    many = ("data.num_tasks=100",)
    yield Job("long-mnist", "tsn-wr-100-tasks-s0", _MLP, "tsn-wr", 0, many, 2700)
    for label, own in (
        ("tsn-20x5", ("data.classes_per_task=5",)),
        ("tsn-superclasses", ("data.class_order=superclasses",)),
    ):
        yield from _seeds("long-cifar100", label, _SMALL, "tsn", (0, 1, 2), own, 40)


# 7. What each ingredient of our recipes is worth: taken away, or put another way, alone.

_MNIST_INGREDIENTS: dict[str, tuple[str, ...]] = {
    "whole": (),
    "scores": ("tsn.selection=scores",),
    "two-bits": ("tsn.bits=2",),
    "four-bits": ("tsn.bits=4",),
    "unquantized": ("tsn.bits=32",),
    "equal-densities": ("tsn.density_exponent=0",),
    "biases": ("network.bias=true",),
    "paper-widths": ("network.hidden=[100, 100]", "tsn.density=0.03"),
    "previous-task": ("tsn.reference=previous",),
    "post-pruning": ("tsn.post_pruning=true",),
    "float-heads": ("tsn.task_param_bits=32",),
    "no-routing": ("routing.parts=[]",),
}
_CIFAR_INGREDIENTS: dict[str, tuple[str, ...]] = {
    "whole": (),
    "no-augmentation": ("training.augmentation.flip=false", "training.augmentation.shift=0"),
    "black-borders": ("training.augmentation.fill=black",),
    "weight-decay-5e-4": ("training.weight_decay=5e-4",),
    "no-nesterov": ("training.nesterov=false", "training.warmup_epochs=0"),
    "equal-densities": ("tsn.density_exponent=0",),
    "four-bits": ("tsn.bits=4",),
    "unquantized": ("tsn.bits=32",),
    "no-reference": ("tsn.reference=none",),
    "similar-task": ("tsn.reference=similar",),
    "first-task-15": ("tsn.first_density=0.15",),
    "post-pruning": ("tsn.post_pruning=true",),
    "float-norms-and-heads": ("tsn.task_param_bits=32",),
    "no-routing": ("routing.parts=[]",),
}


def ablation() -> Iterator[Job]:
    """Every ingredient alone, on test seeds; validation accuracy is in the same runs."""
    for label, own in _MNIST_INGREDIENTS.items():
        yield from _seeds("ablation-mnist", label, _MLP, "tsn-wr", (0, 1), own, 250)
    for label, own in _CIFAR_INGREDIENTS.items():
        yield from _seeds("ablation-cifar100", label, _SMALL, "tsn", (0, 1), own, 30)


# 8. On CPU cores: the grid that separates causes.

GRID_SET = (
    "training.epochs=5",
    "data.train_limit=20000",
    "data.test_limit=5000",
    "tsn.layer_loss_weight=0",
    "training.schedule=cosine",
)


def grid() -> Iterator[Job]:
    """Scores redrawn, re-ranked or going on × quantized in every step, in place, or afterwards."""
    for seed in (0, 1, 2):
        for start in ("random", "previous_mask", "continue"):
            for label, own in (
                ("every-step", ("tsn.quantization=straight_through",)),
                ("in-place", ("tsn.quantization=in_place",)),
                (
                    "after",
                    (
                        "tsn.bits=auto",
                        "tsn.first_bits=4",
                        "tsn.tolerance=1.0",
                        "tsn.training_bits=32",
                    ),
                ),
            ):
                settings = (*GRID_SET, f"tsn.score_init={start}", *own)
                name = f"{start}-{label}-s{seed}"
                yield Job("grid-mnist", name, "paper/permuted-mnist", "tsn-wr", seed, settings, 60)


LISTS: dict[str, Callable[[], Iterator[Job]]] = {
    "equal-kilobytes": equal_kilobytes,
    "choose-five-datasets": choose_five_datasets,
    "find-five-datasets": find_five_datasets,
    "choose-tiny-imagenet": choose_tiny_imagenet,
    "choose-alexnet": choose_alexnet,
    "equal-kilobytes-tiny": equal_kilobytes_tiny,
    "paper": paper,
    "choose-cifar100": lambda: _choose("cifar100"),
    "main-cifar100": lambda: _main("cifar100"),
    "curves-cifar100": lambda: _curves("cifar100"),
    "blind-transfer": blind_transfer,
    "paper-large": paper_large,
    "paper-bits": paper_bits,
    "unlike-tasks": unlike_tasks,
    "long": long,
    "ablation": ablation,
    "choose-mnist": lambda: _choose("mnist"),
    "main-mnist": lambda: _main("mnist"),
    "curves-mnist": lambda: _curves("mnist"),
    "grid": grid,
}
