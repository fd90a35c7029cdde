"""State that all parts of the page share: the folders, the jobs, and what was read of runs."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from reelworks.annexes.page.datasets import Datasets
from reelworks.annexes.page.event_index import EventIndex
from reelworks.annexes.page.jobs import Jobs
from reelworks.annexes.page.library import Library
from reelworks.annexes.page.plan_sessions import PlanSessions
from reelworks.annexes.page.thumbnails import Pictures
from reelworks.annexes.page.workspace import Workspace
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder

_MOST_WHOLE = 64  # runs that were opened last, of which all steps are kept
_AT_ONCE = 1 << 24  # bytes of events read before others get a turn


class Context:
    """The page's state; what it reads of the folders is read again when it changes.

    Attributes:
        ends: Set when the page is stopped; then answers end that would go on for ever.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.jobs = Jobs(workspace.state_folder / "jobs")
        opened = Datasets()
        self.library = Library(workspace, opened)
        self.pictures = Pictures(workspace)
        self.plans = PlanSessions(workspace, opened)
        self._indices: dict[Path, EventIndex] = {}  # of all runs: those that a list left out would be read at each list
        self._opened: list[Path] = []
        self._lock = threading.Lock()
        self.ends = threading.Event()
        self._reader = threading.Thread(target=self._read_ahead, name="events", daemon=True)

    def start(self) -> None:
        """Start queued jobs, and begin to read the events of runs."""
        self.jobs.start()
        self._reader.start()

    def close(self) -> None:
        """Stop the page's own threads; jobs go on."""
        self.ends.set()
        self.jobs.close()
        self.library.close()
        self.pictures.close()
        self._reader.join()

    def index(self, run: RunFolder, *, whole: bool = True) -> EventIndex:
        """Return the index of a run's events, as far as it was read; little that is new is read at once.

        One that is not `whole` has what the list of runs shows, or more.
        """
        with self._lock:
            if run.path not in self._indices:
                self._indices[run.path] = EventIndex(run.events_file)
            index = self._indices[run.path]
            if whole:
                self._opened = [*(path for path in self._opened if path != run.path), run.path][-_MOST_WHOLE:]
        index.update(_AT_ONCE, whole=whole)
        return index

    def _read_ahead(self) -> None:
        """Read events that are not read yet, so that runs of a million steps are ready when they are opened."""
        while not self.ends.wait(0.2):
            with suppress(OSError):
                runs = {*self.workspace.index().runs.values()}
                with self._lock:
                    self._indices = {path: index for path, index in self._indices.items() if path in runs}
                for path in runs:
                    index = self.index(run := RunFolder(path), whole=False)
                    while not index.complete and not self.ends.is_set():
                        index.update(_AT_ONCE)
                    if not index.rests and path not in self._opened and lock.holder(run.lock_file) is None:
                        index.rest()
                self.ends.wait(2.0)


async def _of_request(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


PageContext = Annotated[Context, Depends(_of_request)]


def _run_of_key(context: PageContext, key: str) -> RunFolder:
    return context.workspace.run(key)


PageRun = Annotated[RunFolder, Depends(_run_of_key)]
