"""Forged model files that ask for far more than they hold, every hash in them correct."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch

import models
from forge import Sections, opened
from tinysubnets import networks
from tinysubnets.coding.byte_io import Writer
from tinysubnets.format.container import KINDS, assemble
from tinysubnets.format.sections import write_factors
from tinysubnets.model.bank import Bank, Base
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import (
    BASE,
    NO_BANK,
    CodebookTensor,
    CodedMask,
    PackedMask,
    Sample,
    Subnet,
)
from tinysubnets.nn.architecture import Architecture, TensorSpec
from tinysubnets.nn.init import weights_hash
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.low_rank import Factors
from tinysubnets.tasks.normalization import Normalization

Forgery = Callable[[dict[str, Any], Sections], None]


def huge_head(classes: int) -> Forgery:
    """A head of so many classes in the settings of the network, its tensors made constants."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["architecture"]["rebuild"]["settings"]["classes"] = classes
        for entry in config["architecture"]["task_params"]:
            if entry[0].startswith("fc."):
                entry[2:] = [0.5]

    return change


def many_tasks(tasks: int, tensors: int) -> Forgery:
    """Many tasks with many task-specific tensors, of which the file holds nothing."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        one = {k: config["tasks"][1][k] for k in ("bits", "classes")}
        config["tasks"] = [dict(one, name=f"t{i}", bank=0) for i in range(tasks)]
        config["next"] = tasks
        config["architecture"]["task_params"] += [[f"p{i}", [1]] for i in range(tensors)]
        for kind in KINDS:
            sections[kind] = [sections[kind][0] if kind == "masks" else b""] * tasks

    return change


def wide_tasks(tasks: int, hidden: int) -> Forgery:
    """Many tasks over large shared tensors, every mask empty and three bytes long."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        shared = config["architecture"]["shared"]
        shared[0][1], shared[1][1] = [hidden, 6], [10, hidden]
        config["architecture"]["rebuild"]["settings"]["hidden"] = [hidden, 10]
        for entry in config["architecture"]["task_params"]:
            if entry[0] == "fc1.bias":
                entry[1] = [hidden]
        one = {k: config["tasks"][1][k] for k in ("bits", "classes")}
        config["tasks"] = [dict(one, name=f"t{i}", bank=0) for i in range(tasks)]
        config["next"] = tasks
        for kind in KINDS:
            sections[kind] = [b""] * tasks
        sections["masks"] = [b"\0\x03\x01"] * tasks  # no reference; Rice; no ones

    return change


def filler(text: str) -> Forgery:
    """A class label that is nothing but long, beside many short ones."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["classes"].append([text, *(f"c{i}" for i in range(20_000))])
        config["tasks"][0]["classes"] = len(config["classes"]) - 1

    return change


def set_tasks(value: Any, filler: int = 0) -> Forgery:
    """Other entries in place of the tasks.

    - `filler`: digits of a label that cannot be deflated: they make room for as much other text as
      a reader may accept.
    """

    def change(config: dict[str, Any], sections: Sections) -> None:
        config["tasks"] = value
        if filler:
            config["classes"].append([random.Random(0).randbytes(filler // 2).hex()])
        for kind in KINDS:
            sections[kind] = [b""] * min(len(value), 100_000)

    return change


def constants(count: int) -> Forgery:
    """Many constant buffers of no values."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["architecture"]["constants"] = [[f"c{i}", "f64", [0]] for i in range(count)]

    return change


def large_constant() -> Forgery:
    """A constant buffer that the file does not hold."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["architecture"]["constants"] = [["c", "f64", [1 << 36]]]

    return change


def many_shared(count: int) -> Forgery:
    """Many shared tensors of one weight."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["architecture"]["shared"] += [[f"w{i}", [1, 1]] for i in range(count)]

    return change


