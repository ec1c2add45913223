"""Where a model's files are: a local folder, or a repository of the model hub."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from omnirecall.digests import file_digest
from omnirecall.errors import UserError, require

LEFT_OUT = (
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.pkl",
    "*.pickle",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.ot",
    "*.gguf",
    "*.tflite",
)
"""Never downloaded: pickles, which may run code when read, and other libraries' copies of the weights."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files on disk. ``identity`` changes whenever a file does."""

    name: str
    folder: Path
    identity: str

    def json(self, file: str) -> dict[str, Any]:
        """A JSON file of the checkpoint, {} where it has none; UserError where it cannot be read."""
        path = self.folder / file
        if not path.is_file():
            return {}
        try:
            value = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(f"{path}: cannot be read as JSON: {error}") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}: must hold a JSON object")
        return value

    def has(self, file: str) -> bool:
        """Whether the checkpoint has this file."""
        return (self.folder / file).is_file()


def find_checkpoint(family: str, name: str, revision: str | None = None) -> Checkpoint:
    """A folder, or ``owner/repository[@revision]`` on the hub: from the local cache where it is there, else downloaded.

    UserError where there is neither. Pickled weights are never downloaded.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise UserError(f"--revision {revision}: {name} is a folder, which has no revisions; leave --revision out")
        return Checkpoint(name=folder.resolve().name, folder=folder.resolve(), identity=folder_digest(folder))
    repository, _, own = name.partition("@")
    if not repository or repository.count("/") > 1 or repository.startswith((".", "/", "~")):
        raise UserError(f"{family}:{name}: there is no such folder; name a folder, or owner/repository on the hub")
    snapshot = _snapshot(family, repository, revision or own or None)
    return Checkpoint(name=repository.rpartition("/")[2], folder=snapshot, identity=f"{repository}@{snapshot.name}")


def _snapshot(family: str, repository: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", "hub")
    errors = require("huggingface_hub.errors", "hub")
    fetch = {"repo_id": repository, "revision": revision, "ignore_patterns": list(LEFT_OUT)}
    try:
        return Path(hub.snapshot_download(**fetch, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        pass
    except errors.HFValidationError as error:
        raise UserError(f"{family}:{repository}: {error}") from None
    shown = f"{family}:{repository}" + (f"@{revision}" if revision else "")
    try:
        return Path(hub.snapshot_download(**fetch))
    except errors.RevisionNotFoundError:
        raise UserError(f"{shown}: the repository has no such revision") from None
    except errors.GatedRepoError:
        raise UserError(f"{shown}: access must be granted on the hub first; then set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"{shown}: there is no such folder, and no such repository on the hub") from None
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{shown}: is not in the local cache and cannot be downloaded ({reason}): connect, or name a folder"
        ) from None


def folder_digest(folder: Path) -> str:
    """The hash of the names and bytes of a folder's files, hidden ones left out."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path.relative_to(folder)))
    parts = "".join(f"{path.relative_to(folder).as_posix()} {file_digest(path)}\n" for path in files)
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
