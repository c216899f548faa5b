"""Readers of forged files: errors of ours, at most four times the decoded model and 64 MB.

And time that grows no faster than the file: by counted calls, and by the processor. What is refused
is refused when it is saved: every model that is saved can be read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import forgeries
import models
from forge import forged
from quick import mostly_slow
from reading import READERS, SPARE
from tinysubnets import networks
from tinysubnets.errors import ArtifactError, DamageError, TinySubNetsError
from tinysubnets.format import check as verify
from tinysubnets.format import inspect
from tinysubnets.format.backup import undo
from tinysubnets.model.bank import Base
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import (
    BASE,
    NO_BANK,
    CodebookTensor,
    PackedMask,
    Subnet,
    code,
)
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.low_rank import Factors
from tinysubnets.tasks.normalization import Normalization

HERE = Path(__file__).parent
SECONDS = 30  # of the processor, for a reading that takes at most some
needs_linux = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="measures memory as Linux tells it"
)


def read_all(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What every reader came to with every file of a folder, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "reading.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = defaultdict(list)
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        found[entry["file"].removesuffix(".safetensors")].append(entry)
    return found


def check(name: str, entries: list[dict[str, Any]]) -> None:
    """Insist on errors of ours, little memory and little time."""
    need = next(e["need"] for e in entries if "need" in e)
    for entry in entries:
        if "outcome" in entry:
            told = f"{name} by {entry['reader']}: {entry}, need {need:,}"
            assert not entry["outcome"].startswith("RAW"), told
            assert entry["bytes"] <= 4 * need + SPARE, told
            assert entry["seconds"] <= SECONDS, told


@needs_linux
@pytest.mark.slow
def test_no_reader_takes_more_than_four_times_the_decoded_model(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    forgeries.write_all(tmp_path)
    found = read_all(tmp_path)
    valid = {"valid-but-wide", "valid-of-low-rank"}
    assert set(found) == {*forgeries.FORGERIES, *valid}
    for name, entries in found.items():
        check(name, entries)
        outcomes = {e["reader"]: e["outcome"] for e in entries if "outcome" in e}
        assert list(outcomes) == list(READERS)
        is_valid = name in forgeries.VALID | valid
        assert (set(outcomes.values()) == {"read"}) == is_valid, (name, outcomes)
        assert is_valid or outcomes["load"] != "read", name


@needs_linux
@pytest.mark.slow  # test_fuzz.py insists on the same limits, in small
def test_small_forgeries_are_refused_at_once(tmp_path: Path) -> None:
    names = ["head-of-forty-million", "head-of-a-billion", "wider-masks", "a-bank-each"]
    for name in [*names, "tasks-times-tensors"]:
        forgeries.write(tmp_path, name)
    found = read_all(tmp_path)
    for name, entries in found.items():
        check(name, entries)
        assert next(e["outcome"] for e in entries if e.get("reader") == "load") == "DamageError"
    assert len(found) == 5


# Files that can be made as large as one likes, and how large is enough to see how work grows.
GROWING: dict[str, tuple[Callable[[int], forgeries.Forgery], int]] = {
    "tasks": (lambda n: forgeries.bare_tasks(n, 10), 100),
    "tasks times tensors": (lambda n: forgeries.many_tasks(n, 10 * n), 60),
    "tasks without a name": (forgeries.nameless, 150),
    "tasks over another": (forgeries.differences, 25),
    "tasks that add nothing": (lambda n: forgeries.over_the_first(n, 10 * n), 100),
    "products of zeros": (lambda n: forgeries.over_the_first(n, 10 * n, rank=2), 120),
    "banks": (lambda n: forgeries.empty_banks(n, 10), 300),
    "shared tensors": (forgeries.many_shared, 500),
    "constants": (forgeries.constants, 1000),
    "one name": (forgeries.repeated_names, 1000),
    "routing": (forgeries.routing, 1000),
    "preprocessing": (forgeries.preprocessings, 1000),
}


def files_of(name: str, factors: tuple[int, ...], folder: Path) -> list[Path]:
    """Forgeries of one kind, so many times as large as the least."""
    make, size = GROWING[name]
    good = models.store("named", tasks=4).save(folder / "good")
    return [forged(good, make(n * size), folder / f"{n}.safetensors") for n in factors]


def read(path: Path, reader: str) -> str:
    """What came of reading a file."""
    try:
        READERS[reader](path, None)
    except TinySubNetsError as error:
        return type(error).__name__
    return "read"


def calls_of(path: Path, reader: str) -> int:
    """How many functions, of Python and of C, are called to read a file."""
    count = 0

    def called(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    read(path, reader)  # imports and caches are not counted
    sys.setprofile(called)
    try:
        read(path, reader)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("reader", mostly_slow(READERS, quick=["load", "inspect"]))
@pytest.mark.parametrize(
    "name", mostly_slow(GROWING, quick=["tasks", "tasks times tensors", "constants"])
)
def test_what_is_added_to_a_file_costs_the_same_however_large_it_is(
    name: str, reader: str, tmp_path: Path
) -> None:
    files = files_of(name, (1, 2, 3), tmp_path)
    assert len({read(path, reader) for path in files}) == 1
    one, two, three = (calls_of(path, reader) for path in files)
    assert three - two <= 1.05 * (two - one) + 20


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWING)
def test_a_file_that_is_ten_times_as_large_does_not_take_a_hundred_times_as_long(
    name: str, tmp_path: Path
) -> None:
    """What calls do not tell: the processor's time, with room for a busy machine."""

    def seconds(path: Path, reader: str) -> float:
        taken = []
        for _ in range(3):
            start = time.process_time()
            read(path, reader)
            taken.append(time.process_time() - start)
        return min(taken)

    small, large = files_of(name, (1, 10), tmp_path)
    for reader in ("load", "one task", "inspect", "verify", "resume"):
        assert seconds(large, reader) <= 40 * seconds(small, reader) + 0.2, reader


