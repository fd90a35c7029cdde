"""Do what POSIX and Windows do differently: locks, signals, groups of processes, memory. Others import nothing that one lacks."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil

WINDOWS = sys.platform == "win32"
# Flags of os.open: binary, no link to another file, and opening never waits and takes no terminal.
BINARY: int = getattr(os, "O_BINARY", 0)
NO_WAIT: int = BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_MOST_FILES = 10_240  # that macOS lets a process open
OWN_FILE: int = NO_WAIT | getattr(os, "O_NOFOLLOW", 0)
# Signals that ask a program to save and end: those of schedulers and of limits, Ctrl-C, a terminal that was closed, and
# Ctrl-Break, by which Windows asks.
_STOPS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGBREAK")
STOPS: tuple[signal.Signals, ...] = tuple(getattr(signal, name) for name in _STOPS if hasattr(signal, name))
# The signal of `ask_to_end`, and the code of a process that it has ended.
END: signal.Signals = getattr(signal, "SIGBREAK", signal.SIGTERM)
ENDED = 0xC000013A if WINDOWS else -signal.SIGTERM
# Arguments of Popen for a program in a group of its own, which Ctrl-C in the terminal does not reach.
OWN_GROUP: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)} if WINDOWS else {"start_new_session": True}
)
# Arguments of Popen for a program that `ask_to_end` reaches, and Ctrl-C in the terminal if the system can do both.
REACHABLE: dict[str, Any] = OWN_GROUP if WINDOWS else {}
# Option of a listening socket, by which its port is its own, and free again once its program has ended. That of POSIX lets
# others take the port on Windows.
OWN_PORT: int = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
# Mode in which numpy reads files that others may replace: Windows replaces and removes none that is mapped.
MAPPED: Literal["r"] | None = None if WINDOWS else "r"
# Expression for what leads a path with slashes out of its folder on this system alone: drives, and backslashes.
ELSEWHERE = r"^[A-Za-z]:|\\" if WINDOWS else ""
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
# Windows forbids to read what is locked, so the locked byte lies where no file has content.
_LOCKED_BYTE = 1 << 62
_NO_NAME_ON_WINDOWS = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
MOST_NAME_BYTES = 240  # of a file name; it has up to 15 more while the file is written
_IN_USE = frozenset({5, 32, 33})  # access denied, sharing violation, lock violation
_LEAST_ERROR = 0xC0000000  # of Windows, as exit codes: of memory that is not the program's, and the like
_TRIES, _TRY_SECONDS = 40, 0.05
_LOAD_SECONDS = 0.1
_T = TypeVar("_T")


class NoLocks(OSError):  # noqa: N818
    """The file system has no locks."""


def lock(file: int, *, shared: bool = False, wait: bool = False, at: int | None = None) -> None:
    """Lock an open file until it is closed, or its process ends, however it does; an advisory lock.

    Args:
        file: Descriptor.
        shared: Whether others may have a shared lock, too.
        wait: Whether to wait for others.
        at: Byte to lock, for several locks in one file, which other processes see and this one does not; None for the file.

    Raises:
        BlockingIOError: Another has it.
        NoLocks: The file system has none.
        OSError: Something else went wrong.
    """
    try:
        _lock(file, shared, wait, at)
    except OSError as error:
        if at is not None and error.errno == errno.EACCES:
            raise BlockingIOError(error.errno, error.strerror) from error
        if error.errno in _NO_LOCKS:
            raise NoLocks(error.errno, error.strerror) from error
        raise


if sys.platform == "win32":
    import msvcrt

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)

    class _Overlapped(ctypes.Structure):
        """Structure of the Windows API that says which bytes are meant."""

        _fields_ = [
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("low", ctypes.c_uint32),
            ("high", ctypes.c_uint32),
            ("event", ctypes.c_void_p),
        ]

    def _call(function: Any, file: int, at: int | None, *arguments: int) -> None:
        byte = _LOCKED_BYTE if at is None else at
        place = _Overlapped(low=byte & 0xFFFFFFFF, high=byte >> 32)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(file))
        if not function(handle, *arguments, 0, 1, 0, ctypes.byref(place)):
            code = ctypes.get_last_error()
            if code in (33, 997):  # lock violation, and the same of a file that is opened for overlapped calls
                raise BlockingIOError(errno.EAGAIN, "another process has the lock")
            raise OSError(errno.ENOLCK if code in (1, 50) else errno.EIO, f"error {code} of Windows")

    def _lock(file: int, shared: bool, wait: bool, at: int | None) -> None:
        _call(_kernel.LockFileEx, file, at, (0 if shared else 2) | (0 if wait else 1))

    def unlock(file: int, *, at: int | None = None) -> None:
        """Release what `lock` took."""
        _call(_kernel.UnlockFileEx, file, at)

else:
    import fcntl
    import resource

    def _flock(file: int, how: int, at: int | None) -> None:
        if at is None:
            fcntl.flock(file, how)
        else:
            fcntl.lockf(file, how, 1, at)

    def _lock(file: int, shared: bool, wait: bool, at: int | None) -> None:
        _flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB), at)

    def unlock(file: int, *, at: int | None = None) -> None:
        """Release what `lock` took."""
        _flock(file, fcntl.LOCK_UN, at)


def patiently(call: Callable[[], _T]) -> _T:
    """Return what a call on a file does, which Windows refuses while somebody has that file open, if only to scan it.

    Raises:
        OSError: Of the call; where the file stayed open for two seconds, it says so.
    """
    left = _TRIES
    while True:
        try:
            return call()
        except PermissionError as error:
            if getattr(error, "winerror", None) not in _IN_USE:
                raise
            if not left:
                remedy = "another program may have it open: close it, or exclude the folder from scans"
                error.strerror = f"{error.strerror}; {remedy}"
                raise
        time.sleep(_TRY_SECONDS)
        left -= 1


def quoted(word: str) -> str:
    """Quote a word of a command that is shown, as the shells of this system take it."""
    return subprocess.list2cmdline([word]) if WINDOWS else shlex.quote(word)


def words_of(command: str) -> tuple[str, ...]:
    """Take a command apart into words, as programs of this system do.

    Raises:
        ValueError: A quotation does not end.
    """
    if sys.platform != "win32":
        return tuple(shlex.split(command))
    count = ctypes.c_int()
    take_apart, command = ctypes.WinDLL("shell32").CommandLineToArgvW, command.strip()
    take_apart.restype = ctypes.POINTER(ctypes.c_wchar_p)
    if not command:  # else it would be this program
        return ()
    return tuple(take_apart(ctypes.c_wchar_p(command), ctypes.byref(count))[: count.value])


def is_file_name(text: str) -> bool:
    """Whether a file may have a text as its name, with some bytes more while it is written."""
    of_signs = _NO_NAME_ON_WINDOWS.search(text) is None if WINDOWS else not {"/", "\0"} & set(text)
    return of_signs and len(os.fsencode(text)) <= MOST_NAME_BYTES


def is_parent(pid: int) -> bool:
    """Whether a process is the parent of this one and runs; on Windows, children keep the id of one that has ended."""
    return os.getppid() == pid and (not WINDOWS or psutil.pid_exists(pid))


def handle_stops(handler: Any) -> dict[signal.Signals, Any]:
    """Handle each of `STOPS`, and return the former handlers, all of which can be set again.

    That of a closed terminal stays ignored below `nohup`, and those that are not of Python stay.
    """
    former = {each: signal.getsignal(each) for each in STOPS}
    kept = [each for each, own in former.items() if own is None or (each.name == "SIGHUP" and own == signal.SIG_IGN)]
    return {each: signal.signal(each, handler) for each in STOPS if each not in kept}


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back from programs that are started in the block until they release it, as `reelworks` does.

    Python, as it starts, would end by it with a traceback and another code.
    """
    if sys.platform == "win32":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def ask_to_end(pid: int) -> None:
    """Ask a process to save and end: by SIGTERM, on Windows by Ctrl-Break, for which it has a group of its own.

    Raises:
        OSError: There is no such process, or it cannot be reached, such as that of another console of Windows.
    """
    os.kill(pid, getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))


