"""A hub on this machine that speaks to the real clients as the public one does: files, revisions, refusals, a bad line."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from hub_uploads import Refused, Uploads
from huggingface_hub import constants

REFUSALS = {
    "gated": (403, "GatedRepo", "Access to model {} is restricted. Ask for it on its page."),
    "private": (401, "RepoNotFound", "Invalid username or password."),
    "stale": (401, "", "Invalid credentials in Authorization header"),
    "unknown": (404, "RepoNotFound", "Repository not found"),
}


class Answer(NamedTuple):
    """An answer of the hub."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Hub:
    """Repositories by name, each with the folders of its commits by revision; others are unknown.

    Attributes:
        refused: Kind of refusal by repository.
        slow_seconds: Time before each file.
        cuts: Files, by the end of their path, of which the first answer ends in the middle.
        served: Paths of the files that were sent, in order.
        cards: Front matter of the card of a repository, as its page tells it.
        uploads: Takes files, if the hub is one to write to.
    """

    repositories: dict[str, dict[str, Path]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    slow_seconds: float = 0.0
    cuts: set[str] = field(default_factory=set)
    served: list[str] = field(default_factory=list)
    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    uploads: Uploads | None = None
    address: str = ""

    def put(self, name: str, folder: Path, *revisions: str) -> str:
        """Publish a folder as the newest commit of a repository, with further names; returns the commit."""
        commit = hashlib.sha1(f"{name}{folder}".encode()).hexdigest()
        self.repositories.setdefault(name, {}).update(dict.fromkeys((commit, "main", *revisions), folder))
        return commit

    def head(self, name: str) -> str:
        """Return the newest commit of a repository."""
        commits = self.repositories[name]
        return next(commit for commit, folder in commits.items() if folder == commits["main"] and len(commit) == 40)

    def take(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        """Answer a request that sends something."""
        assert self.uploads is not None, path
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        try:
            self.uploads.require_no_fault(method, urlsplit(path).path)
            if method == "PUT":
                self.uploads.put(parts[-1], body)
                return Answer(200, {})
            answer = self.uploads.post(self, parts, headers, body)
        except Refused as refused:
            return _refusal(refused)
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def ask(self, path: str, headers: Any) -> Answer:
        """Answer a request that only reads."""
        if self.uploads is not None:
            try:
                self.uploads.require_no_fault("GET", urlsplit(path).path)
                if path == "/api/whoami-v2":
                    return Answer(
                        200, {"Content-Type": "application/json"}, json.dumps(self.uploads.who_am_i(headers)).encode()
                    )
            except Refused as refused:
                return _refusal(refused)
        return self.answer(path)

    def answer(self, path: str) -> Answer:
        """Answer a request for a repository, its list of files, or a file."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]  # a slash in a revision is quoted
        parts = parts[2:] if parts[:2] == ["api", "models"] else parts
        name, verb, rest = "/".join(parts[:2]), (parts[2:3] or [""])[0], parts[3:]
        if (kind := self.refused.get(name) or (None if name in self.repositories else "unknown")) is not None:
            status, code, message = REFUSALS[kind]
            return Answer(status, {"X-Error-Message": message.format(name), "X-Error-Code": code})
        commits = self.repositories[name]
        revision = rest[0] if rest else "main"
        if revision not in commits:
            return Answer(404, {"X-Error-Message": f"Invalid rev id: {revision}", "X-Error-Code": "RevisionNotFound"})
        folder = commits[revision]
        commit = next(known for known, place in commits.items() if place == folder and len(known) == 40)
        files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        if verb == "resolve":
            return self._file("/".join(rest[1:]), files, commit)
        if verb == "tree":
            entries = [
                {"type": "file", "path": n, "size": p.stat().st_size, "oid": _digest(p)} for n, p in files.items()
            ]
            return Answer(200, {}, json.dumps(entries).encode())
        private = self.uploads is not None and name in self.uploads.private
        info = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files], "tags": []}
        info |= {"private": private, "cardData": self.cards.get(name)}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def _file(self, name: str, files: dict[str, Path], commit: str) -> Answer:
        if name not in files:
            return Answer(404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        time.sleep(self.slow_seconds)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_digest(files[name])}"', "Accept-Ranges": "bytes"}
        return Answer(200, headers, files[name].read_bytes())


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _refusal(refused: Refused) -> Answer:
    headers = {"X-Error-Message": refused.message, "Content-Type": "application/json"}
    return Answer(refused.status, headers, json.dumps(refused.body or {"error": refused.message}).encode())


@contextmanager
def serving(uploads: Uploads | None = None) -> Iterator[Hub]:
    """Serve an empty hub on a free port."""
    hub = Hub(uploads=uploads)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def do_POST(self) -> None:
            self._take("POST")

        def do_PUT(self) -> None:
            self._take("PUT")

        def _take(self, method: str) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, body = hub.take(method, self.path, self.headers, sent)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def _send(self, with_body: bool) -> None:
            status, headers, body = hub.ask(self.path, self.headers)
            begin = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
            is_part = begin > 0 and status == 200
            rest = body[begin:] if is_part else body
            self.send_response(206 if is_part else status)
            ranges = {"Content-Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"} if is_part else {}
            for key, value in {**headers, **ranges, "Content-Length": str(len(rest))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                cut = next((end for end in hub.cuts if self.path.endswith(end)), None)
                if status == 200 and "/resolve/" in self.path:
                    hub.served.append(self.path)
                if cut is not None:
                    hub.cuts.discard(cut)
                    self.close_connection = True
                with suppress(BrokenPipeError, ConnectionResetError):  # a client may have waited long enough
                    self.wfile.write(rest if cut is None else rest[: len(rest) // 2])

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def be_asked(hub: Hub, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the real client ask this hub, with a cache of its own, and without the protocol that only the public one speaks."""
    patch.setattr(constants, "ENDPOINT", hub.address)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