# Models that are cheap in bytes and large in weights, and nothing but what may be learned.


def net_of(width: int, layers: int, features: int = 16) -> nn.Module:
    """Wide layers, and a head of few features, which takes next to no bytes."""
    sizes = [*[width] * (layers + 1), features]
    net = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)))
    net.add_module("fc", nn.Linear(features, 2))
    return net


def over(net: nn.Module, **rest: Any) -> SubnetStore:
    """A store without tasks over a network as a base, which no file of it holds."""
    architecture = Architecture(net, base="frozen", **rest)
    return SubnetStore(architecture, settings={"method": "tsn"}, seed=0, base=Base.of(architecture))


def add(store: SubnetStore, reference: int = BASE, *, rank: int = 0, kept: int = 0) -> int:
    """Add a task, with factors or so many weights of its own where told; returns its number."""
    rng, layout = torch.Generator().manual_seed(store.next_number), store.layout
    mask = torch.zeros(layout.num_blocks, dtype=torch.bool)
    mask[torch.randint(layout.num_blocks, (kept,), generator=rng)] = True
    sizes = [int(mask[i:j].count_nonzero()) for i, j in layout.segments]
    sizes = list(Factors(layout, rank).sizes.values()) if rank else sizes
    shapes = store.architecture.task_param_shapes(2)
    head = {n: prod(shape) for n, shape in shapes.items() if n.startswith("fc.")}
    number = store.next_number
    store.add_(
        Subnet(
            f"t{number}",
            (0, 1),
            Normalization(),
            NO_BANK,
            PackedMask.of(mask) if kept else PackedMask.none(layout.num_blocks),
            2,
            tuple(code(torch.randn(n, generator=rng), 2) if n else NOTHING for n in sizes),
            {n: code(torch.randn(size, generator=rng), 4) for n, size in head.items()},
            shapes,
            reference=reference,
            adds_to_base=True,
            rank=rank,
        )
    )
    return number


NOTHING = CodebookTensor(torch.zeros(0))


def reused(rank: int, times: int) -> Callable[[SubnetStore], None]:
    """One task of low rank, and many that have its weights."""

    def fill(store: SubnetStore) -> None:
        first = add(store, rank=rank)
        for _ in range(times):
            add(store, first)

    return fill


