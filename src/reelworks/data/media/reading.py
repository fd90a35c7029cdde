"""Read a media file with retries, and tell whether it is the file, its storage or this machine that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reelworks.core import retry
from reelworks.core.errors import UserError
from reelworks.data.media import location, storages
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.location import MediaPath

R = TypeVar("R")


class MediaError(Exception):
    """A file cannot provide the requested frames; the message is the reason."""


class NotGivenError(MediaError):
    """The storage of a file does not give it, which says nothing about the file; see `storages.is_of_storage`.

    Attributes:
        may_vanish: Whether it may give it on a retry.
    """

    def __init__(self, problem: str, *, may_vanish: bool) -> None:
        super().__init__(problem)
        self.may_vanish = may_vanish


def with_reasons(file: MediaPath, read: Callable[[MediaPath], R]) -> R:
    """Return what `read` makes of a file, which is on this machine meanwhile, with retries.

    Raises:
        MediaError: For any failure.
        NotGivenError: It is the storage's.
        UserError: It is this machine's, such as a full disk of the cache.
    """

    def attempt() -> R:
        with location.local(file) as path:
            return read(path)

    try:
        return retry.with_retries(attempt, most_seconds=retry.LONG_SECONDS)
    except (UserError, MediaError):
        raise
    except (ProbeError, storages.ChangedError) as error:
        raise MediaError(str(error)) from None
    except FileNotFoundError:
        if location.is_remote(file) or location.answers(file):
            raise MediaError("No such file or directory") from None
        raise NotGivenError(
            "No such file or directory, nor any other in its folder: is it mounted?", may_vanish=True
        ) from None
    except Exception as error:  # decoders raise nearly anything on damaged input
        if storages.is_of_storage(error):
            may_vanish = retry.is_transient(error) or isinstance(error, retry.BusyError)
            raise NotGivenError(f"the storage does not give it: {error}", may_vanish=may_vanish) from error
        raise MediaError(f"{type(error).__name__}: {error}") from error
