"""Which of two experts a step trains: one for all its clips and ranks, so that the other is not called at all."""

from __future__ import annotations

from reelworks.buckets.table import BucketTable
from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose
from reelworks.core.shape import Geometry
from reelworks.diffusion import timesteps
from reelworks.diffusion.config import ObjectiveConfig
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import EpochPlan


def objective_of_step(
    recipe: Recipe, table: BucketTable, geometry: Geometry, *, plan: EpochPlan, row: int, step: int
) -> ObjectiveConfig:
    """The recipe's objective, with the timesteps of the expert that a step trains.

    The expert is drawn by the share of timesteps that the step's clips would have on its side, so that over many
    steps as many are trained there as if each clip were drawn by itself.

    Args:
        recipe: What is trained.
        table: Its buckets.
        geometry: What its models do to a shape.
        plan: The plan that holds the step's row.
        row: Which row.
        step: Optimizer steps done before it.
    """
    start = switch_timestep(recipe.model)
    if start is None or recipe.model.experts != "both":
        return recipe.objective
    low = clips = 0.0
    for micro_batch in plan.micro_batches(row).tolist():
        where = plan.places(micro_batch)
        count = int(plan.real[where].sum())
        low += count * _share_below(start, recipe.objective, table, geometry, int(plan.bucket[where.start]))
        clips += count
    draw = float(hash_rng.uniform(hash_rng.hash64(recipe.seed, step, Purpose.EXPERT)))
    trained = [0.0, start] if draw * clips < low else [start, 1000.0]
    return recipe.objective.model_copy(update={"timestep_range": trained})


def _share_below(time: float, objective: ObjectiveConfig, table: BucketTable, geometry: Geometry, bucket: int) -> float:
    shape = table.buckets[bucket].shape
    ratio = timesteps.shift_ratio(
        objective,
        height=shape.height,
        width=shape.width,
        num_frames=shape.num_frames,
        latent_frames=geometry.latent(shape)[0],
    )
    return timesteps.share_below(time, objective.timestep_sampling, ratio, objective.logit_mean, objective.logit_std)
