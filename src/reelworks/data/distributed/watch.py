"""Watch the ranks of a run, so that all end soon, with one message, if one of them is lost or hangs.

A thread of each rank writes a beat to the store of `roll_call` every second: how far the rank has come, and what it
does. Rank 0 reads all beats. If those of a rank stop, or none goes on for too long, it writes a verdict that names the
rank and its clips, prints it, and all ranks exit. The others watch rank 0 in the same way. Collectives alone would not
do: NCCL notices a lost rank after many minutes, and gloo names an address instead of a rank.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from reelworks.core import terminal
from reelworks.core.errors import UserError, first_few
from reelworks.data.distributed.config import ParallelConfig

BEAT_SECONDS = 1.0
# After a collective failed, a rank that is still alive has been heard in this time.
SUSPECT_SECONDS = 5.0
# Time for the other ranks to raise an error of their own, as they do if it is one of all ranks.
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05  # before the second look for ranks that are to meet; later ones wait longer
# Time for the other ranks to end before the store may end with rank 0.
_LEAVING_SECONDS = 3.0
# Time for rank 0 to raise an error that is one of all ranks, and say that it stays.
_STAY_SECONDS = 1.0
_EXIT_CODE = 1

ClipsOf = Callable[[int], Sequence[str]]


@dataclass(frozen=True)
class Beat:
    """State of a rank as the others see it.

    Attributes:
        count: Number of the beat, so that each differs from the one before.
        marks: Number of phases that the rank has begun, equal on all ranks that are equally far.
        idle_seconds: Time since it began the present phase; None if the phase may last for any time.
        waits: Whether its main thread is within a collective, and so perhaps waits for another rank.
        fault: The error with which it ends; empty if it has none.
        ended: Whether it has left the run, in order or with a fault.
    """

    host: str
    count: int = 0
    marks: int = 0
    step: int = 0
    doing: str = "starting"
    idle_seconds: float | None = None
    waits: bool = False
    fault: str = ""
    ended: bool = False

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse the JSON of a beat."""
        return cls(**json.loads(text))


