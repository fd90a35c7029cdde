"""What the hub answers, by a server on this machine that speaks as it does: sizes are told, refusals are explained."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants
from refused import refused

from reelworks.models import hub

FILE = json.dumps({"numbers": list(range(200))}).encode()
COMMIT = "a" * 40
REFUSALS = {
    "gated": (403, "GatedRepo", "Access to model owner/gated is restricted. Ask for it on its page."),
    "unknown": (404, "RepoNotFound", "Repository not found"),
}


class Hub(BaseHTTPRequestHandler):
    """Serves one repository with one file, and refuses others."""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        name = next((kind for kind in REFUSALS if f"owner/{kind}" in self.path), None)
        headers, body, status = {}, b"", 200
        if name is not None:
            status, code, message = REFUSALS[name]
            headers = {"X-Error-Message": message, "X-Error-Code": code}
        elif "/tree/" in self.path:
            oid = hashlib.sha1(FILE).hexdigest()
            entry = {"type": "file", "path": "config.json", "size": len(FILE), "oid": oid}
            body = json.dumps([entry]).encode()
        elif "/api/models/" in self.path:
            value = {"id": "owner/name", "sha": COMMIT, "siblings": [{"rfilename": "config.json"}]}
            body = json.dumps(value).encode()
        else:
            headers, body = {"X-Repo-Commit": COMMIT, "ETag": '"' + hashlib.sha1(FILE).hexdigest() + '"'}, FILE
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def served(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


def test_files_come_with_their_size_told_once_and_later_from_the_cache(served, caplog):
    with caplog.at_level(logging.INFO, "reelworks"):
        folder = hub.download("owner/name", ["*.json"])
    assert (folder / "config.json").read_bytes() == FILE
    assert f"downloading 1 file, {len(FILE)} B, of owner/name" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "reelworks"):
        assert hub.download("owner/name", ["*.json"]) == folder
    assert "downloading" not in caplog.text
    served.shutdown()
    served.server_close()
    assert (hub.download("owner/name", ["*.json"]) / "config.json").read_bytes() == FILE


def test_what_the_disk_has_no_room_for_is_refused_before(served, monkeypatch):
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: hub.shutil._ntuple_diskusage(1000, 990, 10))
    with refused("disk-full", says="10 B left"):
        hub.download("owner/name", ["*.json"])


@pytest.mark.parametrize(
    ("kind", "code", "says", "remedy"),
    [
        ("gated", "hub-gated", "is restricted", "https://huggingface.co/owner/gated, then log in"),
        ("unknown", "hub-repository-missing", "Repository not found", "https://huggingface.co/owner/unknown"),
    ],
)
def test_a_refusal_is_told_in_the_hubs_words_with_the_way_out(served, kind, code, says, remedy):
    with refused(code, says=says) as caught:
        hub.download(f"owner/{kind}", ["*.json"])
    assert remedy in caught.value.remedy


def test_without_a_connection_and_without_the_files_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("hub-failed", says="HF_HUB_OFFLINE"):
        hub.download("owner/name", ["*.json"])
