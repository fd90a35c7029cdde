"""Drills of the page: a folder that a stranger prepared, and requests that no page of ours sends."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

from PIL import Image
from starlette.testclient import TestClient

from reelworks.annexes.page import app, guard
from reelworks.data.run.folder import FORMAT_VERSION
from reelworks.training.recipe import dataset, recipe_file

TOKEN = "of-the-drill"
_HOLDS = """
import sys, time
from pathlib import Path
from reelworks.data.run import lock
with lock.hold(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(600)
"""
_NESTED_TOML = "a = " + "[" * 3000 + "]" * 3000
_NESTED_JSON = "[" * 100_000
_TEXTS = [
    *("", "x", "0", "-1", "00", "true", "null", "nan", "1e999", "9" * 30, "9" * 5000, "a" * 20_000, "../../etc/passwd"),
    *(
        "\x00",
        "\x1b]0;x\x07",
        "\ud800",
        "ä語🎬",
        "%00",
        "%2e%2e%2f",
        "<script>",
        "'; --",
        "{}",
        "[]",
        _NESTED_TOML[:2000],
    ),
    *(
        "samples",
        "train.max_steps",
        'a = "b"',
        "[[dataset]]\npath = 1",
        "version = 1\n[model]\nname = 3",
        _NESTED_JSON[:500],
    ),
]
_RECIPE = (
    'version = 1\noutput = "run"\n[[dataset]]\npath = "pictures"\n[model]\nname = "stdit3-tiny"\n'
    '[[bucket]]\nresolution = "48px"\nnum_frames = 1\n[train]\nmax_steps = 1\n'
)
_KEYS = ["model", "name", "dataset", "path", "bucket", "buckets", "num_frames", "train", "max_steps", "lora", "samples"]
_RECIPES = [_RECIPE, _RECIPE.replace("= 1", "= {}"), _RECIPE.replace('"', "'"), "a.b.c = 1", *_KEYS, *_KEYS]
_VALUES: list[Any] = [None, True, False, 0, -1, 1, 2**63, 10**400, 1.5, -0.0, 1e308, [], {}, [[]], [None], {"": {}}]


def client(folder: Path) -> TestClient:
    """Return a client with the token, to which a fault of the server is an answer of 500."""
    headers = {guard.TOKEN_HEADER: TOKEN}
    made = app.build([folder], TOKEN)
    return TestClient(made, base_url="http://127.0.0.1:8384", headers=headers, raise_server_exceptions=False)


@contextmanager
def own_state(folder: Path) -> Iterator[None]:
    """Keep the user's own state below a folder of the drill."""
    with mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(folder)}):
        yield


