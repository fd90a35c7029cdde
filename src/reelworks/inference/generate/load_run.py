"""Load a trained model from a run folder or a checkpoint, to generate with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from reelworks.core import arguments, machine, torch_state
from reelworks.core.arguments import checked
from reelworks.core.errors import UserError
from reelworks.core.words import named
from reelworks.data.catalog.sources import source_of
from reelworks.data.checkpoint import load, locate, read_lock, verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.inference.generate import diffusers_pipeline
from reelworks.inference.generate.diffusers_pipeline import PipelineOutput
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components
from reelworks.models.adapters import inject
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build, init_from
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.recipe import preview_model, recipe_file, validation
from reelworks.training.recipe.recipe import Recipe


@named(step="source")
@checked(source=arguments.PATH, ema=arguments.FLAG)
def load_model(source: str | Path, *, ema: bool = True) -> LoadedModel:
    """Load the model that a run has trained, to generate with it; a LoRA on the model of the recipe's previews.

    Args:
        source: A run folder (its newest good checkpoint), or a checkpoint's folder.
        ema: Use the averaged weights instead of the trained ones.

    Raises:
        UserError: There is no run or no good checkpoint.
    """
    return LoadedModel.load(Path(source), averaged=ema, shown=True)


def require(recipe: Recipe, options: GenerateOptions) -> None:
    """Refuse options that a model does not support, before its weights are read, which may take minutes."""
    model, shape = recipe.model, options.shape
    geometry, conditioning = components.geometry(model, recipe.autoencoder), components.conditioning(model)
    geometry.require(shape, ("--num-frames", "--height", "--width"), whole_patches=components.whole_patches(model))
    options.conditions.check(geometry, shape, conditioning)
    validation.require_companions(model, [set(map(source_of, options.companions))], "--")
    validation.require_inpainted("mask" in options.companions, options.conditions.inpaint is not None, "--")


@dataclass(frozen=True)
class LoadedModel:
    """A model with the weights of a checkpoint.

    Attributes:
        recipe: The resolved recipe that the step was trained with.
        boundary: The denoiser behind its dtype boundary.
        encoder: Autoencoder and text encoder.
        trained: Names of the parameters that are trained, and averaged.
    """

    recipe: Recipe
    step: int
    denoiser: Denoiser
    boundary: DtypeBoundary[DenoiserInputs]
    encoder: FrozenEncoders
    trained: tuple[str, ...] = ()

    @classmethod
    def begin(cls, recipe: Recipe, encoders: FrozenEncoders) -> Self:
        """Build the model that training of a recipe begins with."""
        device = encoders.device
        build.require_sources(recipe, trains=False)
        denoiser = build.denoiser(recipe, device, trains=False)
        denoiser.module.requires_grad_(False).eval()
        return cls(recipe, 0, denoiser, DtypeBoundary(denoiser), encoders)

    @classmethod
    @torch_state.own()
    def load(
        cls,
        source: Path,
        *,
        averaged: bool = True,
        to_merge: bool = False,
        shown: bool = False,
        lora_scale: float = 1.0,
        encoders: FrozenEncoders | None = None,
    ) -> Self:
        """Load a model from a run folder (its newest good checkpoint) or from a checkpoint's folder.

        With `to_merge`, the base of a LoRA is loaded in float32, since updates cannot be added to quantised weights.
        With `shown`, a LoRA is loaded on the model of the recipe's previews, if that is another than the trained one.
        `lora_scale` multiplies what a LoRA adds to the weights, as `scale` of diffusers' pipelines does.
        `encoders` take the place of the recipe's, such as those that are loaded at their first use.

        Raises:
            UserError: The checkpoint is damaged or of another base, or a scale is given where no LoRA has one.
        """
        run, step = locate.locate(source)
        path = CheckpointFolder(run.checkpoints_folder).path(step)
        # Locked until it is read: a running training may delete it meanwhile.
        with read_lock.reading(path):
            recipe = recipe_file.of_run(run, step)
            if lora_scale != 1.0 and (recipe.lora is None or not recipe.lora.kind.multiplied):
                raise UserError(
                    "the run trains no LoRA"
                    if recipe.lora is None
                    else "an adapter that turns weights, as OFT, has no scale",
                    code="lora-scale-unknown",
                    field="--lora-scale",
                    value=lora_scale,
                    remedy="leave it out",
                )
            if to_merge and recipe.trains_text_encoders:
                raise UserError(
                    "the LoRA has text encoders, which a file of the network's weights cannot hold",
                    code="text-encoders-not-merged",
                    field="--merge",
                    value=True,
                    remedy="leave it out, and add the file of the LoRA to its base by `reelworks lora apply`, with --part for each text encoder",
                )
            if to_merge and recipe.lora is not None:
                recipe = recipe.model_copy(update={"lora": recipe.lora.model_copy(update={"base": "float32"})})
            on_another = shown and recipe.samples.has_model
            if on_another:
                recipe = preview_model.recipe_of(recipe)
            device = machine.default_device()
            build.require_sources(recipe, resumed=True, trains=False)
            denoiser = build.denoiser(recipe, device, resumed=True, trains=False)
            if not on_another:
                init_from.require_base(path, denoiser.base)
            trained = [name for name, parameter in denoiser.module.named_parameters() if parameter.requires_grad]
            denoiser.module.requires_grad_(False).eval()
            model = cls(
                recipe,
                step,
                denoiser,
                DtypeBoundary(denoiser),
                encoders or build.encoder(recipe, device),
                tuple(trained),
            )
            model.read(path, averaged=averaged)
        if lora_scale != 1.0:
            inject.scale(denoiser.module, lora_scale)
        return model

    def read(self, checkpoint: Path, *, averaged: bool = True) -> None:
        """Read the weights of a checkpoint of the same run into the network, in place of those that it has.

        Raises:
            UserError: The checkpoint is damaged, does not exist any more, or is of another network.
        """
        module = self.denoiser.module
        parameters = dict(module.named_parameters())
        state = {"model": inject.weights(module)}
        if averaged:
            state["ema"] = {name: torch.empty_like(parameters[name]) for name in self.trained}
        # Locked until it is read: a running training may delete it meanwhile.
        with read_lock.reading(checkpoint), verify.bad_told(checkpoint):
            load.load(checkpoint, state, fixed=True)
        for name, value in state.get("ema", {}).items():
            parameters[name].copy_(value)

    def merge(self) -> dict[str, Tensor]:
        """Return all weights with the LoRA added to its base; this object cannot be used afterwards."""
        return inject.merge(self.boundary.denoiser.module)

    def unseen(self, prompts: Sequence[str]) -> list[str]:
        """Return a message for each prompt that is longer than the text encoder reads."""
        encoder = self.encoder.text_encoder
        return [
            f"the model reads {encoder.max_length} tokens of a prompt, and cuts off the last "
            f"{'word' if unseen == 1 else f'{unseen} words'} of {prompt!r}"
            for prompt in self.recipe.with_trigger(prompts)
            if (unseen := encoder.unseen(prompt))
        ]

    @cached_property
    def whole(self) -> Denoiser:
        """The network, with the other expert for a run of one, and with what guides it; both are loaded once."""
        return build.with_other_network(self.recipe, self.denoiser, self.encoder.device)

    @torch_state.own()
    def generate(self, prompts: Sequence[str], options: GenerateOptions) -> PipelineOutput:
        """Generate a clip for each prompt, with the trigger word for [trigger] and [name] in it."""
        require(self.recipe, options)
        prompts = self.recipe.with_trigger(prompts)
        is_alone = options.guidance_scale == 1 and self.encoder.conditioning.guidance == "second-network"
        boundary = DtypeBoundary(self.denoiser if is_alone else self.whole)
        return diffusers_pipeline.generate(self.recipe, boundary, self.encoder, prompts, options)
