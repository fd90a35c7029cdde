"""Download files of the Hugging Face hub; where it refuses, its own answer is told.

A hub id is `owner/name`, or `owner/name@revision` with the name of a branch or a tag, or a commit.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.core.log import logger

# Suffixes of files of weights, of which pickles are read as tensors alone.
SAFETENSORS, GGUF, PICKLED = (".safetensors", ".sft"), ".gguf", (".pt", ".pth", ".bin", ".ckpt")
WEIGHTS = (*SAFETENSORS, GGUF, *PICKLED)
_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?")


class HubId(NamedTuple):
    """A repository and the revision of it that is meant; None for the newest of its main branch."""

    repository: str
    revision: str | None


def is_file_of(name: str | Path, endings: tuple[str, ...] = WEIGHTS) -> bool:
    """Return whether a name ends as files of weights do, in whatever case."""
    return str(name).lower().endswith(endings)


def parse(text: str) -> HubId | None:
    """Return the hub id that a text can be, or None."""
    match = _ID.fullmatch(text)
    return None if match is None else HubId(match["repository"], match["revision"])


def is_id(text: str) -> bool:
    """Return whether a text can be a hub id."""
    return parse(text) is not None


def file_in(text: str) -> tuple[str, str] | None:
    """Return the hub id and the file of a text such as `owner/name/file.safetensors`, or None."""
    owner, _, rest = text.partition("/")
    name, _, file = rest.partition("/")
    is_one = (
        file and is_file_of(file, SAFETENSORS) and is_id(f"{owner}/{name}") and not Path(text).expanduser().exists()
    )
    return (f"{owner}/{name}", file) if is_one else None


def strip_revision(source: str) -> str:
    """Return the repository of a hub id, and any other source as it is."""
    found = parse(source)
    return source if found is None or Path(source).expanduser().exists() else found.repository


def name_for_others(source: str) -> str:
    """Return a source of weights as a file that is given away names it: a hub id, or the last part of a path."""
    place = Path(source).expanduser()
    return source if is_id(source) and not place.exists() else place.name


def pretrained(load: Callable[..., Any], source: str, **options: Any) -> Any:
    """Return what `load`, a `from_pretrained` of transformers or diffusers, makes of a folder or of a hub id's revision."""
    found, place = parse(source), Path(source).expanduser()
    if place.exists():
        return load(str(place), **options)
    if found is None or found.revision is None:
        return load(source, **options)
    return load(found.repository, revision=found.revision, **options)


def download(hub_id: str, patterns: Sequence[str], without: Sequence[str] | None = None) -> Path:
    """Return the folder of a repository's files that match, which are downloaded if the cache lacks them.

    Tells the size first, and refuses what the disk has no room for. Files in the cache need no connection.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        importlib.import_module("huggingface_hub.constants")
    except ValueError as error:  # as it has no number in HF_HUB_DOWNLOAD_TIMEOUT
        raise UserError(
            f"huggingface_hub cannot begin ({error})",
            code="hub-failed",
            remedy="correct the environment variables whose names begin with HF_, or unset them",
        ) from error
    except ImportError as error:
        raise UserError(
            "there is no such path, and hub ids need a package that is not installed",
            code="hub-package-missing",
            remedy="pip install huggingface_hub, or pass the path of a local copy",
        ) from error
    asked = parse(hub_id)
    assert asked is not None, "the caller asked `is_id`"
    wanted: dict[str, Any] = {"allow_patterns": list(patterns), "ignore_patterns": without and list(without)}
    if asked.revision is not None:
        wanted["revision"] = asked.revision
    try:
        _announce(hub, asked.repository, wanted)
        return Path(hub.snapshot_download(asked.repository, **wanted))
    except UserError:
        raise
    except Exception as error:  # the hub's own errors have no common class, and connections fail in many ways
        raise _refused(hub, asked, error) from error


def commit_of(snapshot: Path) -> str | None:
    """Return the commit of a downloaded repository, of which its folder has the name; None for any other path."""
    folder = snapshot.resolve()
    return folder.name if folder.parent.name == "snapshots" else None


def pin_commit(source: str, place: Path) -> str | None:
    """Return a hub id with the commit that was downloaded to a place; None for a source on this machine."""
    commit = None if Path(source).expanduser().exists() else commit_of(place)
    return None if commit is None else f"{strip_revision(source)}@{commit}"


def _announce(hub: Any, repository: str, wanted: dict[str, Any]) -> None:
    """Tell the size of a download; raises what the hub refuses, and nothing if it cannot be reached."""
    try:
        files = [file for file in hub.snapshot_download(repository, **wanted, dry_run=True) if file.will_download]
    except TypeError:  # a version of the package that cannot ask
        return
    except hub.errors.HfHubHTTPError:
        raise
    except Exception:  # without a connection the cache may suffice
        return
    total = sum(file.file_size for file in files)
    if not total:
        return
    cache = Path(hub.constants.HF_HUB_CACHE)
    count = units.plural(len(files), "file")
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.is_dir())).free
    if free < total:
        raise UserError(
            f"{count} with {units.size(total)} are to be downloaded, and {cache} has {units.size(free)} left",
            code="disk-full",
            remedy="make room, or set the environment variable HF_HUB_CACHE to a folder on a larger disk",
        )
    logger.info(f"downloading {count}, {units.size(total)}, of {repository} to {cache}")


def _refused(hub: Any, asked: HubId, error: Exception) -> UserError:
    """Return the error for what the hub answered, or for no answer."""
    errors, address = hub.errors, f"{hub.constants.ENDPOINT}/{asked.repository}"
    answer = str(getattr(error, "server_message", None) or "").partition("\n")[0].rstrip(".")
    said = f" (the hub says: {answer})" if answer else ""
    log_in = "log in with `hf auth login`, or set the environment variable HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        return UserError(
            f"its licence must be accepted before it can be downloaded{said}",
            code="hub-gated",
            remedy=f"accept it at {address}, then {log_in}",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UserError(
            f"there is no such repository, or it is private{said}",
            code="hub-repository-missing",
            remedy=f"check the name at {address}; if it is yours, {log_in}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(
            f"{asked.repository} has no revision {asked.revision}{said}",
            code="hub-revision-missing",
            remedy=f"name a branch, a tag or a commit of {address}/commits, or leave @{asked.revision} out",
        )
    if getattr(getattr(error, "response", None), "status_code", None) == 401:
        return UserError(
            f"the hub does not take the token{said}",
            code="hub-token-refused",
            remedy="correct or unset the environment variable HF_TOKEN, or log in with `hf auth login` if it is not set",
        )
    if isinstance(error, OSError) and error.filename is not None:  # one of this machine, and not of the connection
        return UserError(
            f"its cache cannot be used ({error.strerror}: {error.filename})",
            code="hub-cache-unusable",
            remedy="set the environment variable HF_HUB_CACHE to a folder that is writable and has room",
        )
    text = answer or str(error).partition("\n")[0]
    return UserError(
        f"the hub at {hub.constants.ENDPOINT} did not answer with these weights ({text})",
        code="hub-failed",
        remedy="check the name and the connection, or pass the path of a local copy",
    )
