"""Commands that the page starts: each in a process of its own, which goes on when the page is stopped.

A job is a JSON file, and its output lies beside it. Trainings wait for one another, so that several can be queued for one
GPU; other commands start at once. What still waits when the page is stopped is started by the next page.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from reelworks.core import files, system
from reelworks.core.errors import UserError
from reelworks.data.run.process import Process

State = Literal["waiting", "running", "done", "failed", "stopped"]
_POLL_SECONDS = 0.5
_TAIL_BYTES = 20_000
_KEPT = 200
_VANISHED = "killed, or its machine was lost"
REQUEUE = 75  # exit code of a training that was asked to stop, and saved
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class PageJob:
    """A command.

    Attributes:
        kind: What it does: "train", "new", "scan", "export", "generate".
        title: What it works on, for people.
        arguments: Arguments of `reelworks`.
        cwd: Folder that it runs in.
        process: Process of the command, once it has begun.
        writer: Process that waits for it, and writes how it ended.
        code: Exit code, once it has ended; None if that is not known, because the machine was restarted.
        subject: Key of the run or recipe that it works on.
    """

    id: str
    kind: str
    title: str
    arguments: tuple[str, ...]
    cwd: str
    created: float
    state: State = "waiting"
    process: Process | None = None
    writer: Process | None = None
    started: float | None = None
    ended: float | None = None
    code: int | None = None
    subject: str = ""


class Jobs:
    """The jobs of a folder that only this user writes to; `close` ends the queue, and no process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin to start what waits."""
        self._thread.start()

    def close(self) -> None:
        """Start nothing more; what runs goes on."""
        self._stop.set()
        self._thread.join()

    def list(self) -> Sequence[PageJob]:
        """Return all jobs, oldest first."""
        jobs = []
        with self._lock:
            for path in sorted(self.folder.glob("[0-9]*.json")):
                with suppress(OSError, ValueError, TypeError, KeyError):
                    jobs.append(read(path))
            return tuple(map(self._fresh, jobs))

    def get(self, id: str) -> PageJob:
        """Return a job; raises `UserError` if there is none of this name."""
        for job in self.list():
            if job.id == id:
                return job
        raise UserError(
            "there is no such job any more", code="not-found", field="job", value=id, remedy="look at the list of jobs"
        )

    def add(self, kind: str, title: str, arguments: Sequence[str], cwd: Path, *, subject: str = "") -> PageJob:
        """Queue a command of `reelworks`; one that waits or runs already is that job: a button may be pressed twice."""
        with self._lock:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            known = self.list()
            for job in known:
                if job.ended is None and (job.arguments, job.cwd) == (tuple(arguments), str(cwd)):
                    return job
            for old in known[:-_KEPT]:
                if old.ended is not None:
                    for suffix in (".json", ".out", ".log"):
                        self._file(old, suffix).unlink(missing_ok=True)
            number = max((int(job.id) for job in known), default=0) + 1
            job = PageJob(f"{number:06}", kind, title, tuple(arguments), str(cwd), time.time(), subject=subject)
            write(self._file(job, ".json"), job)
        self._step()
        return self.get(job.id)

    def stop(self, id: str) -> PageJob:
        """Take a job out of the queue, or ask its command to end: a training saves before it does."""
        with self._lock:
            job = self.get(id)
            if job.state == "waiting":
                write(self._file(job, ".json"), replace(job, state="stopped", ended=time.time()))
        while (job := self.get(id)).state == "running" and job.process is None:
            time.sleep(0.02)  # it begins, or its writer ends
        if job.state == "running" and job.process is not None:
            job.process.ask_to_end()
        return self.get(id)

    def end(self, say: Callable[[str], None]) -> None:
        """Ask all commands that run to end, and wait until they have; no page may start others meanwhile."""
        asked = [self.stop(job.id) for job in self.list() if job.state == "running"]
        told = [f"asked to end, and waited for: {job.kind} {job.title}" for job in asked]
        for line in told or [f"nothing runs of the queue in {self.folder}"]:
            say(line)
        while any(self.get(job.id).state == "running" for job in asked):
            time.sleep(_POLL_SECONDS)

    def tail(self, id: str) -> str:
        """Return the end of what a job has printed, without the codes of terminals."""
        job, text = self.get(id), ""
        for suffix in (".out", ".log"):
            with suppress(FileNotFoundError), self._file(job, suffix).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text += file.read().decode(errors="replace")
        return "\n".join(line.rsplit("\r", 1)[-1] for line in _CODES.sub("", text).replace("\r\n", "\n").split("\n"))

    def result(self, id: str) -> Any:
        """Return the JSON value that a command with `--json` printed; None if it printed none, or an error."""
        try:
            value = json.loads(self._file(self.get(id), ".out").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return None if isinstance(value, dict) and value.keys() == {"error"} else value

    def error(self, job: PageJob) -> str:
        """Return why a job failed: what killed its process, or the last error that it printed.

        The last line that a process printed before it was killed is no reason, whatever it says.
        """
        if job.state == "failed" and job.code is not None and job.code < 0:
            name = next((each.name for each in signal.Signals if each == -job.code), f"signal {-job.code}")
            return f"killed by {name}" + (": often the memory was full" if name == "SIGKILL" else "")
        lines = [line for line in self.tail(job.id).splitlines() if line.strip()]
        if errors := [number for number, line in enumerate(lines) if line.startswith("error: ")]:
            return "\n".join(lines[errors[-1] : errors[-1] + 6])
        if job.state != "failed":
            return ""
        if job.code is None:
            return _VANISHED
        return lines[-1] if lines else ""

    def _work(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            with suppress(OSError):  # such as a full disk: it waits on
                self._step()

    def _step(self) -> None:
        with self._lock:
            jobs = self.list()
            trains = any(job.kind == "train" and job.state == "running" for job in jobs)
            for job in jobs:
                if job.state == "waiting" and not (job.kind == "train" and trains):
                    self._launch(job)
                    trains |= job.kind == "train"

    def _launch(self, job: PageJob) -> None:
        started, file = time.time(), self._file(job, ".json")
        with self._file(job, ".out").open("wb") as out, self._file(job, ".log").open("wb") as log:
            try:
                process = subprocess.Popen(  # of its own session, so that no signal to the page reaches it
                    [sys.executable, "-m", "reelworks.annexes.page.job_process", str(file), str(started)],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=log,
                    cwd=job.cwd,
                    # Nothing is imported from the folder that it runs in.
                    env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"},
                    **system.OWN_GROUP,
                )
            except OSError as error:  # told there, for what waits behind it must not wait for ever
                log.write(f"error: it could not be started: {error}\n".encode())
                return write(file, replace(job, state="failed", ended=time.time()))
        assert process.stdin is not None
        write(file, replace(job, state="running", started=started, writer=Process.running(process.pid)))
        process.stdin.close()  # it begins; where this page has ended before that line, it does not
        threading.Thread(target=process.wait, name=f"job-{job.id}", daemon=True).start()

    def _fresh(self, job: PageJob) -> PageJob:
        """Return a job as it is: one whose process has vanished without a word has failed."""
        if job.state != "running" or any(each.lives() for each in (job.process, job.writer) if each):
            return job
        again = read(file := self._file(job, ".json"))  # it may have ended just now
        if again.state == "running":
            again = replace(again, state="failed", ended=time.time())
            write(file, again)
        return again

    def _file(self, job: PageJob, suffix: str) -> Path:
        return self.folder / f"{job.id}{suffix}"


def read(path: Path) -> PageJob:
    """Read a job's file."""
    values = json.loads(path.read_text(encoding="utf-8"))
    processes = {key: values[key] and Process.parse(values[key]) for key in ("process", "writer")}
    return PageJob(**{**values, **processes, "arguments": tuple(values["arguments"])})


def write(path: Path, job: PageJob) -> None:
    """Replace a job's file."""
    files.write_json(path, asdict(job))
