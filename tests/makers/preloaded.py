"""Imported by a server of forked processes: all that a training imports only when it first needs it.

That would be a third of a tiny training's time. Whatever is imported then is left alone by the garbage collections of the
processes: one writes to each object that it looks at, so that a process copies the memory of all that the server imported,
which takes half a second.
"""

import gc
import importlib

import durable
from PIL import Image

from reelworks.core import annexes
from reelworks.models.precision import audited

for _name in (
    "av.subtitles.stream",
    "encodings.utf_8_sig",
    "faults",
    "pyarrow.dataset",
    "reelworks.inference.previews",
    "reelworks.models.families.stdit3.network",
    "reelworks.models.families.wan.network",
    "reelworks.training.coverage.stop_advice",
    "reelworks.training.loop.trainer",
    "rich._emoji_codes",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization.config",
    *(f"reelworks.annexes.{_annex}.annex" for _annex in ("captions", "hub", "imports", "lora", "page", "quality")),
):
    importlib.import_module(_name)
Image.init()
durable.leave_to_the_system()
# Looks through all that is installed, and through all files of the program, once for all trainings.
annexes.from_outside()
audited._program()
gc.collect()
gc.freeze()
