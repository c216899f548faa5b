"""Models on the Hugging Face Hub: a model folder pushed as it is, and its one file pulled."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tinysubnets.errors import (
    ArtifactError,
    ConflictError,
    FormatError,
    SettingError,
    install_command,
)
from tinysubnets.format.container import FILE_NAME, ModelFile
from tinysubnets.format.folder import load, save
from tinysubnets.model.bank import BaseSource
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture


def push(
    store: SubnetStore, repo: str, *, private: bool | None = None, token: str | None = None
) -> str:
    """Upload a store as a model folder in one commit; returns the commit's address.

    Refused where the repository holds a model that this store does not come from. A commit made by
    someone else in between is noticed by the Hub and refused as well.
    """
    hub = _hub()
    api = hub.HfApi(token=token)
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        parent = api.repo_info(repo).sha
        there = _identity(hub, repo, parent, token)
        with tempfile.TemporaryDirectory() as folder:
            known, store.saved_as = store.saved_as, None
            try:
                save(store, folder)
                mine = store.saved_as
            finally:
                store.saved_as = known
            if there is not None and there not in (known, mine):
                raise ConflictError(
                    f"{repo} holds a model that this store was not loaded from. Pull it and learn "
                    "on top of it, or push to another repository."
                )
            message = f"{len(store.tasks)} tasks"
            done = api.upload_folder(
                repo_id=repo, folder_path=folder, commit_message=message, parent_commit=parent
            )
    except (OSError, hub.errors.HfHubHTTPError) as error:
        raise ArtifactError(f"cannot push to {repo}: {error}") from error
    store.saved_as = mine
    return str(getattr(done, "commit_url", done))


def pull(
    repo: str,
    net: nn.Module | Architecture | None = None,
    *,
    task: str | None = None,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    token: str | None = None,
    base: BaseSource | None = None,
) -> SubnetStore:
    """The store in a repository of the Hub, or only what one of its tasks needs."""
    hub = _hub()
    try:
        path = hub.hf_hub_download(repo, FILE_NAME, revision=revision, token=token)
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise FormatError(f"no model at {repo} on the Hub: {error}") from error
    return load(path, net, task, device, base)


def _identity(hub: Any, repo: str, revision: str | None, token: str | None) -> str | None:
    """The hash that stands for the model in a repository; None where there is none yet."""
    try:
        path = hub.hf_hub_download(repo, FILE_NAME, revision=revision, token=token)
    except hub.errors.EntryNotFoundError:
        return None
    try:
        with ModelFile(Path(path)) as file:
            return file.identity
    except ArtifactError as error:
        raise ConflictError(
            f"{repo} holds a {FILE_NAME} that is not a model that can be read ({error}). "
            "Push to another repository."
        ) from error


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise SettingError(
            "the Hub needs the package 'huggingface_hub', which is not installed. Install it with: "
            + install_command("data")
        ) from error
    return huggingface_hub
