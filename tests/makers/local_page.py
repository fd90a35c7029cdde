"""The page's application over a folder, asked as the browser does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient

from reelworks.ui import app
from reelworks.ui.guard import TOKEN_HEADER

TOKEN = "a-token"


@contextmanager
def opened(folder: Path) -> Iterator[TestClient]:
    """Yield a client of the page of a folder, which must be the current one; it has the token."""
    made = app.build([folder], TOKEN)
    headers = {TOKEN_HEADER: TOKEN}
    with TestClient(made, base_url="http://localhost", headers=headers, raise_server_exceptions=True) as client:
        yield client
