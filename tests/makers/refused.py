"""Expect a mistake by its code and the field that it names, whatever the sentence; those are in docs/reference/errors.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reelworks.core.errors import UserError


@contextmanager
def refused(code: str, field: str | None = None, *, says: str = "") -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a `UserError`.

    Args:
        code: Its code.
        field: The key, option or file that it names; None: any.
        says: A pattern for what the sentence must hold besides: the values, names and numbers of the case.
    """
    with pytest.raises(UserError) as caught:
        yield caught
    error = caught.value
    assert error.code == code, f"{error.code}: {error}"
    assert field is None or error.field == field, f"{error.field}: {error}"
    assert re.search(says, str(error), flags=re.DOTALL), f"does not say {says!r}: {error}"
