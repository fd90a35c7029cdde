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

from reelworks.annexes.page import app, guard, serve

TOKEN = "of-the-test"


def small_recipe(
    output: str, footage: str, num_frames: tuple[int, ...] = (1, 5), aspect_ratios: tuple[str, ...] = ("4:3", "1:1")
) -> str:
    """Return the text of a recipe for pictures and short clips, with comments."""
    ratios = f"[buckets]\naspect_ratios = {list(aspect_ratios)}\n" if aspect_ratios else ""
    return f"""# Mine, with reasons.
version = 1
output = "{output}"  # here

[[dataset]]
path = "{footage}"

[[bucket]]
resolution = "48px"
num_frames = {list(num_frames)}
batch_size = [3, 2]
{ratios}[model]
name = "stdit3-tiny"
[train]
max_epochs = 1
"""


def client(*folders: Path) -> TestClient:
    """Return a client of a page that serves folders; it has the token."""
    headers = {guard.TOKEN_HEADER: TOKEN}
    return TestClient(app.build(list(folders), TOKEN), base_url="http://127.0.0.1:8384", headers=headers)


@contextmanager
def page(*folders: Path) -> Iterator[TestClient]:
    """Serve folders as long as the page runs, and yield a client that has the token."""
    with client(*folders) as asking:
        yield asking


@contextmanager
def served(*folders: Path, is_remote: bool = False) -> Iterator[str]:
    """Serve folders on a free port, as `reelworks ui` does, and yield the address with its token; `is_remote` as of `build`."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app.build(list(folders), TOKEN, is_remote=is_remote),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        server = serve.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/{'?' if is_remote else '#'}token={TOKEN}"
        finally:
            server.should_exit = True
            thread.join()
