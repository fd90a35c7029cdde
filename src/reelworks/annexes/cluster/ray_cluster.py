"""Connect to a Ray cluster, call functions there as in the processes of a `WorkerPool`, and let actors of Ray Data work."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from reelworks.core import launcher, units
from reelworks.core.errors import UserError
from reelworks.core.executors import Actor
from reelworks.core.log import logger
from reelworks.core.worker_pool import WorkerDied, WorkerHung

T = TypeVar("T")
R = TypeVar("R")
J = TypeVar("J")
_ANSWER_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0
_ACTOR_STARTS = 5


@dataclass(frozen=True)
class Cluster:
    """Size of a cluster when it was connected to; a node that joins later is used too."""

    cpus: int
    gpus: int

    @property
    def calls_at_once(self) -> int:
        """Number of calls that are to wait or run at once: a node has the next one when one returns."""
        return 2 * self.cpus

    @property
    def uses_gpus(self) -> bool:
        """Whether each actor has a GPU; without GPUs there is one for each CPU."""
        return self.gpus > 0

    def pool(self) -> RayPool:
        """Return the processes of the cluster."""
        return RayPool()

    def run_actors(self, actor: Callable[[J], Actor], job: J, parts: Sequence[str]) -> Iterator[str]:
        """Yield the result of each part, as actors return them (`core.executors.ActorExecutor`).

        Raises:
            UserError: The cluster ended the work.
        """
        import ray.data
        import ray.exceptions

        logging.getLogger("ray.data").setLevel(logging.ERROR)  # which would print lines between ours
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.max_consecutive_actor_init_deaths = _ACTOR_STARTS
        actors = ray.data.ActorPoolStrategy(
            size=min(self.gpus or self.cpus, len(parts)), max_tasks_in_flight_per_actor=1
        )
        items = ray.data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
        kind: Any = _BatchActor  # Ray's types know functions alone
        results = items.map_batches(
            kind,
            fn_constructor_args=(actor, job),
            batch_size=None,
            compute=actors,
            runtime_env=worker_environment() or None,
            num_gpus=1 if self.uses_gpus else None,
            num_cpus=None if self.uses_gpus else 1,
        )
        try:
            for row in results.iter_rows():
                yield row["result"]
        except ray.exceptions.RayTaskError:
            raise  # an error of ours, with its traceback
        except ray.exceptions.RayError as error:
            raise UserError(
                f"the Ray cluster ended the work: {str(error).strip().splitlines()[-1]}",
                code="ray-failed",
                field="--engine",
                value="ray",
                remedy="look at the state of the cluster (`ray status`) and at Ray's logs; the same command goes on where "
                "it was",
            ) from error


class _BatchActor:
    """An actor as Ray Data calls it."""

    def __init__(self, actor: Callable[[J], Actor], job: J) -> None:
        self._actor = actor(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        return {"result": [self._actor(part) for part in batch["part"]]}


@contextmanager
def connect(*, for_actors: bool = False) -> Iterator[Cluster]:
    """Connect to the cluster of RAY_ADDRESS, or to one that runs on this machine; start one here if there is none.

    What was started is stopped at the end. Within a process that is connected already, that connection is used and kept.

    Raises:
        UserError: Ray is not installed, the cluster cannot be reached, or several processes would run actors on it.
    """
    if for_actors and launcher.number("WORLD_SIZE") > 1:
        raise UserError(
            "torchrun has started several processes, and each would use the whole cluster",
            code="ray-under-torchrun",
            field="--engine",
            value="ray",
            remedy="start the command by itself: it uses all GPUs of the cluster",
        )
    ray, address = _ray(), os.environ.get("RAY_ADDRESS")
    connects = not ray.is_initialized()
    if connects:
        try:
            host, _, port = (address or "").rpartition(":")
            if host and port.isdecimal() and "/" not in host:  # Ray itself would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"no Ray cluster can be reached or started: {error}",
                code="ray-unreachable",
                field="RAY_ADDRESS" if address else "--engine",
                value=address or "ray",
                remedy="give RAY_ADDRESS of a running cluster (`ray start --head` prints it), or unset it to use this machine "
                "alone",
            ) from error
    try:
        found = ray.cluster_resources()
        cluster = Cluster(max(int(found.get("CPU", 0)), 1), int(found.get("GPU", 0)))
        if connects:
            counts = zip(
                (sum(node["Alive"] for node in ray.nodes()), *astuple(cluster)), ("node", "CPU", "GPU"), strict=True
            )
            logger.info("Ray: %s", ", ".join(units.plural(number, name) for number, name in counts))
        yield cluster
    finally:
        if connects:
            ray.shutdown()


def worker_environment() -> dict[str, Any]:
    """Return the `runtime_env` with which processes of a cluster find the modules that this process finds."""
    path = os.environ.get("PYTHONPATH")
    return {"env_vars": {"PYTHONPATH": path}} if path else {}


class RayPool:
    """Processes of the connected cluster, with the interface of `WorkerPool`; safe to use from several threads.

    A call takes one CPU and waits until one is free. It is made once: a call whose process dies is not repeated.
    """

    def __init__(self) -> None:
        self._ray = _ray()
        self._remote = self._ray.remote(_apply).options(
            num_cpus=1, max_retries=0, runtime_env=worker_environment() or None
        )
        self._lock = threading.Lock()
        self._running = set[Any]()
        self._is_closed = False

    def call(self, function: Callable[[T], R], value: T, timeout_seconds: float | None = None) -> R:
        """Return `function(value)`, computed in the cluster; its exceptions are raised in the calling thread.

        Raises:
            WorkerDied: The process or its node ended during the call, or the pool is closed.
            WorkerHung: The call took longer than `timeout_seconds` after it had begun; its process was ended.
        """
        began = time.monotonic()
        failures = self._ray.exceptions
        with self._lock:
            if self._is_closed:
                raise WorkerDied("the pool is closed")
            running = self._remote.remote(function, value, timeout_seconds)
            self._running.add(running)
        try:
            result: R = self._ray.get(running)
            return result
        except failures.RayTaskError as error:
            cause: Exception = error.cause
            raise cause from error
        except (
            failures.WorkerCrashedError,
            failures.NodeDiedError,
            failures.OutOfMemoryError,
            failures.ObjectLostError,
            failures.TaskCancelledError,
        ) as error:
            if timeout_seconds is not None and time.monotonic() - began >= timeout_seconds:
                raise WorkerHung(f"a call took more than {timeout_seconds:g} s") from error
            raise WorkerDied("a process of the cluster ended during its call") from error
        finally:
            with self._lock:
                self._running.discard(running)

    def close(self) -> None:
        """Wait a little for the calls that are running, and end those that go on longer; they fail."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        if not running:
            return
        # Ray aborts this process if a call is cancelled in the moment in which it returns, so only those that hang are.
        _, hanging = self._ray.wait(running, num_returns=len(running), timeout=_PATIENCE_SECONDS)
        for each in hanging:
            self._ray.cancel(each, force=True)


def _apply(function: Callable[[T], R], value: T, timeout_seconds: float | None) -> R:
    # Ray has no limit for a call, and a call waits for a CPU first, so its process ends itself.
    watch = threading.Timer(timeout_seconds or threading.TIMEOUT_MAX, os._exit, (1,))
    watch.daemon = True
    watch.start()
    try:
        return function(value)
    finally:
        watch.cancel()


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions  # noqa: F401
    except ImportError as error:
        raise UserError(
            "the package ray is not installed",
            code="no-ray",
            field="--engine",
            value="ray",
            remedy="pip install 'reelworks[ray]', on every node of the cluster",
        ) from error
    return ray
