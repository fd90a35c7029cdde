"""The way of a clip through the code, as docs/concepts/way-of-a-clip.md tells it."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from examples import batch_encoder

import reelworks
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.loader.position import next_epoch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.encoding.batch_encoder import EncodedBatch
from reelworks.training.encoding.encode_prefetcher import EncodePrefetcher
from reelworks.training.precompute import encoding
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step.examples import Example, ExampleBuilder
from reelworks.training.step.state import TrainState
from reelworks.training.step.step_sums import StepFlags
from reelworks.training.step.train_step import TrainStep

PACKAGE = Path(reelworks.__file__).parent
PAGE = PACKAGE.parents[1] / "docs/concepts/way-of-a-clip.md"
STAGES = (MicroBatchRequest, MicroBatch, EncodedBatch, Example)
CPU = torch.device("cpu")


class Followed:
    """Files of the package whose functions are called, and those through which a micro-batch passes."""

    def __init__(self) -> None:
        self.called, self.passed = set[str](), set[str]()

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        file = frame.f_code.co_filename
        if event in ("call", "return") and file.startswith(str(PACKAGE)):
            name = file.removeprefix(f"{PACKAGE}/")
            self.called.add(name)
            if any(isinstance(each, STAGES) for each in (value, *frame.f_locals.values())):
                self.passed.add(name)

    def __enter__(self) -> Followed:
        sys.setprofile(self)
        threading.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def follow(values: dict[str, Any]) -> Followed:
    """Scan, plan and train the first step of a recipe."""
    recipe = recipe_file.parse(values)
    denoiser, encoders = build.denoiser(recipe, CPU), build.encoder(recipe, CPU)
    state, world = TrainState.start(denoiser, recipe.train), World(0, 1, CPU)
    with Followed() as followed, closing(DecodePool(0, 60.0)) as pool:
        dataset.scan_recipe(recipe)
        data = RecipeData.open(recipe)
        position, _ = next_epoch(data, data.plan_spec(1, 1), None)
        encoder = batch_encoder(encoders, encoding.open_store(data) if recipe.encode.store else None)
        examples = ExampleBuilder(recipe, data.table, encoder)
        requests = StepSource(data, rank=0, world=1, max_steps=1).requests_from(position)
        batches = EncodePrefetcher(encoder.read(requests, pool, 1 << 30), examples.encode, CPU, is_ahead=False)
        where: dict[str, Any] = {"plan": position.plan, "plan_step": 0, "step": 0}
        flags = StepFlags(stop=False, save=False, writing=False)
        result = TrainStep(DtypeBoundary(denoiser), examples, state, world).run(
            examples.of_step(batches.batches_of_step(), **where), flags=flags, **where
        )
    assert result.applied
    return followed


@pytest.mark.parametrize("store", [False, True])
def test_a_micro_batch_passes_through_thirteen_files_at_most_and_the_page_names_them(
    tiny: Callable[..., dict[str, Any]], store: bool
) -> None:
    """The whole way, from the folder on, is thirty-one; each named file but that of the other encoder is run."""
    named = set(re.findall(r"`([a-z_/]+\.py)`", PAGE.read_text(encoding="utf-8")))
    assert [name for name in named if not (PACKAGE / name).is_file()] == []
    followed = follow(tiny(encode={"store": store}))
    assert len(followed.passed) <= 13
    assert followed.passed <= named
    look_on = {"training/step/compiled_blocks.py", "training/step/forward_times.py"}
    assert len(named & followed.called - look_on) <= 31
    of_the_other = (
        {"data/loader/shared_batches.py"}
        if store
        else {"training/encoding/stored_batches.py", "training/encoding/request_key.py"}
    )
    assert named - followed.called <= of_the_other | {"training/loop/training_loop.py"}
