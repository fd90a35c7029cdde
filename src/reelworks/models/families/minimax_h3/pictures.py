"""Texts of MiniMax-H3 with the pictures and clips that its text encoder sees before them, as its release presents them.

Sounds are named there, but not heard. The network is told which tokens are of pictures. In embeddings here rows of zeros
that count mark where these begin and end: a text, zeros, a picture, zeros, a text.

Legend: T frames, H height, W width, L tokens, D width of an embedding.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.data.loader import upload
from reelworks.models import hub
from reelworks.models.diffusers_denoiser import EncodedText
from reelworks.models.text.modular_pipelines import TextParts

VIDEO, TEXT = 0, 1  # kinds of tokens, as the network numbers them
_LAYER = 50  # of the text encoder, whose states the network reads
_FPS, _SEEN_FPS = 24.0, 2.0  # of clips, and of the frames of them that the text encoder sees
_PICTURE, _CLIP = "<|image_pad|>", "<|video_pad|>"  # each occurs once for each token of a picture or clip


def encode_text(parts: TextParts, captions: Sequence[str], length: int, pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each with its pictures, clips and sounds in order, with the functions of the pipeline.

    Captions without any are cut to `length` tokens. An empty one is a space, as no token begins it.
    """
    return EncodedText.from_rows(
        [
            _one(parts, caption, [each[i].cpu().numpy() for each in pictures], length)
            for i, caption in enumerate(captions)
        ]
    )