class Watch:
    """Tell the other ranks how far this one is, and end this process if one of them is lost.

    Use as a context manager; an error that leaves it is told to the other ranks. `mark` is called at each phase of a
    step, on all ranks equally often.
    """

    def __init__(self, store: Store, rank: int, size: int, limits: ParallelConfig) -> None:
        self._store, self._rank, self._size, self._limits = store, rank, size, limits
        self._host, self._watched = socket.gethostname(), range(1, size) if rank == 0 else [0]
        self._lock = threading.Lock()
        self._marks, self._step, self._doing, self._is_limited = 0, 0, "starting", False
        self._since = time.monotonic()
        self._clips_of: ClipsOf = lambda rank: ()
        self._count, self._fault, self._ended = 0, "", False
        self._suspects = self._takes_along = self._stays = False
        self._meetings = 0
        self._heard: dict[int, tuple[Beat, float]] = {}  # the last beat of each rank, and when it was new
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and _is_of_communication(error):
            # Another rank is gone, which its beats will show; the process ends with the verdict.
            self._suspects = True
            self._thread.join(self._limits.lost_seconds + SUSPECT_SECONDS)
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._ended = True
            if error is not None and not isinstance(error, SystemExit):
                first_line = next(iter(str(error).splitlines()), "")
                is_told = isinstance(error, UserError)
                self._fault = first_line if is_told else f"{type(error).__name__}: {first_line}"
        with suppress(dist.DistError):  # rank 0 has left, and the store with it
            self._beat()
            if self._rank == 0:  # which may host the store
                self._wait(_LEAVING_SECONDS)
            elif self._fault:  # launchers end all ranks after the first that ends, and rank 0 may stay
                self._wait(_STAY_SECONDS, while_it_stays=True)

    def mark(self, doing: str, step: int, clips_of: ClipsOf | None = None, *, limited: bool = True) -> None:
        """Begin a phase of a step, which must end within the time limit if it is `limited`.

        `clips_of` returns the paths of a rank's clips in this step; None keeps the former one.
        """
        with self._lock:
            self._marks += 1
            self._step, self._doing, self._is_limited = step, doing, limited
            self._since = time.monotonic()
            self._clips_of = clips_of or self._clips_of

    def meets(self, seconds: float) -> bool:
        """Whether all ranks come here within some time of this one; one that does not may wait for it in a collective."""
        self._meetings += 1
        key, until = f"meeting/{self._meetings}", time.monotonic() + seconds
        self._store.add(key, 1)
        pause = _POLL_SECONDS
        while self._store.add(key, 0) < self._size:
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(1.2 * pause, BEAT_SECONDS)
        return True

    def take_along(self, code: int, said: str) -> None:
        """End the other ranks, whatever they wait for, with an exit code of the launcher's and what rank 0 is to say."""
        self._takes_along = True
        self._store.set("left", f"{code} {said}")

    def stay(self) -> None:
        """Let the others, which may have failed as this rank did, end after it: it still does what it does for all."""
        with self._lock:
            self._is_limited, self._stays = False, True
        self._store.set("stays", "")

    def _beat(self) -> None:
        self._count += 1
        self._store.set(f"beat/{self._rank}", json.dumps(asdict(self._own())))

    def _own(self) -> Beat:
        with self._lock:
            idle = time.monotonic() - self._since if self._is_limited else None
            phase = (self._marks, self._step, self._doing)
            return Beat(self._host, self._count, *phase, idle, _is_in_collective(), self._fault, self._ended)

    def _run(self) -> None:
        try:
            while not self._stop.wait(BEAT_SECONDS):
                self._beat()
                if self._store.check(["verdict"]):
                    self._leave(self._store.get("verdict").decode())
                if not self._takes_along and self._store.check(["left"]):
                    self._follow(*self._store.get("left").decode().split(" ", 1))
                self._listen()
                if verdict := self._verdict():
                    if self._rank == 0:
                        self._store.set("verdict", verdict)
                    self._leave(verdict)
        except dist.DistError:
            if self._stop.is_set():
                return
            first = self._heard.get(0)
            if first is not None and first[0].fault:  # it has said so itself, and ended
                self._leave(f"rank 0 failed: {first[0].fault}")
            self._leave(self._lost(0) if self._rank else "the store of this run cannot be reached any more")

    def _listen(self) -> None:
        keys = [f"beat/{rank}" for rank in self._watched]
        # A rank that has not begun to beat is in the roll call, or within a moment of it.
        present = [key for key in keys if self._store.check([key])] if len(self._heard) < len(keys) else keys
        for key, text in zip(present, self._store.multi_get(present) if present else [], strict=True):
            rank, beat = int(key.removeprefix("beat/")), Beat.parse(text)
            former = self._heard.get(rank)
            if former is None or former[0] != beat:
                self._heard[rank] = (beat, time.monotonic())

    def _verdict(self) -> str | None:
        """Return why the run must end, if it must."""
        now = time.monotonic()
        patience = SUSPECT_SECONDS if self._suspects else self._limits.lost_seconds
        for rank, (beat, at) in sorted(self._heard.items()):
            # A rank that fails because another one has ended stays for nothing.
            if beat.fault and now - at > _GRACE_SECONDS and (self._suspects or not self._stays):
                return f"rank {rank} on {beat.host} failed: {beat.fault}"
            if not beat.ended and now - at > patience:
                return self._lost(rank)
        return self._stalled() if self._rank == 0 else None

    def _lost(self, rank: int) -> str:
        beat = self._heard[rank][0] if rank in self._heard else Beat("an unknown host")
        return (
            f"rank {rank} on {beat.host} was lost at step {beat.step}, {beat.doing}{self._clips(rank)}: it was killed, or "
            "its machine cannot be reached; the same command goes on from the last checkpoint"
        )

    def _stalled(self) -> str | None:
        """Return a verdict if no rank's step goes on.

        The slowest rank has begun the fewest phases; of several, it is the one that does not wait for the others.
        """
        beats = {0: self._own()} | {rank: beat for rank, (beat, _) in self._heard.items() if not beat.ended}
        behind = min(beats, key=lambda rank: (beats[rank].marks, beats[rank].waits))
        beat, limit = beats[behind], self._limits.step_seconds
        if beat.idle_seconds is None or beat.idle_seconds < limit:
            return None
        level = [str(rank) for rank, one in beats.items() if (one.marks, one.waits) == (beat.marks, beat.waits)]
        whose = f"rank {', '.join(level)} on {beat.host}" if len(level) < len(beats) else f"all {len(beats)} ranks"
        return (
            f"{whose} did not go on for {beat.idle_seconds:.0f} s (parallel.step_seconds = {limit:g}) at step "
            f"{beat.step}, {beat.doing}{self._clips(behind)}"
        )

    def _clips(self, rank: int) -> str:
        try:
            paths = list(self._clips_of(rank))
        except Exception:  # whatever is wrong with the clips, the verdict matters more
            return ""
        return f" (clips: {first_few(paths)})" if paths else ""

    def _leave(self, verdict: str) -> None:
        """Print the verdict, on one rank, and end this process, whatever its main thread waits for.

        Rank 0 prints it, or if that is lost, one rank of each node.
        """
        is_first_lost = verdict.startswith("rank 0 ") and "was lost" in verdict
        speaks_instead = is_first_lost and (self._rank == 1 or os.environ.get("LOCAL_RANK") == "0")
        if self._rank == 0 or speaks_instead:
            terminal.say(f"error: {verdict}", error=True)
        if self._rank == 0:
            time.sleep(2 * BEAT_SECONDS)  # the others read the verdict in the store, which may end with this process
        os._exit(_EXIT_CODE)

    def _follow(self, code: str, said: str) -> None:
        """End this process as another rank did that takes it along."""
        if self._rank == 0:
            terminal.say(said)
            time.sleep(2 * BEAT_SECONDS)  # as in `_leave`
        os._exit(int(code))

    def _wait(self, seconds: float, *, while_it_stays: bool = False) -> None:
        """Wait until the ranks that this one watches have ended, for some time, or longer while rank 0 says that it stays."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or (while_it_stays and self._store.check(["stays"])):
            self._listen()
            if len(self._heard) == len(self._watched) and all(beat.ended for beat, _ in self._heard.values()):
                return
            time.sleep(BEAT_SECONDS / 20)


def _is_in_collective() -> bool:
    """Return whether the main thread is within torch.distributed."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if f"torch{os.sep}distributed" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _is_of_communication(error: BaseException) -> bool:
    """Return whether an error says that another rank could not be reached."""
    cause: Any = error
    while cause is not None:
        if isinstance(cause, dist.DistError) and not isinstance(cause, UserError):
            return True
        text = str(cause)
        if isinstance(cause, RuntimeError) and ("gloo/" in text or "onnection closed by peer" in text):
            return True
        cause = cause.__cause__
    return False
