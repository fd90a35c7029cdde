"""Start several ranks on this machine as torchrun does, but with the ranks' own exit codes.

Under torchrun every failure ends with code 1 and a traceback of the launcher; here bad input ends with one message
and code 2, and a run that saved on a signal exits with the code on which a scheduler requeues it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from types import FrameType

from reelworks.core import machine, system, terminal

# EX_TEMPFAIL: saved before the end; a scheduler may requeue the same command.
EXIT_REQUEUE = 75
# Set in the environment of ranks that this launcher started, which end with it.
LAUNCHED = "REELWORKS_LAUNCHED"
# Time for the other ranks to notice a failure and exit by themselves, before they are killed.
_GRACE_SECONDS = 1.0
_POLL_SECONDS = 0.05


def launch(processes: int, arguments: list[str]) -> int:
    """Start ranks of `python -m reelworks` and wait for all of them.

    Signals that ask to end are forwarded to every rank. When a rank fails, the others are killed; ranks that saved on a signal
    exit by themselves.

    Returns:
        The exit code of the rank that failed first; 0 if none failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [_start(rank, processes, port, arguments) for rank in range(processes)]

    forwarded: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        forwarded.append(number)
        for rank in ranks:
            if rank.poll() is None:
                system.pass_on(rank, number)

    system.handle_stops(forward)
    first = 0
    while None in [rank.poll() for rank in ranks]:  # each is asked, also behind one that still runs
        failed = [rank.returncode for rank in ranks if rank.returncode not in (None, 0, EXIT_REQUEUE)]
        if failed:
            first = failed[0]
            by = system.what_ended(first)
            if by is not None and not forwarded:
                ended = next(i for i, rank in enumerate(ranks) if rank.returncode == first)
                hint = ", as the system does when CPU memory is full" if by == "SIGKILL" else ""
                terminal.say(
                    f"error: rank {ended} was ended by {by}{hint}, and the others were stopped\n"
                    "  remedy: give the same command again, which goes on from the last checkpoint",
                    error=True,
                )
            time.sleep(_GRACE_SECONDS)
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
        time.sleep(_POLL_SECONDS)
    codes = [first, *(rank.returncode for rank in ranks)]
    return next((system.exit_code(code) for code in codes if code), 0)


def _start(rank: int, processes: int, port: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        LAUNCHED: "1",
        "OMP_NUM_THREADS": str(machine.threads(processes)),
    }
    # In a session of its own, so that Ctrl-C reaches only the launcher, which forwards it once.
    return subprocess.Popen([sys.executable, "-m", "reelworks", *arguments], env=environment, **system.OWN_GROUP)
