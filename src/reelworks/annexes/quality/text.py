"""Text in pictures, by the detector that comes in the package `rapidocr-onnxruntime` (`reelworks[text]`)."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from PIL import Image, ImageDraw

from reelworks.annexes.quality.measure import SampledClip, Still
from reelworks.data.catalog.store import measured_columns

PACKAGE = "rapidocr_onnxruntime"
_LONGER_PX = 960  # lines of text in larger frames are found in smaller ones too


@final
class TextArea:
    """Share of the picture that lines of text cover: subtitles, captions, logos with letters; the mean over frames."""

    name, version, reads = "text", 1, ("stills",)
    columns = measured_columns.WITH_EXTRAS["text"]

    def __init__(self) -> None:
        import rapidocr_onnxruntime

        options = {"det_limit_side_len": _LONGER_PX, "det_limit_type": "max", "intra_op_num_threads": 1}
        self._detector: Any = rapidocr_onnxruntime.RapidOCR(**options)

    def values(self, clip: SampledClip) -> tuple[float]:
        """Return the share."""
        return (float(np.mean([self._share(still) for still in clip.stills])),)

    def _share(self, still: Still) -> float:
        left, top, right, lower = still.box
        bgr = np.ascontiguousarray(still.rgb[top:lower, left:right, ::-1])
        lines, _ = self._detector(bgr, use_det=True, use_cls=False, use_rec=False)
        covered = Image.new("1", (right - left, lower - top))
        for corners in lines or ():
            ImageDraw.Draw(covered).polygon([(float(x), float(y)) for x, y in corners], fill=1)
        return float(np.asarray(covered).mean())
