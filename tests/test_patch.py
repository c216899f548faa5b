"""A task as a patch: only its bytes, applied bit for bit, and nothing else taken for one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

import models
from digit_tasks import split
from tinysubnets import Architecture, SubnetStore, TinySubNets, networks
from tinysubnets.cli import main
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.errors import ArtifactError, MismatchError
from tinysubnets.format import encode
from tinysubnets.format.patch import MAGIC, apply_patch, make_patch

SPARE = 1000  # bytes of a patch beside its tasks' own


def file_of(store: SubnetStore) -> bytes:
    return b"".join(encode(store).parts)


def versions(kind: str = "named", most: int = 6) -> list[bytes]:
    return [file_of(models.store(kind, tasks)) for tasks in range(1, most)]


@pytest.mark.parametrize("kind", ["named", "own"])
def test_every_version_comes_from_every_earlier_one(kind: str) -> None:
    made = versions(kind)
    ledger = models.store(kind, len(made)).ledger()
    shares = [entry.total / 8 for entry in ledger.tasks.values()]
    for i, old in enumerate(made):
        for j in range(i + 1, len(made)):
            patch = make_patch(old, made[j])
            assert apply_patch(old, patch) == made[j]
            assert len(patch) <= sum(shares[i + 1 : j + 1]) + SPARE


@pytest.mark.slow
def test_learned_tasks_cost_their_share(tmp_path: Path) -> None:
    net = networks.build("mlp", in_features=64, hidden=(100, 100))
    learner = TinySubNets(
        Architecture(net), density=0.2, training={"epochs": 2}, pruning={"iterations": 3}
    )
    files = []
    for task in split(4):
        learner.learn(task)
        files.append(learner.save(tmp_path / str(len(files))).read_bytes())
    shares = [entry.total / 8 for entry in learner.store.ledger().tasks.values()]
    for i in range(3):
        patch = make_patch(files[i], files[i + 1])
        assert len(patch) <= shares[i + 1] + SPARE
        assert apply_patch(files[i], patch) == files[i + 1]


def test_a_life_of_many_tasks_goes_on_by_patches() -> None:
    store = models.whole_store()
    old = file_of(store)
    models.add_task(store, 12, bank=1)
    new = file_of(store)
    assert apply_patch(old, make_patch(old, new)) == new


def test_only_what_continues_makes_a_patch() -> None:
    old, new = versions(most=4)[1:]
    renamed, removed = models.store(tasks=3), models.store(tasks=3)
    renamed.rename("task 0", "another")
    removed.remove("task 0")
    other = models.store("own", 4)
    for first, second in (
        (new, old),
        (old, old),
        (old, file_of(renamed)),
        (old, file_of(removed)),
        (old, file_of(other)),
        (file_of(renamed), new),
    ):
        with pytest.raises(MismatchError):
            make_patch(first, second)
    with pytest.raises(ArtifactError):
        make_patch(old[:-1], new)


def test_hostile_patches_are_refused() -> None:
    old, new, newest = versions(most=4)
    patch = make_patch(old, new)
    with pytest.raises(MismatchError, match="another file"):
        apply_patch(new, make_patch(old, newest))
    rng = np.random.default_rng(0)
    bad = [b"", MAGIC, patch[:-1], patch + b"\0", patch[1:], b"x" * 1000]
    bad += [patch[:n] for n in range(len(MAGIC), len(patch), 37)]
    for data in bad:
        with pytest.raises(ArtifactError):
            apply_patch(old, data)
    refused = 0
    for place in rng.integers(0, len(patch), 150):
        changed = bytearray(patch)
        changed[place] ^= 1 << int(rng.integers(8))
        try:
            assert apply_patch(old, bytes(changed)) == new  # a bit that stands for nothing
        except ArtifactError:
            refused += 1
    assert refused > 140


def forged(old: bytes, new: bytes) -> bytes:
    """A patch whose hashes are right, but that changes what the old file holds."""
    honest = make_patch(old, file_of(models.store(tasks=2)))
    data, out = Reader(honest, "patch"), Writer()
    head = data.raw(len(MAGIC))
    data.varint(1 << 40), data.raw(32), data.varint(1 << 40), data.raw(32)
    out.raw(head)
    for file in (old, new):
        out.varint(len(file))
        out.raw(hashlib.sha256(file).digest())
    return out.bytes() + honest[data.position :]


def test_a_patch_that_lies_about_its_result_is_refused() -> None:
    old, new, newest = versions(most=4)
    assert apply_patch(old, forged(old, new)) == new  # the forger's tool works
    with pytest.raises(ArtifactError):
        apply_patch(old, forged(old, newest))


def test_a_patch_cannot_touch_what_the_old_file_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file that is whole and sound, but names an old task anew."""
    from tinysubnets.format import patch as module

    old = file_of(models.store(tasks=1))
    changed = models.store(tasks=2)
    changed.rename("task 0", "mine now")
    with monkeypatch.context() as patched:
        patched.setattr(module, "check_continues", lambda *_: None)
        forged_patch = make_patch(old, file_of(changed))
    with pytest.raises(MismatchError, match="does not continue"):
        apply_patch(old, forged_patch)


