"""Call a Qwen-Image 2.1 network, and encode texts and pictures as its pipeline does.

Texts and pictures are one sequence. The text encoder keeps a place in it for every 2 × 2 latent elements of a source
picture, where the network puts them. In embeddings here one row of zeros that counts stands for all places of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any, final

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from reelworks.core import optional_imports
from reelworks.models import hub
from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded
from reelworks.models.families.qwen_image.network import ImagePlaceholderTokens
from reelworks.models.families.qwen_image21.spec import QwenImage21Config
from reelworks.models.precision.boundary import is_sharded
from reelworks.models.text import modular_pipelines


def predict(module: Any, inputs: DenoiserInputs, config: QwenImage21Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    A picture's position is behind its text, so that captions of several lengths take a pass each. Ranks that share the
    weights take one for each clip in any case, as they must take equally many.
    """
    kept, has_value = _read(inputs)
    lengths = [sum(row) for row in kept]
    texts = [_around_places(row[:length], len(inputs.sources)) for row, length in zip(has_value, lengths, strict=True)]
    if inputs.latent.is_meta or (not is_sharded(module) and len(set(lengths)) == 1):
        return _of_one_length(module, inputs, texts[0])
    rows = [inputs.each(itemgetter(slice(row, row + 1))) for row in range(len(lengths))]
    return torch.cat([_of_one_length(module, *each) for each in zip(rows, texts, strict=True)])


def _read(inputs: DenoiserInputs) -> tuple[list[list[bool]], list[list[bool]]]:
    """Return which tokens of texts are kept, and which are not zeros; the host waits for the device here, and only here.

    On the meta device, where there are no values, all are.
    """
    if inputs.latent.is_meta:
        every = [[True] * inputs.text.shape[1]] * len(inputs.text)
        return every, every
    kept, has_value = torch.stack([inputs.text_mask, inputs.text.any(dim=2)]).tolist()
    return kept, has_value


def _around_places(has_value: list[bool], sources: int) -> list[slice]:
    """Return the parts of a text before each of its sources' places, and the one behind them.

    A text of an encoder that keeps no places has all of them in front.
    """
    places = [at for at, each in enumerate(has_value) if not each][:sources]
    if len(places) < sources:
        return [slice(0, 0)] * sources + [slice(0, len(has_value))]
    return [slice(*ends) for ends in zip([0, *(at + 1 for at in places)], [*places, len(has_value)], strict=True)]


def _of_one_length(module: Any, inputs: DenoiserInputs, texts: list[slice]) -> Tensor:
    """Return the velocity. Texts of a batch have their sources' places where the first one has them."""
    timestep = inputs.time / PURE_NOISE
    exact = torch.cat([timestep, timestep.new_zeros(1)])
    # The network's own hooks, as those of sharded weights, are around what runs in place of its function.
    module.forward = partial(_forward, module)
    try:
        with embedded(module.time_text_embed.time_proj, exact):
            out: Tensor = module([*inputs.sources, inputs.latent], [inputs.text[:, part] for part in texts], exact)
    finally:
        del module.forward
    return -out.transpose(1, 2).reshape(inputs.latent.shape)


