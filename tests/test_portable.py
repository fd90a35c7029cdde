"""Every module can be imported where what only POSIX has is missing, as on Windows."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

# A child imports all modules, so that their libraries are there, and once more as if it were on Windows.
_IMPORTS = """
import ctypes, importlib, os, pkgutil, signal, sys, types

import reelworks

def import_all():
    names = {one.name for one in pkgutil.walk_packages(reelworks.__path__, "reelworks.") if one.name.split(".")[-1] != "__main__"}
    failed = {}
    for name in sorted(names):
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return names, failed

names, lacking = import_all()  # a library of an extra may not be installed
for name in [name for name in sys.modules if name.partition(".")[0] == "reelworks" and name != "reelworks"]:
    del sys.modules[name]

for name in "fcntl grp pty pwd resource syslog termios tty".split():
    sys.modules[name] = None
for module, attributes in {
    os: "fork forkpty killpg setsid setpgid getuid geteuid getgid statvfs fstatvfs pread preadv pwrite pwritev readv writev "
    "sysconf uname memfd_create sched_getaffinity sched_getscheduler pidfd_open posix_fadvise mkfifo getloadavg nice wait4 "
    "O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_NOCTTY O_DIRECTORY",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE SIGQUIT SIGSTOP SIGCONT setitimer alarm pause "
    "pthread_kill pthread_sigmask pidfd_send_signal",
}.items():
    for attribute in attributes.split():
        if hasattr(module, attribute):
            delattr(module, attribute)
sys.platform = "win32"
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
ctypes.WinDLL = lambda *_, **__: types.SimpleNamespace()

again, failed = import_all()
assert again == names and len(names) > 300, len(names)
from reelworks.core import system
assert system.WINDOWS
for name in failed.keys() - lacking.keys():
    print(name, failed[name])
print(len(names) - len(lacking), "modules")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows is not pretended there")
@pytest.mark.slow
def test_no_module_needs_what_only_posix_has():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _IMPORTS],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    *failed, told = done.stdout.splitlines()
    assert not failed
    assert int(told.split()[0]) > 300
