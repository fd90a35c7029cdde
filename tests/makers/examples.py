"""Examples of micro-batches that tests decoded or made."""

from __future__ import annotations

from reelworks.data.distributed.mesh import World
from reelworks.data.loader.micro_batch import MicroBatch
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.training.encoding import stored_batches
from reelworks.training.encoding.batch_encoder import BatchEncoder
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import examples
from reelworks.training.step.examples import Example, ExampleBuilder


def batch_encoder(encoders: FrozenEncoders, stored: StoredLatents | None = None) -> BatchEncoder:
    """Return the encoder of micro-batches of one process."""
    return stored_batches.choose(encoders, World(0, 1, encoders.device), stored)


def training_example(
    batch: MicroBatch,
    encoders: FrozenEncoders,
    objective: ObjectiveConfig,
    *,
    seed: int,
    stored: StoredLatents | None = None,
) -> Example:
    """Return what training makes of a micro-batch."""
    recipe = Recipe.model_construct(objective=objective, seed=seed)
    builder = ExampleBuilder(recipe, None, batch_encoder(encoders, stored))
    return builder.build(builder.encode(batch), objective)


def validation_example(
    batch: MicroBatch, encoders: FrozenEncoders, objective: ObjectiveConfig, *, seed: int, times: list[float]
) -> Example:
    """Return what a validation makes of a held-out clip."""
    return examples.validation_example(batch, batch_encoder(encoders), objective, seed=seed, times=times)
