"""System calls of a fork below one folder: listed, and the fork killed at one of them.

strace attaches to the fork before it begins. Its SIGKILL comes as the call is entered, so the call is not
made; unlike with a patched library, nothing that writes can escape it, be it in Python or in C++.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_KINDS = {
    "openat": "open",
    "write": "write",
    "pwrite64": "write",
    "writev": "write",
    "pwritev": "write",
    "sendfile": "write",
    "copy_file_range": "write",
    "fsync": "fsync",
    "fdatasync": "fsync",
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "unlink": "unlink",
    "unlinkat": "unlink",
    "mkdir": "mkdir",
    "mkdirat": "mkdir",
    "rmdir": "rmdir",
    "ftruncate": "truncate",
    "link": "link",
    "linkat": "link",
}
_CREATING = ("O_WRONLY", "O_RDWR", "O_CREAT")


@dataclass(frozen=True)
class SystemCall:
    """A call below the folder: its name, its kind, and how many of that name came up to it, itself included."""

    name: str
    kind: str
    when: int


def is_missing() -> str:
    """Say why nothing can be traced here, or nothing."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    try:
        ended = _traced(lambda: None, ["-o", os.devnull])
    except OSError as error:
        return str(error)
    return "" if ended == 0 else f"a traced process ended with {ended}"


def calls(work: Callable[[], None], folder: Path) -> list[SystemCall]:
    """List what the work does to a folder's content; reading is left out."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as log:
        ended = _traced(work, ["-y", "-s", "0", "-o", log.name, "-e", f"trace={','.join(_KINDS)}"])
        assert ended == 0, f"the work ended with {ended}"
        return _parse(log.read().splitlines(), folder)


def kill_at(work: Callable[[], None], call: SystemCall) -> int:
    """Run the work, killed at a call that `calls` listed; returns how it ended."""
    return _traced(work, ["-o", os.devnull, "-e", f"inject={call.name}:signal=KILL:when={call.when}"])


def _parse(lines: list[str], folder: Path) -> list[SystemCall]:
    found, inside = [], re.compile(re.escape(str(folder)) + '[/>"]')
    passed: Counter[tuple[str, str]] = Counter()
    for line in lines:
        thread, _, said = line.partition(" ")
        name = said.strip().partition("(")[0]
        if name not in _KINDS:
            continue
        passed[thread, name] += 1
        changes = name != "openat" or any(flag in said for flag in _CREATING)
        if changes and inside.search(said):
            kind = "rmdir" if "AT_REMOVEDIR" in said else _KINDS[name]
            found.append(SystemCall(name, kind, passed[thread, name]))
    return found


def _traced(work: Callable[[], None], options: list[str]) -> int:
    """Exit code of a fork that does the work under strace."""
    pid = os.fork()
    if pid == 0:
        _live(work)
    os.waitpid(pid, os.WUNTRACED)
    strace = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert strace.stderr is not None
    said = strace.stderr.readline()
    if "attached" not in said:
        os.kill(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGCONT)
    status = os.waitpid(pid, 0)[1]
    strace.communicate()
    if "attached" not in said:
        raise OSError(said.strip())
    return os.waitstatus_to_exitcode(status)


def _live(work: Callable[[], None]) -> None:
    """What a fork does; never returns."""
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        code = 0
    finally:
        os._exit(code)
