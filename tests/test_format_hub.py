"""Pushing to and pulling from the Hub, played by a folder."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import models
from tinysubnets.errors import ArtifactError, ConflictError, FormatError, SettingError
from tinysubnets.model.store import SubnetStore


class EntryNotFoundError(Exception):
    """A repository without the file."""


class HfHubHTTPError(OSError):
    """Anything else that the Hub answers."""


class FakeHub(types.ModuleType):
    """The few functions of huggingface_hub that are used, on a local folder."""

    def __init__(self, root: Path) -> None:
        super().__init__("huggingface_hub")
        self.errors = types.ModuleType("huggingface_hub.errors")
        self.errors.EntryNotFoundError = EntryNotFoundError  # type: ignore[attr-defined]
        self.errors.HfHubHTTPError = HfHubHTTPError  # type: ignore[attr-defined]
        self.root, self.commits = root, 0

    def HfApi(self, token: str | None = None) -> FakeHub:
        return self

    def create_repo(self, repo: str, private: bool | None = None, exist_ok: bool = False) -> None:
        assert exist_ok
        (self.root / repo).mkdir(parents=True, exist_ok=True)

    def repo_info(self, repo: str) -> Any:
        return types.SimpleNamespace(sha=f"commit {self.commits}")

    def hf_hub_download(
        self, repo: str, name: str, revision: str | None = None, token: str | None = None
    ) -> str:
        if not (self.root / repo).exists():
            raise HfHubHTTPError("404")
        if not (self.root / repo / name).exists():
            raise EntryNotFoundError(name)
        return str(self.root / repo / name)

    def upload_folder(
        self, *, repo_id: str, folder_path: str, commit_message: str, parent_commit: str
    ) -> Any:
        if parent_commit != f"commit {self.commits}":
            raise HfHubHTTPError("412")
        self.commits += 1
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return types.SimpleNamespace(commit_url=f"hub/{repo_id}/{self.commits}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", fake.errors)
    return fake


def test_a_model_goes_to_the_hub_and_comes_back(hub: FakeHub) -> None:
    store = models.store(tasks=2)
    assert store.push_to_hub("me/tiny") == "hub/me/tiny/1"
    names = {p.name for p in (hub.root / "me/tiny").iterdir()}
    assert names == {"model.safetensors", "config.json", "README.md"}
    again = SubnetStore.from_hub("me/tiny")
    assert {t: again.digest(t) for t in again.tasks} == {t: store.digest(t) for t in store.tasks}
    assert SubnetStore.from_hub("me/tiny", task="task 1").tasks == ("task 1",)
    models.add_task(again, 3)
    again.push_to_hub("me/tiny")
    assert len(SubnetStore.from_hub("me/tiny").tasks) == 3


def test_two_writers_on_the_hub_lose_nothing(hub: FakeHub) -> None:
    models.store(tasks=1).push_to_hub("me/tiny")
    one, two = SubnetStore.from_hub("me/tiny"), SubnetStore.from_hub("me/tiny")
    models.add_task(one, 3)
    one.push_to_hub("me/tiny")
    models.add_task(two, 5)
    with pytest.raises(ConflictError, match="me/tiny holds a model"):
        two.push_to_hub("me/tiny")
    assert SubnetStore.from_hub("me/tiny").tasks == one.tasks
    (hub.root / "me/tiny/model.safetensors").write_bytes(b"something else")
    with pytest.raises(ConflictError, match="not a model that can be read"):
        one.push_to_hub("me/tiny")


def test_a_commit_in_between_is_refused(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    store = models.store(tasks=1)
    monkeypatch.setattr(hub, "repo_info", lambda repo: types.SimpleNamespace(sha="older"))
    known = store.saved_as
    with pytest.raises(ArtifactError, match="cannot push to me/tiny: 412"):
        store.push_to_hub("me/tiny")
    assert store.saved_as == known


def test_what_is_not_there_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match="no model at me/none on the Hub"):
        SubnetStore.from_hub("me/none")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SettingError, match=r"-m pip install .*\[data\]"):
        SubnetStore.from_hub("me/tiny")
