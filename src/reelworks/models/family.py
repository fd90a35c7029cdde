"""Records with which a family's `spec.py` and `family.toml` declare its models and their components; torch-free."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import Field

from reelworks.core import toml
from reelworks.core.config import Config
from reelworks.core.errors import UserError


@dataclass(frozen=True)
class Companions:
    """Companions of a clip that a network takes as inputs."""

    takes: tuple[Literal["control", "source", "mask"], ...] = ()
    needs: tuple[Literal["control", "source"], ...] = ()  # those among them that it cannot run without
    most_sources: int = 1  # number of sources of a clip that it takes if it takes any
    # Whether its control is in parts: what is kept of the clip where the mask is black, the control where it is white, and
    # the mask, whose pixels are channels. Without a mask all is white, and without a control it is grey there.
    control_parts: bool = False
    # Shorter side in pixels of sources that are pictures, which are then single pictures beside clips too; None if they
    # are as large as their clips, and repeated for all frames. No network changes with it.
    picture_side: int | None = field(default=None, repr=False)
    # Whether sources are inputs with their sound, and may be sounds alone. No network changes with it.
    sounds: bool = field(default=False, repr=False)

    @property
    def sources_as_frames(self) -> bool:
        """Whether sources are pictures whose latents are frames before those of the clip.

        Among the latents they are noised and generated with the clip. In the control's parts they are shown clean, as
        what is kept.
        """
        return self.control_parts and "source" in self.takes


@dataclass(frozen=True)
class ShownFrames:
    """The ends of a clip that a network gets besides the noise."""

    # How it gets the first frame: "grey": encoded with grey frames after it; "alone": encoded alone, with zeros after it,
    # or after the last frame, which is encoded alone too; None: not at all. With `Conditioning.frames`, it is one of the conditions, as `generate` shows a picture; an
    # autoencoder that is not causal encodes the frames after it into the clip's first latents too.
    first: Literal["grey", "alone"] | None = None
    # Whether it gets the last frame too: behind the grey ones, or alone; and embedded beside the first.
    last: bool = False
    # Encoder whose embedding of the first frame, and of the last if given, is an input; None if there is none.
    encoder: Literal["clip", "siglip"] | None = None
    width: int = 0  # of that embedding


@dataclass(frozen=True)
class Conditioning:
    """Conditioning of a network on captions, frames, companions and sound."""

    # "learned": the network has its own empty caption; "encoded": it gets the embedding of an empty text.
    empty_caption: Literal["learned", "encoded"] = "encoded"
    # "classifier-free": a second pass without caption; "embedded": the scale is an input of the distilled network;
    # "second-network": a pass without caption of another network of the release (`models.expert_pair.denoiser`).
    guidance: Literal["classifier-free", "embedded", "second-network"] = "classifier-free"
    objectives: tuple[str, ...] = ("rectified-flow",)  # names of objectives that published weights were trained with
    # Whether the network knows which frames are conditions, so that it can learn to continue clips.
    frames: bool = False
    # Whether it gets condition frames in channels of their own, and noise in all frames of the latents, also in these.
    # All frames then count in the loss.
    frames_beside_noise: bool = False
    shown: ShownFrames = ShownFrames()
    companions: Companions = Companions()
    sound: bool = False  # whether it is trained with the sound of clips
    # Share of noise in the latents of shown frames and companions. No network changes with it, nor with the next ones.
    given_noise: float = field(default=0.0, repr=False)
    # Whether it is told the size of a picture's file, and where in it the crop lies.
    crops: bool = field(default=False, repr=False)
    # Whether each token of 2 × 2 elements of a guided prediction has the length that it has with the caption, or at most that;
    # or each row of a channel.
    guided_length: Literal["free", "kept", "limited", "rows"] = field(default="free", repr=False)

    @property
    def needs_first_frame(self) -> bool:
        """Whether each clip is generated from a first frame, which must be given."""
        return self.shown.first is not None and not self.frames


EDITS = Conditioning(companions=Companions(("source",), ("source",), most_sources=4))
LEARNED = Conditioning(empty_caption="learned", frames=True, objectives=("rectified-flow", "iddpm"))


@dataclass(frozen=True)
class ComponentShapes:
    """Sizes that the autoencoder, the text encoder and the objective fix."""

    latent_channels: int
    text_dim: int
    pooled_dim: int  # width of the pooled text embedding, 0 if there is none
    text_length: int = 0
    learns_variance: bool = False  # whether the objective reads a second half of output channels
    latent_stride: tuple[int, int] = (8, 8)  # pixels per latent element along (height, width)
    sound_features: int | None = None  # features of a latent frame of sound; None if no sound encoder is known


class KeyRule(NamedTuple):
    """Maps layers of diffusers to the one layer of a model's original release that holds them."""

    # Layers of diffusers, separated by spaces, in the order of their rows in the release; N stands for a number, `*`
    # for the rest of a name.
    parts: str
    release: str  # layer of the release, with the same N and `*`
    heights: tuple[int, ...] = ()  # relative numbers of rows of the parts; equal if empty
    swapped: bool = False  # whether the two halves of the rows are in the opposite order in the release


