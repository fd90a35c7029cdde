"""`reelworks ui` in a process of its own, asked as the page does."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _wait_until_open(port: int) -> None:
    for _ in range(600):
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, int]]:
    """Run `reelworks ui` on a folder; yields its port and process."""
    command = [sys.executable, "-m", "reelworks", "ui", str(folder), "--port", str(_free_port())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    try:
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, "the server printed no address"
        _wait_until_open(int(found[1]))
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait()


class Page:
    """Asks the server as the page does, over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def get(self, path: str) -> Any:
        """Return the JSON value of an address, or None for other files."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (path, answer.status, body[:200])
        return json.loads(body) if "json" in answer.headers.get("content-type", "") else None

    def timed(self, path: str) -> tuple[float, Any]:
        """Return the seconds of a request, and its value."""
        began = time.perf_counter()
        value = self.get(path)
        return time.perf_counter() - began, value
