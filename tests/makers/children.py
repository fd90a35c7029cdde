"""Trainings in processes of their own, forked from a server that has imported everything once.

A fresh process costs seconds of imports; a fork of an idle server does not, and is as fresh: it has run
nothing. Faults are injected in the child, around the real functions.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import socket
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import killing

from reelworks.core import system

HANGS_AFTER = 300.0  # seconds; four ranks on two busy cores take 100 where there is much to import and compute
_SHARED = "REELWORKS_TESTS_SERVER"  # where the server of all test processes listens
_CONTEXT: Any = multiprocessing.get_context("spawn" if system.WINDOWS else "forkserver")
# With the libraries of adapters, of optimizers and of the networks that are trained most.
_PRELOADED = [
    *("peft", "peft.tuners.lora.bnb", "bitsandbytes", "prodigyopt", "schedulefree", "came_pytorch"),
    *(f"diffusers.models.transformers.transformer_{name}" for name in ("flux", "flux2", "wan")),
    "preloaded",
]


def train(recipe: dict[str, Any], *, fault: tuple[str, int] | None = None, world: int = 1, **options: Any) -> list[int]:
    """Run a recipe to its end, or to its fault, on `world` gloo ranks; returns exit codes by rank.

    `options` are those of the command line, fields of `TrainRequest`.
    """
    return on_ranks(_child, recipe, fault, options, world=world)


def process(target: Callable[..., None], *args: Any) -> BaseProcess:
    """Return a process that begins as a fork of the server and calls a function, once it is started."""
    return context().Process(target=target, args=args)


def context() -> Any:
    """Return the context of such processes: the process of the tests has threads, so that a fork of it could hang."""
    _serve()
    return _CONTEXT


@functools.cache
def _serve() -> None:
    """Start the server where it finds the modules beside this one, of whose path Python does not tell it."""
    if system.WINDOWS:  # which has none: each process imports by itself
        return
    from multiprocessing import forkserver

    import pytest

    if _SHARED in os.environ:
        server: Any = forkserver._forkserver
        server._forkserver_address, server._forkserver_alive_fd = os.environ[_SHARED], os.pipe()[1]
        server.ensure_running = lambda: None
        return
    _CONTEXT.set_forkserver_preload(_PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()


def share_server() -> None:
    """Start one server for the test processes that this one will start: its imports take as long as fifty trainings."""
    if not system.WINDOWS and sys.version_info < (3, 14):  # from which on a server knows its own process by a key
        from multiprocessing import forkserver

        _serve()
        os.environ[_SHARED] = str(forkserver._forkserver._forkserver_address)  # type: ignore[attr-defined]


def on_ranks(target: Callable[..., None], recipe: dict[str, Any], *args: Any, world: int) -> list[int]:
    """Run a function of a recipe in fresh processes that know each other; returns exit codes by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [process(_rank, rank, world, port, target, recipe, *args) for rank in range(world)]
    _log(recipe).unlink(missing_ok=True)
    return ended(ranks)


def ended(ranks: list[BaseProcess]) -> list[int]:
    """Start processes of the server and wait for their ends; returns their exit codes."""
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(HANGS_AFTER)
        if rank.exitcode is None:
            rank.kill()
            raise TimeoutError("a rank hangs")
    return [int(rank.exitcode or 0) for rank in ranks]


def _rank(rank: int, world: int, port: int, target: Callable[..., None], *args: Any) -> None:
    if world > 1:
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in told.items()}, MASTER_ADDR="127.0.0.1")
    _told(target, *args)


def _child(recipe: dict[str, Any], fault: tuple[str, int] | None, options: dict[str, Any]) -> None:
    import faults

    if fault is not None:
        faults.kill_at(*fault)
    if options.get("load"):
        options["load"] = Path(options["load"])
    train_here(recipe, **options)


def train_here(recipe: dict[str, Any], **options: Any) -> None:
    """Run a recipe in this process, which ends with the code of the command line."""
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    os._exit(run(recipe_file.parse(recipe), TrainRequest(**options)))


def train_and_exit(recipe: dict[str, Any]) -> None:
    """Train in this process, print an error that the user can correct, and end with the code of the command line."""
    from reelworks.core.errors import UserError
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    try:
        code = run(recipe_file.parse(recipe), TrainRequest())
    except UserError as error:
        print(error, flush=True)
        code = 2
    os._exit(code)


def in_child(target: Callable[..., None], recipe: dict[str, Any], *args: Any) -> int:
    """Run a function of a recipe in a fresh process."""
    child = process(_told, target, recipe, *args)
    child.start()
    child.join(HANGS_AFTER)
    return int(child.exitcode if child.exitcode is not None else killing.SELF_KILLED)


def output(recipe: dict[str, Any]) -> str:
    """What the last training of a recipe's folder printed, both streams of all ranks."""
    return _log(recipe).read_text(encoding="utf-8")


def _log(recipe: dict[str, Any]) -> Path:
    return Path(recipe["output"] + ".log")


def _told(target: Callable[..., None], recipe: dict[str, Any], *args: Any) -> None:
    """Run with both streams in the log: those of the server were opened for another test."""
    with _log(recipe).open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if "SECOND_DEVICE" in os.environ and "WORLD_SIZE" not in os.environ:
        import pytest
        import second_device

        second_device.use(pytest.MonkeyPatch())
    assert system.WINDOWS or "preloaded" in sys.modules, (
        "each training would import for seconds what the server should have"
    )
    target(recipe, *args)


def lose_a_file(recipe: dict[str, Any], victim: str) -> None:
    """Train on a clip that vanishes behind the scan."""
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    lose_behind_the_scan(victim)
    run(recipe_file.parse(recipe), TrainRequest(debug=True))


def lose_behind_the_scan(*victims: str) -> None:
    """Let files vanish, in this process, as soon as a training has scanned them."""
    from reelworks.training.recipe import dataset

    original = dataset.scan_recipe

    def scan(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        for victim in victims:
            Path(victim).unlink()
        return result

    dataset.scan_recipe = scan


def lose_plans(run: Path) -> None:
    """Remove the plans that a run keeps."""
    kept = list((run / "plan").glob("plan-*"))
    assert kept, "or the test would lose nothing"
    for plan in kept:
        shutil.rmtree(plan)


def debug_lines(run: Path) -> list[dict[str, Any]]:
    """What all ranks logged of their steps."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((run / "debug").glob("steps-rank-*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]
