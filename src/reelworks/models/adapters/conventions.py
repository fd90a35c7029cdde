"""Conventions of LoRA files: names of tensors, and whether layers are those of diffusers or of a model's first release.

Torch-free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar, Literal, final

from reelworks.models.adapters import text_encoders
from reelworks.models.family import Network

LoraFormat = Literal["diffusers", "comfyui", "kohya"]  # the conventions of the package, for the schema


class Convention:
    """Names of diffusers, layer by layer; a subclass that `register` gets is a value of `exports.formats`."""

    name: ClassVar[str]  # in recipes
    usage: ClassVar[str]  # what a file says of itself to whoever opens it: which programs know its names
    how_to_use: ClassVar[str]  # how a program loads a {file}
    prefixes: ClassVar[tuple[str, ...]]  # beginnings of names in such files, the first of which are written
    matrices: ClassVar[tuple[str, str]] = ("lora_A", "lora_B")  # names of the two of a LoRA
    # Whether files need an alpha beside these. Without it the scale is 1; some readers of ComfyUI's files know none.
    needs_alpha: ClassVar[bool] = False
    folds_names: ClassVar[bool] = False  # whether names have _ in place of each point
    is_peft: ClassVar[bool] = False  # whether readers compute as peft does, by its settings in the header

    def names_parts(self, network: Network) -> bool:
        """Whether files name each layer of a network, and none that joins several."""
        return all(len(rule.parts.split()) == 1 for rule in network.lora.release)

    def has_release_names(self, network: Network) -> bool:
        """Whether layers have the names of a network's first release, and not those of diffusers."""
        return True

    def stem(self, layer: str) -> str:
        """Return what the names of a layer's tensors begin with."""
        return self.prefixes[0] + layer

    def part_stem(self, layer: str) -> str:
        """Return the same for a layer of diffusers that is a part of one of the release (`names_parts`)."""
        raise AssertionError("checked with the recipe")

    def text_stem(self, layer: str, *, is_only: bool | None) -> str | None:
        """Return the same for a layer of a text encoder, of any spelling; None if readers have no name for it.

        `is_only` says whether the model has no other text encoder; None if that is not known.
        """
        return text_encoders.in_kohya(layer, is_only=is_only)

    def has_stem(self, stem: str) -> bool:
        """Whether a file of this convention may have tensors whose names begin like this, before the type's ending."""
        return stem.startswith(self.prefixes)


@final
class _Diffusers(Convention):
    name = "diffusers"
    usage = "for diffusers and peft"
    how_to_use = "for peft, as docs/how-to/train-a-lora.md shows"  # what diffusers has no call for
    prefixes = ("base_model.model.", "transformer.", "unet.")
    is_peft = True

    def has_stem(self, stem: str) -> bool:
        return super().has_stem(stem) or text_encoders.is_named_by_diffusers(stem)

    def text_stem(self, layer: str, *, is_only: bool | None) -> str | None:
        return text_encoders.in_diffusers(layer)

    def names_parts(self, network: Network) -> bool:
        return True

    def has_release_names(self, network: Network) -> bool:
        return False


@final
class _ComfyUI(Convention):
    name = "comfyui"
    usage = "for ComfyUI"
    how_to_use = "for ComfyUI, copy it to models/loras and load it with the node Load LoRA"
    prefixes = ("diffusion_model.",)

    def has_stem(self, stem: str) -> bool:
        return super().has_stem(stem) or text_encoders.is_named_by_comfyui(stem)

    def names_parts(self, network: Network) -> bool:
        return network.lora.comfyui_maps_parts or not self.has_release_names(network) or super().names_parts(network)

    def has_release_names(self, network: Network) -> bool:
        return network.lora.comfyui == "release"

    def part_stem(self, layer: str) -> str:
        return f"transformer.{layer}"


@final
class _Kohya(Convention):
    name = "kohya"
    usage = "for programs that read the LoRA files of kohya's scripts"
    how_to_use = "for Forge and kohya's scripts, copy it to models/Lora"
    prefixes = ("lora_unet_", "lora_transformer_", "lycoris_")
    matrices = ("lora_down", "lora_up")
    needs_alpha = True
    folds_names = True

    def has_stem(self, stem: str) -> bool:
        return super().has_stem(stem) or (text_encoders.part_of(stem) is not None and "." not in stem)

    def has_release_names(self, network: Network) -> bool:
        return network.lora.kohya == "release"

    def stem(self, layer: str) -> str:
        return super().stem(layer.replace(".", "_"))


CONVENTIONS: dict[str, Convention] = {}


def recognise(stems: Iterable[str]) -> Convention | None:
    """Return the convention that most beginnings of names in a file have; None if their layers have no prefix."""
    counts = Counter(next((c for c in CONVENTIONS.values() if c.has_stem(stem)), None) for stem in stems)
    return max(counts, key=lambda found: counts[found], default=None)


def register(convention: Convention) -> None:
    """Let exports write a convention under its name, and LoRA files with its names be read."""
    assert convention.name not in CONVENTIONS, convention.name
    CONVENTIONS[convention.name] = convention


for _convention in (_Diffusers(), _ComfyUI(), _Kohya()):
    register(_convention)
