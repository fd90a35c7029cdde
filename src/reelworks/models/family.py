"""Records with which a family's `spec.py` declares its models and their components; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self

from reelworks.core.errors import UserError


@dataclass(frozen=True)
class Conditioning:
    """How a network is conditioned on captions, frames and companions.

    Attributes:
        empty_caption: "learned": the network has its own empty caption; "encoded": it gets the embedding
            of an empty text.
        guidance: "classifier-free": a second pass without caption; "embedded": the scale is an input of the
            distilled network.
        frames: Whether the network knows which frames are conditions, so that it can learn to continue clips.
        objectives: Names of objectives that published weights were trained with.
        takes: Companions of a clip that the network takes as inputs: "control", "source".
        needs: Companions in `takes` that it cannot run without.
        first_frame: How the network gets a clip's first frame besides the noise: "grey": encoded with grey
            frames after it; "alone": encoded alone, with zeros after it; None: not at all.
        image_encoder: Encoder whose embedding of the first frame is an input; None if there is none.
        image_dim: Width of that embedding.
    """

    empty_caption: Literal["learned", "encoded"] = "encoded"
    guidance: Literal["classifier-free", "embedded"] = "classifier-free"
    frames: bool = False
    objectives: tuple[str, ...] = ("rectified-flow",)
    takes: tuple[Literal["control", "source"], ...] = ()
    needs: tuple[Literal["control", "source"], ...] = ()
    first_frame: Literal["grey", "alone"] | None = None
    image_encoder: Literal["clip", "siglip"] | None = None
    image_dim: int = 0


LEARNED = Conditioning(empty_caption="learned", frames=True, objectives=("rectified-flow", "iddpm"))


@dataclass(frozen=True)
class ComponentShapes:
    """Sizes that the autoencoder, the text encoder and the objective fix.

    Attributes:
        pooled_dim: Width of the pooled text embedding, 0 if there is none.
        learns_variance: Whether the objective reads a second half of output channels.
    """

    latent_channels: int
    text_dim: int
    pooled_dim: int
    text_length: int = 0
    learns_variance: bool = False


class KeyRule(NamedTuple):
    """Maps layers of diffusers to the one layer of a model's original release that holds them.

    Attributes:
        parts: Layers of diffusers, separated by spaces, in the order of their rows in the release; N stands for
            a number, `*` for the rest of a name.
        release: Layer of the release, with the same N and `*`.
        heights: Relative numbers of rows of the parts; equal if empty.
        swapped: Whether the two halves of the rows are in the opposite order in the release.
    """

    parts: str
    release: str
    heights: tuple[int, ...] = ()
    swapped: bool = False


@dataclass(frozen=True)
class Network:
    """Names of a network's class, blocks, parameters and files.

    Attributes:
        blocks: Names of its lists of blocks, in order of use.
        alternates: Whether the first blocks of all lists are used before the second ones.
        pads_patches: Whether it pads sizes that are not multiples of the patch.
        part: Folder of the network in a pipeline.
        without_gradient: Name prefixes of parameters that no loss can reach.
        widened: Parameter whose columns for companions are zeros if weights lack them, so that a network
            trained without companions can be trained further with them.
        shape_only: Whether it runs on the meta device, since no step of its forward pass depends on values.
        release_layers: Rules for layers with other names in the original release, which LoRA files use.
        comfyui_layers: Whether ComfyUI's LoRA files use the names of the release or of diffusers.
        renamed_keys: Replacements in the keys of released weights that diffusers' own conversion misses.
    """

    name: str
    blocks: tuple[str, ...]
    part: str = "transformer"
    without_gradient: tuple[str, ...] = ()
    widened: str | None = None
    shape_only: bool = True
    release_layers: tuple[KeyRule, ...] = ()
    comfyui_layers: Literal["release", "diffusers"] = "release"
    renamed_keys: Mapping[str, str] = field(default_factory=dict)
    alternates: bool = False
    pads_patches: bool = False


class FamilyConfig(Protocol):
    """Sizes of a network: a pydantic model with its arguments as fields, and properties derived from them."""

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Latent elements per token along (time, height, width)."""

    @property
    def pictures_only(self) -> bool:
        """Whether the network takes pictures only."""

    @property
    def conditioning(self) -> Conditioning:
        """How the network is conditioned."""

    @property
    def network(self) -> Network:
        """Names of the network's class, blocks, parameters and files."""

    def model_dump(self) -> dict[str, Any]:
        """Return the arguments that the network is built with."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with updated values."""

    def fit(self, components: ComponentShapes) -> Self:
        """Return the config with the widths that the components fix; it refuses what does not fit together."""


