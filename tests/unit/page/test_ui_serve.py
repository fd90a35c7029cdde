"""The socket of the page."""

from __future__ import annotations

import asyncio
import errno
import os
import runpy
import socket

import pytest
from anyio.from_thread import start_blocking_portal
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
