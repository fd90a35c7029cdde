"""Trainings take the memory that is estimated, and the estimate knows what a GPU keeps."""

from __future__ import annotations

import pytest

from benchmarks import memory as benchmark
from reelworks.models import recompute
from reelworks.training.memory import estimate, memory, recomputation
from reelworks.training.recipe import dataset, recipe_file


def activations(recomputed: object, **train: object) -> int:
    """Return the estimated activations of the benchmark's small training of all weights."""
    values = benchmark.recipe_in(benchmark.Path("unused"), "full", recomputed)
    values["train"] |= train
    return estimate.estimate(*dataset.bucket_table(recipe_file.parse(values))).memory.activations


@pytest.mark.slow
def test_compiled_blocks_keep_attention_alone() -> None:
    """What a GPU has shown: selective recomputation does not see the products in the kernels of a compiled block."""
    compiled = activations("selective", compile=True)
    assert activations(True) <= compiled < activations("selective")
    assert activations(True, compile=True) == activations(True)
    assert recompute._kept.get() == recompute.ATTENTION | recompute.PRODUCTS


@pytest.mark.slow
def test_gradients_of_an_earlier_micro_batch_are_there_at_the_peak() -> None:
    """With one micro-batch they come while activations go."""
    assert activations(True) < activations(True, gradient_accumulation_steps=2)


def test_what_the_allocator_holds_counts_as_reserve() -> None:
    shares = {way: (memory.reserve(10**10, way) - memory.reserve(0, way)) / 10**10 for way in recomputation.LADDER}
    assert shares == {False: 0.07, "selective": 0.07, 0.25: 0.25, 0.5: 0.25, 0.75: 0.25, True: 0.25}


@pytest.mark.parametrize(
    ("base", "recomputed", "more"),
    [
        pytest.param("int8", True, "", marks=pytest.mark.slow),
        pytest.param("int8", True, "validation and previews", marks=pytest.mark.slow),
        pytest.param("full", "selective", "", marks=pytest.mark.slow),
        pytest.param("full", True, "micro-batches", marks=pytest.mark.slow),
        pytest.param("nf4", "selective", "", marks=pytest.mark.slow),
        pytest.param("gguf", True, "", marks=pytest.mark.slow),
    ],
)
def test_whole_trainings_take_what_is_estimated(
    monkeypatch: pytest.MonkeyPatch, base: str, recomputed: bool | str, more: str
) -> None:
    """From the start to the last step, validations and previews included: at most half a percent more, or 12 % less."""
    monkeypatch.setitem(benchmark._SIZES, "num_layers", 3)
    with benchmark.small_network():
        row = benchmark.row(base, recomputed, more)
    assert -0.005 <= row["error"] <= 0.12
