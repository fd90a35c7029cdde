"""The folders of this user's own state and caches, outside of every folder that may come from somebody else."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Return the folder; it is made when something is written."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "reelworks"


def cache_folder() -> Path:
    """Return the folder of what can be made again; it is made when something is written."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "reelworks"
