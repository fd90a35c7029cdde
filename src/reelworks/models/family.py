"""Declarations of a model family in its `spec.py`, and the component shapes that it is given; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self

from reelworks.core.errors import UserError


@dataclass(frozen=True)
class Conditioning:
    """How a network takes its texts, and whether it is told of given frames.

    Attributes:
        empty_caption: "learned": the network has an empty caption of its own; "encoded": it is shown the embedding
            of an empty text.
        guidance: "classifier-free": a second pass without caption; "embedded": the network was distilled to
            take the scale as an input.
        frames: The network is told which frames are given, so that clips can be trained to go on from them.
        objectives: Names of objectives that published weights were trained with.
        takes: Companions of a clip that it is shown whole: "control", "source".
        needs: Those of them that it cannot do without.
        first_frame: How it is shown the first frame of a clip beside the noise: "grey": encoded together with grey
            frames behind it; "alone": encoded alone, with zeros behind it; None: not at all.
        image_encoder: The encoder whose embedding of the first frame it is shown; None: none.
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
        latent_channels: Channels of the autoencoder's latents.
        text_dim: Width of a text's tokens.
        pooled_dim: Width of a text's summary, 0 where there is none.
        text_length: Tokens of a text.
        learns_variance: The objective reads a second half of output channels.
    """

    latent_channels: int
    text_dim: int
    pooled_dim: int
    text_length: int = 0
    learns_variance: bool = False


class KeyRule(NamedTuple):
    """Layers of diffusers and the one layer of a model's first release that holds them.

    Attributes:
        parts: Layers of diffusers, separated by spaces, in the order of their rows there; N stands for a number, `*`
            for the rest of a name.
        release: The layer of the release, with the same N and `*`.
        heights: Rows of the parts, in proportion to each other; equal where none are given.
        swapped: The halves of its rows are the other way round in the release.
    """

    parts: str
    release: str
    heights: tuple[int, ...] = ()
    swapped: bool = False


@dataclass(frozen=True)
class Network:
    """A network as files and pipelines know it.

    Attributes:
        name: Its class.
        blocks: The lists of its blocks, in order of use.
        part: Its folder beside the other parts of a pipeline.
        without_gradient: Beginnings of the names of parameters that no loss can reach.
        widened: A parameter whose columns for companions are zero where weights lack them, so that a network that was
            trained without can be trained on with them.
        shape_only: It runs on the meta device: no step of its forward pass depends on values.
        release_layers: Layers that go by other names in the first release, which LoRA files use.
        comfyui_layers: Whose names ComfyUI's LoRA files use.
        renamed_keys: Texts in the keys of released weights that diffusers' own conversion leaves, and what they become.
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


class FamilyConfig(Protocol):
    """Sizes of a network: its arguments as fields, and what follows from them. A pydantic model satisfies the rest."""

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Latent elements per token along (time, height, width)."""
        ...

    @property
    def pictures_only(self) -> bool:
        """Clips are refused."""
        ...

    @property
    def conditioning(self) -> Conditioning:
        """How it takes texts and given frames."""
        ...

    @property
    def network(self) -> Network:
        """The network as files and pipelines know it."""
        ...

    def model_dump(self) -> dict[str, Any]:
        """Return the arguments that the network is built with."""
        ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with other values."""
        ...

    def fit(self, components: ComponentShapes) -> Self:
        """Return the config with the widths that the components fix.

        Raises:
            UserError: If the family needs what they do not have, or sizes do not fit together.
        """
        ...


class Parts(NamedTuple):
    """Names of the components that a denoiser was published with.

    Attributes:
        autoencoder: For `autoencoder.name`.
        text: For `text_encoder.name`.
        same_latents: Other autoencoders whose latents the published weights know too.
    """

    autoencoder: str
    text: str
    same_latents: tuple[str, ...] = ()


class SamplingDefaults(NamedTuple):
    """Defaults of a model's own pipeline.

    Attributes:
        guidance_scale: Strength of the prompt; 1 is no guidance.
        num_inference_steps: Steps of the sampler.
    """

    guidance_scale: float
    num_inference_steps: int


