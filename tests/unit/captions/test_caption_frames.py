"""A captioner is shown the middles of equal parts of a clip, as a player shows them, and no larger than asked for."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import media_makers as media
import numpy as np
import places
import pytest
from PIL import Image

from reelworks.annexes.captions import asking, clips, frames
from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.caption import caption
from reelworks.annexes.captions.clips import CaptionClip
from reelworks.annexes.captions.request import CaptionRequest


def found(folder: Path) -> CaptionClip:
    ((clip,),) = [source.clips for source in clips.find([str(folder)], None)]
    return clip


@pytest.mark.parametrize(
    ("total", "count", "shown"),
    [(12, 3, [2, 6, 10]), (12, 1, [6]), (5, 8, [0, 1, 2, 3, 4]), (10, 4, [1, 3, 6, 8]), (1, 8, [0])],
)
def test_frames_are_evenly_spaced(tmp_path: Path, total: int, count: int, shown: list[int]) -> None:
    media.write(tmp_path / "v.mp4", media.numbered(total))
    kind, read, fps = frames.read(found(tmp_path), count, 768)
    assert kind == "video"
    assert media.numbers(read) == shown
    assert fps == pytest.approx(24 * len(shown) / total)


def test_a_range_is_read_alone(tmp_path: Path) -> None:
    media.write(tmp_path / "v.mp4", media.numbered(20))
    (tmp_path / "cuts.csv").write_text("path,start_frame,end_frame\nv.mp4,4,10\nv.mp4,10,\n", encoding="utf-8")
    (source,) = clips.find([str(tmp_path / "cuts.csv")], None)
    assert [media.numbers(frames.read(clip, 2, 768)[1]) for clip in source.clips] == [[5, 8], [12, 17]]


def test_large_frames_become_smaller_and_small_ones_stay(tmp_path: Path) -> None:
    media.write_picture(tmp_path / "p.png", size=(300, 200))
    assert frames.read(found(tmp_path), 8, 100)[1].shape == (1, 67, 100, 3)
    assert frames.read(found(tmp_path), 8, 768)[1].shape == (1, 200, 300, 3)


def test_pictures_are_shown_as_viewers_show_them(tmp_path: Path) -> None:
    """Turned by their orientation, and transparent ones on white; an animation is a video."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(media.quarters(20, 40)).save(tmp_path / "p.png", exif=exif)
    kind, read, _ = frames.read(found(tmp_path), 8, 768)
    assert (kind, read.shape) == ("picture", (1, 40, 20, 3))
    (tmp_path / "p.png").unlink()
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "p.png")
    assert (frames.read(found(tmp_path), 8, 768)[1] == 255).all()
    (tmp_path / "p.png").unlink()
    shots = [Image.new("L", (8, 8), 40 * i) for i in range(4)]
    shots[0].save(tmp_path / "a.gif", save_all=True, append_images=shots[1:], duration=50)
    kind, read, _ = frames.read(found(tmp_path), 2, 768)
    assert kind == "video"
    assert np.abs(read[:, 0, 0, 0].astype(int) - [40, 120]).max() <= 2


def test_a_member_of_an_archive_is_read_in_place(tmp_path: Path) -> None:
    media.write(tmp_path / "v.mp4", media.numbered(6))
    with tarfile.open(tmp_path / "all.tar", "w") as packed:
        packed.add(tmp_path / "v.mp4", "v.mp4")
    (tmp_path / "v.mp4").unlink()
    assert media.numbers(frames.read(found(tmp_path), 3, 768)[1]) == [1, 3, 5]


def test_a_file_that_vanished_is_a_reason(tmp_path: Path) -> None:
    media.write(tmp_path / "v.mp4", media.numbered(6))
    clip = found(tmp_path)
    (tmp_path / "v.mp4").unlink()
    with pytest.raises(CaptionFailed, match=r"No such file|not found|cannot find"):
        frames.read(clip, 3, 768)


def test_a_decoder_that_never_returns_costs_its_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.png", "b.png"):
        media.write_picture(tmp_path / name)
    real, pipe = frames.read, tmp_path / "pipe"
    places.pipe(pipe)
    monkeypatch.setattr(asking, "_MOST_SECONDS", 1.0)
    monkeypatch.setattr(sys.modules[caption.__module__], "_FAILURES_IN_A_ROW", 1)  # of a captioner that does not work
    monkeypatch.setattr(
        frames,
        "read",
        lambda clip, *how, **more: real(clip, *how, **more) if clip.path == "b.png" else pipe.read_bytes(),
    )
    request = CaptionRequest(data=(str(tmp_path),), command="echo A test picture.")
    result = caption(request)
    assert [(failed.clip, failed.reason) for failed in result.failed] == [
        (f"{tmp_path.name}/a.png", "reading it took more than 1 s and was stopped")
    ]
    assert (tmp_path / "b.txt").read_text(encoding="utf-8") == "A test picture.\n"
