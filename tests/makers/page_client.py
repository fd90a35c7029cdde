"""A client of the page's server, as the page's own scripts ask it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.testclient import TestClient

from reelworks.ui import app, guard

TOKEN = "of-the-test"


@contextmanager
def page(*folders: Path) -> Iterator[TestClient]:
    """Serve folders, and yield a client that has the token."""
    headers = {guard.TOKEN_HEADER: TOKEN}
    with TestClient(app.build(list(folders), TOKEN), base_url="http://127.0.0.1:8384", headers=headers) as client:
        yield client


@contextmanager
def served(*folders: Path) -> Iterator[str]:
    """Serve folders on a free port, as `reelworks ui` does, and yield the address with its token."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app.build(list(folders), TOKEN), log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/#token={TOKEN}"
        finally:
            server.should_exit = True
            thread.join()