def sparse(store: SubnetStore) -> None:
    """Tasks that change one weight of ten thousand, and others that have their weights."""
    for _ in range(6):
        number = add(store, kept=store.layout.num_weights // 10_000)
        add(store, number)


def chained(store: SubnetStore) -> None:
    """Tasks that each add a product to the one before, with others between that add nothing."""
    for start in (BASE, 0):
        reference = start
        for place in range(15):
            reference = add(store, reference, rank=place % 2)
            add(store, reference)


def heads_alone(store: SubnetStore) -> None:
    """Tasks that are the base with a head of their own."""
    for _ in range(100):
        add(store)


@pytest.mark.parametrize(
    ("fill", "width", "layers"),
    [
        (reused(rank=4, times=40), 1024, 3),
        (reused(rank=1, times=300), 400, 2),
        (sparse, 2600, 1),
        (chained, 1500, 1),
        (heads_alone, 2500, 1),
    ],
    ids=["reuses", "many reuses", "sparse", "chains", "heads alone"],
)
def test_what_is_saved_is_read_however_few_bytes_it_has(
    fill: Callable[[SubnetStore], None], width: int, layers: int, tmp_path: Path
) -> None:
    net = net_of(width, layers)
    store = over(net)
    add(store)
    store.save(tmp_path)
    fill(store)
    store.save(tmp_path, with_backup=True)
    again = SubnetStore.load(tmp_path, net)
    last = store.tasks[-1]
    assert again.tasks == store.tasks and again.digest(last) == store.digest(last)
    assert SubnetStore.load(tmp_path, net, task=last).digest(last) == store.digest(last)
    assert verify(tmp_path, net).num_tasks == len(inspect(tmp_path)["tasks"]) == len(store.tasks)
    assert undo(tmp_path).back == () and SubnetStore.load(tmp_path, net).tasks == ("t0",)


def test_verify_looks_once_at_weights_that_several_tasks_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its time does not grow with the tasks that use them, which have next to no bytes."""
    net = net_of(40, 1)
    store = over(net)
    first = add(store, rank=1)
    second = add(store, first, rank=1)  # other weights: what it adds, too
    for reference in (first, second, BASE):
        for _ in range(3):
            add(store, reference)
    store.save(tmp_path)
    looked, tensors = [], SubnetStore.tensors
    monkeypatch.setattr(
        SubnetStore, "tensors", lambda s, name: (looked.append(name), tensors(s, name))[1]
    )
    assert verify(tmp_path, net).num_tasks == 11
    assert looked == ["t0", "t1", "t8"]  # those of each entry that adds some, and of the base


def test_a_rebuilt_network_may_be_as_large_as_its_base(tmp_path: Path) -> None:
    """Its shared weights are the user's to give; until then they take no memory."""
    settings = {"in_features": 6, "hidden": [4200, 4200], "classes": 2}
    net = networks.build("mlp", **settings)
    store = over(net, rebuild={"network": "mlp", "settings": settings, "head": "fc"})
    add(store)
    store.save(tmp_path)
    assert SubnetStore.load(tmp_path).needs_base()
    again = SubnetStore.load(tmp_path, base=net)
    assert again.digest("t0") == store.digest("t0")


def test_nothing_is_replaced_by_what_no_reader_accepts(tmp_path: Path) -> None:
    """Masks of one weight in millions: each is read as a byte for every weight."""
    net = net_of(3600, 1)
    store = over(net)
    add(store, kept=1)
    before = store.save(tmp_path).read_bytes()
    add(store, kept=1)
    files = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match="nothing was saved, because no reader"):
        store.save(tmp_path, with_backup=True)
    assert sorted(tmp_path.iterdir()) == files
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert SubnetStore.load(tmp_path, net).tasks == ("t0",)
    store.remove("t1")
    store.save(tmp_path)


def test_weights_under_masks_of_no_bank_are_counted_as_they_are_read(tmp_path: Path) -> None:
    """A mask that holds all weights is a few bytes, and a forged stream of their codes not many."""
    store = over(net_of(2000, 1))
    add(store, kept=1)
    mask = PackedMask.of(torch.ones(store.layout.num_blocks, dtype=torch.bool))
    zeros, values = torch.zeros(store.layout.num_weights, dtype=torch.uint8), torch.arange(2.0)
    own = tuple(CodebookTensor(values, zeros[i:j], 1) for i, j in store.layout.segments)
    like = store.subnet("t0")
    store.add_(replace(like, name="all", packed_mask=mask, own=own, coded_mask=None))
    good = store.save(tmp_path)
    assert read(good, "inspect") == "read"

    def repeat(_: dict[str, Any], sections: dict[str, list[bytes]]) -> None:
        codes = sections["codes"][1]
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        symbols = zlib.decompress(codes[1:], -15)
        sections["codes"][1] = codes[:1] + coder.compress(symbols) + coder.flush()

    bad = forged(good, repeat, tmp_path / "bad.safetensors")
    assert 20 * bad.stat().st_size < good.stat().st_size
    with pytest.raises(DamageError, match=r"'all'.*tensors of"):
        inspect(bad)
