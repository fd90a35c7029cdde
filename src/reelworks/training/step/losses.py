"""Losses of examples, one class for each kind of training: plain, guided, with a preserved prior, and of pairs.

A kind is chosen once, by the recipe and never by the clips: all ranks must run the frozen base alike, as its sharded weights
are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.data.loader.upload import to_device
from reelworks.models.adapters import inject
from reelworks.models.api import DenoiserInputs
from reelworks.models.objectives import loss_terms, objectives, rectified_flow
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.encoding import conditioning
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step.compiled_blocks import CompiledBlocks
from reelworks.training.step.examples import Example, Predicted


@dataclass(frozen=True)
class Passes:
    """Forward passes of the trained network, and of the frozen base that its adapter lies on.

    Each computes `at_least` so many clips; see `Predicted.from_inputs`.
    """

    boundary: DtypeBoundary[DenoiserInputs]
    module: nn.Module
    compiled: CompiledBlocks = field(default_factory=CompiledBlocks.none)

    def trained(self, inputs: DenoiserInputs, at_least: int) -> Predicted:
        """Return the output of the trained network."""
        return Predicted.from_inputs(self.boundary, inputs, at_least=at_least)

    def base(self, inputs: DenoiserInputs, at_least: int) -> Predicted:
        """Return the output of the base, without gradients."""
        # Without gradients and adapters, it would need graphs of its own.
        with torch.no_grad(), inject.disable_adapters(self.module), self.compiled.paused():
            return Predicted.from_inputs(self.boundary, inputs, at_least=at_least)


@dataclass(frozen=True)
class PlainLoss:
    """The loss of the objective; other kinds are classes of their own below it."""

    passes: Passes

    def of_clips(self, example: Example, at_least: int) -> Tensor:
        """Run the network on `at_least` so many clips, and return the loss of each clip of an example, `[B]`."""
        return example.losses(self.passes.trained(example.inputs, at_least))


@dataclass(frozen=True)
class GuidedLoss(PlainLoss):
    """The loss with the guidance of the base in the target.

    For the target v, the base's prediction u without caption and a scale s, the target is u + s (v - u). So the error is that
    of the output plus s - 1 times that of u. A clip whose caption was dropped has the plain target, as guidance changes
    nothing without a caption.
    """

    def of_clips(self, example: Example, at_least: int) -> Tensor:
        """Return the loss of each clip, `[B]`."""
        uncaptioned = self.passes.base(example.uncaptioned(), at_least)
        return self.of_output(example, self.passes.trained(example.inputs, at_least), uncaptioned)

    @staticmethod
    def of_output(example: Example, output: Predicted, uncaptioned: Predicted) -> Tensor:
        """Return the loss of each clip, `[B]`, for outputs of the network and of the base."""
        i, objective = example.inputs, objectives.from_config(example.objective)
        scale = example.objective.target_guidance_scale
        assert scale is not None
        assert not isinstance(objective, objectives.Iddpm), "the recipe was checked"
        own, base = (
            objective.error(each, example.x0, example.noise, i.time) for each in (output.picture, uncaptioned.picture)
        )
        share_B = torch.where(i.drop_text, 0.0, scale - 1)
        error = own + share_B.view(-1, 1, 1, 1, 1) * base
        return objective.of_error(error, i.time, example.trained_frames, example.loss_weight)


@dataclass(frozen=True)
class PriorLoss(PlainLoss):
    """The loss of clips of which some preserve the base: their target is its output (`dataset.prior_prediction`)."""

    guided: bool  # whether those that do not have guided targets

    def of_clips(self, example: Example, at_least: int) -> Tensor:
        """Return the loss of each clip, `[B]`."""
        base = self.passes.base(example.inputs, at_least)
        uncaptioned = self.passes.base(example.uncaptioned(), at_least) if self.guided else None
        output = self.passes.trained(example.inputs, at_least)
        losses_B = example.losses(output) if uncaptioned is None else GuidedLoss.of_output(example, output, uncaptioned)
        preserved_B = to_device(torch.tensor(example.batch.request.target_is_base), losses_B.device)
        return torch.where(preserved_B, example.losses(output, base), losses_B)


@dataclass(frozen=True)
class PreferenceLoss(PlainLoss):
    """The loss of pairs of a preferred and a rejected clip, with the base as the reference."""

    def of_clips(self, example: Example, at_least: int) -> Tensor:
        """Return the loss of each pair, `[B]`."""
        pairs = _pairs(example)
        reference_2B = pairs.losses(self.passes.base(pairs.inputs, 2 * at_least))
        losses_2B = pairs.losses(self.passes.trained(pairs.inputs, 2 * at_least))
        return loss_terms.dpo_loss(losses_2B, reference_2B, example.objective.dpo_beta)


def loss_of(recipe: Recipe, passes: Passes) -> PlainLoss:
    """Return the kind of loss of a recipe."""
    guided = recipe.objective.target_guidance_scale is not None
    if recipe.learns_preferences:
        return PreferenceLoss(passes)
    if any(dataset.prior_prediction for dataset in recipe.dataset):
        return PriorLoss(passes, guided)
    return GuidedLoss(passes) if guided else PlainLoss(passes)


def _pairs(example: Example) -> Example:
    """Return the preferred clips and, after them, the rejected ones, with the same noise, timesteps and conditions."""
    encoded, objective = example.encoded, objectives.from_config(example.objective)
    assert encoded.rejected is not None
    rejected = conditioning.prepend_sources(encoded.rejected, encoded.conditions)
    if example.trained_frames is not None:  # frames that are given are those of the preferred clip, as all conditions
        rejected = torch.where(rectified_flow.per_frame(example.trained_frames), rejected, example.x0)
    parts = ("noise", "added_noise", "generated_share", "valid_mask", "trained_frames", "loss_weight")
    named = ((name, getattr(example, name)) for name in parts)
    doubled: dict[str, Any] = {name: torch.cat([value] * 2) for name, value in named if value is not None}
    inputs, x0 = example.inputs.each(lambda value: torch.cat([value] * 2)), torch.cat([example.x0, rejected])
    twice = replace(example, x0=x0, **doubled)
    latent = objective.noised(x0, twice.added_noise, inputs.time, twice.trained_frames)
    return replace(twice, inputs=replace(inputs, latent=latent))
