"""Finding data: the local folder, the Hub's cache, the Hub, and what is said when all fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from data_files import mnist_like
from tinysubnets.datasets import catalog, hub
from tinysubnets.errors import DataError, SettingError

PATTERN = ("mnist/train-*.parquet",)


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TINYSUBNETS_DATA", raising=False)
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def hub_snapshot(tmp_path: Path) -> Path:
    """The folder of a downloaded snapshot, as huggingface_hub lays it out."""
    folder = tmp_path / "hub-cache/datasets--ylecun--mnist"
    touch(folder, "refs/main")
    (folder / "refs/main").write_text("abc")
    return folder / "snapshots/abc"


def no_network(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Let every download fail as it does offline; returns the calls."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    calls: list[dict] = []

    def refuse(repo: str, **given: object) -> str:
        calls.append({"repo": repo, **given})
        raise LocalEntryNotFoundError("cannot reach the Hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    return calls


def test_argument_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a", "b"):
        touch(tmp_path / place, "ylecun/mnist/mnist/train-00000-of-00001.parquet")
    monkeypatch.setenv("TINYSUBNETS_DATA", str(tmp_path / "b"))
    (file,) = hub.locate("ylecun/mnist", PATTERN, tmp_path / "a")
    assert file.is_relative_to(tmp_path / "a")
    (file,) = hub.locate("ylecun/mnist", PATTERN)
    assert file.is_relative_to(tmp_path / "b")


def test_shards_come_in_order_with_and_without_hashes_in_their_names(tmp_path: Path) -> None:
    names = [f"train-{i:05d}-of-00012-{99 - i:x}.parquet" for i in range(12)]
    touch(tmp_path / "o/n/data", *reversed(names))
    files = hub.locate("o/n", ("data/train-*.parquet",), tmp_path)
    assert [file.name for file in files] == names


def test_downloaded_files_are_used_without_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = no_network(monkeypatch)
    touch(hub_snapshot(tmp_path), "mnist/train-00000-of-00001.parquet")
    (file,) = hub.locate("ylecun/mnist", PATTERN)
    assert file.name == "train-00000-of-00001.parquet" and not calls


def test_missing_shards_are_asked_of_the_hub_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = no_network(monkeypatch)
    touch(tmp_path, "ylecun/mnist/mnist/train-00001-of-00003.parquet")
    with pytest.raises(DataError) as caught:
        hub.locate("ylecun/mnist", PATTERN, tmp_path)
    message = str(caught.value)
    assert "train-00000-of-00003*.parquet, train-00002-of-00003*.parquet" in message
    assert "train-00001-of-00003" not in message
    assert calls == [
        {"repo": "ylecun/mnist", "repo_type": "dataset", "allow_patterns": list(PATTERN)}
    ]


def test_message_says_what_is_missing_and_both_ways_to_provide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_network(monkeypatch)
    with pytest.raises(DataError) as caught:
        hub.locate("ylecun/mnist", PATTERN, tmp_path)
    message = str(caught.value)
    for part in (
        "data set ylecun/mnist is missing: no complete mnist/train-*.parquet",
        f"Looked in {tmp_path / 'ylecun/mnist'}",
        "DIR/ylecun/mnist/mnist/train-*.parquet and pass --data DIR or set TINYSUBNETS_DATA=DIR",
        "https://huggingface.co/datasets/ylecun/mnist",
        "LocalEntryNotFoundError: cannot reach the Hub",
        "-m pip install ",
    ):
        assert part in message


def test_offline_mode_of_the_hub_is_respected(tmp_path: Path) -> None:
    code = (
        "from tinysubnets.datasets import hub\n"
        "try:\n    hub.locate('ylecun/mnist', ('mnist/train-*.parquet',))\n"
        "except hub.DataError as e:\n    print(e)\n"
    )
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "HF_HUB_OFFLINE is set, so nothing was downloaded" in done.stdout, done.stderr


def test_without_huggingface_hub_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"-m pip install .*\[data\]"):
        hub.locate("ylecun/mnist", PATTERN)


def test_download_is_used_where_nothing_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def download(repo: str, **given: object) -> str:
        touch(tmp_path / "new", "mnist/train-00000-of-00001.parquet")
        return str(tmp_path / "new")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.locate("ylecun/mnist", PATTERN)[0].is_relative_to(tmp_path / "new")


def test_local_sets_are_never_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = no_network(monkeypatch)
    with pytest.raises(DataError, match="which the Hub does not have"):
        hub.locate("local/cifar10_small", ("plain_text/train-*.parquet",))
    assert not calls


def test_catalog_entries_are_consistent() -> None:
    assert len(catalog.names()) == 12
    for entry in catalog.CATALOG.values():
        assert entry.channels == (1 if entry.mode == "L" else 3)
        assert not entry.classes or len(set(entry.classes)) == entry.num_classes
        assert set(entry.splits) == {"train", "test"}


def test_availability_sees_both_splits(tmp_path: Path) -> None:
    absent = catalog.available("mnist", tmp_path)
    assert not absent.present and absent.where == "Hugging Face Hub, ylecun/mnist"
    mnist_like(tmp_path, split="train")
    assert not catalog.available("mnist", tmp_path).present
    mnist_like(tmp_path, split="test")
    assert catalog.available("mnist", tmp_path) == catalog.Availability(
        str(tmp_path / "ylecun/mnist"), True
    )
    assert "TINYSUBNETS_DATA" in catalog.available("emnist-letters").where
    snapshot = hub_snapshot(tmp_path)
    touch(snapshot, "mnist/train-00000-of-00001.parquet", "mnist/test-00000-of-00001.parquet")
    assert catalog.available("mnist").where == "Hugging Face cache, ylecun/mnist"


def test_names_of_sets_and_repositories() -> None:
    assert catalog.find("uoft-cs/cifar100") is catalog.find("cifar100")
    other = catalog.find("some/set/cropped")
    assert (other.repo, other.folder, other.image) == ("some/set", "cropped", None)
    assert catalog.find("some/set").folder == "data"
    for wrong in ("cifar101", "/data/x", "../x", "a//b"):
        with pytest.raises(SettingError, match="given by its path"):
            catalog.find(wrong)
    with pytest.raises(SettingError, match="Did you mean 'fashion-mnist'"):
        catalog.find("fashion_mnist")
    with pytest.raises(SettingError, match="Known: test, train"):
        catalog.find("mnist").patterns("valid")


def test_catalog_needs_no_heavy_import() -> None:
    code = (
        "import sys; from tinysubnets.datasets import catalog; catalog.available('mnist'); "
        "heavy = {'torch', 'pyarrow', 'PIL', 'numpy', 'huggingface_hub'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
