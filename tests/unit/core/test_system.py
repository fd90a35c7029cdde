"""What systems allow in names of files."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from reelworks.core import system


@pytest.mark.parametrize(
    ("name", "posix", "windows"),
    [
        ("a cat on a wall-0.mp4", True, True),
        ("Was ist das? 猫.png", True, False),
        ("a:b", True, False),
        ("a\\b", True, False),
        ("a/b", False, False),
        ("a\0b", False, False),
        ("a\tb", True, False),
        ("ends.", True, False),
        ("ends ", True, False),
        ("con", True, False),
        ("NUL.txt", True, False),
        ("com1.tar.gz", True, False),
        ("console.txt", True, True),
        (".hidden", True, True),
    ],
)
def test_a_name_that_one_system_takes_another_may_not(
    name: str, posix: bool, windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_windows, wanted in ((False, posix), (True, windows)):
        monkeypatch.setattr(system, "WINDOWS", is_windows)
        assert system.is_file_name(name) is wanted


@pytest.mark.skipif(system.WINDOWS, reason="Windows has no such limit")
def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    """Also where a shell begins with few, and not more than that; who is started may have as many as before."""
    code = (
        "import resource as r; from reelworks.core import system; r.setrlimit(r.RLIMIT_NOFILE, ({}, {})); "
        "system._MOST_FILES = 1024; system.allow_open_files(); print(*r.getrlimit(r.RLIMIT_NOFILE), system.open_files())"
    )
    for limits, allowed in (((64, 2048), 1024), ((64, 512), 512), ((2048, 2048), 2048)):
        told = subprocess.run([sys.executable, "-c", code.format(*limits)], capture_output=True, text=True, check=True)
        assert [int(number) for number in told.stdout.split()] == [allowed, limits[1], allowed]


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EACCES, BlockingIOError), (errno.EAGAIN, BlockingIOError), (errno.ENOLCK, system.NoLocks)],
)
def test_a_byte_that_another_process_has_locked_is_told_as_such_on_every_system(monkeypatch, code, kind):
    """POSIX lets a system answer that access is denied."""

    def refuse(*_):
        raise OSError(code, "no lock")

    monkeypatch.setattr(system, "_lock", refuse)
    with pytest.raises(kind):
        system.lock(0, at=3)
