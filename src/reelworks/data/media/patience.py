"""Wait for a storage that gives no clip, and tell it from a clip that alone is not given."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from reelworks.core import retry
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.media import location
from reelworks.data.media.location import MediaPath

# Whoever renews rights, or starts a server again, takes minutes.
AWAY_SECONDS = 600.0
_PAUSE_SECONDS, _LOOK_SECONDS = 5.0, 0.2
# Of a storage that gives no clip, so many others are asked for, of which some may be refused too, unless it is silent.
_MOST_KNOWN, _MOST_ASKED, _ASKING_SECONDS = 256, 8, 5.0


class StorageAway(UserError):  # noqa: N818
    """A storage gives no clip any more; the same command goes on once it does."""


class Patience:
    """Waits for storages on behalf of threads that decode.

    Args:
        seconds: Time to wait for a storage, from the first clip on that it does not give; 0 takes its reason for the clip's.
        leaves: Whether to wait no longer, as after a signal.

    Attributes:
        is_over: Whether nobody waits for clips any more.
    """

    def __init__(self, seconds: float, leaves: Callable[[], bool]) -> None:
        self.seconds, self._leaves = seconds, leaves
        self._lock, self.is_over = threading.Lock(), False
        # By storage, its files that were asked for last; those of this machine are together, whatever is mounted.
        self._known: dict[str, dict[MediaPath, None]] = defaultdict(dict)
        self._since: dict[str, float] = {}  # when each was found to be away

    def ask(self, file: MediaPath) -> None:
        """Note that a file will be read."""
        with self._lock:
            known = self._known[_place(file)]
            known[file] = None
            if len(known) > _MOST_KNOWN:
                del known[next(iter(known))]

    def end(self, file: MediaPath) -> None:
        """Note that the storage of a file, for which it was waited, gives clips again."""
        if self._since.pop(storage := location.storage_of(file), None) is not None:
            logger.info("%s gives clips again", storage)

    def _gives_others(self, file: MediaPath) -> bool:
        """Return whether the storage of a file answers for another one.

        A mount that is gone takes all that lies there; of a clip with a folder of its own, those around it are asked.
        """
        if not location.is_remote(file) and location.answers(file):
            return True
        with self._lock:
            others = [other for other in reversed(self._known[_place(file)]) if other != file]
        most = max((_shared_folders(file, other) for other in others), default=0)
        nearest = [other for other in others if _shared_folders(file, other) == most][:_MOST_ASKED]
        began = time.monotonic()
        return any(time.monotonic() - began < _ASKING_SECONDS and location.answers(other) for other in nearest)

    def wait(self, file: MediaPath, reason: str) -> bool:
        """Return whether the storage of a file that is not given answers for another one; else return after a pause.

        Raises:
            StorageAway: It has not answered for too long.
        """
        if self._gives_others(file):
            self.end(file)
            return True
        storage = location.storage_of(file)
        with self._lock:
            is_first = storage not in self._since
            until = self._since.setdefault(storage, time.monotonic()) + self.seconds
        if is_first:
            logger.warning(
                "%s gives no clip (%s: %s); waiting up to %.3g minutes: see whether the network and the rights to read are there",
                *(storage, file, reason, self.seconds / 60),
            )
        pause_ends = time.monotonic() + _PAUSE_SECONDS
        while not (retry.AT_EXIT.is_set() or self.is_over or self._leaves() or time.monotonic() > until):
            if time.monotonic() > pause_ends:
                return False
            time.sleep(_LOOK_SECONDS)
        raise StorageAway(
            f"the storage gives no clip any more ({file}: {reason})",
            code="storage-away",
            field="dataset.path",
            value=storage,
            remedy="restore the network, the mount or the rights to read, such as AWS_ACCESS_KEY_ID, or wait for the time that it "
            "says; the same command goes on",
        )


def _place(file: MediaPath) -> str:
    return location.storage_of(file) if location.is_remote(file) else ""


def _shared_folders(file: MediaPath, other: MediaPath) -> int:
    first, second = (Path(location.storage_of(one), "clip").parents for one in (file, other))
    return len({*first} & {*second})
