"""Train a network on made-up inputs of any bucket and batch size, in a process of its own that memory may end."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import psutil
import torch

from reelworks.core import device_memory, machine, system, units
from reelworks.core.errors import UserError
from reelworks.data.buckets.table import Bucket
from reelworks.data.distributed import mesh
from reelworks.data.distributed.layout import Layout
from reelworks.data.distributed.mesh import World
from reelworks.models import recompute
from reelworks.models.attention.attention_audit import ReplacedKernels
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run, memory
from reelworks.training.memory.search import Trial
from reelworks.training.recipe import device_limits
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import out_of_memory
from reelworks.training.step.state import TrainState

_OUT_OF_MEMORY = "out of memory"
_SECONDS, _MOST_REPEATS = 1.0, 20  # of timing; a step that takes longer is timed once


class Workbench:
    """A network in training on this process's device."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        device_limits.require(recipe, world.device)
        self._recipe, self._device = recipe, world.device
        denoiser = build.denoiser(recipe, world.home)
        units = denoiser.sharding().units
        mesh.shard(denoiser.module, units, denoiser.contract, world, Layout.from_strategy("fsdp", world.size))
        self._sizes = build.lazy_encoder(recipe, torch.device("meta"))
        self._boundary = DtypeBoundary(denoiser)
        self._state = TrainState.start(denoiser, recipe.train)

    def trial(self, bucket: Bucket, batch_size: int) -> Trial:
        """Take optimizer steps with a micro-batch; the first, which allocates, is not timed."""
        self._step(bucket, batch_size)
        reset_peak(self._device)
        times: list[float] = []
        while sum(times) < _SECONDS and len(times) < _MOST_REPEATS:
            began = time.perf_counter()
            self._step(bucket, batch_size)
            device_memory.wait(self._device)
            times.append(time.perf_counter() - began)
        return Trial(bucket.name, bucket.tokens, batch_size, 1000 * statistics.median(times), peak_bytes(self._device))

    def _step(self, bucket: Bucket, batch_size: int) -> None:
        inputs = dry_run.blank(self._sizes, bucket, batch_size * self._recipe.clips_per_place, self._device)
        try:
            with recompute.by(memory.recomputation(self._recipe, bucket)):
                torch.autograd.backward(self._boundary(inputs).float().square().mean())
            self._state.optimizer.step()
            self._state.update_ema(0, self._recipe.train.ema_decay)
        finally:
            self._state.optimizer.zero_grad()


def reset_peak(device: torch.device) -> None:
    """Forget the peak memory of the device, or of this process on a CPU."""
    device_memory.release(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    if device.type != "cpu":
        return
    with contextlib.suppress(OSError):  # without the file, as on macOS, the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory since `reset_peak`."""
    return (_own_bytes("VmHWM") if device.type == "cpu" else 0) or device_memory.peak_bytes(device)


def _own_bytes(name: str) -> int:
    """Return memory of this process by its name in proc_pid_status(5); 0 where there is none, as on macOS."""
    file = Path("/proc/self/status")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def device_bytes() -> int:
    """Return the memory that a process may use: 92 % of the GPU, or half of the available memory of a CPU."""
    if (total := device_memory.total_bytes(machine.default_device(0))) is not None:
        return int(0.92 * total)
    return int(psutil.virtual_memory().available) // 2


class ChildProcess:
    """A workbench in another process, which is started again if a trial ends it."""

    def __init__(self, recipe: Recipe, memory_bytes: int) -> None:
        self._recipe, self._memory_bytes = recipe, memory_bytes
        self._process: Any = None
        self._pipe: Any = None

    def trial(self, bucket: Bucket, batch_size: int) -> Trial | None:
        """Return a trial, None if memory did not suffice.

        Raises:
            UserError: The network cannot be built or trained for another reason.
        """
        if self._process is None or not self._process.is_alive():
            self._start()
        self._pipe.send((bucket, batch_size))
        connection.wait([self._pipe, self._process.sentinel])
        try:
            reply: Any = self._pipe.recv()
        except (EOFError, ConnectionError):  # ended by the system, or by a library that found no memory
            self._process.join()
            return None
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Trial):
            return reply
        # What a capped process has left is in pieces; building another takes seconds.
        if machine.default_device().type == "cpu":
            self.close()
        return None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._pipe.close()
            self._process.join(10)
            self._process.kill()
            self._process = None

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._recipe, self._memory_bytes), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.poll(None)
        try:
            ready = self._pipe.recv()
        except EOFError:
            ready = _too_large(self._memory_bytes)
        if isinstance(ready, Exception):
            raise ready


def _too_large(memory_bytes: int) -> UserError:
    return UserError(
        "memory does not suffice for the network with gradients and optimizer",
        code="out-of-memory",
        field="--memory",
        value=units.size(memory_bytes),
        remedy="give more, set parallel.offload = true, or train a LoRA on a base of few bits",
    )


@contextmanager
def child(recipe: Recipe, memory_bytes: int) -> Iterator[ChildProcess]:
    """Yield a workbench in another process."""
    process = ChildProcess(recipe, memory_bytes)
    try:
        yield process
    finally:
        process.close()


def _is_lack(error: Exception) -> bool:
    """Whether memory did not suffice; in a capped process, that may be for the stack of a thread."""
    return out_of_memory.is_lack(error) or "can't start new thread" in str(error)


def _serve(pipe: Any, recipe: Recipe, memory_bytes: int) -> None:
    if machine.default_device().type == "cpu":
        # The limit of the system counts what is reserved: pyarrow reserves a GiB as it is imported, and touches little of it.
        untouched = max(0, _own_bytes("VmData") - _own_bytes("RssAnon"))
        system.limit_memory(memory_bytes + untouched)  # else it would end other processes first, or swap
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    with mesh.join(offload=recipe.parallel.offload) as world, ReplacedKernels().replaced():
        try:
            bench = Workbench(recipe, world)
        except UserError as error:
            pipe.send(error)
            return
        except Exception as error:
            pipe.send(_too_large(memory_bytes) if _is_lack(error) else RuntimeError(repr(error)))
            return
        pipe.send("ready")
        with contextlib.suppress(EOFError):
            while True:
                bucket, batch_size = pipe.recv()
                try:
                    pipe.send(bench.trial(bucket, batch_size))
                except UserError as error:
                    pipe.send(error)
                except Exception as error:
                    pipe.send(_OUT_OF_MEMORY if _is_lack(error) else RuntimeError(repr(error)))
