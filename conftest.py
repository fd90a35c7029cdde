"""What holds for all tests."""

import atexit
import functools
import gc
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from reelworks.core import optional_imports

# A busy machine is no reason to fail.
_UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=40, **_UNHURRIED)
settings.register_profile("whole", **_UNHURRIED)


_NUMBERS = itertools.count()
HEAVY = {"torch", "torchvision", "diffusers", "transformers", "peft", "accelerate", "lightning", "bitsandbytes", "ray"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-torch", action="store_true", help="skip tests that import torch or what needs it")
    parser.addoption("--second-device", action="store_true", help="run tests on a pretended second device")


def pytest_configure(config: pytest.Config) -> None:
    """Draw as many examples as Hypothesis does by itself only where slow tests run too."""
    gc.disable()  # until all is imported: a million objects that stay would be looked through again and again
    # Each command that a test types would build all verbs again, which takes longer than most of them run.
    typer.testing._get_command = typer.main.get_command = functools.cache(typer.main.get_command)
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "whole")
    import durable

    durable.leave_to_the_system()
    optional_imports.leave_out_unused()  # pandas, for this line; else the first array of pyarrow would import it
    optional_imports.settle_arrow()
    optional_imports._left_out.clear()
    if config.option.second_device:
        os.environ["SECOND_DEVICE"] = "1"  # for trainings in processes of their own
    if not hasattr(config, "workerinput"):  # all test processes share what passed the audit in this run of the tests
        folder = tempfile.TemporaryDirectory(prefix="reelworks-cache-")
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = folder.name
        if config.args_source is config.ArgsSource.TESTPATHS and config.getoption("numprocesses", None):
            import children

            children.share_server()
    elif config.args == config.getini("testpaths"):
        _begin_elsewhere(config)
    if config.option.no_torch:
        sys.meta_path.insert(0, _SkipHeavy())


def _begin_elsewhere(config: pytest.Config) -> None:
    """Let each test process read the files of tests from another one on: all compile them only where nobody has."""
    files = sorted(str(file) for path in config.args for file in Path(path).rglob("test_*.py"))
    worker = config.workerinput  # type: ignore[attr-defined]
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args = files[begin:] + files[:begin]


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by their files, as all processes must have them, and mark the cases of a test behind its quick ones as slow."""
    items.sort(key=lambda item: item.path)
    cases = Counter[str]()
    for item in items:
        if (quick := item.get_closest_marker("quick_cases")) is not None:
            name = item.nodeid.partition("[")[0]
            cases[name] += 1
            if cases[name] > quick.args[0]:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Let no collection of garbage in a test look through what was imported."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


class _SkipHeavy(MetaPathFinder):
    """Skips the test, or the file of tests, that imports torch, whether or not it is installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in HEAVY:
            pytest.skip(f"imports {name}", allow_module_level=True)


@pytest.fixture(autouse=True)
def _state_of_a_test_is_not_that_of_its_user(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's queue and the list of trusted code lie in the user's own folder."""
    # A command in this process leaves libraries out, which a test behind it imports.
    monkeypatch.setattr(optional_imports, "_left_out", set())
    # No `tmp_path`, for which pytest would list the folders of all tests before.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state" / str(next(_NUMBERS))))


@pytest.fixture(autouse=True)
def _is_on_the_second_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--second-device`, whatever a test runs in its own process is as it would be on a GPU."""
    if request.config.option.second_device:
        import second_device

        second_device.use(monkeypatch)


@pytest.fixture(autouse=True)
def _what_a_verb_does_to_its_process_ends_with_a_test() -> Iterator[None]:
    """The command line ends its process with the code of the verb, which must not hide a failed test.

    Nor does another test start programs that import nothing from where they run, or ask about code that a recipe names.
    """
    _forget_the_command_line()
    yield
    _forget_the_command_line()
    if (cli := sys.modules.get("reelworks.commands.main")) is not None:
        atexit.unregister(cli._leave)


def _forget_the_command_line() -> None:
    os.environ.pop("PYTHONSAFEPATH", None)
    if (trust := sys.modules.get("reelworks.core.trust")) is not None:
        trust._ask = None