def prepare(folder: Path, mark: Path, victim: int) -> None:
    """Fill a folder with what runs, names a process, hangs or cannot be read, if somebody lets it."""
    folder.mkdir(exist_ok=True)
    evil = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    for name in ("evil.py", "json.py", "random.py", "torch.py", "sitecustomize.py", "numpy.py", "typer.py"):
        (folder / name).write_text(evil, encoding="utf-8")
    (folder / "evil.toml").write_text(
        f'{_RECIPE}[samples]\nprompts = ["a"]\nmetrics = ["evil.py:Sharp", "evil:Sharp"]\n', encoding="utf-8"
    )
    (folder / "good.toml").write_text(_RECIPE, encoding="utf-8")
    (folder / "nested.toml").write_text(_NESTED_TOML, encoding="utf-8")
    (folder / "digits.toml").write_text("version = 1\nmodel = " + "9" * 9000, encoding="utf-8")
    (folder / "bytes.toml").write_bytes(b"\xff\xfe\x00version")
    (folder / "pictures").mkdir()
    Image.new("RGB", (64, 48), "red").save(folder / "pictures/a.png")
    (folder / "pictures/a.txt").write_text("a \x1b]0;title\x07 caption", encoding="utf-8")
    os.mkfifo(folder / "fifo.toml")
    (folder / "loop").symlink_to(folder)
    (folder / "zero.toml").symlink_to("/dev/zero")
    asked = ["train", str(folder / "evil.toml")]
    job = {"id": "000001", "kind": "train", "title": "x", "arguments": asked, "cwd": str(folder), "created": 0.0}
    process = {"pid": victim, "boot": "", "started": 0}
    for place in (".reelworks-ui/jobs", ".local/state/reelworks/ui/jobs", "jobs"):
        (folder / place).mkdir(parents=True)
        for number, state in enumerate(("waiting", "running"), 1):
            values = {**job, "id": f"{number:06}", "state": state, "process": process, "pid": victim, "subject": ""}
            (folder / place / f"{number:06}.json").write_text(json.dumps(values), encoding="utf-8")
    for name, text in {
        "whole": json.dumps({"format": FORMAT_VERSION, "id": "x", "created": 0.0}),
        "nested": _NESTED_JSON,
        "list": "[1, 2]",
        "empty": "",
        "wrong": '{"format": "x", "id": 3, "created": []}',
    }.items():
        run = folder / "runs" / name
        (run / "plan").mkdir(parents=True)
        (run / "run.json").write_text(text, encoding="utf-8")
        (run / "recipe.toml").write_text(_NESTED_TOML if name == "nested" else _RECIPE, encoding="utf-8")
        (run / "plan/summary.json").write_text(
            {"whole": "{}", "list": "[[[[]]]]"}.get(name, _NESTED_JSON), encoding="utf-8"
        )
        events = ['{"kind": "step"}', '{"kind": "start", "time": "x"}', "[]", "{", '{"kind": "stop", "time": 1e999}']
        (run / "events.jsonl").write_text(
            "\n".join([*events, _NESTED_JSON, '{"kind": "step", "step": "x", "loss": []}']), encoding="utf-8"
        )
        (run / "checkpoints/step-000000001").mkdir(parents=True)
        (run / "checkpoints/step-000000001/manifest.json").write_text(_NESTED_JSON, encoding="utf-8")
        owner = {"process": process, "host": socket.gethostname(), "since": 0.0, "token": "x", "pid": victim}
        (run / ".lock").write_text(json.dumps(owner), encoding="utf-8")
    (folder / "catalog").mkdir()
    (folder / "catalog/catalog.json").write_text(_NESTED_JSON, encoding="utf-8")


def foreign_folder(chance: random.Random, folder: Path) -> list[str]:
    """Open a prepared folder, look at everything, press Stop and Train: nothing of it runs, nobody is signalled."""
    mark, root = folder / "mark", folder / "foreign"
    other_lock = folder / "other-run" / ".lock"
    command = [sys.executable, "-c", _HOLDS, str(other_lock)]
    bystander = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert bystander.stdout is not None
        bystander.stdout.readline()
        victim = chance.choice([bystander.pid, bystander.pid, -1, 0, 1])
        prepare(root, mark, victim)
        if chance.random() < 0.5:  # the lock of a training elsewhere
            (root / "runs/whole/.lock").unlink()
            (root / "runs/whole/.lock").symlink_to(other_lock)
        former = Path.cwd()
        os.chdir(root)
        try:
            with own_state(folder / "state"), client(root) as page:
                problems = _press(page, chance)
                time.sleep(0.7)  # the queue looks twice a second
                _end_jobs(page)
                problems += [f"job: {job['arguments']}" for job in page.get("/api/jobs").json() if "evil" in str(job)]
        finally:
            os.chdir(former)
        if mark.exists():
            problems.append("code of the folder ran")
        if bystander.poll() is not None:
            problems.append(f"a process that only a file named was ended ({victim})")
        return problems
    finally:
        bystander.kill()
        bystander.communicate()


def _press(page: TestClient, chance: random.Random) -> list[str]:
    problems = []
    runs, recipes = page.get("/api/runs"), page.get("/api/recipes")
    for path in ("/api/runs", "/api/recipes", "/api/plan", "/api/data", "/api/jobs", "/api/new/folders"):
        if (status := page.get(path).status_code) != 200:
            problems.append(f"{path}: {status}")
    for run in runs.json() if runs.status_code == 200 else []:
        if run["state"] == "running":
            problems.append(f"{run['name']} is said to run")
        page.post(f"/api/runs/{run['key']}/stop")
    for recipe in recipes.json() if recipes.status_code == 200 else []:
        if chance.random() < 0.7 and recipe["name"] == "evil":
            answer = page.post(f"/api/recipes/{recipe['key']}/train")
            if answer.status_code != 400 or answer.json()["code"] != "code-not-trusted":
                problems.append(f"training {recipe['name']} was not refused: {answer.text[:200]}")
        elif recipe["name"] == "good" and chance.random() < 0.3:  # it runs in the folder, beside modules that lie there
            page.post(f"/api/recipes/{recipe['key']}/train")
    return problems