@dataclass(frozen=True)
class SequenceSplit:
    """Describes how ranks share the tokens of a network, and exchange heads around attention."""

    heads: str = "num_attention_heads"  # field of the config with the number of heads
    attentions: tuple[str, ...] = ("num_layers",)  # fields whose sum is the number of attentions among shared tokens
    pads: bool = False  # whether any number of tokens can be shared; if not, it must be a multiple of the ranks
    captions: bool = False  # whether tokens of captions are shared too, as they attend to all others
    plan: str = ""  # module with `plan` and `ATTENTIONS` in place of diffusers' plan
    divided: str = ""  # module with `PLACES` in place of diffusers' plan and exchange


@dataclass(frozen=True)
class NetworkFiles:
    """Describes the files of a network's weights."""

    folder: str | None = None  # its folder, if a repository has several networks; None if it is that of its part
    file: str | None = None  # name of its file in a repository that has files of several models
    # Replacements in the keys of released weights that diffusers' own conversion misses.
    renamed_keys: Mapping[str, str] = field(default_factory=dict)
    # Beginnings of the keys of other parts of the model in files of its release, which are left out.
    other_parts: tuple[str, ...] = ()
    # Parameter whose columns for companions are zeros if weights lack them, so that a network trained without
    # companions can be trained further with them.
    widened: str | None = None


@dataclass(frozen=True)
class LoraNames:
    """Names of a network's layers in LoRA files."""

    release: tuple[KeyRule, ...] = ()  # rules for layers with other names in the original release
    trainers: tuple[KeyRule, ...] = ()  # rules for names that other trainers' files have, and that are read only
    comfyui: Literal["release", "diffusers"] = "release"  # whose names ComfyUI's files have
    kohya: Literal["release", "diffusers"] = "release"  # whose names those of kohya's scripts have
    # Whether ComfyUI maps diffusers' names of layers that are parts of one layer of the release to rows of it.
    comfyui_maps_parts: bool = False
    attention: str | None = None  # pattern of linear layers of attention whose modules' names do not tell it


@dataclass(frozen=True)
class PassRules:
    """Describes what a pass of a network depends on."""

    shape_only: bool = True  # whether it runs on the meta device, since no step of its forward pass depends on values
    # Whether it takes a pass for each clip of a micro-batch, at least for captions of several lengths. If weights are
    # sharded it must then do so for any.
    clip_by_clip: bool = False
    pads_patches: bool = False  # whether it pads sizes that are not multiples of the patch
    # Whether blocks see heights and widths, as convolutions do, and not only the number of tokens.
    blocks_see_shapes: bool = False
    # Tokens to which pictures that are not square are filled up; 0 if they are not.
    filled_tokens: int = 0
    # Blocks see captions at their own length, rounded up to a multiple of this; 0 if all have one length.
    caption_multiple: int = 0


@dataclass(frozen=True)
class Network:
    """Names of a network's class, blocks and parameters, and what its files, LoRAs, passes and ranks need to know."""

    name: str
    blocks: tuple[str, ...]  # names of its lists of blocks, in order of use
    part: str = "transformer"  # name of the network in a pipeline, and its folder
    alternates: bool = False  # whether the first blocks of all lists are used before the second ones
    # Name prefixes of parameters that no loss can reach, or that the release was trained without changing.
    without_gradient: tuple[str, ...] = ()
    files: NetworkFiles = NetworkFiles()
    lora: LoraNames = LoraNames()
    passes: PassRules = PassRules()
    sequence: SequenceSplit | None = None  # None if ranks cannot share tokens


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
        """Conditioning of the network."""

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
    more_texts: tuple[str, ...] = ()  # other text encoders that weights of this model are tuned with


class SamplingDefaults(NamedTuple):
    """Defaults of a model's own pipeline; a guidance scale of 1 turns guidance off."""

    guidance_scale: float
    num_inference_steps: int
    # Number of latent channels, the first, to which the objective iddpm applies guidance; None if to all.
    guided_channels: int | None = None
    # Strength of condition frames, for networks that get them beside the noise; None if they are not guided.
    image_guidance_scale: float | None = None


