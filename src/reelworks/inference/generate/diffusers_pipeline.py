"""Generate with the pipelines of diffusers, built around the loaded network, autoencoder and embeddings.

They sample with the scheduler that a family was released with. Where a family has no pipeline, or it does not support
the request, `why_not` returns the reason, and our own sampler generates.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from reelworks.core import log, optional_imports
from reelworks.core.errors import UserError
from reelworks.inference.generate import pipeline
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.inference.generate.writers import Sound
from reelworks.models import components, hub, registry
from reelworks.models.api import DenoiserInputs, TextEmbedding
from reelworks.models.autoencoders.diffusers_kl import DiffusersAutoencoder
from reelworks.models.diffusers_denoiser import DiffusersNetwork, FamilyDenoiser
from reelworks.models.expert_pair.config import PARTS
from reelworks.models.expert_pair.denoiser import ExpertPairDenoiser, GuidedDenoiser
from reelworks.models.objectives import ddpm
from reelworks.models.objectives.config import NUM_TIMESTEPS
from reelworks.models.objectives.objectives import PREDICTIONS
from reelworks.models.precision.boundary import DtypeBoundary, is_sharded
from reelworks.models.text.trained_texts import CaptionedDenoiser
from reelworks.training.encoding.encoders import FrozenEncoders, require_numbers
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import draws

_Denoiser = FamilyDenoiser | ExpertPairDenoiser | GuidedDenoiser | CaptionedDenoiser
_PREDICTION_TYPES = {"epsilon": "epsilon", "v": "v_prediction"}  # names of diffusers' schedulers
_ZERO_SNR = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}


class PipelineOutput(NamedTuple):
    """Generated clips, `[T, H, W, 3]` uint8 for each prompt, and the sampler that made them, as readable text.

    `sounds` has the sound of each clip; it is empty if the model has none.
    """

    clips: list[NDArray[np.uint8]]
    by: str
    sounds: Sequence[Sound] = ()

    def written(self) -> list[tuple[NDArray[np.uint8], Sound | None]]:
        """Return each clip with its sound, if it has any."""
        return list(zip(self.clips, self.sounds or (None,) * len(self.clips), strict=True))


def generate(
    recipe: Recipe,
    boundary: DtypeBoundary[DenoiserInputs],
    encoder: FrozenEncoders,
    prompts: Iterable[str],
    options: GenerateOptions,
    before_pass: Callable[[], None] = lambda: None,
) -> PipelineOutput:
    """Generate a clip for each prompt, with the family's pipeline if possible and `options.sampler` does not exclude it.

    `before_pass` is called before each pass of a network, and what it raises ends all.
    """
    reason = why_not(recipe, boundary, options)
    if options.sampler == "pipeline" and reason is not None:
        remedy = 'leave it out, or use "own"'
        raise UserError(reason, code="no-pipeline", field="--sampler", value="pipeline", remedy=remedy)
    if reason is not None or options.sampler == "own":
        with _told(boundary, before_pass):
            made = pipeline.generate(boundary, encoder, recipe.objective, prompts, options)
        by = "the own sampler" + (f" ({reason})" if reason else "") + _note(recipe, boundary, options.guidance_scale)
        return PipelineOutput([clip for clip, _ in made], by, [sound for _, sound in made if sound is not None])
    # A pipeline would round sizes that do not fit, instead of refusing them.
    geometry = components.geometry(recipe.model, recipe.autoencoder)
    geometry.require(options.shape, ("--num-frames", "--height", "--width"), whole_patches=True)
    pipe, by = _build(recipe, boundary, encoder, options)
    with pipeline.enough_memory(options.shape), _in_contract(boundary, encoder), _told(boundary, before_pass):
        return PipelineOutput([_sample(pipe, recipe, boundary, encoder, prompt, options) for prompt in prompts], by)


@contextmanager
def _told(boundary: DtypeBoundary[DenoiserInputs], before_pass: Callable[[], None]) -> Iterator[None]:
    """Say how far the sampling is, and call `before_pass`, whoever calls the network."""
    denoiser = boundary.denoiser
    networks = list(_networks(denoiser).values()) if isinstance(denoiser, _Denoiser) else [denoiser.module]
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        before_pass()
        done += 1

    with ExitStack() as stack:
        for network in networks:  # before FSDP's own hook: where a pass does not begin, its weights are not gathered
            stack.enter_context(network.register_forward_pre_hook(count, prepend=True))
        with log.stage("sampling", lambda: f"passes of the network: {done}"):
            yield


def why_not(recipe: Recipe, boundary: DtypeBoundary[DenoiserInputs], options: GenerateOptions) -> str | None:
    """Return the reason why no pipeline can generate, or None if one can."""
    denoiser: Any = boundary.denoiser
    if reason := _why_never(recipe) or _family(recipe).no_pipeline(denoiser.module, denoiser.config):
        return reason
    if options.companions:
        return "the model takes more conditions than text"
    c = options.conditions
    if c.reference is not None or c.last_frame is not None or c.loop > 1:
        return "the clip begins or ends with condition frames"
    return "the weights are sharded" if is_sharded(denoiser.module) else None


def _why_never(recipe: Recipe) -> str | None:
    """Return the reason why no pipeline generates with what a recipe trains, or None if one may."""
    family = registry.load_network(registry.family_of(recipe.model.name))
    published, conditioning = registry.PRESETS[recipe.model.name].parts, components.conditioning(recipe.model)
    if not isinstance(family, DiffusersNetwork):
        return f"{recipe.model.name} has no pipeline"
    if (recipe.autoencoder.name, recipe.text_encoder.name) != (published.autoencoder, published.text):
        return "pipelines go with the autoencoder and the text encoder of the family"
    if recipe.objective.name not in conditioning.objectives:
        return f"pipelines of the family do not know the objective {recipe.objective.name}"
    if recipe.objective.prediction != "velocity":
        return "pipelines expect the network to predict a velocity"
    own = conditioning.companions
    if conditioning.shown.first is not None or own.needs or own.control_parts:
        return "the model takes more conditions than text"
    return None


def _family(recipe: Recipe) -> DiffusersNetwork:
    family = registry.load_network(registry.family_of(recipe.model.name))
    assert isinstance(family, DiffusersNetwork), "why_not was asked"
    return family


def _build(
    recipe: Recipe, boundary: DtypeBoundary[DenoiserInputs], encoder: FrozenEncoders, options: GenerateOptions
) -> tuple[Any, str]:
    """Build the pipeline without text encoders, as it is called with embeddings; also return its description."""
    denoiser, autoencoder = boundary.denoiser, encoder.autoencoder
    assert isinstance(denoiser, _Denoiser)
    assert isinstance(autoencoder, DiffusersAutoencoder)
    if isinstance(denoiser, ExpertPairDenoiser):
        settings = {"boundary_ratio": denoiser.switch_timestep / NUM_TIMESTEPS}
    else:
        settings = _family(recipe).pipeline_settings(denoiser.config, options.guidance_scale)
    kind = optional_imports.from_diffusers(registry.TEXT_ENCODERS[recipe.text_encoder.name].pipeline)
    scheduler, origin = _scheduler(recipe, encoder, options)
    parts = dict.fromkeys(kind._get_signature_keys(kind)[0]) | _networks(denoiser)
    pipe = kind(**parts | {"vae": autoencoder.module, "scheduler": scheduler} | settings)
    pipe.set_progress_bar_config(disable=True)
    return pipe, f"{kind.__name__} with {type(scheduler).__name__} of {origin}" + _note(
        recipe, boundary, options.guidance_scale
    )


def _note(recipe: Recipe, boundary: DtypeBoundary[DenoiserInputs], guidance_scale: float) -> str:
    """Return a note if one of two networks samples alone."""
    if not isinstance(boundary.denoiser, FamilyDenoiser):
        return ""
    if recipe.model.experts in PARTS:
        return f", with the expert for {recipe.model.experts} noise alone"
    guided = components.conditioning(recipe.model).guidance == "second-network" and guidance_scale != 1
    return (
        ", guided by the trained network with an empty caption, without the release's second network" if guided else ""
    )


def _networks(denoiser: _Denoiser) -> dict[str, nn.Module]:
    """Return the denoising networks by their names in a pipeline."""
    if isinstance(denoiser, CaptionedDenoiser):
        return {denoiser.part: denoiser.network.module}
    if isinstance(denoiser, ExpertPairDenoiser | GuidedDenoiser):
        return dict(denoiser.module.named_children())
    return {denoiser.config.network.part: denoiser.module}


def _scheduler(recipe: Recipe, encoder: FrozenEncoders, options: GenerateOptions) -> tuple[Any, str]:
    """Return the scheduler of the weights, or one that matches the recipe, and the name of its source."""
    library = optional_imports.diffusers()
    config, trained = _published_scheduler(recipe.model.weights), scheduler_settings(recipe)
    if config is not None:
        kind = getattr(library, config["_class_name"])
        if config.get("use_beta_sigmas"):
            try:
                optional_imports.with_scipy(kind)
            except ImportError as error:
                raise UserError(
                    "its scheduler uses beta sigmas, which need scipy",
                    code="scipy-not-installed",
                    field="model.weights",
                    remedy="pip install scipy, or sample as in training: --sampler own",
                ) from error
        if not trained.keys() <= inspect.signature(kind).parameters.keys():  # as SD 1.5's own lacks the last step
            kind = library.EulerDiscreteScheduler
        return kind.from_config(config, **trained), "the weights"
    if trained:
        betas = {"beta_start": ddpm.FIRST_BETA, "beta_end": ddpm.LAST_BETA, "beta_schedule": "scaled_linear"}
        kind = library.EulerDiscreteScheduler
        return kind(**betas | {"timestep_spacing": "leading", "steps_offset": 1} | trained), "the recipe"
    latent = encoder.autoencoder.geometry.latent(options.shape)
    shift = draws.shift_ratio(recipe.objective, options.shape, latent)
    return library.FlowMatchEulerDiscreteScheduler(shift=shift), "the recipe"


def scheduler_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a scheduler that are those of the training; none for flows, which have one kind."""
    prediction = PREDICTIONS.get(recipe.objective.name)
    trained: dict[str, Any] = {} if prediction is None else {"prediction_type": _PREDICTION_TYPES[prediction]}
    return trained | (_ZERO_SNR if recipe.objective.zero_terminal_snr else {})


