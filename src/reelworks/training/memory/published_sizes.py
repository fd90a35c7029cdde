"""Sizes of published networks as LoRAs are trained on them, measured before and kept beside each family; torch-free.

Building a network of billions of parameters without values and running it takes many seconds, most of them for imports.
What is measured depends on the preset alone: `scripts/measure_networks.py` writes `sizes.json` into the folder of a family.
Memory and work of a pass are sums of few terms with the measured factors; a network that changed since, and one that
is trained in another way, must be built and measured.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from reelworks.core import digests
from reelworks.data.buckets.table import Bucket
from reelworks.data.catalog.sources import SOUNDS
from reelworks.models import components, registry
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.config import AutoencoderConfig, TextEncoderConfig
from reelworks.models.precision.config import PrecisionConfig
from reelworks.models.sound.config import SoundConfig
from reelworks.training.loop.config import TrainConfig
from reelworks.training.memory import memory
from reelworks.training.memory.memory import NetworkSizes, Pass
from reelworks.training.memory.step_time import Work
from reelworks.training.recipe.dataset import sound_spec
from reelworks.training.recipe.recipe import Recipe

FILE = "sizes.json"
# Width of layers, at least: a pass keeps as many numbers for a LoRA's rank as for a layer of that width.
_NARROWEST = 640
BASES = ("bfloat16", "float8", "int8", "nf4")  # storages of frozen weights whose sizes no file decides


@dataclass(frozen=True)
class PassFactors:
    """Factors of the terms of a pass, see `peak_terms` and `flops_terms`."""

    peak: Sequence[float]
    widened_bytes: int  # more with a base of few bits: a layer's weights as products need them
    flops: Sequence[float]  # of one clip

    def of_tokens(self, clips: int, tokens: Sequence[int], base: str) -> tuple[int, int]:
        """Return memory and operations of a micro-batch; tokens of a clip are those of picture and of sound, if any."""
        peak = _sum(self.peak, peak_terms(clips, tokens)) + (self.widened_bytes if base != "bfloat16" else 0)
        return round(peak), round(clips * _sum(self.flops, flops_terms(tokens)))


@dataclass(frozen=True)
class WorkFactors:
    """Factors of the work of a pass with nothing recomputed.

    Attributes:
        products: Factors of the terms of arithmetic, of one clip.
        moved: Factors of the terms of memory.
    """

    products: Sequence[float]
    moved: Sequence[float]
    launches: int

    def of_tokens(self, clips: int, tokens: Sequence[int]) -> Work:
        """Return the work of a micro-batch; tokens of a clip are those of picture and of sound, if any."""
        products = clips * _sum(self.products, flops_terms(tokens))
        return Work(products, _sum(self.moved, peak_terms(clips, tokens)), self.launches)


@dataclass(frozen=True)
class PublishedSizes:
    """Sizes of a preset's network with a LoRA of the default settings.

    Attributes:
        digest: Digest of the preset's config.
        base_bytes: Bytes of frozen weights by `lora.base`.
        passes: By companions that the network is given (`control+mask`; empty for none): factors with nothing recomputed,
            with selective recomputation, and with all but the inputs of blocks recomputed.
        work: By the same companions.
    """

    digest: str
    parameters: int
    trained_parameters: int
    optimizer_bytes: int
    in_use_bytes: int
    runs_on_meta: bool
    base_bytes: Mapping[str, int]
    passes: Mapping[str, tuple[PassFactors, PassFactors, PassFactors]]
    work: Mapping[str, WorkFactors]

    def network(self, recipe: Recipe) -> NetworkSizes:
        """Return the sizes of the network of a recipe; those of a LoRA are in proportion to its rank."""
        (base, rank), usual = _lora(recipe), LoraConfig().rank
        trained = self.trained_parameters * rank // usual
        return NetworkSizes(
            self.parameters,
            trained,
            self.base_bytes[base],
            self.optimizer_bytes * rank // usual,
            self.in_use_bytes + 4 * max(trained - self.trained_parameters, 0),  # at most
            self.runs_on_meta,
        )

    def one_pass(self, recipe: Recipe, bucket: Bucket) -> Pass:
        """Return memory and work of a micro-batch of a bucket; its memory is that of a rank's share."""
        return memory.of_rank(recipe, bucket, partial(self._whole_pass, recipe))

    def _whole_pass(self, recipe: Recipe, bucket: Bucket) -> Pass:
        base, rank = _lora(recipe)
        clips, tokens = bucket.batch_size * recipe.clips_per_place, tokens_of(recipe, bucket)
        ways = [each.of_tokens(clips, tokens, base) for each in self.passes[names_given(recipe)]]
        peak, flops = ways[(False, "selective", True).index(recomputed := memory.recomputation(recipe, bucket))]
        (_, once), _, (_, twice) = ways
        # What lies between products is computed again in both ways, and is about the same share of a pass as these.
        again = twice / once if recomputed else 1.0
        work = self.work[names_given(recipe)].of_tokens(clips, tokens)
        more = 1 + max(rank - LoraConfig().rank, 0) / _NARROWEST
        work = Work(work.products * flops / once, work.moved_bytes * again * more, work.launches * again)
        return Pass(round(peak * more), round(flops * more), work)