def _end_jobs(page: TestClient) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if all(job["ended"] for job in page.get("/api/jobs").json()):
            return
        time.sleep(0.2)


def odd_requests(chance: random.Random, folder: Path, count: int = 120) -> list[str]:
    """Send requests with odd values to every route: each is answered, none with 500."""
    root = folder / "foreign"
    prepare(root, folder / "mark", -1)
    shutil.rmtree(root / ".reelworks-ui")
    former = Path.cwd()
    os.chdir(root)
    problems = []
    dataset.scan_recipe(recipe_file.load(root / "good.toml"))
    try:
        with own_state(folder / "state"), client(root) as page:
            keys = [row["key"] for path in ("/api/runs", "/api/recipes", "/api/data") for row in _rows(page, path)]
            api = page.app.openapi()
            routes = [(method, path) for path, kinds in api["paths"].items() for method in kinds if _is_safe(path)]
            for _ in range(count):
                method, path = chance.choice(routes)
                sent = _request(chance, api, method, path, keys)
                answer = page.request(method.upper(), **sent)
                is_lost = method != "get" and "not-understood" in answer.text  # which is said of files, not of requests
                if answer.status_code >= 500 or is_lost:
                    problems.append(f"{method} {str(sent)[:300]}: {answer.status_code}")
    finally:
        os.chdir(former)
    return problems


def _rows(page: TestClient, path: str) -> list[dict[str, Any]]:
    answer = page.get(path)
    return answer.json() if answer.status_code == 200 else []


def _is_safe(path: str) -> bool:
    """Return whether a request ends soon and starts no command that would outlive the drill."""
    return not path.endswith(
        ("/follow", "/sample", "/lora", "/scan", "/train", "/resume", "/check", "/export", "/generate")
    )


def _request(chance: random.Random, api: Any, method: str, path: str, keys: list[str]) -> dict[str, Any]:
    """Return address, query and body of a request to a route, of which each part may be odd."""
    about, url, query = api["paths"][path][method], path, {}
    for parameter in about.get("parameters", ()):
        name = parameter["name"]
        is_known = keys and name == "key" and chance.random() < 0.8
        value = chance.choice(keys) if is_known else str(_of_type(chance, parameter.get("schema"), api))
        value = value.encode(errors="replace").decode()
        if parameter["in"] == "path":
            url = url.replace(f"{{{name}}}", quote(value, safe=""))
        elif chance.random() < 0.7:
            query[name] = value
    if chance.random() < 0.3:
        query[chance.choice(["search", "reason", "offset", "sort", "x"])] = _text(chance)
    if method == "get":
        return {"url": url, "params": query}
    content = about.get("requestBody", {}).get("content", {}).get("application/json", {})
    model = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    fields = api["components"]["schemas"].get(model, {}).get("properties", {"x": None})
    body: Any = {name: _of_type(chance, schema, api) for name, schema in fields.items() if chance.random() < 0.9}
    data = json.dumps(body).encode() if chance.random() < 0.9 else chance.randbytes(40)
    return {"url": url, "params": query, "content": data, "headers": {"Content-Type": "application/json"}}


def _of_type(chance: random.Random, schema: Any, api: Any) -> Any:
    """Return a value of the kind that a schema asks for, most of the time."""
    schema = schema or {}
    if "anyOf" in schema:
        schema = chance.choice(schema["anyOf"])
    if "$ref" in schema:
        schema = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if chance.random() < 0.1 or not schema:
        return _value(chance)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return {name: _of_type(chance, inner, api) for name, inner in schema.get("properties", {"x": None}).items()}
    if kind == "array":
        return [_of_type(chance, schema.get("items"), api) for _ in range(chance.randrange(4))]
    if kind in ("integer", "number"):
        return chance.choice([0, 1, 2, 3, -1, 2**40, 2**63 - 1])
    return chance.choice([_text(chance), _text(chance), *_RECIPES]) if kind == "string" else chance.random() < 0.5


def _text(chance: random.Random) -> str:
    return chance.choice(_TEXTS).encode(errors="replace").decode()


def _value(chance: random.Random) -> Any:
    return chance.choice([*_VALUES, _text(chance), _text(chance)])


DRILLS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "foreign folders": foreign_folder,
    "odd requests": odd_requests,
}
