"""What a program has set in torch changes no training, and a training changes nothing of the program's."""

from __future__ import annotations

import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from reelworks.core import machine, optional_imports
from reelworks.data.distributed import mesh
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.recipe import recipe_file
from reelworks.training.step.compiled_blocks import compile_in_place


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    former = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(former)


SET: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    # In it, those inside would go on with weights of the first step.
    "autocast-off": lambda: torch.autocast("cpu", enabled=False),
    "no-gradients": torch.no_grad,
    "inference-mode": torch.inference_mode,
    "float64": lambda: default_dtype(torch.float64),
    "meta": lambda: torch.device("meta"),
}


def of_program() -> list[Any]:
    """Return what a program notices of its settings."""
    arrays: Any = np.random.get_state()
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.default_generator.get_state().tolist(),
        random.getstate(),
        arrays[1].tolist(),
    ]


@pytest.mark.parametrize("name", SET)
def test_ranks_compute_by_the_defaults_of_torch_and_give_back_what_they_change(name: str) -> None:
    threads = torch.get_num_threads()
    with SET[name]():
        before = of_program()
        with suppress(KeyboardInterrupt), mesh.join():
            assert of_program()[:5] == [True, False, False, torch.float32, torch.device("cpu")]
            assert torch.ones(1, requires_grad=True).mul(2).requires_grad
            random.seed(1), np.random.seed(1), torch.manual_seed(1)
            torch.set_num_threads(threads + 1)
            raise KeyboardInterrupt
        assert of_program() == before


def test_backward_passes_run_in_the_thread_that_a_program_has_chosen() -> None:
    with torch.autograd.set_multithreading_enabled(False), mesh.join():
        assert not torch._C._is_multithreading_enabled()


def test_filters_of_warnings_messages_bars_and_limits_of_the_compiler_are_those_of_before() -> None:
    """A library is quiet during the work also where the program has it loaded already."""
    told, limits = optional_imports.transformers().utils.logging, cast(Any, torch._dynamo.config)
    told.set_verbosity_warning()
    told.enable_progress_bar()

    def settings() -> list[Any]:
        return [[*warnings.filters], told.get_verbosity(), told.is_progress_bar_enabled(), limits.recompile_limit]

    before = settings()
    try:
        for _ in range(2):
            with mesh.join():
                assert settings()[1:3] == [told.ERROR, False]
                warnings.filterwarnings("ignore", message="what a training warns of")
                compile_in_place(layer := torch.nn.Linear(2, 2), "eager", lambda *_: True, (99, 999), "it")
                layer(torch.ones(1, 2))
                assert limits.recompile_limit == 99
            assert settings() == before
    finally:
        optional_imports.silence()


def test_an_error_that_a_program_keeps_keeps_no_tensors() -> None:
    """As a notebook does: after a lack of memory, the next try has all of it."""
    kept: list[weakref.ref[torch.Tensor]] = []

    def lack(doing: str) -> None:
        tensor = torch.ones(3)
        kept.append(weakref.ref(tensor))
        raise RuntimeError(doing)

    def fail() -> None:
        try:
            lack("a product")
        except RuntimeError as error:
            try:
                lack("telling it")
            except RuntimeError:
                raise ValueError("lower train.batch_size") from error

    with pytest.raises(ValueError, match="lower") as told, mesh.join():
        fail()
    assert told.value.__cause__ is not None
    assert [tensor() for tensor in kept] == [None, None]


@pytest.fixture(scope="module")
def losses(tiny_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[float]]:
    """Train for three steps with large changes, and return their losses."""

    def trained() -> list[float]:
        how = {"train": {"max_steps": 3, "learning_rate": 0.05}, "precision": {"compute": "bfloat16"}}
        least = {"buckets": {"aspect_ratios": ["1:1"]}, "validation": {"split": 0.0}}
        values = tiny_in(tmp_path_factory.mktemp("run"), **how, **least)
        with pytest.MonkeyPatch.context() as patch:
            # Sums of other devices differ from run to run.
            patch.setattr(machine, "default_device", lambda _=None: torch.device("cpu"))
            assert trainer.run(recipe_file.parse(values), TrainRequest()) == 0
        return [step["loss"] for step in events.timeline(RunFolder(Path(values["output"])).events_file, "step")]

    return trained


@pytest.fixture(scope="module")
def wanted(losses: Callable[[], list[float]]) -> list[float]:
    return losses()


@pytest.mark.parametrize(
    "name", [name if name == "autocast-off" else pytest.param(name, marks=pytest.mark.slow) for name in SET]
)
def test_a_training_is_the_same_in_any_program(
    name: str, losses: Callable[[], list[float]], wanted: list[float]
) -> None:
    with SET[name]():
        before = of_program()
        assert losses() == wanted
        assert of_program() == before
