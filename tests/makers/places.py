"""Names, links and pipes in folders; a test is skipped where the system has none, or does not let this user make them."""

import functools
import os
import tempfile
from pathlib import Path

import pytest

from reelworks.core import user_files

# Root reads and writes whatever the rights say; on Windows, `chmod` takes none away but to write into a file.
MAY_ALL = not hasattr(os, "geteuid") or os.geteuid() == 0


def name(text: str) -> str:
    """Return the name of a file or folder, without what Windows has in none, such as signs of markup, if this is Windows."""
    return "".join(sign for sign in text if os.name != "nt" or sign not in '<>:"|?*')


def link(path: Path, target: Path | str) -> None:
    """Make a symbolic link."""
    try:
        path.symlink_to(target, target_is_directory=(path.parent / target).is_dir())
    except OSError as error:
        if not hasattr(error, "winerror"):
            raise
        pytest.skip(f"Windows makes links for those alone who have the right: {error}")
    if not path.is_symlink():
        path.unlink(missing_ok=True)
        pytest.skip("what is said to be Windows here shows no links as such")


def leave_without_home(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    """Make this user one whose number has no name and no home, as containers make them."""
    users = pytest.importorskip("pwd", reason="on Windows each user has a home")

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(users, "getpwuid", unknown)
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(user_files, "_home", functools.cache(user_files._home.__wrapped__))


def pipe(path: Path) -> None:
    """Make a pipe with a name in a folder."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("Windows has no pipes in folders")
    os.mkfifo(path)
