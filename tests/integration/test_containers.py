"""The image: what its file types, its start, and what a start after an interruption goes on with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prepare_files import picture, recipe

from reelworks.annexes.page.guard import TOKEN_HEADER, cookie_name
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-test"
IMAGE = (ROOT / "containers" / "Dockerfile").read_text(encoding="utf-8")
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the start of the image is a script of bash")


def instructions(name: str) -> list[str]:
    """Return the arguments of an instruction, each as one line."""
    whole = re.sub(r"^#.*\n", "", IMAGE, flags=re.MULTILINE).replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", whole, re.MULTILINE)


@contextmanager
def started(workspace: Path, port: int, programs: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the image's start with the programs of an environment."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
        **variables,
        "WORKSPACE": str(workspace),
        "PORT": str(port),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    command = ["bash", str(ROOT / "containers" / "start.sh")]
    with (workspace / "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(condition: object, process: subprocess.Popen[bytes], log: Path, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < until, log.read_text(encoding="utf-8")
        time.sleep(0.2)


def status(port: int, token: str = "") -> int:
    """Return how the page answers, with a token or without; 0 if it does not."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/about", headers={"Cookie": f"{cookie_name(token)}={token}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def asked(port: int, path: str, method: str = "GET") -> Any:
    """Return what the page answers to one who has the token."""
    headers = {"Cookie": f"{cookie_name(TOKEN)}={TOKEN}", TOKEN_HEADER: TOKEN}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", None, headers, method=method)
    ) as answer:
        return json.load(answer)


def read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def write_recipe(workspace: Path, max_steps: int) -> None:
    """Write `mine.toml`, which trains pictures."""
    for number in range(6):
        picture(workspace / "data" / f"{number}.png")
    made = recipe(workspace, train={"max_steps": max_steps})
    (workspace / "mine.toml").write_text(recipe_file.dump(made), encoding="utf-8")


def test_what_is_copied_is_there_and_what_is_published_agrees() -> None:
    for line in instructions("COPY"):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        assert all((ROOT / source).exists() for source in sources)
    service = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text(encoding="utf-8"))["services"][
        "reelworks"
    ]
    port = f"${{PORT:-{instructions('EXPOSE')[0]}}}"
    assert (service["ports"], service["environment"]["PORT"]) == ([f"127.0.0.1:{port}:{port}"], port)
    (volume,) = instructions("VOLUME")
    assert service["volumes"][0].endswith(f":{volume}")
    # Where a shell of the container looks for the page's queue, too.
    assert {f"WORKSPACE={volume}", f"XDG_STATE_HOME={volume}/.state"} <= set(instructions("ENV")[0].split())


@pytest.mark.slow
def test_the_page_is_served_with_a_token_that_stays(tmp_path: Path) -> None:
    port, tokens = free_port(), []
    for _ in range(2):
        (tmp_path / "log").unlink(missing_ok=True)
        with started(tmp_path, port, Path(sys.executable).parent, RUNPOD_POD_ID="pod") as process:
            wait_for(lambda: status(port), process, tmp_path / "log")
            text = (tmp_path / "log").read_text(encoding="utf-8")
            tokens.append(re.findall(rf"https://pod-{port}\.proxy\.runpod\.net/\?token=(\S+)", text)[0])
            (printed,) = re.findall(r"^the page of .*: (\S+)$", text, re.MULTILINE)
            with urllib.request.urlopen(printed) as answer:
                assert answer.status == 200
            assert printed == f"http://127.0.0.1:{port}/?token={tokens[-1]}"
            assert status(port) == 401
            assert status(port, tokens[-1]) == 200
        assert process.returncode == 0
    assert tokens[0] == tokens[1]
    assert (tmp_path / ".state" / "token").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_an_interrupted_training_is_saved_and_goes_on_at_the_next_start(tmp_path: Path) -> None:
    write_recipe(tmp_path, 100_000)
    log, saves = tmp_path / "log", [0]
    for _ in range(2):
        log.unlink(missing_ok=True)
        with started(tmp_path, free_port(), Path(sys.executable).parent, RECIPE="mine.toml") as process:
            wait_for(lambda: "\nstep " in log.read_text(encoding="utf-8"), process, log)
        assert process.returncode == 0
        text = log.read_text(encoding="utf-8")
        saves.append(int(re.findall(r"saved step (\d+)", text)[-1]))
        assert saves[-1] > saves[-2]
    assert re.search(rf"resum\w* .*step {saves[1]}\b", text), text


