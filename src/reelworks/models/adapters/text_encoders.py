"""Names of the layers of text encoders in LoRA files, which other programs train along with the network. Torch-free."""

from __future__ import annotations

import re

# kohya's names begin like the first, those of diffusers like the second, and those of ComfyUI alone like the third.
_STEM = re.compile(
    r"lora_te(?P<kohya>\d?)_(?P<folded>.+)|text_encoder(?P<diffusers>(_\d)?)\.(?P<layer>.+)"
    r"|text_encoders\.(?P<comfyui>\w+)\.(transformer\.)?(?P<own>.+)"
)
# Names of modules of CLIP that have an underscore; all others of its layers have none.
_WORD = re.compile(r"text_model|text_projection|self_attn|[qkv]_proj|out_proj|[A-Za-z0-9]+")
_CLIP = "text_model."
# T5 is the second encoder of one pipeline of diffusers and the third of another, and the third of kohya's scripts in all.
T5 = "t5xxl"
_OF_T5 = re.compile(r"encoder[._]block[._]\d")
_OF_CLIP = re.compile(r"encoder([._])layers[._]\d")
_OF_COMFYUI = {"clip_l": "text_encoder", "clip_g": "text_encoder_2"}
# What stands before the layers of CLIP in the single files of SD 1 and SDXL.
_OF_SINGLE_FILES = re.compile(r"(cond_stage_model|conditioner\.embedders\.0)\.transformer\.")


def _split(stem: str) -> tuple[str, str] | None:
    """Return the encoder of a layer, as `part_of` does, and the layer's name within it; None for other layers."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None
    word, name = match["comfyui"], match["folded"] or match["layer"] or match["own"]
    if _OF_T5.match(name) and word in (None, T5):
        return T5, name
    if of_clip := _OF_CLIP.match(name):  # as in transformers 5
        name = f"text_model{of_clip[1]}{name}"
    if word:
        return _OF_COMFYUI.get(word, word), name
    number = match["kohya"] or (match["diffusers"] or "").lstrip("_") or "1"
    return "text_encoder" if number == "1" else f"text_encoder_{number}", name


def part_of(stem: str) -> str | None:
    """Return the folder of a text encoder in diffusers' pipelines whose layer a name means; None for other layers.

    The folder of T5 depends on the model: `T5` is returned for its layers, and ComfyUI's word for those that it alone names.
    """
    found = _split(stem)
    return found and found[0]


# Layers of CLIP that are trained, as kohya's scripts do.
_TRAINED = re.compile(r"text_encoder(_\d)?\..*\.encoder\.layers\..*\.([qkv]_proj|out_proj|fc[12])")


def is_trained(layer: str) -> bool:
    """Whether a LoRA that has text encoders adapts a linear layer of a network with its text encoders."""
    return _TRAINED.fullmatch(layer) is not None


def is_part(part: str) -> bool:
    """Whether a folder in diffusers' pipelines is one of a text encoder."""
    return part.startswith("text_encoder")


def within(layer: str) -> str:
    """Return the name of a layer within its text encoder, or in the network, as modules of all versions of transformers end.

    transformers 5 has no first word of CLIP's names.
    """
    found = _split(layer)
    return (found[1] if found else layer).removeprefix(_CLIP).removeprefix("text_model_")


def folded(stem: str) -> str | None:
    """Return one name for all spellings of a text encoder's layer; None for other layers."""
    part = part_of(stem)
    return part and f"{part}_{within(stem)}".replace(".", "_")


def in_single_file(weight: str) -> str:
    """Return the name of a weight in a single file, that of a text encoder as files of LoRAs name its layers."""
    match = _OF_SINGLE_FILES.match(weight)
    return f"text_encoder.{weight[match.end() :]}" if match else weight


def in_kohya(stem: str, *, is_only: bool | None = None) -> str | None:
    """Return kohya's name of a text encoder's layer, which ComfyUI knows too; None for an encoder that kohya's scripts lack.

    They give no number to the encoder of a model that has but one. If it is not known whether there is another, a name of
    theirs stays as it is.
    """
    found = _split(stem)
    assert found is not None, stem
    part, name = found
    if is_only is None and stem.startswith("lora_te"):
        return stem
    if part != T5 and not is_part(part):
        return None
    number = "3" if part == T5 else part.removeprefix("text_encoder").lstrip("_") or ("" if is_only else "1")
    return f"lora_te{number}_{name.replace('.', '_')}"


def in_diffusers(stem: str) -> str | None:
    """Return diffusers' name of a layer of CLIP; None for other text encoders, whose LoRAs its pipelines do not read."""
    found = _split(stem)
    assert found is not None, stem
    part, name = found
    layer = ".".join(_WORD.findall(name)) if stem.startswith("lora_te") else name
    return f"{part}.{layer}" if is_part(part) and layer.startswith(_CLIP) else None


def is_named_by_diffusers(stem: str) -> bool:
    """Whether a name is that of a text encoder's layer in the form of diffusers."""
    return re.match(r"text_encoder(_\d)?\.", stem) is not None


def is_named_by_comfyui(stem: str) -> bool:
    """Whether a name is that of a text encoder's layer in the form that ComfyUI alone has."""
    return stem.startswith("text_encoders.")
