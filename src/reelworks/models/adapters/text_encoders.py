"""Names of the layers of text encoders in LoRA files, which other programs train along with the network. Torch-free."""

from __future__ import annotations

import re

# kohya's names begin like the first, those of diffusers like the second, and those of ComfyUI alone like the third.
_STEM = re.compile(
    r"lora_te(?P<kohya>\d?)_(?P<folded>.+)|text_encoder(?P<diffusers>(_\d)?)\.(?P<layer>.+)|text_encoders\.(?P<comfyui>.+)"
)
# Names of modules of CLIP that have an underscore; all others of its layers have none.
_WORD = re.compile(r"text_model|text_projection|self_attn|[qkv]_proj|out_proj|[A-Za-z0-9]+")
_CLIP = "text_model."


def part_of(stem: str) -> str | None:
    """Return the folder of a text encoder in diffusers' pipelines whose layer a name means; None for other layers."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None
    if match["comfyui"]:
        return "text_encoders"
    number = (match["kohya"] or "1") if match["folded"] else (match["diffusers"].lstrip("_") or "1")
    return "text_encoder" if number == "1" else f"text_encoder_{number}"


# Layers of CLIP that are trained, as kohya's scripts do.
_TRAINED = re.compile(r"text_encoder(_\d)?\..*\.encoder\.layers\..*\.([qkv]_proj|out_proj|fc[12])")


def is_trained(layer: str) -> bool:
    """Whether a LoRA that has text encoders adapts a linear layer of a network with its text encoders."""
    return _TRAINED.fullmatch(layer) is not None


def names_in_files(layer: str) -> tuple[str, ...]:
    """Return diffusers' name of a trained layer, which ComfyUI knows too, and kohya's, in models of several and of one."""
    kohya = in_kohya(layer)
    assert kohya is not None, layer
    return (layer, kohya, kohya.replace("lora_te1_", "lora_te_"))


def is_part(part: str) -> bool:
    """Whether a folder in diffusers' pipelines is one of a text encoder."""
    return part.startswith("text_encoder")


def in_kohya(stem: str) -> str | None:
    """Return kohya's name of a text encoder's layer, which ComfyUI knows too; None for a name of ComfyUI alone."""
    match = _STEM.fullmatch(stem)
    assert match is not None, stem
    if match["comfyui"]:
        return None
    if match["folded"]:
        return stem
    number = match["diffusers"].lstrip("_") or "1"
    return f"lora_te{number}_{match['layer'].replace('.', '_')}"


def within(kohya: str) -> tuple[str, str]:
    """Return the names within its text encoder of a layer by kohya's; transformers 5 saves CLIP without the first word."""
    match = _STEM.fullmatch(kohya)
    name = match["folded"] if match is not None and match["folded"] else kohya
    return name, name.removeprefix("text_model_")


def in_diffusers(stem: str) -> str | None:
    """Return diffusers' name of a layer of CLIP; None for other text encoders, whose LoRAs its pipelines do not read."""
    match, part = _STEM.fullmatch(stem), part_of(stem)
    assert match is not None, stem
    if match["comfyui"]:
        return None
    layer = match["layer"] or ".".join(_WORD.findall(match["folded"]))
    return f"{part}.{layer}" if layer.startswith(_CLIP) else None


def is_named_by_diffusers(stem: str) -> bool:
    """Whether a name is that of a text encoder's layer in the form of diffusers."""
    match = _STEM.fullmatch(stem)
    return match is not None and bool(match["layer"])


def is_named_by_comfyui(stem: str) -> bool:
    """Whether a name is that of a text encoder's layer in the form that ComfyUI alone has."""
    return stem.startswith("text_encoders.")
