"""One start of a training, in forks of an idle server or by the command line, and how it ended."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import tomli_w

Json = dict[str, Any]
REPOSITORY = Path(__file__).parents[2]
BAD_INPUT, REQUEUE = 2, 75
_LIMIT_SECONDS = 900.0  # a run of minutes takes four times as long beside three others on two cores
_GRACE_SECONDS = 1.0  # as the launcher's


@dataclass(frozen=True)
class Start:
    """What a start is told.

    Attributes:
        recipe: The whole recipe.
        folder: Where its log and its notes go.
        orders: What `watch.install` is told.
        options: Fields of `TrainRequest`.
        world: Ranks.
        typed: By the command line, in processes that begin from nothing.
    """

    recipe: Json
    folder: Path
    orders: Json
    options: Json
    world: int = 1
    typed: bool = False


@dataclass(frozen=True)
class Ended:
    """How a start ended.

    Attributes:
        codes: Exit codes by rank; of the launcher alone where it was typed.
        output: What it printed.
        ordered: How it was to end.
    """

    codes: list[int]
    output: str
    ordered: str

    @property
    def refused(self) -> str | None:
        """What a start said that refused to train, or stopped with a remedy; None where it did not."""
        if BAD_INPUT not in self.codes:
            return None
        found = re.search(r"^error: (.*?\n  remedy: [^\n]*)", self.output, re.MULTILINE | re.DOTALL)
        return found[1] if found else None

    @property
    def killed(self) -> bool:
        """True where a rank died of SIGKILL; the launcher may tell of another rank, which lost that one."""
        lost = self.ordered == "kill" and "Connection closed by peer" in self.output
        return lost or -signal.SIGKILL in self.codes or 128 + signal.SIGKILL in self.codes

    @property
    def crashed(self) -> str | None:
        """The last line of what nobody meant to happen; None where nothing did."""
        if self.killed or self.refused or all(code in (0, REQUEUE) for code in self.codes):
            return None
        lines = [line for line in self.output.splitlines() if line.strip()]
        where = [line.strip() for line in lines if re.match(r"\s+File .*reelworks/", line)]
        return f"{self.codes}: {lines[-1] if lines else 'nothing printed'} {where[-1] if where else ''}"


def serve() -> None:
    """Prepare the server that starts fork from, for a process of its own; tests have theirs."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["drills._histories.watch", "preloaded"])


def run(start: Start) -> Ended:
    """Let a start live to its end."""
    start.folder.mkdir(parents=True)
    log = start.folder / "log.txt"
    codes = _typed(start, log) if start.typed else _forked(start, log)
    return Ended(codes, log.read_text(errors="replace", encoding="utf-8"), start.orders["end"]["by"])


def _forked(start: Start, log: Path) -> list[int]:
    server = multiprocessing.get_context("forkserver")
    port = _free_port()
    ranks = [
        server.Process(target=_live, args=(rank, start.world, port, str(log), start)) for rank in range(start.world)
    ]
    for process in ranks:
        process.start()
    return _wait(ranks)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait(ranks: Sequence[BaseProcess]) -> list[int]:
    """Exit codes; when a rank fails, the others have a moment to end by themselves, as under the launcher."""
    until = time.monotonic() + _LIMIT_SECONDS
    while running := [rank for rank in ranks if rank.exitcode is None]:
        if any(rank.exitcode for rank in ranks):
            until = min(until, time.monotonic() + _GRACE_SECONDS)
        if time.monotonic() > until:
            hang = not any(rank.exitcode for rank in ranks)
            for rank in running:
                rank.kill()
                rank.join()
            if hang:
                raise TimeoutError("no rank ends")
            return [rank.exitcode if rank not in running else 0 for rank in ranks]
        connection.wait([rank.sentinel for rank in running], max(until - time.monotonic(), 0))
    return [int(rank.exitcode or 0) for rank in ranks]


def _live(rank: int, world: int, port: int, log: str, start: Start) -> None:
    """What a forked rank does."""
    with Path(log).open("a", encoding="utf-8") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    if world > 1:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        values = (rank, rank, world, world, "127.0.0.1", port)
        os.environ.update({name: str(value) for name, value in zip(names, values, strict=True)})
    code = 1
    try:
        code = _train(start)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train(start: Start) -> int:
    from drills._histories import watch
    from reelworks.core.errors import UserError
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    watch.install(start.orders)
    try:
        return run(recipe_file.parse(start.recipe), TrainRequest(**start.options))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return BAD_INPUT


# By the command line.

_SITE = """
import os
from drills._histories import late

late.install(os.environ["HISTORY_ORDERS"])
"""


def _typed(start: Start, log: Path) -> list[int]:
    """Type the command; every process that it starts is watched too."""
    recipe, orders = start.folder / "recipe.toml", start.folder / "orders.json"
    recipe.write_text(tomli_w.dumps(start.recipe), encoding="utf-8")
    orders.write_text(json.dumps(start.orders), encoding="utf-8")
    (start.folder / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    command = [sys.executable, "-m", "reelworks", "train", str(recipe)]
    command += ["--resume", start.options.get("resume", "auto"), "--nproc-per-node", str(start.world)]
    if start.options.get("restart_data"):
        command.append("--restart-data")
    path = os.pathsep.join([str(start.folder), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HISTORY_ORDERS": str(orders), "OMP_NUM_THREADS": "1"}
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(
            command, env=environment, stdout=stream, stderr=stream, timeout=_LIMIT_SECONDS, check=False
        )
    return [done.returncode]


def covered_by_command(run: Path) -> Json:
    """What `reelworks coverage RUN --json` prints.

    Raises:
        RuntimeError: It ends with an error.
    """
    command = [sys.executable, "-m", "reelworks", "coverage", str(run), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False, encoding="utf-8"
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: Json = json.loads(done.stdout)
    return told
