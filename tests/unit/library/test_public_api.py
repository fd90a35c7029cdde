"""The public names: frozen, cheap to import, each with an example that runs."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import reelworks as rw

NAMES = [
    "BucketEntry",
    "BucketTable",
    "Catalog",
    "CheckpointStore",
    "DataConfig",
    "DataSpec",
    "Dataset",
    "DatasetConfig",
    "Geometry",
    "KeepBest",
    "Loader",
    "MicroBatch",
    "Recipe",
    "Retention",
    "Step",
    "check_attention",
    "export",
    "load_model",
    "objectives",
    "plan",
    "samplers",
    "testing",
    "train",
]
IN_MODULES = {"objectives": ["RectifiedFlow"], "samplers": ["flow"], "testing": ["assert_exact_resume"]}
WITH_EXAMPLES = [name for name in NAMES if inspect.isclass(getattr(rw, name))] + ["plan"]


def test_the_names_are_these() -> None:
    """A new name is a decision; a name that goes breaks somebody's program."""
    assert rw.__all__ == NAMES
    assert set(dir(rw)) == {*NAMES, "__version__"}


def test_each_is_there_and_can_be_called_where_it_is_a_function() -> None:
    for name in NAMES:
        assert hasattr(rw, name)
    for name in ("export", "load_model", "plan", "train"):
        assert callable(getattr(rw, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rw.nothing  # noqa: B018


HEAVY = ("Loader", "MicroBatch", "Step", "check_attention", "export", "load_model", "objectives", "samplers", "train")


@pytest.mark.slow
def test_importing_loads_nothing_and_the_light_names_load_no_torch() -> None:
    light = [name for name in NAMES if name not in HEAVY]
    code = (
        "import sys, reelworks as rw\n"
        "assert not {'numpy', 'pyarrow', 'torch', 'pydantic'} & set(sys.modules)\n"
        f"for name in {light!r}: getattr(rw, name)\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(rw.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, getattr(rw, name)) for name in WITH_EXAMPLES]
    + [(f"{m}.{name}", getattr(getattr(rw, m), name)) for m, names in IN_MODULES.items() for name in names],
)
def test_its_example_runs(name: str, value: object) -> None:
    found = doctest.DocTestFinder(recurse=False).find(value, name, module=False, globs={})
    assert found
    assert found[0].examples, f"{name} has no example"
    result = doctest.DocTestRunner().run(found[0])
    assert (result.failed, result.attempted) == (0, len(found[0].examples))


@pytest.mark.parametrize(
    ("module", "rooms", "absent"),
    [
        ("reelworks.data.schedule.plan", "core data.schedule", {"torch", "pydantic", "pyarrow"}),
        (
            "reelworks.data.loader.dataset",
            "core data.buckets data.buckets.opensora data.catalog data.catalog.query data.catalog.store data.loader data.media "
            "data.run data.schedule",
            {"torch"},
        ),
    ],
)
def test_a_room_loads_little_besides_itself(module: str, rooms: str, absent: set[str]) -> None:
    code = f"import {module}, sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300, encoding="utf-8"
    )
    loaded = set(done.stdout.split())
    within = {f"reelworks.{room}" for room in rooms.split()}
    others = {name for name in loaded if name.startswith("reelworks.") and name.rpartition(".")[0] not in within}
    assert [name for name in others if not any(f"{room}.".startswith(f"{name}.") for room in within)] == []
    assert not absent & loaded
