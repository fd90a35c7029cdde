"""Wait for a storage that gives no clip, and tell it from a clip that alone is not given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.media import location
from reelworks.data.media.location import MediaPath

# Whoever renews rights, or starts a server again, takes minutes.
AWAY_SECONDS = 600.0
_PAUSE_SECONDS, _LOOK_SECONDS = 5.0, 0.2


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
        self._others: dict[str, MediaPath] = {}  # by storage, the file that was asked for last
        self._given: dict[str, MediaPath] = {}  # or given
        self._since: dict[str, float] = {}  # when each was found to be away

    def ask(self, file: MediaPath) -> None:
        """Note that a file will be read; for one of this machine, its folder is asked."""
        if location.is_remote(file):
            self._others[location.storage_of(file)] = file

    def give(self, file: MediaPath) -> None:
        """Note that a file was read."""
        if location.is_remote(file):
            self._given[location.storage_of(file)] = file
        if self._since and self._since.pop(storage := location.storage_of(file), None) is not None:
            logger.info("%s gives clips again", storage)

    def wait(self, file: MediaPath, reason: str) -> bool:
        """Return whether the storage of a file that is not given answers for another one; else return after a pause.

        Raises:
            StorageAway: It has not answered for too long.
        """
        storage = location.storage_of(file)
        if location.answers(self._given.get(storage) or self._others.get(storage) or file):
            return True
        with self._lock:
            is_first = storage not in self._since
            until = self._since.setdefault(storage, time.monotonic()) + self.seconds
        if is_first:
            logger.warning(
                "%s gives no clip (%s: %s); waiting up to %.3g minutes: see whether the network and the rights to read are there",
                *(storage, file, reason, self.seconds / 60),
            )
        pause_ends = time.monotonic() + _PAUSE_SECONDS
        while not (self.is_over or self._leaves() or time.monotonic() > until):
            if time.monotonic() > pause_ends:
                return False
            time.sleep(_LOOK_SECONDS)
        raise StorageAway(
            f"the storage gives no clip any more ({file}: {reason})",
            code="storage-away",
            field="dataset.path",
            value=storage,
            remedy="restore the network, the mount or the rights to read, such as AWS_ACCESS_KEY_ID; the same command goes on",
        )