@dataclass(frozen=True)
class Release:
    """A model as it was published: where it lies, what it was trained for, what LoRA files call it.

    Attributes:
        weights: Hub id of the denoiser; None where none is known.
        autoencoder: Hub id of the autoencoder, where it is another one.
        text: Hub id of the text encoders, where it is another one.
        side: Pictures of side × side pixels that it was released for.
        lines: Lines of clips at 16:9, 0 where it makes pictures alone.
        num_frames: Frames of the clips that it was released for.
        objective: Name of the objective that it was trained with.
        timestep_shift: Shift of rectified flow's timesteps.
        formats: Conventions of LoRA files that programs for this model read.
        architecture: Its name in the header of LoRA files, as ModelSpec lists it; None: the preset's.
        base_version: Its name as kohya's readers look it up; None where they have none.
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
    """A model that `model.name` can name.

    Attributes:
        config: Its sizes.
        parts: The components that it was published with.
        sampling: How it is usually sampled.
        release: How it was published; None of a tiny one, and where nothing is known.
        switch_timestep: Where two networks of these sizes share the timesteps, the one at which that for high noise
            begins.
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
        network: Its class.
        channels: Channels of the latents that a denoiser sees.
        stride: Pixels per latent element along (time, height, width).
        frame_rule: See `core.shape.Geometry`.
        parameters: How many it has.
        config: Keys of its config that tell its latents from those of others of the class, with their values.
        file_config: Config of a single file, which has none; None: diffusers asks the hub.
        signs: Names that tensors of no other class have, in diffusers' files and in the release's.
        has_time_axis: False where it takes pictures alone.
        packs_squares: A denoiser sees 2 × 2 of its latent elements as one.
        one_by_one: It encodes one clip at a time.
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


# Configs for files of `AutoencoderKL`, without what tells latents: Stable Diffusion's, and that of later models.
KL_CONFIG: Mapping[str, object] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
}
PLAIN_KL_CONFIG = {**KL_CONFIG, "use_quant_conv": False, "use_post_quant_conv": False}


class TextNetwork(NamedTuple):
    """A network that reads captions.

    Attributes:
        part: Its folder beside the other parts; empty where it stands alone.
        kind: `model_type` in the config of the half that reads texts.
        vocabulary: Tokens that it knows.
    """

    part: str
    kind: str
    vocabulary: int


T5 = TextNetwork("", "t5", 32_128)
CLIP = TextNetwork("text_encoder", "clip_text_model", 49_408)
QWEN2_5_VL = TextNetwork("text_encoder", "qwen2_5_vl_text", 152_064)


@dataclass(frozen=True)
class PublishedText:
    """Text encoders of a family, which its pipeline in diffusers puts together.

    Attributes:
        pipeline: Its class.
        dim: Width of a token.
        max_length: Tokens kept of a caption.
        pooled_dim: Width of a caption's summary, 0 where there is none.
        parameters: How many its networks have.
        networks: Those that a recipe's weights must hold.
        tokenizer: The one of its tokenizers that cuts captions last.
        sees_pictures: It looks at the pictures that captions speak of.
        asks_autoencoder: Class of an autoencoder without which the pipeline cannot be built.
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
    """An image encoder, of float32.

    Attributes:
        tokens: Tokens that it makes of a picture.
        parameters: How many it has.
    """

    tokens: int
    parameters: int


# By the names in `Conditioning.image_encoder`: a ViT-H/14 of 224 pixels, and a SO400M/14 of 384.
IMAGE_ENCODERS = {"clip": PublishedImage(257, 630_766_080), "siglip": PublishedImage(729, 428_225_600)}


@dataclass(frozen=True)
class Family:
    """Everything about a model family that needs no torch.

    Attributes:
        name: Unique.
        network: Module whose `NETWORK` builds, loads and calls its networks (`models.api.FamilyNetwork`).
        presets: Its models, by the names that `model.name` takes; one ends in `-tiny` and runs in milliseconds.
        autoencoders: Autoencoders that came with it, by the names that `autoencoder.name` takes.
        text_encoders: Text encoders that came with it, by the names that `text_encoder.name` takes.
        short_names: What people call it, and the preset that they mean.
        recipe_sizes: Fields of its config that keys of `[model]` may change.
        pads_patches: Sizes need not fill patches, since the network pads them.
    """

    name: str
    network: str
    presets: Mapping[str, Preset]
    autoencoders: Mapping[str, PublishedAutoencoder] = field(default_factory=dict)
    text_encoders: Mapping[str, PublishedText] = field(default_factory=dict)
    short_names: Mapping[str, str] = field(default_factory=dict)
    recipe_sizes: tuple[str, ...] = ()
    pads_patches: bool = False


def require_pooled(components: ComponentShapes) -> int:
    """Return the width of a text's summary.

    Raises:
        UserError: If the text encoder makes none.
    """
    if components.pooled_dim == 0:
        raise UserError(
            "this model takes a summary of the whole caption too, and this text encoder makes none",
            code="text-summary-missing",
            field="text_encoder.name",
            value=None,
            remedy="choose the text encoder that the model was trained with",
        )
    return components.pooled_dim
