"""What a hub does for those who write: accounts, repositories, large files by their hash, and commits of all files at once."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_LARGE = (".safetensors", ".png", ".mp4", ".webm")


class Refused(Exception):  # noqa: N818
    """An answer that is none of success; a status of 0 cuts the line in the middle of what was sent."""

    def __init__(self, status: int, message: str, body: object = None) -> None:
        self.status, self.message, self.body = status, message, body


class Account(NamedTuple):
    """Whose a token is, and what it allows."""

    name: str
    role: str = "write"
    orgs: tuple[str, ...] = ()


class Commit(NamedTuple):
    """What one commit changed."""

    repository: str
    message: str
    paths: list[str]


@dataclass
class Uploads:
    """The part of a hub that takes files.

    Attributes:
        folder: Where it keeps the files of each commit.
        accounts: Accounts by token.
        private: Repositories that only their owner sees.
        objects: Large files by their SHA-256, which is verified.
        received: Sizes of large files in the order in which they arrived whole.
        commits: All commits, oldest first.
        faults: Answers to the next requests whose `METHOD path` ends so; each is given once.
    """

    folder: Path
    accounts: dict[str, Account] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    objects: dict[str, bytes] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    faults: dict[str, Refused] = field(default_factory=dict)

    def require_no_fault(self, method: str, path: str) -> None:
        for end in [end for end in self.faults if f"{method} {path}".endswith(end)]:
            raise self.faults.pop(end)

    def account(self, headers: Any) -> Account:
        token = (headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in self.accounts:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.accounts[token]

    def who_am_i(self, headers: Any) -> dict[str, Any]:
        account = self.account(headers)
        token = {"displayName": "a token", "role": account.role}
        orgs = [{"name": org} for org in account.orgs]
        return {"type": "user", "name": account.name, "orgs": orgs, "auth": {"accessToken": token}}

    def require_writing(self, headers: Any, name: str) -> None:
        account = self.account(headers)
        if account.role != "write" or name.partition("/")[0] not in (account.name, *account.orgs):
            raise Refused(403, "You don't have the rights to write there")

    def post(self, hub: Any, parts: list[str], headers: Any, body: bytes) -> dict[str, Any]:
        match parts:
            case ["api", "validate-yaml"]:
                return _validate(json.loads(body)["content"])
            case ["api", "repos", "create"]:
                return self._create(hub, headers, json.loads(body))
            case ["api", "models", owner, name, "preupload", _]:
                self.require_writing(headers, f"{owner}/{name}")
                return self._modes(hub, f"{owner}/{name}", json.loads(body)["files"])
            case [owner, name, "info", "lfs", "objects", "batch"]:
                self.require_writing(headers, f"{owner}/{name.removesuffix('.git')}")
                return self._batch(hub, json.loads(body))
            case ["lfs", "verify"]:
                wanted = json.loads(body)
                if len(self.objects.get(wanted["oid"], b"")) != wanted["size"]:
                    raise Refused(404, "there is no such object")
                return {}
            case ["api", "models", owner, name, "commit", _]:
                self.require_writing(headers, f"{owner}/{name}")
                return self._commit(hub, f"{owner}/{name}", [json.loads(line) for line in body.splitlines()])
        raise Refused(404, "no such address")

    def put(self, oid: str, body: bytes) -> None:
        """Keep an object if it is what its address says, as the store of a hub does."""
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(422, "the content has another hash")
        self.objects[oid] = body
        self.received.append(len(body))

    def _create(self, hub: Any, headers: Any, asked: dict[str, Any]) -> dict[str, Any]:
        name = f"{asked['organization']}/{asked['name']}"
        self.require_writing(headers, name)
        if name in hub.repositories:
            raise Refused(409, "You already created this model repo")
        if asked.get("visibility") == "private":
            self.private.add(name)
        self._publish(hub, name, {".gitattributes": b"*.safetensors filter=lfs\n"})
        return {"url": f"{hub.address}/{name}"}

    def _modes(self, hub: Any, name: str, files: list[dict[str, Any]]) -> dict[str, Any]:
        here = hub.repositories[name]["main"]
        modes = []
        for file in files:
            large, old = file["path"].endswith(_LARGE), here / file["path"]
            oid = _oid(old.read_bytes(), large) if old.is_file() else None
            mode = "lfs" if large else "regular"
            modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": modes}

    def _batch(self, hub: Any, asked: dict[str, Any]) -> dict[str, Any]:
        objects = []
        for each in asked["objects"]:
            actions = {
                "upload": {"href": f"{hub.address}/lfs/{each['oid']}?signature=secret"},
                "verify": {"href": f"{hub.address}/lfs/verify"},
            }
            objects.append(each | ({} if each["oid"] in self.objects else {"actions": actions}))
        return {"transfer": "basic", "objects": objects}

    def _commit(self, hub: Any, name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        header, files = lines[0]["value"], {}
        if header.get("parentCommit") not in (None, hub.head(name)):
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                content = self.objects.get(value["oid"])
                if content is None or len(content) != value["size"]:
                    raise Refused(400, f"{value['path']} was not uploaded")
            else:
                content = base64.b64decode(value["content"])
            files[value["path"]] = content
        commit = self._publish(hub, name, files)
        self.commits.append(Commit(name, header["summary"], sorted(files)))
        return {"commitUrl": f"{hub.address}/{name}/commit/{commit}", "commitOid": commit, "success": True}

    def _publish(self, hub: Any, name: str, files: dict[str, bytes]) -> str:
        """Make files the newest commit of a repository, with the others as they were."""
        folder = self.folder / f"{name.replace('/', '--')}-{len(hub.repositories.get(name, {}))}"
        before = hub.repositories[name]["main"] if name in hub.repositories else None
        kept = (
            {p.relative_to(before).as_posix(): p.read_bytes() for p in before.rglob("*") if p.is_file()}
            if before
            else {}
        )
        for path, content in (kept | files).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        commit: str = hub.put(name, folder)
        return commit


def _oid(data: bytes, large: bool) -> str:
    return hashlib.sha256(data).hexdigest() if large else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _validate(card: str) -> dict[str, Any]:
    """Check the front matter of a card as the hub does, for the keys that matter here."""
    _, front, _ = card.split("---\n", 2)
    values = yaml.safe_load(front)
    problems = []
    if values.get("license") == "other" and not values.get("license_name"):
        problems.append('"license_name" is required')
    if "base_model" in values and values["base_model"].count("/") != 1:
        problems.append('"base_model" is not a model id')
    if problems:
        raise Refused(400, "", {"errors": [{"message": problem} for problem in problems], "warnings": []})
    return {"errors": [], "warnings": []}
