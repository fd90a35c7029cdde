"""Protection of the page's server: local addresses alone, and a token for everything that changes something.

A page that other machines reach has any name, and answers nothing without the token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse, Response

from reelworks.core import digests

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

    Args:
        token: Allows changes.
        is_remote: Whether other machines reach the server. Then reading needs the token, too, which a browser keeps as a
            cookie once it has opened `/?token=`; a name that resolves here without being this server's gets no cookie. A
            proxy may then name the server as it likes: where names differ, the browser's word that the page asks counts.
    """

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], token: str, *, is_remote: bool = False
    ) -> None:
        self._app, self._token, self._is_remote = app, token, is_remote

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with the reason for which it is refused."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # there are no web sockets
        if self._is_remote and scope["path"] == "/" and (query := parse_qs(scope["query_string"].decode("latin-1"))):
            await self._admit(query.get("token", [""])[0])(scope, receive, send)
            return
        problem = self._problem(scope["method"], HTTPConnection(scope))
        if problem is not None:
            status, text = problem
            await JSONResponse({"problem": text, "code": "refused"}, status, headers=HEADERS)(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_ENCODED]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _admit(self, token: str) -> Response:
        """Answer an address with a token: the page is opened with it, and the browser keeps it."""
        if not self._is_token(token):
            return JSONResponse({"problem": "the token is another one", "code": "refused"}, 401, headers=HEADERS)
        # The page that follows is asked for by this one: to a browser, a redirection from a link would be of a foreign page.
        answer = HTMLResponse("", headers=HEADERS | {"Refresh": f"0; url=./#token={token}"})
        answer.set_cookie(cookie_name(token), token, httponly=True, samesite="strict")
        return answer

    def _is_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())

    def _problem(self, method: str, asking: HTTPConnection) -> tuple[int, str] | None:
        headers = asking.headers
        origin, host = headers.get("origin"), headers.get("host", "").lower()
        asks = headers.get("sec-fetch-site")  # in words of the browser, which no page can change
        named = _HOST.fullmatch(host)  # a name, and perhaps a port
        if not self._is_remote and (named is None or named[1] not in LOCAL_NAMES):
            return 403, "this server answers only to its local address"
        schemes = {"http", "https"} if self._is_remote else {"http"}  # a proxy may speak https for it
        is_own = origin is None or origin.lower() in {f"{scheme}://{host}" for scheme in schemes}
        if asks in ("cross-site", "same-site") or not (is_own or (self._is_remote and asks == "same-origin")):
            return 403, "this server answers only to its own page"
        if self._is_remote and not self._is_token(asking.cookies.get(cookie_name(self._token), "")):
            return 401, "open the address with the token that `reelworks ui` printed"
        if method in _READING or self._is_token(headers.get(TOKEN_HEADER, "")):
            return None
        return 401, "changes need the token: open the address that `reelworks ui` printed"


def cookie_name(token: str) -> str:
    """Return the name of the cookie with a token: browsers keep those of all ports of a machine together."""
    return f"reelworks_{digests.digest_bytes(token.encode())[:8]}"


_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
