"""The page as others reach it, in a real browser: behind a proxy that names the server by itself, and from a foreign page."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fabricate
import pytest
from headless import window
from page_client import TOKEN, served

from reelworks.annexes.page.guard import TOKEN_HEADER

ASK = "([address, how]) => fetch(address, how).then(() => {}, () => {})"


@contextmanager
def listening(answer: Any) -> Iterator[int]:
    """Answer requests on a free port by a function of their handler, and yield the port."""
    methods = {f"do_{method}": answer for method in ("GET", "POST", "OPTIONS")} | {"log_message": lambda *_: None}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (BaseHTTPRequestHandler,), methods)) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server.server_port
        server.shutdown()


def send(
    handler: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: Iterable[bytes]
) -> None:
    with suppress(OSError):  # the browser has gone
        handler.send_response_only(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        for part in content:
            handler.wfile.write(part)


def foreign(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, [("Content-Type", "text/html")], [b"<p>of another program"])


@contextmanager
def proxied(address: str, below: str) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Serve an address under another one as nginx's `proxy_pass` does, and list the paths that were asked for, with the answers.

    `below` is a path that the proxy takes away.
    """
    server, answered = urlsplit(address).netloc, list[tuple[str, int]]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if not handler.path.startswith(f"{below}/"):
            send(handler, 404, [], [])
            answered.append((handler.path, 404))
            return
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        with closing(http.client.HTTPConnection(server)) as connection:
            connection.request(
                handler.command, handler.path.removeprefix(below), body, {**handler.headers, "Host": server}
            )
            got = connection.getresponse()
            answered.append((handler.path, got.status))
            # News of a run have no end.
            send(handler, got.status, got.getheaders(), iter(lambda: got.read1(65_536), b""))

    with listening(answer) as port:
        yield address.replace(server, f"127.0.0.1:{port}{below}"), answered


@pytest.mark.parametrize("below", ["", "/user/a/proxy/8080"])
@pytest.mark.slow(reason="a browser; what the server answers is in the tests of the guard")
def test_behind_a_proxy_that_names_the_server_by_itself_the_page_works_and_a_foreign_one_gets_nothing(
    opened: Any, tmp_path: Path, below: str
) -> None:
    with (
        served(tmp_path, is_remote=True) as address,
        proxied(address, below) as (outside, answered),
        listening(foreign) as other,
        window(opened, tolerates="") as shown,
    ):
        shown.goto(outside)
        with shown.expect_response("**/api/sample") as answer:
            shown.click("text=Or try it on sample footage")
        assert answer.value.status == 200
        fabricate.make(tmp_path / "runs" / "made", steps=8, every=4)
        shown.goto(f"{outside.split('?')[0]}#/runs")
        shown.reload()
        shown.click("td a:text-is('made')")
        shown.wait_for_selector(".plot .main-svg")
        shown.click("a:text-is('Previews')")
        shown.wait_for_selector("figure video, figure img")
        assert {path for path, status in answered if status >= 300} <= {"/favicon.ico"}
        shown.goto(f"http://localhost:{other}/")  # another site than 127.0.0.1
        for how in (
            {"mode": "no-cors"},
            {"method": "POST", "mode": "no-cors"},
            {"method": "POST", "headers": {TOKEN_HEADER: TOKEN}},  # asks first whether it may send that header
        ):
            shown.evaluate(ASK, [f"{outside.split('/?')[0]}/api/jobs/000001/stop", {"credentials": "include", **how}])
        assert [status for path, status in answered if path.endswith("stop")] == [403, 403, 403]
