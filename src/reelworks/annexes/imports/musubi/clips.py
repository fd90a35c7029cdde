"""Rules by which the buckets of musubi-tuner drop clips, and the captions that it shows."""

from __future__ import annotations

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.musubi import musubi_datasets
from reelworks.annexes.imports.trainer import FormerBuckets
from reelworks.annexes.imports.values import is_on

_NO_CAPTION = "pictures without a caption file are left out"
_VIDEO_WITHOUT = "a video without a caption file stops the caching of captions"


def buckets(settings: FormerSettings, dataset: int) -> FormerBuckets:
    """Return the rules of its buckets, whose last batch may be smaller (dataset/bucket.py)."""
    own = musubi_datasets.datasets_of(settings)[dataset]
    if musubi_datasets.is_video(settings, own):
        return FormerBuckets(least_frames=min(musubi_datasets.lengths_of(settings, own)))
    keeps_size = all(is_on(own.get(settings, name, False)) for name in ("enable_bucket", "bucket_no_upscale"))
    return FormerBuckets(enlarges=not keeps_size)


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption:
    """Return the caption of a clip: the whole text of its file, or that of the list (dataset/datasources.py)."""
    dataset = musubi_datasets.datasets_of(settings)[beside.clip.dataset]
    ending = dataset.find(settings, "caption_extension")
    if beside.path and ending is None:
        return captions.stops("without caption_extension no caption is found, and their caching stops")
    text = beside.text(str(ending.value) if ending else "")
    if text is None:
        return captions.stops(_NO_CAPTION if beside.clip.is_image else _VIDEO_WITHOUT)
    return captions.former([text.strip()])
