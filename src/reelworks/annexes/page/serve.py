"""Run the page's server, by default on this machine's own address."""

from __future__ import annotations

import errno
import os
import re
import secrets
import signal
import socket
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn

from reelworks.annexes.page import app
from reelworks.annexes.page.jobs import Jobs
from reelworks.annexes.page.workspace import Workspace
from reelworks.core import system
from reelworks.core.errors import UserError
from reelworks.data.run import lock

ADDRESS = "127.0.0.1"
TOKEN_VARIABLE = "REELWORKS_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,}")  # which addresses, cookies and headers all take as it is
DEFAULT_PORT = 8384
_PORTS_TRIED = 20
_ALL = "0.0.0.0"


class Server(uvicorn.Server):
    """The server of the page, which ends what would go on for ever before it waits for answers."""

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """End as uvicorn does."""
        self.config.app.state.context.ends.set()  # type: ignore[union-attr]
        await super().shutdown(list(sockets or ()))


def serve(
    folders: list[Path], port: int | None, *, opens: bool, say: Callable[[str], None], host: str = ADDRESS
) -> None:
    """Serve the page until it is interrupted; trainings that it started go on.

    Args:
        folders: What the page may read; commands run in the first one.
        port: Port; None takes the first free one from `DEFAULT_PORT` on.
        opens: Whether to open the page in a browser.
        say: Prints a line.
        host: Address to listen on. One that other machines reach needs the token for reading, too.

    Raises:
        UserError: A folder is missing, the port is taken, another page serves the first folder, or the token is unfit.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops it as Ctrl-C does, and frees the folder
    workspace = Workspace(folders)
    os.chdir(workspace.roots[0])  # paths in recipes are relative to it, as on the command line
    remedy = "open its address, which it printed when it started, or stop it"
    with (
        lock.hold(workspace.state_folder / "lock", doing="page", field="FOLDER", remedy=remedy),
        _socket(port, host) as bound,
    ):
        token, is_remote = _token(), host != ADDRESS
        shown = ADDRESS if host == _ALL else host  # which browsers can open
        address = f"http://{shown}:{bound.getsockname()[1]}/{'?' if is_remote else '#'}token={token}"
        config = uvicorn.Config(
            app.build(list(workspace.roots), token, is_remote=is_remote),
            log_level="error",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        say(f"the page of {', '.join(map(str, workspace.roots))}: {address}")
        say("Ctrl-C stops the page; trainings that it started go on")
        if opens:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):  # the way to stop it, which uvicorn raises again when it has shut down
            Server(config).run(sockets=[bound])


def end_jobs(folders: list[Path], say: Callable[[str], None]) -> None:
    """Ask the commands that a page of these folders started to end, say which, and wait for them.

    Raises:
        UserError: A page serves the first folder, and would start others.
    """
    state = Workspace(folders).state_folder
    with lock.hold(state / "lock", doing="page", field="FOLDER", remedy="stop the page first; it would start others"):
        Jobs(state / "jobs").end(say)


def _token() -> str:
    """Return the token that the environment gives, which stays the same over starts, or a new one."""
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given and not _TOKEN.fullmatch(given):
        raise UserError(
            "it needs 16 signs or more, so that nobody guesses it, and those that addresses keep: A-Z, a-z, 0-9, and - . _ ~",
            code="token-unfit",
            field=TOKEN_VARIABLE,
            remedy="give that of `openssl rand -hex 24`, or none: then a new one is made and printed",
        )
    return given or secrets.token_urlsafe(24)


def _socket(port: int | None, host: str = ADDRESS) -> socket.socket:
    tried = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED)
    problem = ""
    for number in tried:
        # By its protocol asyncio knows that small parts of answers are to be sent at once, and not 40 ms later.
        bound = socket.socket(proto=socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, system.OWN_PORT, 1)
        try:
            bound.bind((host, number))
            bound.listen()  # so that a browser that is opened at once waits for the server
            return bound
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
                raise UserError(
                    "this machine has no such address",
                    code="address-unknown",
                    field="--host",
                    value=host,
                    remedy=f"{_ALL} listens on all addresses of this machine",
                ) from None
            problem = "it is taken" if error.errno == errno.EADDRINUSE else f"{error.strerror}".lower()
    raise UserError(
        f"the port cannot be used: {problem}",
        code="port-taken",
        field="--port",
        value=port or f"{DEFAULT_PORT} to {DEFAULT_PORT + _PORTS_TRIED - 1}",
        remedy="name another one, from 1024 on and outside of those that Windows keeps back, or stop what uses it",
    )