def pass_on(process: subprocess.Popen[bytes], number: int) -> None:
    """Pass a signal that asks to end on to a program that was started with `OWN_GROUP`."""
    if WINDOWS:
        ask_to_end(process.pid)
    else:
        process.send_signal(number)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started with `OWN_GROUP`, and those that it started."""
    if sys.platform == "win32":
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def what_ended(code: int) -> str | None:
    """Return what ended a process against its will, by its exit code: a signal, or an error of Windows; else None."""
    if WINDOWS:
        return f"the error 0x{code:08X}" if code >= _LEAST_ERROR else None
    return signal.Signals(-code).name if code < 0 else None


def exit_code(code: int) -> int:
    """Return the code of a launcher whose process ended with this one: 128 + N for signal N, and 1 for an error of Windows."""
    if code < 0:
        return 128 - code
    return 1 if code >= _LEAST_ERROR else code


def peak_bytes() -> int:
    """Return the largest memory that this process has had."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def load_average() -> float:
    """Return how many threads ran or waited for a core in the last minute; on Windows, how many run now, or 0."""
    if sys.platform == "win32":
        with suppress(OSError):
            return sum(psutil.cpu_percent(_LOAD_SECONDS, percpu=True)) / 100
        return 0.0
    return os.getloadavg()[0]


def limit_memory(most_bytes: int) -> None:
    """Let allocations beyond this memory fail in this process; Windows, whose limits are those of jobs, gets none."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def allow_open_files() -> None:
    """Let this process, and those that it starts, open as many files as it may: a shell on a Mac begins with 256."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def open_files() -> int | None:
    """Return how many files this process may have open; None without a limit."""
    if sys.platform == "win32":
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def sync_folder(path: Path, fsync: Callable[[int], None]) -> None:
    """Make the entries of a folder durable; Windows keeps a journal of them, and opens no folder."""
    if WINDOWS:
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def inodes_left(path: Path) -> int | None:
    """Return how many more files a disk can hold; None where there is no such number."""
    status = None if WINDOWS else os.statvfs(path)
    return status.f_favail if status is not None and status.f_files else None