def repeated_names(count: int) -> Forgery:
    """One name for many tensors."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["architecture"]["task_params"] += [["fc.bias", [3]]] * count

    return change


def deep(depth: int) -> Forgery:
    """Settings nested deeply."""

    def change(config: dict[str, Any], _: Sections) -> None:
        value: Any = 0
        for _i in range(depth):
            value = [value]
        config["architecture"]["rebuild"]["settings"]["hidden"] = value

    return change


def far_banks(tasks: int) -> Forgery:
    """A bank for every task."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        wide_tasks(tasks, 20_000)(config, sections)
        for number, task in enumerate(config["tasks"]):
            task["bank"] = number
        config["banks"] = tasks

    return change


def bare_tasks(tasks: int, hidden: int) -> Forgery:
    """The same tasks with every task-specific parameter one number: a valid model."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        wide_tasks(tasks, hidden)(config, sections)
        config["absent"] = [[[0, len(config["architecture"]["task_params"]), 1, 0.5]]]
        for task in config["tasks"]:
            task["absent"] = 0

    return change


def empty_banks(count: int, hidden: int) -> Forgery:
    """Many banks that no task is in, over large shared tensors."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        bare_tasks(2, hidden)(config, sections)
        config["banks"] = count

    return change


def chain(tasks: int) -> Forgery:
    """Tasks that each add their weights to those of the one before."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        bare_tasks(tasks, 4_000)(config, sections)
        for number, task in enumerate(config["tasks"][1:]):
            task["reference"] = number

    return change


def differences(tasks: int) -> Forgery:
    """Tasks in no bank that each add their weights to those of the first."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        bare_tasks(tasks, 2_000)(config, sections)
        for task in config["tasks"][1:]:
            del task["bank"]
            task["reference"] = 0

    return change


def over_the_first(tasks: int, hidden: int, rank: int = 0) -> Forgery:
    """Tasks that add nothing to the first one's weights, or a product of zeros in few bytes."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        bare_tasks(tasks, hidden)(config, sections)
        sections["masks"][1:] = [b""] * (tasks - 1)
        kind: dict[str, Any] = {"rank": rank} if rank else {"empty": True}
        for task in config["tasks"][1:]:
            del task["bank"]
            task |= {"reference": 0} | kind
        if rank:
            sections["codes"][1:] = [zero_factors(hidden, rank)] * (tasks - 1)

    return change


def zero_factors(hidden: int, rank: int) -> bytes:
    """The codes of factors of zeros for a network with so many hidden units."""
    layout = Layout([TensorSpec("a", (hidden, 6)), TensorSpec("b", (10, hidden))])
    factors = Factors(layout, rank)
    zeros = [torch.zeros(size, dtype=torch.uint8) for size in factors.sizes.values()]
    own = [CodebookTensor(torch.tensor([0.0, 1.0]), codes, 1) for codes in zeros]
    return write_factors(own, factors)


def nameless(count: int) -> Forgery:
    """Entries of weights alone, of which the file holds nothing but an empty mask."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        bare_tasks(count, 10)(config, sections)
        config["tasks"][1:] = [{"bank": 0, "bits": 1}] * (count - 1)

    return change


def routing(vectors: int) -> Forgery:
    """Routing numbers in many vectors of next to no length."""

    def change(_: dict[str, Any], sections: Sections) -> None:
        out = Writer()
        out.varint(vectors)
        for number in range(vectors):
            out.block(number.to_bytes(3, "big"))
            out.varint(0)
        sections["routing"][1] = out.bytes()

    return change


def absent(tasks: int, size: int) -> Forgery:
    """Tasks with a large task-specific parameter that is one number everywhere."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        many_tasks(tasks, 0)(config, sections)
        table = config["architecture"]["task_params"]
        table.append(["large", [size]])
        config["absent"] = [[[0, len(table), 1, 0.5]]]
        for task in config["tasks"]:
            task["absent"] = 0

    return change


def base_of_nothing() -> Forgery:
    """A base that is not in the file, under tasks that all refer to it."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["base"] = {"name": "b", "source": "nowhere", "sha256": "0" * 64}
        for task in config["tasks"]:
            task["reference"] = "base"

    return change