@pytest.mark.slow
def test_a_training_of_the_page_is_saved_before_the_container_ends(tmp_path: Path) -> None:
    write_recipe(tmp_path, 100_000)
    run, port = RunFolder(tmp_path / "run"), free_port()
    with started(tmp_path, port, Path(sys.executable).parent, REELWORKS_TOKEN=TOKEN) as process:
        wait_for(lambda: status(port, TOKEN) == 200, process, tmp_path / "log")
        (key,) = (each["key"] for each in asked(port, "/api/recipes"))
        asked(port, f"/api/recipes/{key}/train", method="POST")
        wait_for(lambda: b'"kind": "step"' in read(run.events_file), process, tmp_path / "log")
    assert process.returncode == 0
    *_, last = read(run.events_file).splitlines()  # all that is alive now is killed
    assert json.loads(last)["kind"] == "stop"
    assert list(run.checkpoints_folder.glob("step-*"))


@pytest.mark.slow
def test_a_page_that_cannot_start_is_a_failure_and_ends_no_training(tmp_path: Path) -> None:
    write_recipe(tmp_path, 2)
    with started(
        tmp_path, free_port(), Path(sys.executable).parent, RECIPE="mine.toml", REELWORKS_TOKEN="short"
    ) as process:
        process.wait(300)
    assert process.returncode == 2  # that of the page
    assert b'"step": 2' in read(RunFolder(tmp_path / "run").events_file)


def stand_in(folder: Path, page: str, train: str = "true") -> Path:
    """Write a program `reelworks` whose page and training are lines of bash; return its folder."""
    lines = ("#!/usr/bin/env bash", 'case "$*" in', "*--end-jobs) echo asked ;;")
    lines += (f"ui*) echo served; {page} ;;", f"train*) {train} ;;", "esac", "")
    (folder / "reelworks").write_text("\n".join(lines), encoding="utf-8")
    (folder / "reelworks").chmod(0o755)
    return folder


def test_a_page_that_takes_long_to_end_takes_no_time_of_its_trainings(tmp_path: Path) -> None:
    log, programs = tmp_path / "log", stand_in(tmp_path, "trap '' TERM; exec sleep 120")
    with started(tmp_path, 1, programs, REELWORKS_TOKEN=TOKEN) as process:
        wait_for(lambda: b"served" in read(log), process, log)
        asked_at = time.monotonic()
    assert (process.returncode, time.monotonic() - asked_at < 60) == (0, True)
    assert b"asked" in read(log)


def test_a_page_that_crashes_ends_the_container_when_its_trainings_have_saved(tmp_path: Path) -> None:
    trains = "trap 'echo saved; exit 75' TERM; touch trains; while :; do sleep 0.1; done"
    programs = stand_in(tmp_path, "until [ -e trains ]; do sleep 0.1; done; exit 137", trains)
    with started(tmp_path, 1, programs, REELWORKS_TOKEN=TOKEN, RECIPE="mine.toml") as process:
        process.wait(60)
    assert process.returncode == 137
    assert {b"saved", b"asked"} <= set(read(tmp_path / "log").splitlines())


def test_a_folder_is_named_from_where_the_start_is(tmp_path: Path) -> None:
    """Paths in it stay those of that folder, though the page and the training run within."""
    stand_in(tmp_path, "exit 2")
    variables = {"WORKSPACE": "new/work", "PATH": f"{tmp_path}:{os.environ['PATH']}", "PORT": "1"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")} | variables
    done = subprocess.run(
        ["bash", str(ROOT / "containers" / "start.sh")], cwd=tmp_path, env=env, capture_output=True, timeout=60
    )
    assert done.returncode == 2, done.stderr  # that of the page
    assert [file.name for file in (tmp_path / "new" / "work" / ".state").iterdir()] == ["token"]
    assert [file.name for file in (tmp_path / "new" / "work").iterdir()] == [".state"]


@pytest.mark.slow
def test_each_line_of_the_image_can_be_typed(tmp_path: Path) -> None:
    """In a bare environment; packages of the system are looked up where there is apt."""
    source, target = tmp_path / "source", tmp_path / "reelworks"
    for line in instructions("COPY"):
        *sources, to = [word for word in line.split() if not word.startswith("--")]
        for name in sources:
            place = Path(to.replace("/opt/source", str(source)).replace("/opt", str(tmp_path)))
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            if to.endswith("/"):
                place.mkdir(exist_ok=True)
            copy(ROOT / name, place)
    typed = 0
    for line in instructions("RUN"):
        if "apt-get" in line:
            packages = line.split("--no-install-recommends")[1].split("&&")[0].split()
            if shutil.which("apt-get"):
                subprocess.run(["apt-get", "install", "--simulate", "-qq", *packages], check=True, capture_output=True)
            continue
        line = line.replace("/opt/source", str(source)).replace("/opt/reelworks", str(target))
        line = line.replace("python3 -m venv", f"{sys.executable} -m venv")
        subprocess.run(["bash", "-c", line], check=True, timeout=1500)
        typed += 1
    assert typed
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    told = subprocess.run([target / "bin" / "reelworks", "ui", "--help"], env=bare, capture_output=True, check=True)
    assert b"--host" in told.stdout
