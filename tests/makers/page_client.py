"""A client of the page's server, as the page's own scripts ask it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient

from reelworks.ui import app, guard

TOKEN = "of-the-test"


@contextmanager
def page(*folders: Path) -> Iterator[TestClient]:
    """Serve folders, and yield a client that has the token."""
    headers = {guard.TOKEN_HEADER: TOKEN}
    with TestClient(app.build(list(folders), TOKEN), base_url="http://127.0.0.1:8384", headers=headers) as client:
        yield client
