"""Download files of the Hugging Face hub; where it refuses, its own answer is told."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.core.log import logger

_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_id(text: str) -> bool:
    """Return whether a text can be the name of a repository, `owner/name`."""
    return _ID.fullmatch(text) is not None


def download(hub_id: str, patterns: Sequence[str], without: Sequence[str] | None = None) -> Path:
    """Return the folder of a repository's files that match, which are downloaded if the cache lacks them.

    Tells the size first, and refuses what the disk has no room for. Files in the cache need no connection.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(
            "there is no such path, and hub ids need a package that is not installed",
            code="hub-package-missing",
            remedy="pip install huggingface_hub, or pass the path of a local copy",
        ) from error
    wanted = {"allow_patterns": list(patterns), "ignore_patterns": without and list(without)}
    try:
        _announce(hub, hub_id, wanted)
        return Path(hub.snapshot_download(hub_id, **wanted))
    except UserError:
        raise
    except Exception as error:  # the hub's own errors have no common class, and connections fail in many ways
        raise _refused(hub.errors, hub_id, error) from error


def _announce(hub: Any, hub_id: str, wanted: dict[str, Any]) -> None:
    """Tell the size of a download; raises what the hub refuses, and nothing if it cannot be reached."""
    try:
        files = [file for file in hub.snapshot_download(hub_id, **wanted, dry_run=True) if file.will_download]
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
            f"{count} with {units.format_bytes(total)} are to be downloaded, and {cache} has {units.format_bytes(free)} left",
            code="disk-full",
            remedy="make room, or set the environment variable HF_HUB_CACHE to a folder on a larger disk",
        )
    logger.info(f"downloading {count}, {units.format_bytes(total)}, of {hub_id} to {cache}")


def _refused(errors: Any, hub_id: str, error: Exception) -> UserError:
    """Return the error for what the hub answered, or for no answer."""
    address = f"https://huggingface.co/{hub_id}"
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
    text = answer or str(error).partition("\n")[0]
    return UserError(
        f"the hub did not answer with these weights ({text})",
        code="hub-failed",
        remedy="check the name and the connection, or pass the path of a local copy",
    )
