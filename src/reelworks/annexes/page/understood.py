"""Errors for files that hold something else than their reader expects, in place of an answer of 500.

Folders may hold runs and catalogs that are damaged, forged, or of another program; each of them is told for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.core.log import logger

# What reading goes wrong with; an interruption, or memory that is full, is none of it.
FAULTS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, AssertionError, OSError)


@contextmanager
def reading(subject: str | Path) -> Iterator[None]:
    """Raise `UserError` for whatever goes wrong while files of a folder are read."""
    try:
        yield
    except UserError:
        raise
    except FAULTS as error:
        raise explain(error, subject) from error


def explain(error: Exception, subject: str | Path) -> UserError:
    """Return the error that is told in place of another one, whose traceback is logged."""
    logger.debug("%s cannot be read", subject, exc_info=error)
    return UserError(
        f"it holds something that cannot be understood ({type(error).__name__})",
        code="not-understood",
        field="FOLDER",
        value=str(subject),
        remedy="open it with the command line, as in reelworks report RUN, which tells more; or move it out of the folder",
    )