class Parts(NamedTuple):
    """Names of the components that a denoiser was published with, as recipes have them."""

    autoencoder: str
    text: str
    same_latents: tuple[str, ...] = ()  # other autoencoders whose latents the published weights understand


class SamplingDefaults(NamedTuple):
    """Defaults of a model's own pipeline; a guidance scale of 1 turns guidance off."""

    guidance_scale: float
    num_inference_steps: int


@dataclass(frozen=True)
class Release:
    """A published model: its hub ids, the shapes it was trained for, and its names in LoRA files.

    Attributes:
        weights: Hub id of the denoiser; None if none is known.
        autoencoder: Hub id of the autoencoder, if it is a different one.
        text: Hub id of the text encoders, if it is a different one.
        side: Side in pixels of the square pictures that it was released for.
        lines: Height in pixels of the 16:9 clips that it was released for, 0 if it generates pictures only.
        num_frames: Number of frames of the clips that it was released for.
        objective: Name of the objective that it was trained with.
        timestep_shift: Shift of rectified flow's timesteps.
        formats: LoRA file formats that programs for this model read.
        architecture: ModelSpec name in the header of LoRA files; None uses the preset's name.
        base_version: Name that kohya's readers look up; None if they have none.
    """

    weights: str | None
    autoencoder: str | None = None
    text: str | None = None
    side: int = 1024
    lines: int = 0
    num_frames: int = 1
    objective: str = "rectified-flow"
    timestep_shift: float | str = 3.0
    formats: tuple[str, ...] = ("diffusers", "comfyui")
    architecture: str | None = None
    base_version: str | None = None


@dataclass(frozen=True)
class Preset:
    """A model that `model.name` selects.

    Attributes:
        release: How it was published; None for a tiny model, and if nothing is known.
        switch_timestep: Lowest timestep of the high-noise network, if two networks share the timesteps.
    """

    config: FamilyConfig
    parts: Parts
    sampling: SamplingDefaults
    release: Release | None = None
    switch_timestep: float | None = None


@dataclass(frozen=True)
class PublishedAutoencoder:
    """An autoencoder of diffusers.

    Attributes:
        network: Name of the class.
        channels: Channels of the latents that a denoiser sees.
        stride: Pixels per latent element along (time, height, width).
        frame_rule: See `core.shape.Geometry`.
        config: Config entries that distinguish its latents from those of other autoencoders of the class.
        file_config: Config for a single file, which contains none; None lets diffusers ask the hub.
        signs: Tensor names that no other class has, in the files of diffusers and of the release.
        has_time_axis: False if it takes pictures only.
        packs_squares: Whether a denoiser sees 2 × 2 of its latent elements as one.
        one_by_one: Whether it encodes only one clip at a time.
    """

    network: str
    channels: int
    stride: tuple[int, int, int]
    frame_rule: tuple[int, int] = (0, 1)
    parameters: int = 0
    config: Mapping[str, object] = field(default_factory=dict)
    file_config: Mapping[str, object] | None = None
    signs: tuple[str, ...] = ()
    has_time_axis: bool = True
    packs_squares: bool = False
    one_by_one: bool = False


