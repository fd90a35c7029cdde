"""The socket of the page."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import fabricate
import pytest
from anyio.from_thread import start_blocking_portal
from page_client import served
from refused import refused

from reelworks.annexes.page import serve
from reelworks.core import system


def test_small_parts_of_an_answer_are_sent_at_once() -> None:
    """A browser acknowledges 40 ms later, for which a server would wait before it sends the second part."""

    async def nodelay() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = serve._socket(None)
        async with await asyncio.start_server(answer, sock=bound):
            _, writer = await asyncio.open_connection(*bound.getsockname())
            found = await asyncio.wait_for(accepted, timeout=10)
            writer.close()
            return found

    with (
        start_blocking_portal() as portal
    ):  # a loop in a thread of its own: a browser of other tests has one in this thread
        assert portal.call(nodelay) == 1


def test_a_port_has_one_page_on_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """By SO_REUSEADDR, two programs share a port on Windows; SO_EXCLUSIVEADDRUSE forbids it, and is Windows' alone."""
    with serve._socket(None) as first, serve._socket(None) as second:
        ports = [bound.getsockname()[1] for bound in (first, second)]
        assert ports[0] != ports[1]
        with refused("port-taken", "--port", says="it is taken"):
            serve._socket(ports[0])
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    assert runpy.run_path(system.__file__)["OWN_PORT"] == -5


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_why_a_port_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Ports below 1024 need a right, and Windows keeps ranges of others back."""

    class Denied(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Denied)
    with refused("port-taken", "--port", says=os.strerror(number).lower()):
        serve._socket(80)


def follow(address: str) -> http.client.HTTPResponse:
    """Open what follows the only run of a page, and read its first news."""
    place = address.split("/#")[0]
    with urllib.request.urlopen(f"{place}/api/runs") as runs:
        (run,) = json.load(runs)
    news = urllib.request.urlopen(f"{place}/api/runs/{run['key']}/follow", timeout=60)
    assert b'"state": "finished"' in news.readline()
    assert not news.readline().strip()
    return news


def test_what_follows_a_run_ends_when_the_run_is_gone(tmp_path: Path) -> None:
    fabricate.make(tmp_path / "run", steps=2)
    with served(tmp_path) as address, follow(address) as news:
        shutil.rmtree(tmp_path / "run")
        assert news.readline() == b""


@pytest.mark.slow
@pytest.mark.skipif(system.WINDOWS, reason="a program is asked to end otherwise")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_page_that_is_looked_at_ends_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    fabricate.make(tmp_path / "run", steps=2)
    command = [sys.executable, "-m", "reelworks", "ui", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        with follow(re.findall(r"http\S+", printed)[0]):
            process.send_signal(number)
            rest = process.stdout.read()
    assert (rest, process.returncode) == ("Ctrl-C stops the page; trainings that it started go on\n", 0)