def test_a_config_that_inflates_without_end_is_refused() -> None:
    import zlib

    old, new = versions(most=3)
    out = Writer()
    out.raw(MAGIC)
    for file in (old, new):
        out.varint(len(file))
        out.raw(hashlib.sha256(file).digest())
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = coder.compress(bytes(50 << 20)) + coder.flush()
    for size in (1000, 1 << 24, 50 << 20):
        told = Writer()
        told.varint(size)
        told.block(stream)
        with pytest.raises(ArtifactError):
            apply_patch(old, out.bytes() + told.bytes())


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, tasks in (("old", 2), ("new", 3), ("device", 2)):
        models.store(tasks=tasks).save(name)
    before, wanted = (Path(n, "model.safetensors").read_bytes() for n in ("old", "new"))
    assert main(["diff", "old", "new", "--out", "p.tsnpatch"]) == 0
    size = Path("p.tsnpatch").stat().st_size
    assert f"{size:,} bytes" in capsys.readouterr().out and size < len(wanted)
    assert main(["apply", "old", "p.tsnpatch", "--out", "elsewhere"]) == 0
    assert Path("elsewhere/model.safetensors").read_bytes() == wanted
    assert Path("old/model.safetensors").read_bytes() == before
    assert main(["apply", "device", "p.tsnpatch"]) == 0
    assert {p.name: p.read_bytes() for p in Path("device").iterdir()} == {
        p.name: p.read_bytes() for p in Path("new").iterdir()
    }
    assert main(["apply", "device", "p.tsnpatch"]) == 0  # a second time changes nothing
    assert "already" in capsys.readouterr().out
    assert main(["diff", "new", "old"]) == 2 and not Path("model.tsnpatch").exists()
    said = capsys.readouterr().err
    assert "Or are they swapped?" in said and f"new {Path('old', 'model.safetensors')}" in said
    Path("mine.toml").write_text('method = "tsn"')
    assert main(["apply", "old", "mine.toml"]) == 2
    assert capsys.readouterr().err.startswith("tsn: mine.toml is not a patch")
    assert main(["apply", "p.tsnpatch", "old"]) == 2
    assert "swapped" in capsys.readouterr().err
    assert main(["apply", "old", "p.tsnpatch", "--out", "old"]) == 2
    capsys.readouterr()
    whole = Path("p.tsnpatch").read_bytes()
    for size in (0, 3, len(MAGIC), len(MAGIC) + 20, len(whole) - 2):
        Path("p.tsnpatch").write_bytes(whole[:size])
        for more in ([], ["--out", "new place/model"]):
            assert main(["apply", "old", "p.tsnpatch", *more]) == 2
            said = capsys.readouterr().err
            assert said.startswith("tsn: p.tsnpatch: the patch") and "cut or damaged" in said
    assert not Path("new place").exists()
    assert Path("old/model.safetensors").read_bytes() == before
    assert sorted(os.listdir("old")) == ["README.md", "config.json", "model.safetensors"]
