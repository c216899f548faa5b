"""Lives of models: what is written honestly, through a long life, can be read and stays right.

    python tests/lives.py --seconds 60 [--seed 0]     # or: make lives SECONDS=60
    python tests/lives.py --seed 0 --only 123         # one life again, step by step

A life draws a method's settings and a network, and then steps: tasks are learned, learned anew,
renamed, removed and taken back; the model is saved, loaded by fresh objects, patched, exported,
asked; lessons are interrupted and fail. Some steps are commands, the others are Python.

After every step all tasks but those that the step was about have the same digest, logits and
scores, to the bit; the model is written, checked and read in full, task by task and by a second
reader; it is written the same again; the ledger is its size; banks own what their masks hold; no
word of a removed task is left, and no file beside the model. Nothing fails but by an error of the
package, which leaves the model as it was.

Some lives are lived twice, and must come to the same bytes: with every step in a new process (as
far as that can be told: fresh objects, from the file or from a checkpoint), or with other data for
one task, which is removed exactly at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import io
import json
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import models
import nets
import plain_reader
from test_life import check_banks
from tinysubnets import config, networks
from tinysubnets import format as artifact
from tinysubnets.cli import main as tsn
from tinysubnets.errors import (
    ArtifactError,
    CapacityWarning,
    ConflictError,
    FewSamplesWarning,
    MismatchError,
    TaskError,
    TinySubNetsError,
)
from tinysubnets.format.backup import undo
from tinysubnets.format.io import encode
from tinysubnets.format.onnx import to_onnx, to_torch
from tinysubnets.format.patch import apply_patch, make_patch
from tinysubnets.method.banks import new_bank
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.bank import Base
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import BASE, NO_BANK, CodebookTensor, PackedMask
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitKey, initial_scores, weights_hash
from tinysubnets.nn.low_rank import Factors
from tinysubnets.nn.topk import top_k_segments
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task

TEMPORARY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # to sync costs nothing there
SECONDS = 120  # of the processor, after which a life has hung
IN_A_FOLDER = {"model.safetensors", "config.json", "README.md", "backup"}
PROBES = 5  # samples that every task is asked after every step
# A name has a word that no other has, so that it can be looked for in files.
NAMES = ("{}", "it's {}", 'say "{}"', "-{}", "--{}", "{}=1", "a/{}", "{} (before)", "日本語 {}")
NAMES += ("\\{}", "{{{}}}", "<b>{}</b>", "%{} $x", "task 0 {}", "../{}", "{}\u0301 👩\u200d🔬")
NAMES += ("null", "0", "base", "mlp", "Sequential", "x" * 480 + "{}", "'{}'", "the base 'mlp' {}")


# Networks, each in a function that a command can name.


def own(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network with weights from a seed, and statistics as training would have left them."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = build()
        for name, buffer in net.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
            elif name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
    return net


def _named() -> nn.Module:
    return networks.build("mlp", in_features=6, hidden=[12, 10], classes=3)


def named() -> nn.Module:
    return own(_named)


def norm() -> nn.Module:
    return own(models.own_network)


def conv() -> nn.Module:
    return own(nets.Residual)


def tied() -> nn.Module:
    return own(nets.TiedEmbedding)


def layer() -> nn.Module:
    return own(nets.layer_norm)


def encoder() -> nn.Module:
    return own(nets.Encoder)


SHAPES: dict[str, tuple[int, ...] | str] = {
    "named": (6,),
    "norm": (6,),
    "conv": (1, 6, 6),
    "tied": "tokens",
    "layer": (6,),
    "encoder": "tokens",
}
BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "named": _named,
    "norm": models.own_network,
    "conv": nets.Residual,
    "tied": nets.TiedEmbedding,
    "layer": nets.layer_norm,
    "encoder": nets.Encoder,
}


# What a life is of.


def drawn_settings(rng: random.Random, net: str) -> dict[str, Any]:
    """A learner's settings, of which most are not their defaults."""
    is_frozen = rng.random() < 0.3
    by_size = rng.random() < 0.4
    own: dict[str, Any] = {
        "density": rng.choice((0.05, 0.2, 0.3, 0.6, 1.0)),
        "density_exponent": rng.choice((0.0, 0.0, 0.3)),
        "bits": rng.choice(("auto", 1, 2, 4, 32)),
        "sharing": rng.choice(("values", "values", "none")),
        "block": rng.choice((1, 1, 4)),
        "memory": rng.choice(("statistics", "samples", None)),
        "memory_samples": rng.choice((4, 20)),
        "max_banks": rng.choice((1, 2, 2)),
        "threshold": rng.choice((0.0, 1.5, 3.0)),
        "post_pruning": rng.random() < 0.6,
        "codebooks": rng.choice(("layer", "layer", "task")),
        "task_param_bits": rng.choice(("auto", 4, 8, 16, 32)),
        "init": rng.choice(("seeded", "seeded", "pretrained")),
        "isolated": rng.random() < 0.08,
        "seed": rng.choice((0, 3, 2**40)),
    }
    if own["memory"] is None and own["sharing"] == "values":
        own["max_banks"] = 1
    if by_size:
        own |= {"selection": "magnitude", "score_init": rng.choice(("random", "previous_mask"))}
        own["reference"] = rng.choice(("none", "previous", "similar"))
        if rng.random() < 0.5:
            own["first_density"] = rng.choice((0.3, 0.8))
        if own["reference"] != "none" and rng.random() < 0.4:
            own |= {"price": rng.choice((1e-6, 1.0)), "rungs": ("head", "5%", "20%")}
    else:
        starts = ("random", "previous_mask", "previous_mask", "continue")
        own["score_init"] = rng.choice(starts if not is_frozen and not own["isolated"] else "rr")
        own["score_init"] = "random" if own["score_init"] == "r" else own["score_init"]
        own["previous_mask_of"] = rng.choice(("last", "similar"))
        own["quantization"] = rng.choice(("straight_through", "straight_through", "in_place"))
        own["layer_loss_weight"] = rng.choice((0.0, 0.0, 0.1))
    if is_frozen:
        own["init"] = "seeded"
        own["layer_loss_weight"] = 0.0
        own["quantization"] = "straight_through"
        price = rng.choice((0.0, 1e-6, 1e-6, 0.02, 50.0, None))
        rungs = [r for r in ("head", "reuse", "norms", "rank 1", "rank 2", "5%", "30%")
                 if rng.random() < 0.7]  # fmt: skip
        own |= {"price": price, "rungs": tuple(rungs) if set(rungs) - {"reuse"} else ("head",)}
    parts = [p for p in ("energy", "inputs", "features") if rng.random() < 0.6]
    if SHAPES[net] == "tokens":
        parts = [p for p in parts if p != "inputs"]
    routing = {"parts": tuple(parts), "dims": rng.choice((2, 5)), "calibrate": rng.random() < 0.7}
    if is_frozen and rng.random() < 0.4:
        routing["parts"] += ("base",)
    if net == "conv" and rng.random() < 0.3:
        routing["rotations"] = rng.choice(("one-pass", "four-pass"))
        routing["parts"] += ("rotation",)
    training = {
        "epochs": rng.choice((1, 2)),
        "batch_size": 16,
        "lr": rng.choice((0.005, 0.02, 0.05)),
        "optimizer": rng.choice(("adam", "adamw", "sgd")),
        "weight_decay": rng.choice((0.0, 0.1)),
        "kept_epoch": rng.choice(("accuracy", "loss", "last", "auto")),
    }
    if rng.random() < 0.2:
        training["score_lr"] = 1e-4  # masks that stay near their start
    objective = rng.choice(("sparsity", "bytes"))
    pruning = {"iterations": 3, "step": 0.1, "objective": objective}
    return {
        "net": net,
        "pixels": net == "conv" and rng.random() < 0.5,
        "frozen": is_frozen,
        "embed": rng.random() < 0.3,
        "settings": own,
        "routing": routing,
        "training": training,
        "pruning": pruning,
    }


