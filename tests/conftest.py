"""What holds for all tests."""

import atexit
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no reason to fail.
settings.register_profile("quick", deadline=None, max_examples=40)
settings.register_profile("whole", deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Draw as many examples as Hypothesis does by itself only where slow tests run too."""
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "whole")


@pytest.fixture(autouse=True)
def _code_of_a_verb_is_not_that_of_pytest() -> Iterator[None]:
    """The command line ends its process with the code of the verb, which must not hide a failed test."""
    yield
    if (cli := sys.modules.get("reelworks.cli.main")) is not None:
        atexit.unregister(cli._leave)