def empty_over_a_base(tasks: int, hidden: int) -> Forgery:
    """Tasks that add nothing to a base of so many weights, which is not in the file."""

    def change(config: dict[str, Any], sections: Sections) -> None:
        wide_tasks(tasks, hidden)(config, sections)
        config["base"] = {"name": "b", "source": "nowhere", "sha256": "0" * 64}
        for task in config["tasks"]:
            del task["bank"]
            task |= {"reference": "base", "empty": True}
        config["banks"] = 0
        sections["masks"] = [b""] * tasks
        config["absent"] = [[[0, len(config["architecture"]["task_params"]), 1, 0.5]]]
        for task in config["tasks"]:
            task["absent"] = 0
        # Parameters as wide would be refused for their own sake.
        for entry in config["architecture"]["task_params"]:
            if entry[0] == "fc1.bias":
                entry[1] = [6]

    return change


def low_rank_over_a_base(tasks: int, hidden: int) -> Forgery:
    """Differences of rank 2 to such a base, whose factors are zeros in few bytes.

    Of a huge base the factors are too few: those of one with 2,000 hidden units.
    """

    def change(config: dict[str, Any], sections: Sections) -> None:
        empty_over_a_base(tasks, hidden)(config, sections)
        for task in config["tasks"]:
            del task["empty"]
            task["rank"] = 2
        sections["codes"] = [zero_factors(min(hidden, 2_000), 2)] * tasks

    return change


def preprocessings(count: int) -> Forgery:
    """Many ways of preprocessing that no task refers to."""

    def change(config: dict[str, Any], _: Sections) -> None:
        config["preprocessing"] = [{"a": i} for i in range(count)]

    return change


FORGERIES: dict[str, Forgery] = {
    "head-of-forty-million": huge_head(40_000_000),
    "head-of-a-billion": huge_head(10**9),
    "head-of-a-million": huge_head(1_000_000),
    "tasks-times-tensors": many_tasks(2000, 20_000),
    "tasks-times-few-tensors": many_tasks(4000, 500),
    "wide-masks": wide_tasks(2000, 4_000),
    "wider-masks": wide_tasks(4000, 100_000),
    "a-bank-each": far_banks(300),
    "class-name-filler": filler("x" * 15_000_000),
    "class-name-filler-of-wide-characters": filler("x" * 3_000_000 + "\U0001f600"),
    "tasks-that-are-zeros": set_tasks([0] * 8_000_000),
    "tasks-that-are-empty": set_tasks([{}] * 4_000_000),
    "tasks-of-three-keys": set_tasks([{"a": 0, "b": 0, "c": 0}] * 100_000),
    "as-many-zeros-as-are-accepted": set_tasks([0] * 600_000, 200_000),
    "as-many-tables-as-are-accepted": set_tasks([{}] * 240_000, 200_000),
    "as-many-lists-as-are-accepted": set_tasks([[0, 0, 0]] * 150_000, 200_000),
    "many-constants": constants(50_000),
    "a-large-constant": large_constant(),
    "many-shared-tensors": many_shared(30_000),
    "repeated-names": repeated_names(50_000),
    "deep-settings": deep(900),
    "empty-banks": empty_banks(5_000, 10),
    "very-many-empty-banks": empty_banks(65_536, 10),
    "wide-empty-banks": empty_banks(60_000, 100_000),
    "a-long-chain": chain(400),
    "a-short-chain": chain(16),
    "differences": differences(60),
    "tasks-that-add-nothing": over_the_first(100, 2_000),
    "many-tasks-that-add-nothing": over_the_first(1_000, 100_000),
    "products-of-zeros": over_the_first(60, 600, rank=2),
    "many-products-of-zeros": over_the_first(300, 100_000, rank=2),
    "nameless-entries": nameless(5_000),
    "routing-filler": routing(1_000_000),
    "absent-but-large": absent(200, 1_000_000),
    "a-base-that-is-not-there": base_of_nothing(),
    "empty-tasks-over-a-huge-base": empty_over_a_base(100, 100_000_000),
    "low-rank-over-a-base": low_rank_over_a_base(100, 2_000),
    "low-rank-over-a-huge-base": low_rank_over_a_base(100, 100_000_000),
    "many-preprocessings": preprocessings(200_000),
}