def drawn_task(
    rng: random.Random, net: str, name: str, pixels: bool = False, other: int = 0
) -> Task:
    """A small task; `pixels` gives it bytes; `other` draws other data, and nothing else."""
    count, classes = rng.choice((24, 40, 64)), rng.choice((2, 3, 4))
    seed, offset = rng.randrange(1000), rng.choice((0.0, 0.0, 30.0, -500.0))
    labels = rng.choice(("numbers", "numbers", "words"))
    how: dict[str, Any] = {"valid": rng.choice((0.25, 0.5)), "seed": seed % 3}
    if rng.random() < 0.2:
        how["class_weights"] = "balanced"
    if SHAPES[net] != "tokens" and rng.random() < 0.1:
        how["normalization"] = None
        offset = 0.0
    if other:
        seed, offset = seed + 5000 * other, -offset / 2
        classes = 2 + (classes + 1) % 3
    x, y = nets.data(SHAPES[net], samples=count, classes=classes, seed=seed, offset=offset)
    if rng.random() < 0.3:  # noise, of which nothing can be learned
        y = np.random.default_rng(seed).permutation(y)
    if pixels:
        x = x - offset + rng.choice((0, 0, 0, -10))
        x = np.clip(x * 20 + 100, 0, 255).astype(np.uint8)
    if rng.random() < 0.3:
        how["test"] = (x[: count // 3], y[: count // 3])
    given = y if labels == "numbers" else np.array([f"class {c} of it" for c in range(classes)])[y]
    if "test" in how:
        how["test"] = (how["test"][0], given[: count // 3])
    return Task.from_arrays(name, x, given, **how)


class Stopped(Exception):
    """What a user's own code raises in the middle of a lesson."""


class Life:
    """One model from its first lesson on.

    - `seed`: draws all of it.
    - `folder`: an empty one.
    - `apart`: whether each step is in another process: "file" or "checkpoint"; "" for none.
    - `watch`: which lesson, from 0, is of the task that is removed exactly at the end, if it is
      still there then.
    - `is_other`: whether that lesson gets other data.
    - `told`: gets a line for every step.
    """

    def __init__(
        self,
        seed: str,
        folder: Path,
        *,
        apart: str = "",
        watch: int | None = None,
        is_other: bool = False,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.rng, self.root, self.told = random.Random(seed), folder, told
        self.apart, self.watch, self.is_other = apart, watch, is_other
        self.net = self.rng.choice(list(SHAPES))
        self.drawn = drawn_settings(self.rng, self.net)
        own = self.drawn["settings"]
        self.continues = own["score_init"] == "continue"
        self.has_base = self.drawn["frozen"] or own["init"] == "pretrained"
        self.is_embedded = False
        self.count = self.lessons = self.places = 0
        self.watched: str | None = None  # that task, by its name of now
        self.folder = self.new_place()
        rng = np.random.default_rng(1)
        shape = SHAPES[self.net]
        self.probe: np.ndarray
        if shape == "tokens":
            self.probe = rng.integers(0, nets.VOCABULARY, (PROBES, 7))
        else:
            self.probe = rng.normal(size=(PROBES, *shape)).astype(np.float32)  # type: ignore[misc]
        if self.drawn["pixels"]:
            self.probe = rng.integers(0, 256, self.probe.shape, dtype=np.uint8)
        # By task: digest, logits and scores of the probe.
        self.expected: dict[str, tuple[str, bytes, bytes]] = {}
        self.known: dict[bytes, dict[str, tuple[str, bytes, bytes]]] = {}
        self.versions: list[tuple[bytes, bool]] = []  # files of before; whether they went on
        self.states: list[tuple[Any, ...]] = []  # checkpoints, with what tasks computed then
        self.backup: bytes | None = None
        # Whether nothing of the watched task's data may be left at the end.
        self.is_exact = False
        self.is_one_bank = self.drawn["frozen"] or own["max_banks"] == 1
        self.gone: set[str] = set()  # words of names that must not be found again
        # What each step came to: the names of tasks, the next number, and a hash of the model.
        self.trace: list[tuple[str, tuple[str, ...], int, str]] = []
        self.asks = 0
        self.learner = self.built()
        self.architecture = self.learner.architecture
        if self.drawn["embed"] and self.drawn["frozen"]:
            self.learner.store.embed_base_()
            self.is_embedded = True

    # Objects.

    @property
    def store(self) -> SubnetStore:
        return self.learner.store

    @property
    def file(self) -> Path:
        return self.folder / artifact.FILE_NAME

    def new_place(self) -> Path:
        self.places += 1
        return self.root / f"model {self.places}"

    def built(self) -> TinySubNets:
        """A new learner of this life's settings."""
        made = self.drawn
        net = own(BUILDERS[self.net])
        architecture = Architecture(net, base="frozen") if made["frozen"] else Architecture(net)
        return TinySubNets(
            architecture,
            training=made["training"],
            pruning=made["pruning"],
            routing=made["routing"],
            device="cpu",
            **made["settings"],
        )

    def given(self) -> dict[str, Any]:
        """What `load` and `resume` need beside the file, in one of the ways it can be given."""
        is_rebuilt = self.net == "named"
        self.asks += 1
        if self.asks % 4:
            return {"net": self.architecture}  # takes the least time
        if self.has_base and not self.is_embedded:
            if is_rebuilt:
                return {"base": own(BUILDERS[self.net])}
            ways: list[dict[str, Any]] = [{"net": own(BUILDERS[self.net])}]
            ways.append({"net": own(BUILDERS[self.net], 1), "base": own(BUILDERS[self.net])})
            return ways[self.asks // 4 % 2]
        return {} if is_rebuilt else {"net": own(BUILDERS[self.net], 1)}

    def words(self) -> list[str]:
        """The same for a command."""
        if self.has_base and not self.is_embedded:
            return ["--base", f"lives:{self.net}"]
        return [] if self.net == "named" else ["--net", f"lives:{self.net}"]

    def data(self, store: SubnetStore | None = None) -> bytes:
        encoded = encode(store or self.store)
        encoded.check_readable()
        return b"".join(encoded.parts)

    def written(self, data: bytes) -> Path:
        """The bytes of a model in a file apart."""
        path = self.root / "apart.safetensors"
        path.write_bytes(data)
        return path

    def fresh(self, how: str = "file") -> TinySubNets:
        """The learner as another process would have it."""
        old = self.learner
        if how == "checkpoint" or self.continues:
            file = io.BytesIO()
            tensors, numbers = old.state()
            torch.save(tensors, file)
            file.seek(0)
            net = own(BUILDERS[self.net])
            frozen = self.drawn["frozen"]
            new = TinySubNets(
                Architecture(net, base="frozen") if frozen else Architecture(net),
                training=old.training,
                pruning=old.pruning,
                routing=old.core.routing,
                device="cpu",
                **config.to_dict(old.settings),
            )
            new.restore_(torch.load(file), json.loads(json.dumps(numbers)))
        else:
            new = TinySubNets.resume(self.written(self.data()), device="cpu", **self.given())
        new.store.saved_as, new.store.began_ns = old.store.saved_as, old.store.began_ns
        return new

    def reload(self) -> None:
        """Go on with what is in the folder."""
        self.learner = TinySubNets.resume(self.folder, device="cpu", **self.given())

    # What must hold.

    def asked(self, store: SubnetStore, name: str) -> tuple[str, bytes, bytes]:
        """What a task computes: digest, logits, scores."""
        logits = store.logits(name, self.probe).numpy().tobytes()
        return store.digest(name), logits, self.scores(store, [name])

    def scores(self, store: SubnetStore, among: list[str]) -> bytes:
        """The scores of some tasks; nothing where all of them overflow.

        So they do where all that a task was learned from is alike.
        """
        try:
            return store.route(self.probe, among=among).scores.tobytes()
        except TaskError:
            return b""

    def check(self) -> None:
        """All that must hold between two steps."""
        store = self.store
        for name, (digest, logits, scores) in self.expected.items():
            now = self.asked(store, name)
            assert now[0] == digest, f"{name!r} has other tensors"
            assert now[1] == logits, f"{name!r} has other logits"
            assert now[2] == scores, f"{name!r} has other scores"
        self.expected = {n: self.expected.get(n) or self.asked(store, n) for n in store.tasks}
        check_banks(store)
        data = self.data()
        assert self.data() == data, "written twice, the bytes differ"
        ledger = store.ledger()
        assert ledger.file_bytes == len(data) == ledger.total.total / 8, "not the ledger's size"
        path = self.written(data)
        given = self.given()
        again = SubnetStore.load(path, **given)
        assert again.tasks == store.tasks
        for name, wanted in self.expected.items():
            assert self.asked(again, name) == wanted, f"{name!r} is another one when it is read"
        if store.tasks:
            name = store.tasks[self.count % len(store.tasks)]
            alone = SubnetStore.load(path, task=name, **given)
            assert self.asked(alone, name) == self.expected[name], f"{name!r} differs alone"
        check_banks(again)
        assert self.data(again) == data, "read and written again, the bytes differ"
        checked = artifact.check(path, given.get("net"), given.get("base"))
        assert checked.num_tasks == len(store.tasks) and not checked.without_base
        assert checked.file_bytes == len(data)
        found = artifact.inspect(path)
        assert [t["name"] for t in found["tasks"]] == list(store.tasks)
        assert found["ledger"]["file_bytes"] == len(data)
        self.check_second_reader(path)
        with artifact.ModelFile(path) as file:
            text = json.dumps(file.config, ensure_ascii=False)
        for word in self.gone:
            assert word not in text and word.encode() not in data, f"{word!r} is still in the file"
        for folder in self.root.glob("model *"):
            left = {p.name for p in folder.iterdir()} - IN_A_FOLDER
            assert not left, f"{left} are left in {folder.name}"
        self.known[data] = dict(self.expected)

    def check_second_reader(self, path: Path) -> None:
        """The reader that was written from the specification finds the same tensors."""
        if any(self.store.needs_base(name) for name in self.store.tasks) and not self.is_embedded:
            whole = copy.copy(self.store)
            whole.embed_base_()
            path = path.with_name("embedded.safetensors")
            path.write_bytes(self.data(whole))
        found = plain_reader.read(path)
        assert list(found) == list(self.store.tasks)
        for name, tensors in found.items():
            ours = self.store.tensors(name)
            for key, values in tensors.items():
                same = ours[key].numpy().tobytes() == np.ascontiguousarray(values).tobytes()
                assert same, f"{key} of {name!r} differs in the second reader"

    def attempt(self, act: Callable[[], Any]) -> str:
        """Do what may be refused; then the model is as it was."""
        before = self.data()
        try:
            act()
        except TinySubNetsError as error:
            assert self.data() == before, f"the model has changed, but: {error}"
            return f"{type(error).__name__}: {error}"
        return ""

    def command(self, *words: str, allowed: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Run a command in this process; its exit status, and what it says."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = tsn(list(words))
        said = out.getvalue() + err.getvalue()
        assert status in allowed, f"tsn {' '.join(words)}: {status}: {said}"
        if status == 2:
            assert err.getvalue().startswith("tsn: "), said
        return status, said

    def saved(self) -> bytes:
        """Save in place, where the model is not the one that is there; its bytes."""
        if not self.file.exists():
            self.learner.save(self.folder)
        else:
            before = self.file.read_bytes()
            self.learner.save(self.folder)
            if self.file.read_bytes() != before:
                self.backup = None
        data = self.file.read_bytes()
        assert data == self.data(), "the file is not what was written"
        if not any(data == d for d, _ in self.versions):
            self.versions.append((data, True))
        return data

    def broken(self) -> None:
        """Earlier files are not continued any more."""
        self.versions = [(data, False) for data, _ in self.versions]

    # Names and tasks.

    def name(self) -> str:
        """A new name, odd now and then."""
        self.count += 1
        word = f"w{self.count}q{self.rng.randrange(10**6)}z"
        pattern = self.rng.choice(NAMES) if self.rng.random() < 0.5 else "{}"
        made = pattern.format(word)
        return word if made in self.store.tasks else made

    def forget(self, name: str) -> None:
        """A name that must not be found again, where it has a word of its own."""
        words = [w for w in self.found_words(name) if not any(w in n for n in self.store.tasks)]
        self.gone.update(words)

    def found_words(self, name: str) -> list[str]:
        start = name.find("w")
        while start >= 0:
            end = name.find("z", start)
            word = name[start : end + 1]
            if end > 0 and word[1:2].isdigit():
                return [word]
            start = name.find("w", start + 1)
        return []

    def some_task(self) -> str:
        return self.rng.choice(self.store.tasks)

    def lesson(self, name: str | None = None) -> tuple[Task, bool | None]:
        """A task to learn, and whether it is isolated."""
        name = name or self.name()
        is_watched = self.watch == self.lessons
        self.lessons += 1
        # The same numbers are drawn for it, whatever its data.
        own_rng = random.Random(self.rng.random())
        task = drawn_task(
            own_rng, self.net, name, self.drawn["pixels"], int(is_watched and self.is_other)
        )
        isolated = self.rng.choice((None, None, None, True))
        if isolated and self.continues:
            isolated = None
        if is_watched:
            self.watched = name
        return task, isolated

    def arrays(self, task: Task) -> Path:
        """A task as an .npz for commands."""
        path = self.root / "data.npz"
        labels = np.array(task.classes)
        parts = {"inputs": task.train.inputs().numpy(), "labels": labels[task.train.labels]}
        np.savez(path, **parts)
        return path

    # Steps. Each gives words about what came of it.

    def learn(self) -> str:
        task, isolated = self.lesson()
        earlier = list(self.store.tasks)
        before = self.scores(self.store, earlier) if earlier else b""
        said = self.attempt(lambda: self.learner.learn(task, isolated=isolated))
        if not said:
            assert task.name in self.store.tasks
        if before:
            after = self.scores(self.store, earlier)
            assert before == after, "scores among earlier tasks differ"
            self.store.predict(self.probe, among=earlier)
        return f"{task.name[-30:]!r} isolated={isolated}: {said}"

    def learn_by_command(self) -> str:
        if self.continues:
            return self.learn()
        before = self.saved()
        task, isolated = self.lesson()
        again = self.rng.random() < 0.3 and bool(self.store.tasks)
        old = self.some_task() if again else None
        words = ["learn", str(self.folder), f"--task={old or task.name}"]
        words += ["--data", str(self.arrays(task)), "--device", "cpu", *self.words()]
        words += ["--replace"] * again + ["--isolated"] * bool(isolated)
        words += ["--keep-anyway"] * (self.rng.random() < 0.7)
        words += ["--set", "epochs=1"] * (self.rng.random() < 0.3)
        place = self.folder
        elsewhere = self.rng.random() < 0.2
        if elsewhere:
            place = self.new_place()
            words += ["--out", str(place)]
        status, said = self.command(*words, allowed=(0, 1, 2))
        if elsewhere:
            assert self.file.read_bytes() == before, "the old model has changed"
            if not place.exists():
                return f"{words[2]} elsewhere, {status}: {said[-200:]}"
            self.folder, self.backup = place, None
            self.reload()
        elif self.file.read_bytes() == before:
            return f"{words[2]}, {status}: {said[-200:]}"
        else:
            assert status == 0
            self.backup = before
        self.reload()
        if old is not None:
            del self.expected[old]
            self.watched = None if self.watched == old else self.watched
            self.broken()
        return f"{words[2:]}, {status}"

    def learn_anew(self) -> str:
        """A new version of a task, as a command would do it."""
        if not self.store.tasks:
            return self.learn()
        old = self.some_task()
        if self.watched == old and not self.store.subnet(old).isolated:
            self.watched = None  # its version of before leaves traces, which the new one has not
        task, isolated = self.lesson(old)
        self.store.rename(old, f"{old} aside")
        said = self.attempt(lambda: self.learner.learn(task, isolated=isolated))
        if said:
            self.store.rename(f"{old} aside", old)
            return f"{old!r}: {said}"
        self.store.remove(f"{old} aside")
        del self.expected[old]
        self.broken()
        return repr(old)

    def rename(self) -> str:
        if not self.store.tasks:
            return self.learn()
        old, new = self.some_task(), self.name()
        before = self.data()
        by_command = self.rng.random() < 0.5
        there = self.data()
        self.store.rename(old, new)
        after = self.data()
        self.store.rename(new, old)
        assert self.data() == there, f"{old!r} has its name back, but the bytes differ"
        if by_command and not self.continues:
            self.saved()
            self.command("rename", str(self.folder), *self.words(), "--", old, new)
            self.backup = None
            assert self.file.read_bytes() == after, "the command and Python differ"
            self.reload()
        else:
            self.store.rename(old, new)
        self.expected[new] = self.expected.pop(old)
        if self.watched == old:
            self.watched = new
        self.known.pop(before, None)
        self.forget(old)
        self.broken()
        return f"{old!r} to {new!r}"

    def remove(self, name: str | None = None, exact: bool | None = None) -> str:
        if not self.store.tasks:
            return self.learn()
        name = self.some_task() if name is None else name
        exact = self.rng.random() < 0.3 if exact is None else exact
        by_command = self.rng.random() < 0.5 and not self.continues
        if by_command:
            self.saved()
            other = SubnetStore.load(self.folder, **self.given())
            removal = other.remove(name, exact=exact)
            words = ["remove", str(self.folder), f"--task={name}", *self.words(), "--yes"]
            self.command(*words, *(["--exact"] * exact))
            self.backup = None
            assert self.file.read_bytes() == self.data(other), "the command and Python differ"
            self.reload()
        else:
            removal = self.store.remove(name, exact=exact)
        assert name == removal.names[0] and not set(removal.names) & set(self.store.tasks)
        for gone in removal.names:
            del self.expected[gone]
            self.forget(gone)
        if self.watched in removal.names and not removal.exact:
            self.watched = None
        self.broken()
        return f"{name!r} exact={exact}: {removal.names[1:]}, {removal.kept} weights kept"

    def undo(self) -> str:
        if not self.file.exists() or self.continues:
            return self.save()
        there = self.file.read_bytes()
        by_command = self.rng.random() < 0.5
        if self.backup is None:
            if by_command:
                self.command("undo", str(self.folder), allowed=(2,))
            else:
                with contextlib.suppress(ArtifactError):
                    undo(self.folder)
                    raise AssertionError("there was no backup, and yet it was undone")
            assert self.file.read_bytes() == there
            return "refused"
        if by_command:
            self.command("undo", str(self.folder))
        else:
            undo(self.folder)
        assert self.file.read_bytes() == self.backup, "not the bytes of before"
        assert not (self.folder / "backup").exists()
        self.is_embedded = artifact.inspect(self.file)["base"] is not None and bool(
            artifact.inspect(self.file)["base"]["embedded"]
        )
        self.reload()
        self.expected = dict(self.known[self.backup])
        names = " ".join(self.store.tasks)
        self.gone = {w for w in self.gone if w not in names}
        self.backup = None
        self.broken()
        return "the bytes of before are back"

    def save(self) -> str:
        data = self.saved()
        self.learner.save(self.folder)
        assert self.file.read_bytes() == data
        return f"{len(data)} bytes"

    def save_elsewhere(self) -> str:
        place = self.new_place()
        self.learner.save(place)
        assert (place / artifact.FILE_NAME).read_bytes() == self.data()
        moves = self.rng.random() < 0.5 or not self.file.exists()
        if moves:
            self.folder, self.backup = place, None
        else:
            before = self.file.read_bytes()
            self.learner.save(self.folder, overwrite=True)
            if before != self.file.read_bytes():
                self.backup = None
        return "and stays there" if moves else "and back"

    def resume(self) -> str:
        if self.continues:
            self.learner = self.fresh("checkpoint")
            return "from a checkpoint"
        self.saved()
        self.reload()
        return "from the file"

    def restore(self) -> str:
        self.learner = self.fresh("checkpoint")
        return "from a checkpoint"

    def keep_state(self) -> str:
        """A checkpoint that the learner may be brought back to later."""
        tensors, numbers = self.learner.state()
        states = (tensors, json.loads(json.dumps(numbers)), dict(self.expected), self.data())
        self.states.append(states)
        return f"{len(self.store.tasks)} tasks"

    def go_back(self) -> str:
        """A learner at work takes another state than its own, earlier or later."""
        if not self.states:
            return self.keep_state()
        if self.rng.random() < 0.5:
            self.keep_state()
        tensors, numbers, expected, data = self.rng.choice(self.states)
        self.learner.restore_(tensors, numbers)
        self.expected = dict(expected)
        names = " ".join(self.store.tasks)
        self.gone = {w for w in self.gone if w not in names}
        self.watched = self.watched if self.watched in self.store.tasks else None
        base = self.store.base
        self.is_embedded = base is not None and base.embedded
        assert self.data() == data, "the model is not the one of then"
        self.broken()
        return f"to {len(self.store.tasks)} tasks"

    def copied(self) -> str:
        """A copy of the learner learns on; the learner itself stays, and comes to the same."""
        task, isolated = self.lesson()
        other, before = copy.deepcopy(self.learner), self.data()
        ends = []
        for one in (other, self.learner):
            try:
                one.learn(task, isolated=isolated)
                ends.append("")
            except TinySubNetsError as error:
                ends.append(f"{type(error).__name__}: {error}")
            assert one is self.learner or self.data() == before, "a copy changes its original"
        assert ends[0] == ends[1] and self.data(other.store) == self.data()
        return f"{task.name!r}: {ends[0]}"

    def stale_writer(self) -> str:
        """Somebody else's change is not overwritten."""
        self.saved()
        other = SubnetStore.load(self.folder, **self.given())
        if not other.tasks:
            return "nothing to change"
        other.rename(other.tasks[0], "somebody else's")
        other.save(self.folder)
        there = self.file.read_bytes()
        with contextlib.suppress(ConflictError):
            self.store.remove(self.store.tasks[-1])
            self.learner.save(self.folder)
            raise AssertionError("another writer's model was replaced")
        assert self.file.read_bytes() == there
        old = other.subnet("somebody else's")
        other.rename("somebody else's", next(iter(self.expected)))
        assert old.number == other.subnet(next(iter(self.expected))).number
        other.save(self.folder)
        self.backup = None
        if self.continues:
            self.learner = self.built()
        self.reload()
        return "refused"

    def abandon(self) -> str:
        """A lesson that ends after an epoch, or is left before its end."""
        task, isolated = self.lesson()
        self.watched = None if self.watched == task.name else self.watched
        before, way = self.data(), self.rng.choice(("left", "raised", "stopped"))

        def stop(_: Any) -> None:
            raise KeyboardInterrupt if way == "stopped" else Stopped

        try:
            if way == "left":
                self.learner.begin(task, isolated=isolated).epoch()
            else:
                self.learner.learn(task, isolated=isolated, on_epoch=stop)
        except (Stopped, KeyboardInterrupt, TinySubNetsError):
            pass
        assert self.data() == before, "an abandoned lesson has changed the model"
        return way

    def checkpoint(self) -> str:
        """A lesson that goes on in another process, beside the one that goes on in this."""
        task, isolated = self.lesson()
        try:
            trainer = self.learner.begin(task, isolated=isolated)
            for _ in range(self.rng.randrange(3)):
                if not trainer.finished:
                    trainer.epoch()
        except TinySubNetsError as error:
            self.learner = self.fresh()
            return f"{type(error).__name__}: {error}"
        other = self.fresh(self.rng.choice(("file", "checkpoint")))
        second = other.begin(task, isolated=isolated)
        file = io.BytesIO()
        tensors, numbers = trainer.state()
        torch.save(tensors, file)
        file.seek(0)
        second.restore_(torch.load(file), json.loads(json.dumps(numbers)))
        ends = []
        for one in (trainer, second):
            try:
                while not one.finished:
                    one.epoch()
                one.finish()
                ends.append("")
            except TinySubNetsError as error:
                ends.append(f"{type(error).__name__}: {error}")
        assert ends[0] == ends[1], f"in one process {ends[0]!r}, in two {ends[1]!r}"
        assert self.data() == self.data(other.store), "a lesson in two processes differs"
        if self.rng.random() < 0.5:
            other.store.saved_as = self.store.saved_as
            self.learner = other
        return f"{task.name!r}: {ends[0]}"

    def meanwhile(self) -> str:
        """A task is renamed or removed while another is learned, which is then refused."""
        if not self.store.tasks:
            return self.learn()
        task, isolated = self.lesson()
        self.watched = None if self.watched == task.name else self.watched
        old = self.some_task()
        try:
            trainer = self.learner.begin(task, isolated=isolated)
            trainer.epoch()
        except TinySubNetsError as error:
            return f"{type(error).__name__}: {error}"
        before = self.data()
        self.store.rename(old, "meanwhile")
        with contextlib.suppress(TinySubNetsError):
            while not trainer.finished:
                trainer.epoch()
            trainer.finish()
            raise AssertionError("a lesson was kept over a store that has changed")
        self.store.rename("meanwhile", old)
        assert self.data() == before
        return f"{old!r} was renamed"

    def fail(self) -> str:
        """A lesson that cannot be learned."""
        way = self.rng.choice(("nan", "shape", "duplicate", "huge", "no task", "one class"))
        task, _ = self.lesson()
        self.watched = None if self.watched == task.name else self.watched

        def act() -> None:
            x, y = task.train.inputs().float().numpy(), task.train.labels.numpy()
            bad: Any = task
            if way == "nan":
                bad = Task.from_arrays(task.name, np.full_like(x, np.nan), y)
            elif way == "shape":
                bad = Task.from_arrays(task.name, x.reshape(len(x), -1)[:, :5], y)
            elif way == "huge":
                x *= np.float32(1e36) / max(1, np.abs(x).max())
                bad = Task.from_arrays(task.name, x, y, normalization=None)
            elif way == "one class":
                bad = Task.from_arrays(task.name, x, np.zeros(len(x)))
            elif way == "no task":
                bad = None
            elif self.store.tasks:
                bad = Task.from_arrays(self.store.tasks[0], x, y)
            self.learner.learn(bad)

        said = self.attempt(act)
        return f"{way}: {said}"

    def patch(self) -> str:
        """The difference to an earlier file, applied to it."""
        new = self.saved()
        old, goes_on = self.rng.choice(self.versions)
        if old == new:
            return "to itself"
        folder, file = self.new_place(), self.root / "patch"
        by_command = self.rng.random() < 0.3
        if by_command:
            folder.mkdir()
            (folder / artifact.FILE_NAME).write_bytes(old)
            words = [str(folder), str(self.folder), "--out", str(file)]
            status, said = self.command("diff", *words, allowed=(0, 2))
            assert status == 0 or not goes_on, said
            if status == 0:
                self.command("apply", str(folder), str(file), *self.words())
                assert (folder / artifact.FILE_NAME).read_bytes() == new
                self.command("apply", str(folder), str(file), *self.words())
                file.unlink()
            return f"by commands: {status}"
        try:
            found = make_patch(old, new)
        except MismatchError as error:
            assert not goes_on, f"a file that goes on another is refused: {error}"
            return f"refused: {error}"
        assert apply_patch(old, found) == new
        return f"{len(found)} instead of {len(new)} bytes"

    def embed(self) -> str:
        if self.store.base is None:
            said = self.attempt(self.store.embed_base_)
            assert said
            return said
        self.store.embed_base_()
        if not self.is_embedded:
            self.broken()
        self.is_embedded = True
        return ""

    def look(self) -> str:
        """Commands that change nothing."""
        self.saved()
        folder, files = str(self.folder), {
            p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()
        }
        way = self.rng.choice(("inspect", "verify", "predict", "route", "evaluate"))
        npz = self.root / "probe.npz"
        np.savez(npz, inputs=self.probe)
        if way == "inspect":
            _, said = self.command("inspect", folder, "--json")
            json.loads(said)
            self.command("inspect", folder)
        elif way == "verify":
            _, said = self.command("verify", folder, *self.words())
            assert said.startswith("fine"), said
        elif not self.store.tasks:
            self.command("predict", folder, str(npz), *self.words(), allowed=(2,))
        elif way == "route":
            self.command("predict", folder, str(npz), *self.words(), allowed=(0, 2))
        else:
            name = self.some_task()
            if way == "predict":
                words = ["predict", folder, f"--task={name}", str(npz), "--json", *self.words()]
                _, said = self.command(*words, allowed=(0, 2))
            else:
                subnet = self.store.subnet(name)
                labels = np.array(subnet.classes)[np.arange(PROBES) % len(subnet.classes)]
                np.savez(npz, inputs=self.probe, labels=labels)
                words = ["evaluate", folder, f"--task={name}", "--data", str(npz), *self.words()]
                self.command(*words, allowed=(0, 2))
        now = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        assert now == files, "a command that looks has changed something"
        return way

    def alone(self) -> str:
        """One task of the file alone, which nothing can be changed in."""
        if not self.store.tasks:
            return self.learn()
        name = self.some_task()
        self.saved()
        found = SubnetStore.load(self.folder, task=name, **self.given())
        assert found.tasks == (name,) and self.asked(found, name) == self.expected[name]
        for act in (
            lambda: found.save(self.root / "never"),
            lambda: found.remove(name),
            lambda: found.rename(name, "another"),
        ):
            try:
                act()
                raise AssertionError("a store of one task was changed or saved")
            except TinySubNetsError:
                pass
        module = found.module(name)
        with torch.no_grad():
            logits = module(torch.as_tensor(self.probe))
        wanted = self.store.logits(name, self.probe)
        assert torch.allclose(logits, wanted, rtol=1e-4, atol=1e-4), "the module answers otherwise"
        return repr(name)

    def export(self) -> str:
        if not self.store.tasks:
            return self.learn()
        name: str | None = self.some_task() if self.rng.random() < 0.5 else None
        suffix = self.rng.choice((".pt2", ".onnx"))
        path = self.root / f"exported{suffix}"
        write: Callable[..., Any] = to_torch if suffix == ".pt2" else to_onnx
        before = self.data()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = self.attempt(lambda: write(self.store, name, path))
            if not said and suffix == ".pt2" and name is not None:
                module = torch.export.load(path).module()
                logits: Tensor = module(torch.as_tensor(self.probe))
                wanted = self.store.logits(name, self.probe)
                assert torch.allclose(logits, wanted, rtol=1e-4, atol=1e-4)
        assert self.data() == before
        path.unlink(missing_ok=True)
        return f"{name!r} {suffix}: {said}"

    STEPS: ClassVar[dict[str, float]] = {
        "learn": 8,
        "learn_by_command": 4,
        "learn_anew": 2,
        "rename": 2.5,
        "remove": 3.5,
        "undo": 2,
        "save": 1,
        "save_elsewhere": 1,
        "resume": 1.5,
        "restore": 0.7,
        "keep_state": 0.7,
        "go_back": 0.8,
        "copied": 0.7,
        "stale_writer": 0.5,
        "abandon": 1,
        "checkpoint": 1.5,
        "meanwhile": 0.5,
        "fail": 1.5,
        "patch": 2,
        "embed": 0.6,
        "look": 2,
        "alone": 1,
        "export": 0.06,
    }

    def live(self) -> None:
        """All steps, and all that must hold after each."""
        steps, chances = list(self.STEPS), list(self.STEPS.values())
        self.told(f"{self.drawn}")
        self.check()
        for number in range(self.rng.randint(5, 12)):
            step = "learn" if number == 0 else self.rng.choices(steps, chances)[0]
            # What a step draws is no matter for the next one.
            rng, self.rng = self.rng, random.Random(self.rng.random())
            self.told(f"{number} {step}")
            said = getattr(self, step)()
            self.rng = rng
            self.told(f"    {said}")
            self.check()
            digest = hashlib.sha256(self.data()).hexdigest()
            self.trace.append((step, self.store.tasks, self.store.next_number, digest))
            if self.apart:
                self.learner = self.fresh(self.apart)
                self.check()
        if self.watched is not None and self.watched in self.store.tasks:
            self.told(f"the end: remove {self.watched!r}")
            self.is_exact = self.store.subnet(self.watched).isolated or self.is_one_bank
            self.remove(self.watched, True)
            self.check()


class Untrained:
    """A longer life in which nothing is trained: masks and values are drawn.

    Masks are like those that the store can tell them by: like one before, like all before, like
    the first scores; tasks are in banks, isolated, or differences to others and to a base.
    """

    NETWORK: ClassVar[dict[str, Any]] = {"in_features": 20, "hidden": [24, 16], "classes": 3}

    def __init__(self, seed: str, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.draw = np.random.default_rng(self.rng.randrange(2**32))
        self.path = folder / artifact.FILE_NAME
        network = networks.build("mlp", **self.NETWORK)
        record = {"network": "mlp", "settings": self.NETWORK, "head": "fc"}
        architecture = Architecture(network, rebuild=record)
        specs = [s for s in architecture.task_params if s.name not in architecture.output]
        values = {
            s.name: torch.from_numpy(self.draw.normal(size=s.shape).astype(np.float32))
            for s in (*architecture.shared, *specs)
        }
        base = Base("small", "tests", weights_hash(values), values, embedded=True)
        self.store = SubnetStore(
            architecture,
            block=self.rng.choice((1, 1, 4)),
            settings=models.SETTINGS,
            seed=models.SEED,
            base=base,
        )
        self.probe = self.draw.normal(size=(PROBES, 20)).astype(np.float32)
        self.expected: dict[str, tuple[str, bytes]] = {}
        self.count = 0

    def mask(self, bank: int) -> Tensor:
        """A mask for a bank, or for a difference, near something that it may be coded against."""
        layout, draw = self.store.layout, self.draw
        near = np.zeros(layout.num_blocks, np.bool_)
        earlier = [s for s in self.store.entries(bank) if s.has_mask]
        way = self.rng.choice(("alone", "one", "all", "scores", "part"))
        if way in ("one", "part") and earlier:
            near = self.rng.choice(earlier).mask.numpy()
        elif way == "all":
            for subnet in earlier:
                near = near | subnet.mask.numpy()
        elif way == "scores":
            key = InitKey(models.SEED, max(bank, 0), self.store.next_number)
            scores = initial_scores(self.store.architecture, layout, key).abs()
            parts = [(i, j, max(1, (j - i) // 8)) for i, j in layout.block_segments]
            near = top_k_segments(scores, parts)[0].numpy()
        else:
            return torch.from_numpy(draw.random(layout.num_blocks) < self.rng.choice((0.02, 0.3)))
        if way == "part":
            return torch.from_numpy(near & (draw.random(layout.num_blocks) < 0.8))
        return torch.from_numpy(near ^ (draw.random(layout.num_blocks) < 0.01))

    def add(self) -> None:
        """A task of any kind."""
        store, rng, layout = self.store, self.rng, self.store.layout
        self.count += 1
        how: dict[str, Any] = {"name": f"n{self.count}", "bits": rng.choice((1, 2, 4, 32))}
        isolated = rng.random() < 0.15
        alone = {s.bank for s in store.entries() if s.isolated}
        shared = [b for b in range(min(3, len(store.banks) + 1)) if b not in alone]
        kind = rng.choice(("bank", "bank", "difference", "difference", "rank", "nothing"))
        bank = new_bank(store) if isolated else rng.choice(shared) if shared else new_bank(store)
        if kind != "bank":
            bank = NO_BANK
            numbers = [s.number for s in store.subnets.values() if not s.isolated]
            over_base = isolated or not numbers or rng.random() < 0.5
            how["reference"] = BASE if over_base else rng.choice(numbers)
            how["adds_to_base"] = rng.random() < 0.5
        none = PackedMask.none(layout.num_blocks)
        empty = (CodebookTensor(torch.zeros(0)),) * len(layout.shared)
        if kind == "nothing":
            how |= {"packed_mask": none, "own": empty}
        elif kind == "rank":
            rank = rng.choice((1, 2))
            sizes = Factors(layout, rank).sizes.values()
            drawn = [torch.from_numpy(self.draw.normal(size=n)).float() for n in sizes]
            own = tuple(models.code(d, 2) for d in drawn)
            how |= {"packed_mask": none, "own": own, "rank": rank}
        else:
            mask = self.mask(bank)
            is_there = 0 <= bank < len(store.banks)
            new = layout.expand(mask & ~store.banks[bank].owned if is_there else mask)
            values = torch.from_numpy(self.draw.normal(size=layout.num_weights) ** 3).float()
            ends = ((0, layout.num_weights),) if rng.random() < 0.2 else layout.segments
            own = tuple(models.code(values[i:j][new[i:j]], how["bits"]) for i, j in ends)
            how |= {"packed_mask": PackedMask.of(mask), "own": own}
        how |= {"isolated": isolated, "sample": None, "normalization": Normalization()}
        if isolated:
            how["memory"] = None
        with contextlib.suppress(TaskError):  # of chains that are too long
            models.add_task(store, 2 * self.count + rng.choice((0, 1)), bank=bank, **how)

    def live(self) -> int:
        """All steps, and all that must hold after each; how many there were."""
        steps = self.rng.randint(15, 30)
        for _ in range(steps):
            act = self.rng.choices(("add", "remove", "exact", "rename", "load"), (9, 4, 1, 1, 2))[0]
            if act == "add" or not self.store.tasks:
                self.add()
            elif act == "load":
                self.store = SubnetStore.load(self.path)
            elif act == "rename":
                self.count += 1
                old, new = self.rng.choice(self.store.tasks), f"n{self.count}"
                self.store.rename(old, new)
                self.expected[new] = self.expected.pop(old)
            else:
                name = self.rng.choice(self.store.tasks)
                for gone in self.store.remove(name, exact=act == "exact").names:
                    del self.expected[gone]
            self.check()
        return steps

    def asked(self, store: SubnetStore, name: str) -> tuple[str, bytes]:
        return store.digest(name), store.logits(name, self.probe).numpy().tobytes()

    def check(self) -> None:
        """What is kept computes as it did, here, from the file, alone and in the second reader."""
        store = self.store
        for name, wanted in self.expected.items():
            assert self.asked(store, name) == wanted, f"{name} computes something else"
        self.expected = {n: self.expected.get(n) or self.asked(store, n) for n in store.tasks}
        check_banks(store)
        encoded = encode(store)
        encoded.check_readable()
        data = b"".join(encoded.parts)
        self.path.write_bytes(data)
        again = SubnetStore.load(self.path)
        assert b"".join(encode(again).parts) == data, "read and written again, the bytes differ"
        check_banks(again)
        for name in store.tasks:
            alone = SubnetStore.load(self.path, task=name)
            assert self.asked(again, name) == self.expected[name], f"{name} is read otherwise"
            assert self.asked(alone, name) == self.expected[name], f"{name} differs alone"
        assert artifact.check(self.path).num_tasks == len(store.tasks)
        found = artifact.inspect(self.path)
        assert found["ledger"]["file_bytes"] == len(data) == encoded.ledger.total.total / 8
        for name, tensors in plain_reader.read(self.path).items():
            ours = store.tensors(name)
            for key, values in tensors.items():
                same = ours[key].numpy().tobytes() == np.ascontiguousarray(values).tobytes()
                assert same, f"{key} of {name} differs in the second reader"


def untrained(seed: int, number: int) -> int:
    """A life without training; the number of steps."""
    with tempfile.TemporaryDirectory(dir=TEMPORARY) as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        return Untrained(f"{seed} {number}", Path(folder)).live()


def lived(seed: str, **how: Any) -> Life:
    """A life in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=TEMPORARY) as folder:
        life = Life(seed, Path(folder), **how)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for kind in (CapacityWarning, FewSamplesWarning):
                warnings.simplefilter("ignore", kind)
            life.live()
        return life


def run_one(seed: int, number: int, told: Callable[[str], None]) -> int:
    """One life, twice for some; the number of steps."""
    name = f"{seed} {number}"
    life = lived(name, told=told)
    steps, way = len(life.trace), number % 6
    if way in (1, 3):
        apart = "file" if way == 1 and not life.continues else "checkpoint"
        told(f"again, each step from a {apart}")
        other = lived(name, apart=apart, told=told)
        for place, (one, two) in enumerate(zip(life.trace, other.trace, strict=True)):
            assert one == two, f"step {place} from a {apart} comes to {two}, and live to {one}"
        steps += len(other.trace)
    elif way == 5:
        watch = number // 6 % 4
        told(f"again, with the task of lesson {watch} removed at the end, with its data and others")
        one, two = (lived(name, watch=watch, is_other=o, told=told) for o in (False, True))
        is_alike = [t[:3] for t in one.trace] == [t[:3] for t in two.trace]
        if one.is_exact and two.is_exact and is_alike:
            told("compared")
            assert one.data() == two.data(), "other data have left a trace"
        steps += len(one.trace) + len(two.trace)
    return steps


def run(
    seconds: float, seed: int, first: int = 0, count: int | None = None, *, trained: bool = True
) -> int:
    """Live until the time is over; the number of failures, each of which is printed."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, _hung)
    failures, number, steps = 0, first, 0
    end = time.monotonic() + seconds
    kinds: Counter[str] = Counter()
    while time.monotonic() < end and (count is None or number < first + count):
        lines: list[str] = []
        told = print if count == 1 else lines.append
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # a life that hangs is one that fails
        try:
            steps += run_one(seed, number, told) if trained else untrained(seed, number)
        except (Exception, SystemExit) as error:
            failures += 1
            print("\n".join(lines))
            print(f"FAILED seed {seed}, life {number}: {type(error).__name__}: {error}")
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)
        kinds.update(line.split()[1] for line in lines if line[:1].isdigit())
        number += 1
        if number % 100 == 0:
            print(f"{number - first} lives, {steps} steps, {failures} failures", flush=True)
    print(dict(kinds))
    print(f"{number - first} lives (of seed {seed}, {first} to {number - 1}), {steps} steps, "
          f"{failures} failures")  # fmt: skip
    return failures


def _hung(*_: object) -> None:
    raise TimeoutError(f"a life took more than {SECONDS} seconds of the processor")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first life")
    parser.add_argument("--count", type=int, help="stop after so many lives")
    parser.add_argument("--only", type=int, help="one life again")
    text = "lives in which nothing is trained"
    parser.add_argument("--untrained", action="store_true", help=text)
    options = parser.parse_args()
    if options.only is not None:
        options.first, options.count = options.only, 1
    how = {"trained": not options.untrained}
    sys.exit(bool(run(options.seconds, options.seed, options.first, options.count, **how)))


if __name__ == "__main__":
    main()
