"""An error for the user is the same error when it comes from another process."""

from __future__ import annotations

import pickle

import pytest

from reelworks.core.errors import UserError
from reelworks.data.checkpoint.save import SaveFailed


@pytest.mark.parametrize("kind", [UserError, SaveFailed])
def test_errors_pickle(kind: type[UserError]) -> None:
    error = kind.__new__(kind)
    UserError.__init__(error, "is wrong", code="wrong", field="a.b", value=3, remedy="mend it")
    error.add_note("seen on Monday")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))
    assert copy.args == error.args
