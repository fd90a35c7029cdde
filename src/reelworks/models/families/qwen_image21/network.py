"""Call a Qwen-Image 2.1 network, and encode texts and pictures as its pipeline does.

Texts and pictures are one sequence. The text encoder keeps a place in it for every 2 × 2 latent elements of a source
picture, where the network puts them. In embeddings here one row of zeros that counts stands for all places of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
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

_PER_PLACE = 4  # latent elements


def predict(module: Any, inputs: DenoiserInputs, config: QwenImage21Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    A picture's position is behind its text, so that captions of several lengths take a pass each. Ranks that share the
    weights take one for each clip in any case, as they must take equally many.
    """
    lengths = inputs.text_mask.sum(dim=1)
    if inputs.latent.is_meta or (not is_sharded(module) and bool((lengths == lengths[0]).all())):
        return _of_one_length(module, inputs)
    rows = (slice(row, row + 1) for row in range(len(lengths)))
    return torch.cat([_of_one_length(module, inputs.each(itemgetter(row))) for row in rows])


def _of_one_length(module: Any, inputs: DenoiserInputs) -> Tensor:
    """Return the velocity. Pictures of sources precede that of the edit. Texts and sources have time 0."""
    pictures = [*inputs.sources, inputs.latent]
    tokens = torch.cat([picture.flatten(2).transpose(1, 2) for picture in pictures], dim=1)
    timestep = inputs.time / PURE_NOISE
    exact = torch.cat([timestep, timestep.new_zeros(1)])
    with embedded(module.time_text_embed.time_proj, exact):
        if inputs.latent.is_meta:
            out = _shape_only(module, inputs, tokens, timestep)
        else:
            text, places = _text(inputs)
            out = module(
                tokens,
                encoder_hidden_states=text,
                timestep=timestep,
                img_shapes=[[(1, *picture.shape[3:]) for picture in pictures]] * len(tokens),
                img_mask=places,
                return_dict=False,
            )[0]
    count = inputs.latent[0, 0].numel()
    return -out[:, -count:].transpose(1, 2).reshape(inputs.latent.shape)


def _text(inputs: DenoiserInputs) -> tuple[Tensor, Tensor]:
    """Return texts without padding and with all places of their sources, and where places are.

    The second result goes on with the places of the picture that is generated. Texts of a batch have their sources'
    places at the same positions. Those of a text encoder that keeps none have them in front.
    """
    sources = len(inputs.sources)
    text = inputs.text[:, : int(inputs.text_mask[0].sum())]
    is_place = ~text[0].any(dim=1)
    if int(is_place.sum()) < sources:
        text = pad(text, (0, 0, sources, 0))
        is_place = ~text[0].any(dim=1)
    is_place = is_place & (is_place.cumsum(dim=0) <= sources)
    repeats = torch.ones_like(is_place, dtype=torch.long)
    counts = [source[0, 0].numel() // _PER_PLACE for source in inputs.sources]
    repeats[is_place] = torch.tensor(counts, dtype=torch.long, device=text.device)
    own = is_place.new_ones(inputs.latent[0, 0].numel() // _PER_PLACE)
    places = torch.cat([is_place.repeat_interleave(repeats), own])
    return text.repeat_interleave(repeats, dim=1), places.expand(len(text), -1)


def _shape_only(module: Any, inputs: DenoiserInputs, tokens: Tensor, timestep: Tensor) -> Tensor:
    """Run the network's parts on the meta device, where it cannot read where pictures are: behind the text, for all."""
    hidden = torch.cat([module.txt_in(inputs.text), module.img_in(tokens)], dim=1)
    length, count = hidden.shape[1], inputs.latent[0, 0].numel()
    is_own = torch.arange(length, device=hidden.device) >= length - count
    times = torch.cat([timestep, timestep.new_zeros(1)]).to(hidden.dtype)
    embedding = module.time_text_embed(times, hidden)
    rotary = torch.empty(length, module.config.attention_head_dim // 2, dtype=torch.complex64, device=hidden.device)
    segments = [(0, length - count, True)]
    given = (module.modulation(embedding), rotary, None, is_own, None, None, None, segments, None)
    for block in module.transformer_blocks:
        if torch.is_grad_enabled() and module.gradient_checkpointing:
            hidden = module._gradient_checkpointing_func(block, hidden, *given)
        else:
            hidden = block(hidden, *given)
    out: Tensor = module.proj_out(module.norm_out(hidden, embedding, is_own))
    return out


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
    library = optional_imports.transformers()
    name, options = hub.pretrained_arguments(source)
    kind = library.Qwen3VLForConditionalGeneration
    encoder = kind.from_pretrained(name, **options, subfolder="text_encoder", dtype=dtype)
    tokenizer = library.AutoTokenizer.from_pretrained(name, **options, subfolder="processor")
    pictures = library.Qwen2VLImageProcessorPil.from_pretrained(name, **options, subfolder="processor")
    processor = ChatWithPictures(tokenizer, pictures)
    pipeline = optional_imports.from_diffusers("QwenImage21Pipeline")(None, None, encoder, processor, None)
    pipeline.tokenizer = tokenizer
    return pipeline


def encode_text(pipeline: Any, captions: list[str], _length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions."""
    tokens, mask, _ = pipeline.encode_prompt(captions)
    return EncodedText(tokens, mask)


def encode_text_and_pictures(pipeline: Any, captions: list[str], _length: int, pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each with its pictures in order; a row of zeros stands where a picture is."""
    rows = []
    for i, caption in enumerate(captions):
        shown = [Image.fromarray(each[i].cpu().numpy()) for each in pictures]
        (tokens,), _, (places,) = pipeline.encode_prompt([caption], shown or None)
        is_first = places & ~pad(places, (1, 0))[:-1]
        rows.append(tokens.masked_fill(places[:, None], 0)[~places | is_first])
    return EncodedText.from_rows(rows)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"qwen-image-2.1": encode_text, "qwen-image-2.1-edit": encode_text_and_pictures},
    load_text_parts=load_text_parts,
    no_pipeline=lambda _module: "the family's pipeline cannot be built without a text encoder, and makes RGBA pictures",
)
