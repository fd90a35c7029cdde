"""What holds for all tests."""

import atexit
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _code_of_a_verb_is_not_that_of_pytest() -> Iterator[None]:
    """The command line ends its process with the code of the verb, which must not hide a failed test."""
    yield
    if (cli := sys.modules.get("reelworks.cli.main")) is not None:
        atexit.unregister(cli._leave)