def tokens_of(recipe: Recipe, bucket: Bucket) -> tuple[int, ...]:
    """Return the tokens of the picture of a bucket's clip, and the latent frames of its sound if the recipe has sound.

    Sources are as many tokens as the clip, which factors are for; if pictures have a size of their own, they count here.
    """
    spec, geometry, tokens = sound_spec(recipe), components.geometry(recipe.model, recipe.autoencoder), bucket.tokens
    wants, latent = components.conditioning(recipe.model), geometry.latent(bucket.shape)
    if wants.companions.picture_side is not None:
        largest = components.source_latent(wants, latent, geometry.stride)
        tokens += round(tokens * math.prod(largest) / math.prod(latent))
    return (tokens,) if spec is None else (tokens, spec.latents(bucket.shape.num_frames))


def peak_terms(clips: int, tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the terms whose sum is the peak memory of a pass."""
    return 1, clips, *(clips * each for each in tokens)


def flops_terms(tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the terms whose sum is the arithmetic of a clip: attention costs the products of the tokens."""
    return 1, *tokens, *(a * b for a, b in itertools.combinations_with_replacement(tokens, 2))


def _sum(factors: Sequence[float], terms: Sequence[float]) -> float:
    return sum(factor * term for factor, term in zip(factors, terms, strict=True))


def find(recipe: Recipe) -> PublishedSizes | None:
    """Return the sizes of the network that a recipe trains; None if they must be measured."""
    known = of_preset(recipe.model.name)
    return known if known is not None and _is_usual(recipe) and names_given(recipe) in known.passes else None


def of_preset(name: str) -> PublishedSizes | None:
    """Return the sizes of a preset; None if they were never measured, or if the preset has changed since."""
    known = read(registry.family_of(name).network.rpartition(".")[0]).get(name)
    return known if known is not None and known.digest == preset_digest(name) else None


def _is_usual(recipe: Recipe) -> bool:
    """Whether nothing but what `PublishedSizes` knows changes sizes of the network."""
    model, lora, train = recipe.model, recipe.lora, recipe.train
    sizes = model.hidden_size, model.depth, model.num_heads
    return (
        lora is not None
        and _shapes(recipe.autoencoder, recipe.text_encoder, recipe.sound) == _usual_shapes(model.name)
        and recipe.objective.name == registry.release_of(model.name).objective  # one makes a network with more channels
        and lora.model_copy(update={"base": None, "weights": None, "rank": LoraConfig().rank}) == LoraConfig()
        and _lora(recipe)[0] in BASES
        and recipe.precision == PrecisionConfig()
        and not train.compile  # passes that are fused hold and move less
        and train.optimizer == TrainConfig.model_fields["optimizer"].default
        and model.experts != "both"
        and sizes == (None, None, None)
    )


def _shapes(autoencoder: AutoencoderConfig, text: TextEncoderConfig, sound: SoundConfig | None) -> tuple[Any, ...]:
    """Return what a network and its passes take over from the components beside it."""
    geometry, channels = components.autoencoder_geometry(autoencoder), components.latent_channels(autoencoder)
    features = None if sound is None else components.sound_facts(sound).features
    return geometry, channels, text.dim, text.max_length, text.pooled_dim, features


def _usual_shapes(name: str) -> tuple[Any, ...]:
    """Return the shapes of the components of a preset's release; one without a release has those without weights."""
    preset = registry.PRESETS[name]
    if preset.release is None:
        return _shapes(AutoencoderConfig(), TextEncoderConfig(), None if preset.sound is None else SoundConfig())
    autoencoder = AutoencoderConfig(name=preset.parts.autoencoder, weights="-")
    text = TextEncoderConfig(name=preset.parts.text, weights="-")
    return _shapes(autoencoder, text, None if preset.sound is None else SoundConfig(name=preset.sound, weights="-"))


def _lora(recipe: Recipe) -> tuple[str, int]:
    """Return how frozen weights are stored, and the rank."""
    assert recipe.lora is not None
    return recipe.lora.base or "bfloat16", recipe.lora.rank


def names_given(recipe: Recipe) -> str:
    """Return the companions by which passes are known; sounds of sources belong to these."""
    return "+".join(name for name in recipe.given_companions if name not in SOUNDS)


def preset_digest(name: str) -> str:
    """Return the digest of all that sizes of a preset's network depend on."""
    preset = registry.PRESETS[name]
    config, network, parts = preset.config, preset.config.network, preset.parts
    layers = (network.name, network.blocks, network.without_gradient, network.lora.attention, network.alternates)
    components = (registry.AUTOENCODERS.get(parts.autoencoder), registry.TEXT_ENCODERS.get(parts.text))
    widths: list[Any] = [(a.channels, a.stride) for a in components[:1] if a is not None]
    widths += [(t.dim, t.max_length, t.pooled_dim) for t in components[1:] if t is not None]
    if preset.release is None or preset.sound is not None:
        widths += _usual_shapes(name)
    facts = (config.model_dump(), layers, network.passes.shape_only, config.conditioning, widths)
    return digests.digest_bytes(repr(facts).encode())[:16]


@functools.cache
def read(package: str) -> Mapping[str, PublishedSizes]:
    """Return the sizes of the presets of a family in the package of its folder."""
    try:
        text = importlib.resources.files(package).joinpath(FILE).read_text(encoding="utf-8")
    except (OSError, ImportError):  # a family from elsewhere, which has no such file
        return {}
    return _OF_PRESETS.validate_json(text)


_OF_PRESETS = TypeAdapter(dict[str, PublishedSizes])