# Those of them that are valid models, and hard to read.
VALID = {"empty-banks", "a-short-chain", "differences", "nameless-entries", "many-preprocessings"}
VALID |= {"tasks-that-add-nothing", "products-of-zeros", "many-products-of-zeros"}


def wide_model() -> SubnetStore:
    """A valid model of many tasks whose masks and parameters take next to nothing in the file."""
    hidden = [4000, 250]
    settings = {"in_features": 6, "hidden": hidden, "classes": 3}
    record = {"network": "mlp", "settings": settings, "head": "fc"}
    net = networks.build("mlp", **settings)
    store = SubnetStore(Architecture(net, rebuild=record), settings=models.SETTINGS)
    mask = PackedMask.of(torch.zeros(store.layout.num_blocks, dtype=torch.bool))
    coded = CodedMask(0, b"\x03\x01")  # no reference; Rice; no ones
    store.banks = [Bank(store.layout)]
    shapes = store.architecture.task_param_shapes(3)
    params = {
        n: CodebookTensor(torch.tensor([0.5, 1.0]), torch.zeros(prod(s), dtype=torch.uint8), 1)
        for n, s in shapes.items()
    }
    for number in range(200):
        own = (CodebookTensor(torch.zeros(0)),) * len(store.layout.shared)
        name, sample = f"t{number}", Sample(torch.float32, (6,))
        store.subnets[name] = Subnet(
            name, ("a", "b", "c"), Normalization((0.0,), (1.0,)), 0, mask, 4, own, params, shapes,
            coded_mask=coded, sample=sample, number=number,
        )  # fmt: skip
    store.next_number = 200
    return store


def low_rank_model() -> SubnetStore:
    """A valid model of differences of low rank to a large base, which is in the file."""
    settings = {"in_features": 6, "hidden": [2000, 2000], "classes": 3}
    record = {"network": "mlp", "settings": settings, "head": "fc"}
    network = Architecture(networks.build("mlp", **settings), rebuild=record)
    specs = (*network.shared, *(s for s in network.task_params if s.name not in network.output))
    values = {s.name: torch.ones(s.shape) for s in specs}
    base = Base("large", "tests", weights_hash(values), values, embedded=True)
    store = SubnetStore(network, settings=models.SETTINGS, base=base)
    none, factors = PackedMask.none(store.layout.num_blocks), Factors(store.layout, 8)
    own = tuple(CodebookTensor(torch.ones(size)) for size in factors.sizes.values())
    for number in range(3):
        changes = {"packed_mask": none, "own": own, "rank": 8, "bits": 32, "reference": BASE}
        models.add_task(store, number, bank=NO_BANK, adds_to_base=True, **changes)
    return store


def write(folder: Path, name: str) -> Path:
    """One forgery as a file."""
    good = models.store("named", tasks=4).save(folder / "good")
    config, sections = opened(good)
    FORGERIES[name](config, sections)
    path = folder / f"{name}.safetensors"
    path.write_bytes(b"".join(assemble(config, sections, len(sections["masks"]))))
    return path


def write_all(folder: Path) -> None:
    """All forgeries as files, and valid models that are hard to read."""
    for name in FORGERIES:
        write(folder, name)
    wide_model().save(folder / "wide").rename(folder / "valid-but-wide.safetensors")
    low_rank = low_rank_model().save(folder / "low-rank")
    low_rank.rename(folder / "valid-of-low-rank.safetensors")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
