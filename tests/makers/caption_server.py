"""A server on this machine with the shape of the OpenAI chat API, and the replies that it can give."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def said(text: str, **choice: Any) -> Reply:
    return body({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | choice]})


def body(value: Any, status: int = 200, kind: str = "application/json", **headers: str) -> Reply:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()

    def reply(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        for name, header in headers.items():
            handler.send_header(name.replace("_", "-"), header)
        handler.end_headers()
        handler.wfile.write(data)

    return reply


def hang_up(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    handler.connection.close()


def slow(seconds: float, then: Reply) -> Reply:
    def reply(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
        time.sleep(seconds)
        then(handler, asked)

    return reply


def drip(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    """Send a byte now and then, and never end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


class Served:
    """A server that gives one reply after the other, and the last one again and again."""

    def __init__(self, *replies: Reply, models: tuple[str, ...] = ("tiny",)) -> None:
        self.replies, self.models, self.asked, self.headers = list(replies), models, list[dict[str, Any]](), list[Any]()
        self.lock = threading.Lock()

    def take(self) -> Reply:
        with self.lock:
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def serving(served: Served) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.headers.append(self.headers)
            body({"data": [{"id": name} for name in served.models]})(self, {})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with served.lock:
                served.asked.append(asked | {"at": self.path})
                served.headers.append(self.headers)
            with suppress(OSError):  # the client has left
                served.take()(self, asked)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
