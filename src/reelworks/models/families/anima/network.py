"""Call Anima's network, and encode texts as its modular pipeline does."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.core import optional_imports
from reelworks.models import hub
from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText
from reelworks.models.families.anima.spec import AnimaConfig
from reelworks.models.text.modular_pipelines import TextParts

_STEPS = "diffusers.modular_pipelines.anima"
_TEXT_TOKENS = 512  # to which the release fills texts up


def predict(module: Any, inputs: DenoiserInputs, config: AnimaConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    Texts are filled up with zeros that are attended to, as in training of the published weights.
    """
    text_BLD = torch.where(inputs.text_mask[..., None], inputs.text, inputs.text.new_zeros(()))
    # Its channel of padding, which is zero, is given as a condition: the network scales its own with torchvision.
    module.register_to_config(concat_padding_mask=False)
    try:
        out: Tensor = module(
            inputs.latent,
            encoder_hidden_states=pad(text_BLD, (0, 0, 0, max(_TEXT_TOKENS - text_BLD.shape[1], 0))),
            timestep=inputs.time / PURE_NOISE,
            condition_mask=torch.zeros_like(inputs.latent[:, :1]),
            return_dict=False,
        )[0]
    finally:
        module.register_to_config(concat_padding_mask=True)
    return -out


def encode_text(parts: TextParts, captions: Sequence[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions with the pipeline's own steps: words of T5 ask the states of Qwen3, and become the tokens."""
    text: Any = importlib.import_module(f"{_STEPS}.encoders").AnimaTextEncoderStep
    conditioning: Any = importlib.import_module(f"{_STEPS}.before_denoise").AnimaTextConditioningStep
    components = SimpleNamespace(**parts.components)
    place = {"device": components.text_encoder.device, "dtype": components.text_encoder.dtype}
    rows = []
    for caption in captions:  # alone, since padding moves the last bits
        said = text.encode_prompt(
            components, caption, prepare_unconditional_embeds=False, max_sequence_length=length, **place
        )
        inputs = {name: value for name, value in said.items() if not name.startswith("negative")}
        made = conditioning._condition_prompt_embeds(
            components,
            **inputs,
            device=place["device"],
            conditioning_dtype=components.text_conditioner.dtype,
            output_dtype=place["dtype"],
        )
        rows.append(made[0, : said["t5_input_ids"].shape[1]])
    return EncodedText.from_rows(rows)


def load_text_parts(source: str, dtype: torch.dtype) -> TextParts:
    """Load the text encoder, the conditioner and both tokenizers from their folders."""
    library = optional_imports.transformers()
    conditioner: Any = optional_imports.from_diffusers("AnimaTextConditioner")
    model, words, more = (each.from_pretrained for each in (library.Qwen3Model, library.AutoTokenizer, conditioner))
    return TextParts(
        hub.pretrained(model, source, subfolder="text_encoder", dtype=dtype),
        hub.pretrained(words, source, subfolder="tokenizer"),
        t5_tokenizer=hub.pretrained(words, source, subfolder="t5_tokenizer"),
        text_conditioner=hub.pretrained(more, source, subfolder="text_conditioner", torch_dtype=dtype),
    )


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"anima": encode_text},
    load_text_parts=load_text_parts,
    no_pipeline=lambda *_: "the family has a modular pipeline only",
)
