"""A step trains one expert: which one is a function of the seed and the step, and over many steps each gets its share."""

import numpy as np
import pytest
import tiny_recipe
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.data.buckets import table
from reelworks.data.schedule.plan import EpochPlan
from reelworks.models import components
from reelworks.models.objectives import objectives, timesteps
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.training.recipe import recipe_file
from reelworks.training.step import draws

RECIPE = recipe_file.parse(
    tiny_recipe.least(
        bucket=[{"resolution": r, "num_frames": 1, "batch_size": 1} for r in ("64px", "512px")],
        model={"name": "wan-2.2-tiny", "experts": "both"},
    )
)
GEOMETRY = components.geometry(RECIPE.model, RECIPE.autoencoder)
TABLE = table.build(RECIPE.bucket, RECIPE.buckets, GEOMETRY)


def plan_of(*buckets):
    """One step of micro-batches of three clips."""
    clips, index = np.arange(3 * len(buckets)), np.arange(len(buckets) + 1)
    return EpochPlan(
        uid=clips.astype(np.uint64),
        copy=0 * clips,
        ordinal=clips,
        bucket=np.repeat(buckets, 3),
        repeat_index=np.zeros(len(clips), np.int32),
        offsets=3 * index,
        steps=index[None, :-1],
    )


def first(step, *buckets, recipe=RECIPE):
    """Whether a step trains the expert for high noise."""
    found = draws.objective_of_step(recipe, TABLE, GEOMETRY, plan=plan_of(*buckets), plan_step=0, step=step)
    assert found.timestep_range in ([875.0, 1000.0], [0.0, 875.0])
    return found.timestep_range[0] == 875.0


@pytest.mark.parametrize("buckets", [(0,), (0, -1)])
def test_each_expert_gets_the_steps_that_its_timesteps_would_have(buckets):
    """Of small and of large pictures, and of steps with both, it is the mean share of timesteps beyond the boundary."""
    buckets = [range(len(TABLE.buckets))[b] for b in buckets]
    shares = []
    for bucket in buckets:
        shape = TABLE.buckets[bucket].shape
        ratio = timesteps.shift_ratio(
            RECIPE.objective, height=shape.height, width=shape.width, num_frames=1, latent_frames=1
        )
        shares.append(1 - timesteps.share_below(875, ObjectiveConfig(), ratio))
    found = np.mean([first(step, *buckets) for step in range(4000)])
    assert found == pytest.approx(np.mean(shares), abs=4 * np.sqrt(0.25 / 4000))
    assert max(shares) > 0.01


def test_the_draw_is_the_seeds_and_the_steps():
    """The same again for the same step, another for another seed; other models' steps are left alone."""
    drawn = [first(step, 0) for step in range(200)]
    assert drawn == [first(step, 0) for step in range(200)]
    other = RECIPE.model_copy(update={"seed": 1})
    assert drawn != [first(step, 0, recipe=other) for step in range(200)]
    high = recipe_file.parse(RECIPE.model_dump() | {"model": {"name": "wan-2.2-tiny", "experts": "high"}})
    assert draws.objective_of_step(high, TABLE, GEOMETRY, plan=None, plan_step=0, step=0) is high.objective


@given(
    uniform=st.lists(
        st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-53]) | st.floats(0, 1, exclude_max=True), min_size=1
    ),
    shift=st.floats(0.05, 20),
    kind=st.sampled_from(["logit-normal", "uniform"]),
)
@settings(max_examples=60)
def test_no_timestep_lies_on_the_other_side(uniform, shift, kind):
    """Rounding never carries a clip over the boundary, where a rank would call the expert that the others do not."""
    for low, high in ([0.0, 875.0], [875.0, 1000.0]):
        config = ObjectiveConfig(timestep_sampling=kind, timestep_range=[low, high])
        _, t_B = objectives.from_config(config).times(torch.tensor(uniform, dtype=torch.float64), shift)
        assert ((t_B >= 875) == (low == 875)).all()