@dataclass(frozen=True)
class Release:
    """A published model: its hub ids, the shapes it was trained for, and its names in LoRA files."""

    weights: str | None = None  # hub id of the denoiser; None if none is known
    autoencoder: str | None = None  # hub id of the autoencoder, if it is a different one
    text: str | None = None  # hub id of the text encoders, if it is a different one
    side: int = 1024  # side in pixels of the square pictures that it was released for
    lines: int = 0  # height in pixels of the 16:9 clips that it was released for, 0 if it generates pictures only
    # Further sizes that it was released for, likewise: those of square pictures, and of 16:9 clips.
    more_sides: tuple[int, ...] = ()
    more_lines: tuple[int, ...] = ()
    num_frames: int = 1  # number of frames of the clips that it was released for
    objective: str = "rectified-flow"  # name of the objective that it was trained with
    timestep_shift: float | str = 3.0  # shift of rectified flow's timesteps
    sound_timestep_shift: float | None = None  # that of the sound's, if it is another
    formats: tuple[str, ...] = ("diffusers", "comfyui")  # LoRA file formats that programs for this model read
    architecture: str | None = None  # ModelSpec name in the header of LoRA files; None uses the preset's name
    base_version: str | None = None  # name that kohya's readers look up; None if they have none
    # Whether steps or guidance were distilled into it, which training without an adapter undoes.
    distilled: bool = False
    licence_note: str | None = None  # what its licence restricts, as a sentence without its end; None if not known


@dataclass(frozen=True)
class Preset:
    """A model that `model.name` selects."""

    config: FamilyConfig
    parts: Parts
    sampling: SamplingDefaults
    release: Release | None = None  # how it was published; None for a tiny model, and if nothing is known
    # Frames per second of the clips that it was trained on; None for pictures, or if it takes the rate as an input.
    fps: float | None = None
    # Lowest timestep of the high-noise network, if two networks share the timesteps.
    switch_timestep: float | None = None
    sound: str | None = None  # sound encoder that a model with sound was trained with


@dataclass(frozen=True)
class PublishedAutoencoder:
    """An autoencoder of diffusers, or of a family's own module if diffusers has none of its class."""

    network: str  # name of the class
    channels: int  # channels of the latents that a denoiser sees
    stride: tuple[int, int, int]  # pixels per latent element along (time, height, width)
    frame_rule: tuple[int, int] = (0, 1)  # see `core.shape.Geometry`
    parameters: int = 0
    # Config entries that distinguish its latents from those of other autoencoders of the class.
    config: Mapping[str, object] = field(default_factory=dict)
    # Config for a single file, which contains none; None lets diffusers ask the hub.
    file_config: Mapping[str, object] | None = None
    signs: tuple[str, ...] = ()  # tensor names that no other class has, in the files of diffusers and of the release
    has_time_axis: bool = True  # False if it takes pictures only
    shifts: bool = True  # whether the `shift_factor` of its config applies
    packs_squares: bool = False  # whether a denoiser sees 2 × 2 of its latent elements as one
    # Whether the channels of those are sorted by place, and not by the autoencoder's channel.
    places_first: bool = False
    chunk_frames: int | None = None  # frames that it encodes together; None if all
    imagenet_pixels: bool = False  # whether pixels are normalised by the statistics of ImageNet, and not to [-1, 1]
    has_alpha: bool = False  # whether it takes a fourth channel, opacity, which is full here
    one_by_one: bool = False  # whether it encodes only one clip at a time
    compiles: bool = True  # whether its encoder becomes one graph for a shape
    # Name of the file in a repository of several models, with the names of diffusers' class; None if there is none.
    file: str | None = None
    # Whether it works on large pictures in overlapping tiles, and on all frames together, as the model was trained.
    tiles: bool = False
    module: str = ""  # module with `build(config)`; empty for a class of diffusers
    # Spread of its latents, by which `autoencoder.std` lets recipes divide them; None if they have units of their own.
    std: float | None = None


class TextNetwork(NamedTuple):
    """A network that encodes captions."""

    part: str  # its folder in a pipeline; empty if it stands alone
    kind: str  # `model_type` in the config of its text model; several, separated by spaces, if its releases differ
    vocabulary: int  # number of tokens
    sizes: tuple[tuple[str, int | str], ...] = ()  # of a CLIP that a LoRA can train, as in its config; empty for others


T5 = TextNetwork("", "t5", 32_128)


