"""Start several ranks on this machine as torchrun does, but with the ranks' own exit codes.

Under torchrun every failure ends with code 1 and a traceback of the launcher; here bad input ends with one message
and code 2, and a run that saved on a signal exits with the code on which a scheduler requeues it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

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

    Signals that ask to end are forwarded to every rank. When a rank fails, the others are killed; ranks that saved on a signal,
    or were ended by it as they started, leave the others to exit by themselves.

    Returns:
        The exit code of the rank that failed first; if none failed, `EXIT_REQUEUE` after such a signal, else 0.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked: list[int] = []
    system.handle_stops(lambda number, _frame: asked.append(number))
    ranks = [_start(rank, processes, port, arguments) for rank in range(processes)]

    def failed() -> list[int]:
        """Return the codes of ranks that failed; none has that a signal ended before it could handle it, but Ctrl-C."""
        ended = {-number for number in asked if number != signal.SIGINT}
        no_failures = {None, 0, EXIT_REQUEUE, *ended, *([system.ENDED] if ended else [])}
        return [rank.returncode for rank in ranks if rank.returncode not in no_failures]

    first, forwarded = 0, 0
    while None in [rank.poll() for rank in ranks]:  # each is asked, also behind one that still runs
        for number in asked[forwarded:]:
            forwarded += 1
            for rank in ranks:
                if rank.poll() is None:
                    system.pass_on(rank, number)
        if codes := failed():
            first = codes[0]
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
    by_itself = EXIT_REQUEUE if any(rank.returncode for rank in ranks) else 0
    return system.exit_code(first or next(iter(failed()), by_itself))


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
    with system.interrupts_held():
        return subprocess.Popen([sys.executable, "-m", "reelworks", *arguments], env=environment, **system.OWN_GROUP)
