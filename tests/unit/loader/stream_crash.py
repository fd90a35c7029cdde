"""Deaths of decoding processes and of the trainer; imported by processes of their own, so without torch."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import killing

from reelworks.core.shape import Shape
from reelworks.data.media.decode import Request
from reelworks.data.media.decode_pool import DecodePool


@dataclass(frozen=True)
class Deadly:
    """A path that kills the process which receives it, as a decoder does on a segmentation fault.

    Attributes:
        log: Gets a byte for each death.
        deaths: How many processes it kills; afterwards it is the path of a good file.
        good: That file.
    """

    log: Path
    deaths: int
    good: Path

    def __reduce__(self) -> tuple[object, ...]:
        return _die, (self.log, self.deaths, self.good)


def _die(log: Path, deaths: int, good: Path) -> Path:
    with log.open("ab") as f:
        if f.tell() < deaths:
            f.write(b"x")
            f.flush()
            os._exit(139)
    return good


class Hanging(type(Path())):  # type: ignore[misc]
    """A path of a pipe at which one waits for what is never written, as at a file on a dead mount."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Wait."""
        with open(self, "rb") as pipe:  # noqa: PTH123
            pipe.read(1)
        return super().stat(follow_symlinks=follow_symlinks)  # type: ignore[no-any-return]


def start_workers_and_die(pids: Connection) -> None:
    """Be a trainer that tells its worker's process id and is killed."""
    pool = DecodePool(1, 60.0)
    pool.submit(Request(Path("nowhere.png"), True, Shape(1, 8, 8))).result()
    pids.send([process.pid for process in multiprocessing.active_children()])
    killing.kill_self()
