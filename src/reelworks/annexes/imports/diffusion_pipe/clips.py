"""Rules by which the buckets of diffusion-pipe drop clips, and the captions that it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reelworks.annexes.imports import captions, values
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.diffusion_pipe import data
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.trainer import FormerBuckets


def buckets(settings: FormerSettings, dataset: int) -> FormerBuckets | None:
    """Return the rules of its buckets, which are cut to whole batches, always without the same clips (utils/dataset.py)."""
    try:
        directory = data.directories(settings)[dataset]
        gpus, stages = (values.whole(settings.get(key, 1), 1, 10**6) for key in ("num_gpus", "pipeline_stages"))
        steps = max(gpus // stages, 1) * values.whole(settings.get("gradient_accumulation_steps", 1))
        batch = steps * data.batch_size(settings.get("micro_batch_size_per_gpu", 1), values.MOST)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        return None
    lengths = [frames for _, _, frames in directory.sizes] or directory.frames
    return FormerBuckets(whole_batches=batch, least_frames=min((each for each in lengths if each > 1), default=0))


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption | None:
    """Return the captions of a file: a prefix, and its text with its tags in a few orders (utils/dataset.py)."""

    def get(name: str, default: Any = None) -> Any:
        return data.of_directory(settings, beside.clip.dataset, name, default)

    prefix, delimiter = str(get("caption_prefix", "")), str(get("cache_shuffle_delimiter", ", "))
    shuffles = get("cache_shuffle_num", 0) or get("shuffle_tags", False)
    listed = beside.read(str(Path(beside.path).with_name("captions.json"))) if beside.path else None
    own = json.loads(listed).get(Path(beside.path).name) if listed is not None else None
    texts = own if isinstance(own, list) else [(beside.text(".txt") or "").strip()]
    why = "captions are those of captions.json" if isinstance(own, list) else ""
    if not shuffles:
        return captions.former([f"{prefix}{text}" for text in texts], why)
    joint = delimiter.strip() or delimiter
    parts = [captions.mixed([], text.split(delimiter), joint=f"{joint} ") for text in texts]
    found = (part._replace(text=captions.plain(prefix + part.text).text) for part in parts)
    return FormerCaption(frozenset(found), why or f"tags are split at {delimiter!r} and shuffled")
