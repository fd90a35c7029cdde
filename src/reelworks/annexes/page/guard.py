"""Protection of the page's server: local addresses alone, and a token for everything that changes something."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
TOKEN_HEADER = "X-Reelworks-Token"
_HOST = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_READING = frozenset({"GET", "HEAD"})
# The page loads nothing from elsewhere, and no other page may frame it. Plots style their parts in place.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "media-src 'self'; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Refuse requests under a foreign name or from a foreign page, and changes without the token.

    A page of another site could otherwise reach the server through the browser, by name (DNS rebinding) or by form.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with the reason for which it is refused."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # there are no web sockets
        problem = self._problem(scope["method"], Headers(scope=scope))
        if problem is not None:
            status, text = problem
            await JSONResponse({"problem": text, "code": "refused"}, status, headers=HEADERS)(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_ENCODED]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _problem(self, method: str, headers: Headers) -> tuple[int, str] | None:
        if _name(headers.get("host", "")) not in LOCAL_NAMES:
            return 403, "this server answers only to its local address"
        origin = headers.get("origin")
        if origin is not None and not _is_own(origin, headers["host"]):
            return 403, "this server answers only to its own page"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return 403, "this server answers only to its own page"
        if method in _READING:
            return None
        if not secrets.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return 401, "changes need the token: open the address that `reelworks ui` printed"
        return None


def _name(host: str) -> str:
    """Return the name in a Host header, without the port; nothing if it is not a name and a port."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found else ""


def _is_own(origin: str, host: str) -> bool:
    parts = urlsplit(origin)
    return parts.scheme == "http" and parts.netloc.lower() == host.lower()


_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
