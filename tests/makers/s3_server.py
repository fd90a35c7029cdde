"""A real S3 server on loopback, in a process of its own; run as a script, it serves until its standard input ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SECRET = "a-secret-that-nobody-prints"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def serve() -> Iterator[str]:
    """Start a server and yield its address."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def lead_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients that are made from now on find the server by variables."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)


def main() -> None:
    """Serve, and print the port."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
