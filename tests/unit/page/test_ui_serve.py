"""The socket of the page."""

from __future__ import annotations

import asyncio
import socket

from anyio.from_thread import start_blocking_portal

from reelworks.annexes.page import serve


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