def _published_scheduler(source: str | None) -> Any:
    if source is None or Path(source).expanduser().is_file():
        return None
    # Any scheduler class reads the config; the file names the right one.
    any_class = optional_imports.from_diffusers("FlowMatchEulerDiscreteScheduler")
    with suppress(OSError, ValueError):
        return hub.pretrained(any_class.load_config, source, subfolder="scheduler")
    return None  # the weights come without a scheduler


def call_arguments(pipe: Any, recipe: Recipe, text: TextEmbedding, options: GenerateOptions) -> dict[str, Any]:
    """Return what a family's pipeline, or its class, is called with: texts, guidance as it counts that, steps and sizes."""
    shape, scale, config = options.shape, options.guidance_scale, components.family_config(recipe.model)
    of_family, counted = _family(recipe).pipeline_arguments, () if config.pictures_only else ("num_frames", "frames")
    own = of_family(text, scale, config) if of_family else {"guidance_scale": scale}
    values = {"frame_rate": options.fps, **own, "num_inference_steps": options.num_inference_steps}
    values |= dict.fromkeys(counted, shape.num_frames)
    known = inspect.signature(pipe.__call__).parameters
    return {name: v for name, v in (values | {"height": shape.height, "width": shape.width}).items() if name in known}


def arguments_with_words(recipe: Recipe, options: GenerateOptions) -> dict[str, Any] | None:
    """Return what the family's pipeline is called with beside a prompt, to draw as we do; None if none does.

    Guiders are settings of a pipeline.
    """
    if _why_never(recipe) is not None or (family := _family(recipe)).load_text_parts is not None:
        return None
    text, tokens = recipe.text_encoder, torch.zeros(2, 1, recipe.text_encoder.dim)
    own = family.word_arguments(components.family_config(recipe.model), text.max_length)
    if own is None:
        return None
    kind = optional_imports.from_diffusers(registry.TEXT_ENCODERS[text.name].pipeline)
    embedded = call_arguments(kind, recipe, TextEmbedding(tokens, tokens[..., 0] == 0, tokens[:, 0]), options)
    own = {"max_sequence_length": text.max_length} | own
    known = inspect.signature(kind.__call__).parameters
    own = {name: value for name, value in own.items() if name in known and value != known[name].default}
    return {name: value for name, value in embedded.items() if isinstance(value, int | float)} | own