def _forward(module: Any, pictures: list[Tensor], texts: list[Tensor], times: Tensor) -> Tensor:
    """Return the output for the last picture, as diffusers' function does, which reads where pictures are many times.

    Each picture `[B, C, 1, H, W]` follows its text. Only those of sources precede the last one. Texts and sources have
    time 0, the last time.
    """
    sizes, device = [picture.shape[3:] for picture in pictures], times.device
    tokens = module.img_in(torch.cat([picture.flatten(2).transpose(1, 2) for picture in pictures], dim=1))
    words = module.txt_in(torch.cat(texts, dim=1)).split([text.shape[1] for text in texts], dim=1)
    shown = tokens.split([size.numel() for size in sizes], dim=1)
    hidden = torch.cat([part for pair in zip(words, shown, strict=True) for part in pair], dim=1)
    places, segments, start, position = [], [], 0, 0
    for text, (height, width) in zip(texts, sizes, strict=True):
        end = start + text.shape[1]
        spans = [(start, end, True), (end, end + height * width, False)]
        segments += [span for span in spans if span[0] < span[1]]
        places.append(torch.arange(position, position + text.shape[1], device=device).expand(3, -1))
        position += text.shape[1]
        axes = ((position, position + 1), *((size // 2 - size, size // 2) for size in (height, width)))
        ranges = (torch.arange(*ends, device=device) for ends in axes)
        places.append(torch.stack(torch.meshgrid(*ranges, indexing="ij")).flatten(1))
        start, position = spans[1][1], position + max(height, width)
    rope = module.pos_embed
    rope.freqs = [table.to(device) for table in rope.freqs]
    angles = [table[index] for table, index in zip(rope.freqs, torch.cat(places, dim=1), strict=True)]
    is_own = torch.arange(start, device=device) >= segments[-1][0]
    embedding = module.time_text_embed(times.to(tokens.dtype), tokens)
    given = (
        module.modulation(embedding),
        torch.cat(angles, dim=1),
        None,
        is_own,
        None,
        None,
        None,
        segments[:-1],
        None,
    )
    for block in module.transformer_blocks:
        if torch.is_grad_enabled() and module.gradient_checkpointing:
            hidden = module._gradient_checkpointing_func(block, hidden, *given)
        else:
            hidden = block(hidden, *given)
    out: Tensor = module.proj_out(module.norm_out(hidden, embedding, is_own))
    return out[:, segments[-1][0] :]


@final
class ChatWithPictures:
    """Prepares texts and pictures as the processor of the release does, which needs a library for videos."""

    def __init__(self, tokenizer: Any, pictures: Any) -> None:
        self.tokenizer, self._fill = tokenizer, ImagePlaceholderTokens(tokenizer, pictures)
        self._picture = tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def apply_chat_template(self, messages: list[Any], **options: Any) -> list[Any]:
        """Return the tokens of one conversation, as a list of one."""
        return [self.tokenizer.apply_chat_template(messages, **options)]

    def __call__(
        self,
        *,
        text: Sequence[str],
        padding: bool,
        padding_side: str,
        return_tensors: str,
        images: Sequence[Image.Image] | None = None,
    ) -> Any:
        """Return the inputs of the model; padding precedes shorter texts."""
        self.tokenizer.padding_side = padding_side
        made = self._fill(text=text, images=images, padding=padding, return_tensors=return_tensors)
        made["mm_token_type_ids"] = (made["input_ids"] == self._picture).int()
        return made


def load_text_parts(source: str, dtype: torch.dtype) -> Any:
    """Load the pipeline with its text encoder alone; the tokenizer lies in the folder of the processor."""
    parts = modular_pipelines.load_qwen3_vl(source, dtype, tokenizer="processor")
    load_pictures = optional_imports.transformers().Qwen2VLImageProcessorPil.from_pretrained
    processor = ChatWithPictures(parts.tokenizer, hub.pretrained(load_pictures, source, subfolder="processor"))
    pipeline = optional_imports.from_diffusers("QwenImage21Pipeline")(None, None, parts.text_encoder, processor, None)
    pipeline.tokenizer = parts.tokenizer
    return pipeline


def encode_text(pipeline: Any, captions: list[str], _length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions."""
    tokens, mask, _ = pipeline.encode_prompt(captions)
    return EncodedText(tokens, mask)


def encode_text_and_pictures(pipeline: Any, captions: list[str], _length: int, pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each with its pictures in order; a row of zeros stands where a picture is."""
    rows = []
    for i, caption in enumerate(captions):
        shown = [Image.fromarray(each[i, 0].cpu().numpy()) for each in pictures]
        (tokens,), _, (places,) = pipeline.encode_prompt([caption], shown or None)
        is_first = places & ~pad(places, (1, 0))[:-1]
        rows.append(tokens.masked_fill(places[:, None], 0)[~places | is_first])
    return EncodedText.from_rows(rows)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"qwen-image-2.1": encode_text, "qwen-image-2.1-edit": encode_text_and_pictures},
    load_text_parts=load_text_parts,
    no_pipeline=lambda *_: "the family's pipeline cannot be built without a text encoder, and makes RGBA pictures",
)