# Configs for files of `AutoencoderKL`, without the keys that define latents: of Stable Diffusion, of later models.
KL_CONFIG: Mapping[str, object] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
}
PLAIN_KL_CONFIG = {**KL_CONFIG, "use_quant_conv": False, "use_post_quant_conv": False}


def picture_autoencoder(
    channels: int,
    scaling_factor: float,
    shift_factor: float | None,
    *,
    parameters: int,
    file_config: Mapping[str, object] = PLAIN_KL_CONFIG,
) -> PublishedAutoencoder:
    """Return an `AutoencoderKL` of a picture model; classes and strides of all are alike, latents are not."""
    latents = {"latent_channels": channels, "scaling_factor": scaling_factor, "shift_factor": shift_factor}
    return PublishedAutoencoder(
        "AutoencoderKL",
        channels,
        (1, 8, 8),
        parameters=parameters,
        config=latents,
        file_config=file_config,
        has_time_axis=False,
    )


class TextNetwork(NamedTuple):
    """A network that encodes captions."""

    part: str  # its folder in a pipeline; empty if it stands alone
    kind: str  # `model_type` in the config of its text model
    vocabulary: int  # number of tokens


T5 = TextNetwork("", "t5", 32_128)
CLIP = TextNetwork("text_encoder", "clip_text_model", 49_408)
CLIP_2 = CLIP._replace(part="text_encoder_2")
QWEN2_5_VL = TextNetwork("text_encoder", "qwen2_5_vl_text", 152_064)


@dataclass(frozen=True)
class PublishedText:
    """Text encoders of a family, as its pipeline in diffusers combines them.

    Attributes:
        max_length: Length in tokens to which captions are cut.
        pooled_dim: Width of the pooled caption embedding, 0 if there is none.
        networks: Networks that a recipe's weights must hold.
        tokenizer: Name of the tokenizer with the longest limit, which decides what is cut off.
        sees_pictures: Whether it encodes the pictures that captions refer to as well.
        asks_autoencoder: Class of an autoencoder that is needed to build the pipeline; None if there is none.
    """

    pipeline: str
    dim: int
    max_length: int
    pooled_dim: int = 0
    parameters: int = 0
    networks: tuple[TextNetwork, ...] = ()
    tokenizer: str = "tokenizer"
    sees_pictures: bool = False
    asks_autoencoder: str | None = None


class PublishedImage(NamedTuple):
    """An image encoder in float32."""

    tokens: int  # per picture
    parameters: int


# Keys are those of `Conditioning.image_encoder`: a ViT-H/14 at 224 pixels and a SO400M/14 at 384.
IMAGE_ENCODERS = {"clip": PublishedImage(257, 630_766_080), "siglip": PublishedImage(729, 428_225_600)}


@dataclass(frozen=True)
class Family:
    """Everything about a model family that needs no torch; components are by the names that recipes use.

    Attributes:
        network: Module whose `NETWORK` builds, loads and calls its networks (`models.api.FamilyNetwork`).
        presets: Its models by `model.name`; one ends in `-tiny` and runs in milliseconds.
        short_names: Presets by colloquial name.
        recipe_sizes: Fields of its config that keys of `[model]` override.
    """

    name: str
    network: str
    presets: Mapping[str, Preset]
    autoencoders: Mapping[str, PublishedAutoencoder] = field(default_factory=dict)
    text_encoders: Mapping[str, PublishedText] = field(default_factory=dict)
    short_names: Mapping[str, str] = field(default_factory=dict)
    recipe_sizes: tuple[str, ...] = ()


def require_pooled(components: ComponentShapes) -> int:
    """Return the width of the pooled text embedding, which the text encoder must have."""
    if components.pooled_dim == 0:
        raise UserError(
            "this model needs a pooled caption embedding, and this text encoder has none",
            code="text-summary-missing",
            field="text_encoder.name",
            value=None,
            remedy="choose the text encoder that the model was trained with",
        )
    return components.pooled_dim