def _sample(
    pipe: Any,
    recipe: Recipe,
    boundary: DtypeBoundary[DenoiserInputs],
    encoder: FrozenEncoders,
    prompt: str,
    options: GenerateOptions,
) -> NDArray[np.uint8]:
    shape = options.shape
    text = encoder.texts([prompt, ""], [False, True])
    if isinstance(boundary.denoiser, CaptionedDenoiser):
        with torch.no_grad(), boundary.lowered(encoder.device):
            embedded = boundary.denoiser.embed(text.tokens)
        text = TextEmbedding(embedded.tokens.float(), text.mask, embedded.pooled.float())
    frames = pipe(
        **call_arguments(pipe, recipe, text, options),
        generator=pipeline.generator_of(options, encoder.device),
        output_type="np",
        return_dict=False,
    )[0]
    frames_THWC = frames.reshape(-1, *frames.shape[-3:])
    assert frames_THWC.shape == (shape.num_frames, shape.height, shape.width, 3), frames_THWC.shape
    return cast("NDArray[np.uint8]", (frames_THWC * 255).round().astype(np.uint8))


@contextmanager
def _in_contract(boundary: DtypeBoundary[DenoiserInputs], encoder: FrozenEncoders) -> Iterator[None]:
    """Make the network and the autoencoder compute and return the dtypes of their contracts within this context.

    Inputs of the network stay float32, including timesteps, and autocast lowers the products: latents would be rounded
    at each step if the network returned bfloat16.
    """
    denoiser, autoencoder = boundary.denoiser, encoder.autoencoder
    assert isinstance(denoiser, _Denoiser)
    assert isinstance(autoencoder, DiffusersAutoencoder)
    output, modules = denoiser.contract.output, list(_networks(denoiser).values())

    def in_contract(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with boundary.lowered(encoder.device):
            result = forward(*args, **kwargs)
        return _cast(result, output)

    decode, contract = autoencoder.module.decode, autoencoder.contract

    def decoded(latent: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = _cast(decode(*_cast((latent, *args), contract.compute), **kwargs), contract.output)
        for pixels in pytree.tree_leaves(result):
            require_numbers(latent, pixels)
        return result

    for module in modules:
        module.forward = functools.partial(in_contract, module.forward)
    autoencoder.module.decode = decoded
    try:
        yield
    finally:
        del autoencoder.module.decode
        for module in modules:
            del module.forward


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(dtype), values)