@dataclass(frozen=True)
class PublishedText:
    """Text encoders of a family, as its pipeline in diffusers combines them."""

    pipeline: str
    dim: int
    max_length: int  # length in tokens to which captions are cut
    pooled_dim: int = 0  # width of the pooled caption embedding, 0 if there is none
    parameters: int = 0
    networks: tuple[TextNetwork, ...] = ()  # networks that a recipe's weights must hold
    tokenizer: str = "tokenizer"  # name of the tokenizer with the longest limit, which decides what is cut off
    plain_tokenizer: bool = False  # whether only the tokenizer is loaded of the processor in the tokenizer's place
    sees_pictures: bool = False  # whether it encodes the pictures that captions refer to as well
    # Class of an autoencoder that is needed to build the pipeline; None if there is none.
    asks_autoencoder: str | None = None

    @property
    def is_trainable(self) -> bool:
        """Whether a LoRA can train the text encoders."""
        return bool(self.networks) and all(network.sizes for network in self.networks)


class PublishedSound(NamedTuple):
    """A sound encoder."""

    sample_rate: int  # samples per second that it encodes
    channels: int
    samples_per_latent: int
    features: int  # of a latent frame
    parameters: int = 0
    module: str = ""  # module with `build(source, facts)`; empty for the encoder without weights

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Numbers by which latents of two encoders are told apart."""
        return self.sample_rate, self.channels, self.samples_per_latent, self.features


class PublishedImage(NamedTuple):
    """An image encoder in float32."""

    tokens: int  # per picture
    parameters: int


# Keys are those of `ShownFrames.encoder`: a ViT-H/14 at 224 pixels and a SO400M/14 at 384.
IMAGE_ENCODERS = {"clip": PublishedImage(257, 630_766_080), "siglip": PublishedImage(729, 428_225_600)}


@dataclass(frozen=True)
class Family:
    """Everything about a model family that needs no torch; components are by the names that recipes use."""

    name: str
    network: str  # module whose `NETWORK` builds, loads and calls its networks (`models.api.FamilyNetwork`)
    presets: Mapping[str, Preset]  # its models by `model.name`; one ends in `-tiny` and runs in milliseconds
    autoencoders: Mapping[str, PublishedAutoencoder] = field(default_factory=dict)
    text_encoders: Mapping[str, PublishedText] = field(default_factory=dict)
    sound_encoders: Mapping[str, PublishedSound] = field(default_factory=dict)
    short_names: Mapping[str, str] = field(default_factory=dict)  # presets by colloquial name
    # Presets by how names of tuned weights begin, plainly spelled.
    tuned: Mapping[str, str] = field(default_factory=dict)
    recipe_sizes: tuple[str, ...] = ()  # fields of its config that keys of `[model]` override


@functools.cache
def layers_file(module: str) -> dict[str, Any]:
    """Return `release_layers.toml` beside a module, which is given by its `__file__`."""
    return toml.beside(module, "release_layers.toml")


def layer_rules(module: str, table: str = "release") -> tuple[KeyRule, ...]:
    """Return the rules of a table of the file of a module's layers.

    Each entry has `layers` of the release by those of diffusers. `prefixes` begin the names of both, for lists of blocks
    that have the same layers.
    """
    return tuple(
        KeyRule(
            " ".join(f"{own}{part}" for part in parts.split()),
            f"{release}{layer}",
            tuple(entry.get("heights", ())),
            entry.get("swapped", False),
        )
        for entry in layers_file(module)[table]
        for own, release in entry.get("prefixes", {"": ""}).items()
        for parts, layer in entry["layers"].items()
    )


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


@dataclass(frozen=True)
class Width:
    """Marks a field of a network's config whose value follows from a component."""

    of: Callable[[ComponentShapes], int]


LatentWidth = Annotated[int, Width(attrgetter("latent_channels"))]
SquareWidth = Annotated[int, Width(lambda components: 4 * components.latent_channels)]  # of 2 × 2 latent elements
TextWidth = Annotated[int, Width(attrgetter("text_dim"))]
PooledWidth = Annotated[int, Width(require_pooled)]


class NetworkConfig(Config):
    """Arguments of a network, which most families' configs are."""

    @property
    def pictures_only(self) -> bool:
        """Whether the network takes pictures only."""
        return False

    @property
    def conditioning(self) -> Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        return Conditioning()

    def fit(self, components: ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        marks = [(name, mark) for name, info in type(self).model_fields.items() for mark in info.metadata]
        return self.model_copy(update={name: mark.of(components) for name, mark in marks if isinstance(mark, Width)})


class PictureConfig(NetworkConfig):
    """Arguments of a network that takes pictures only, by default in tokens of 2 × 2 latent elements."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True


class EditingConfig(PictureConfig):
    """Arguments of a network that can be shown source pictures, and is if `edits`."""

    edits: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        return EDITS if self.edits else Conditioning()