def _one(parts: TextParts, caption: str, shown: list[NDArray[Any]], length: int) -> Tensor:
    steps: Any = importlib.import_module("diffusers.modular_pipelines.minimax_h3.encoders")
    how, inputs = steps.MiniMaxH3Ref2VATextEncoderStep, dict[str, Tensor]()
    pictures = [parts.processor.picture(frames[0]) for frames in shown if _kind(frames) == "image"]
    clips, times = [], []
    for frames in shown:
        if _kind(frames) == "video":
            sampled, seconds = how._sample_video_condition_frames(frames, _FPS, _SEEN_FPS, parts.processor.frames)
            clips.append(parts.processor.clip(sampled))
            times.append(seconds)
    for names, given in (
        (("pixel_values", "image_grid_thw"), pictures),
        (("pixel_values_videos", "video_grid_thw"), clips),
    ):
        inputs |= {name: torch.cat([each[i] for each in given]) for i, name in enumerate(names) if given}
    tokens = [[int(grid[0, 1:].prod()) // parts.processor.merged for _, grid in given] for given in (pictures, clips)]
    # A sound before its clip is named as one alone is.
    references = [SimpleNamespace(kind=kind, has_audio=kind == "audio") for kind in map(_kind, shown)]
    caption = caption if shown else caption or " "
    ids, kinds = how._build_presentation(parts.tokenizer, caption, references, *tokens, times, TEXT, VIDEO)
    if shown:
        _require_room(kinds, length)
    numbers = {parts.tokenizer.convert_tokens_to_ids(name): i for i, name in enumerate((_PICTURE, _CLIP), start=1)}
    processor = SimpleNamespace(
        create_mm_token_type_ids=lambda rows: [[numbers.get(id, 0) for id in row] for row in rows]
    )
    encoder = parts.text_encoder
    ids = ids if shown else ids[:length]
    states = steps.get_qwen3vl_prompt_embeds(encoder, processor, ids, inputs, _LAYER, encoder.device, encoder.dtype)[0]
    return _marked(states, kinds) if shown else states


def _kind(shown: NDArray[Any]) -> str:
    """Return what the release calls a picture or clip `[T, H, W, 3]`, or a sound `[S, K]`."""
    return "audio" if shown.ndim == 2 else "image" if len(shown) == 1 else "video"


def _changes(kinds: Sequence[int]) -> list[int]:
    return [at for at in range(1, len(kinds)) if kinds[at] != kinds[at - 1]]


def _require_room(kinds: Sequence[int], length: int) -> None:
    """Refuse a length that would cut off the end of a caption, which follows its pictures."""
    if (needed := len(kinds) + len(_changes(kinds))) > length:
        raise UserError(
            f"a caption has {needed} tokens with what the text encoder sees before it: {kinds.count(VIDEO)} are of pictures",
            code="text-length-too-small",
            field="text_encoder.max_length",
            value=length,
            remedy=f"set it to {math.ceil(needed / 256) * 256}, or give smaller pictures",
        )


def _marked(states_LD: Tensor, kinds: Sequence[int]) -> Tensor:
    """Put a row of zeros where pictures begin and end."""
    zeros = states_LD.new_zeros(1, states_LD.shape[1])
    parts = states_LD.tensor_split(_changes(kinds))
    return torch.cat([part for each in parts for part in (zeros, each)][1:])


def unmarked(text_BLD: Tensor, mask_BL: Tensor) -> tuple[list[Tensor], list[list[int]]]:
    """Return texts without masked tokens and without marks, and the kinds of their tokens; the host waits once.

    On the meta device, where there are no values, and in a text of zeros, all tokens are kept, as those of texts.
    """
    if mask_BL.is_meta:
        return list(text_BLD), [[TEXT] * text_BLD.shape[1]] * len(text_BLD)
    texts, kinds = [], []
    kept, has_value = torch.stack([mask_BL, text_BLD.any(dim=2)]).tolist()
    for text_LD, is_kept, is_given in zip(text_BLD, kept, has_value, strict=True):
        places, found, kind = [], [], TEXT
        for at in (at for at, keep in enumerate(is_kept) if keep):
            if is_given[at] or not any(is_given):
                places.append(at)
                found.append(kind)
            else:
                kind = VIDEO if kind == TEXT else TEXT
        if len(places) < len(text_LD):
            text_LD = text_LD[upload.to_device(torch.tensor(places, device="cpu"), text_LD.device)]
        texts.append(text_LD)
        kinds.append(found)
    return texts, kinds


@final
class SeenPictures:
    """Prepares pictures and clips as the release's processors do, of which that of clips needs torchvision."""

    def __init__(self, prepare: Any, clip_pixels: tuple[int, int]) -> None:
        """Take the processor of pictures, and the least and the most pixels of all frames of a clip."""
        self._prepare, self._clip_pixels = prepare, clip_pixels
        self.frames, self.merged = prepare.temporal_patch_size, prepare.merge_size**2

    def picture(self, frame_HWC: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Return the pixels of a picture's patches, and the numbers of patches along time, height and width."""
        made = self._prepare(images=[Image.fromarray(frame_HWC)], return_tensors="pt")
        return made["pixel_values"], made["image_grid_thw"]

    def clip(self, frames_THWC: Sequence[NDArray[np.uint8]]) -> tuple[Tensor, Tensor]:
        """Return the same of frames, of which a patch has a few; the last one fills up."""
        size = self._clip_size(len(frames_THWC), *frames_THWC[0].shape[:2])
        resized = [Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC) for frame in frames_THWC]
        resized += resized[-1:] * (-len(resized) % self.frames)
        made = self._prepare(images=resized, do_resize=False, return_tensors="pt")
        _, rows, columns = made["image_grid_thw"][0].tolist()
        # A patch of a picture holds it several times, of which one is taken of each frame.
        channels = len(self._prepare.image_mean)
        alone = made["pixel_values"].view(len(resized), rows * columns, channels, self.frames, -1)[:, :, :, 0]
        groups = alone.unflatten(0, (-1, self.frames)).permute(0, 2, 3, 1, 4)
        return groups.flatten(0, 1).flatten(1), torch.tensor([[len(groups), rows, columns]])

    def _clip_size(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Return width and height: multiples of a token's side, with a number of pixels of all frames within limits."""
        unit, (least, most) = self._prepare.patch_size * self._prepare.merge_size, self._clip_pixels
        sides = [round(side / unit) * unit for side in (height, width)]
        pixels = round(count / self.frames) * self.frames * math.prod(sides)
        if pixels > most or pixels < least:
            scale = math.sqrt((most if pixels > most else least) / (count * height * width))
            rounded = math.floor if pixels > most else math.ceil
            sides = [max(rounded(side * scale / unit), 1) * unit for side in (height, width)]
        return sides[1], sides[0]


def load(_tokenizer: Any, source: str) -> SeenPictures:
    """Load the settings of the release's processors from their folder in a pipeline."""
    prepare = optional_imports.transformers().Qwen2VLImageProcessorPil
    videos: Any = importlib.import_module("transformers.video_processing_utils").VideoProcessorMixin
    of_clips, _ = hub.pretrained(videos.get_video_processor_dict, source, subfolder="processor")
    limits = of_clips["size"]["shortest_edge"], of_clips["size"]["longest_edge"]
    return SeenPictures(hub.pretrained(prepare.from_pretrained, source, subfolder="processor"), limits)
