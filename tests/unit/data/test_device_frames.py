"""Frames that the training device converts from planes are those of the decoder, up to rounding."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import av
import media_makers
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from stream_works import LONG_SECONDS

from reelworks.core.shape import Shape
from reelworks.data import device_frames
from reelworks.data.loader import Loader
from reelworks.data.micro_batch import MicroBatchRequest
from reelworks.data.prefetch import read_ahead
from reelworks.media import decode, planes
from reelworks.media.augment import Augmentation
from reelworks.media.config import Resize
from reelworks.media.decode import Request
from reelworks.media.decode_pool import DecodePool
from reelworks.media.planes import Planes
from reelworks.testing import sample_dataset

CPU = torch.device("cpu")
MEAN, MOST = 0.15, 1  # levels of 255; the mean of tiny frames of noise, several times that of usual ones
LIMIT = 1 << 30
MATRICES = {"bt709": 1, "bt601": 6, "bt2020": 9}  # ISO/IEC 23091-2


def picture(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Return soft colours with hard edges of saturated ones and some noise."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(height // 8, 2), max(width // 8, 2), 3), dtype=np.uint8)
    soft = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    soft += rng.integers(-8, 9, soft.shape)
    top, left = (int(rng.integers(0, side // 2)) for side in (height, width))
    soft[top : top + height // 3, left : left + width // 3] = rng.choice([0, 255], 3)
    return np.clip(soft, 0, 255).astype(np.uint8)


def frame_of(pixels: NDArray[np.uint8], matrix: str, full: bool) -> av.VideoFrame:
    """Return a frame in YUV 4:2:0 as a decoder gives it."""
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
    stored = frame.reformat(
        format="yuv420p", dst_colorspace=MATRICES[matrix] if matrix != "bt601" else 5, dst_color_range=2 if full else 1
    )
    stored.colorspace, stored.color_range = MATRICES[matrix], 2 if full else 1
    return stored


def both(request: Request, frame: av.VideoFrame, ratio: Fraction = Fraction(1)) -> tuple[Any, Any]:
    """Return a frame as the decoder and as the device converts it."""
    shown = (frame.height, round(frame.width * ratio))
    layout = planes.layout(request, frame, shown, LIMIT)
    assert layout is not None
    cut = Planes(layout.cut(frame)[None], layout)
    there = device_frames.to_device([cut], Shape(1, request.shape.height, request.shape.width), CPU)[0].numpy()
    here = decode.ToRgb(request)(frame, shown)[None]
    return request.augmentation.apply(here, request.shape), there


@settings(max_examples=80, deadline=None)
@given(
    source=st.tuples(st.integers(24, 150), st.integers(24, 150)),
    target=st.tuples(st.integers(12, 150), st.integers(12, 150)),
    draws=st.tuples(*[st.sampled_from([0.0, 0.3, 0.5, 0.999])] * 2),
    matrix=st.sampled_from(list(MATRICES)),
    full=st.booleans(),
    flip=st.booleans(),
    resize=st.sampled_from(get_args(Resize)),
    ratio=st.sampled_from([Fraction(1), Fraction(4, 3), Fraction(8, 9)]),
    seed=st.integers(0, 99),
)
def test_frames_are_those_of_the_decoder_up_to_rounding(
    source: tuple[int, int],
    target: tuple[int, int],
    draws: tuple[float, float],
    matrix: str,
    full: bool,
    flip: bool,
    resize: Resize,
    ratio: Fraction,
    seed: int,
) -> None:
    """For any sizes, odd ones too, matrix, range, filter, flip and shape of pixels, and crops at the edges."""
    request = Request(
        Path("a.mp4"), False, Shape(1, *target), crop_draw=draws, resize=resize, augmentation=Augmentation(flip=flip)
    )
    here, there = both(request, frame_of(picture(*source, seed), matrix, full), ratio)
    difference = np.abs(here.astype(int) - there)
    assert difference.mean() <= MEAN
    assert difference.max() <= MOST


H264 = {"crf": "4", "bf": "2"}
FRAMES = 24


def request(path: Path, target: tuple[int, int] = (32, 48), frames: int = 5, **more: Any) -> Request:
    return Request(path, False, Shape(frames, *target), **more)


def clip(path: Path, size: tuple[int, int] = (36, 64), number: int = FRAMES, **encoding: Any) -> Path:
    """Write soft colours whose brightness counts the frames."""
    still = picture(*size, seed=size[0]) // 4
    frames = [still + np.uint8(20 + media_makers.GREY_STEP * i) for i in range(number)]
    return media_makers.write(path, frames, **encoding)


def agree(wanted: Request) -> None:
    """Check that a clip is read as planes, and that these become the frames of the decoder."""
    read = planes.load(wanted, LIMIT)
    assert isinstance(read, Planes)
    there = device_frames.to_device([read], wanted.shape, CPU)[0].numpy()
    difference = np.abs(decode.load(wanted).astype(int) - there)
    assert difference.mean() <= MEAN
    assert difference.max() <= MOST


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("a.mp4", {"options": H264}),  # chroma samples lie at the left
        ("a.webm", {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8"}}),  # in the middle
        ("a.mkv", {"codec": "libx265", "options": {"x265-params": "log-level=none:chromaloc=2"}}),  # upper left
        ("a.avi", {"codec": "mjpeg", "pixel_format": "yuvj420p"}),  # in the middle, full range
        ("a.mov", {"options": {**H264, "flags": "+ildct+ilme", "x264-params": "tff=1"}}),  # interlaced
    ],
)
def test_files_give_the_frames_of_the_decoder_wherever_chroma_lies(
    tmp_path: Path, name: str, encoding: dict[str, Any]
) -> None:
    path = clip(tmp_path / name, **encoding)
    for target in ((36, 64), (20, 30), (40, 90)):
        agree(request(path, target, crop_draw=(0.0, 0.9)))


@pytest.mark.parametrize("size", [(1280, 720), (480, 704)])
def test_files_that_state_no_matrix_have_that_of_their_size(tmp_path: Path, size: tuple[int, int]) -> None:
    agree(request(clip(tmp_path / "a.mp4", size, 2, options={"preset": "ultrafast"}), (272, 480), 2))


def test_frames_are_turned_mirrored_and_flipped_as_the_decoder_does(tmp_path: Path) -> None:
    one = 1 << 16
    matrices = [(a, 0, 0, d) for a in (one, -one) for d in (one, -one)] + [
        (0, b, c, 0) for b in (one, -one) for c in (one, -one)
    ]
    plain = clip(tmp_path / "a.mp4", number=2, options=H264).read_bytes()
    for matrix in matrices:
        path = tmp_path / "turned.mp4"
        path.write_bytes(plain)
        media_makers.set_matrix(path, *matrix)
        for flip in (False, True):
            agree(request(path, (30, 26), 2, crop_draw=(0.2, 0.9), augmentation=Augmentation(flip=flip)))


@pytest.mark.parametrize(("step", "draw"), [(1, 0.0), (3, 0.5), (2.5, 0.999)])
def test_the_frames_asked_for_come_back(tmp_path: Path, step: float, draw: float) -> None:
    """The luma of the planes counts the frames."""
    path = media_makers.write(tmp_path / "a.mp4", media_makers.numbered(FRAMES, (32, 48)), options={"bf": "2"})
    wanted = request(path, step=step, first_frame_draw=draw)
    read = planes.load(wanted, LIMIT)
    assert isinstance(read, Planes)
    there = device_frames.to_device([read], wanted.shape, CPU)[0].numpy()
    assert media_makers.numbers(there) == decode.frame_indices(FRAMES, 5, step, draw).tolist()


@pytest.mark.parametrize(
    ("name", "encoding", "more"),
    [
        ("a.mkv", {"codec": "ffv1", "pixel_format": "yuv420p10le"}, {}),
        ("a.mkv", {"codec": "ffv1", "pixel_format": "yuv444p"}, {}),
        ("a.mp4", {"options": {**H264, "x264-params": "transfer=smpte2084"}}, {}),
        ("a.mp4", {"options": {**H264, "x264-params": "colorprim=bt2020"}}, {}),
        ("a.mp4", {"options": H264}, {"augmentation": Augmentation(flip=True, degrees=4.0)}),
        ("a.mp4", {"options": H264}, {"augmentation": Augmentation(flip=True, brightness=1.2)}),
        ("a.mp4", {"options": H264}, {"measures": Shape(FRAMES, 36, 64)}),  # it has companions
        ("a.mp4", {"options": H264}, {"nearest": True}),
        ("a.mp4", {"options": H264}, {"shape": Shape(5, 8, 8)}),
    ],
)
def test_other_clips_are_converted_by_the_decoder_to_the_same_bytes(
    tmp_path: Path, name: str, encoding: dict[str, Any], more: dict[str, Any]
) -> None:
    wanted = Request(**{**vars(request(clip(tmp_path / name, **encoding))), **more})
    read = planes.load(wanted, planes.most_bytes(wanted))
    assert isinstance(read, np.ndarray)
    assert np.array_equal(read, decode.load(wanted))


def test_a_file_whose_colours_change_is_converted_by_the_decoder(tmp_path: Path) -> None:
    parts = []
    for begin_ms, matrix in ((0, "bt709"), (400, "smpte170m")):
        options, times = {**H264, "x264-params": f"colormatrix={matrix}"}, range(begin_ms, begin_ms + 160, 40)
        parts.append(clip(tmp_path / f"{matrix}.ts", number=4, options=options, times_ms=times).read_bytes())
    path = tmp_path / "joined.ts"
    path.write_bytes(b"".join(parts))
    wanted = request(path, frames=8)
    frames = planes.load(wanted, LIMIT)
    assert isinstance(frames, np.ndarray)
    assert np.array_equal(frames, decode.load(wanted))
    agree(request(path, frames=3))


@pytest.mark.parametrize(("target", "is_cut"), [((48, 80), True), ((40, 60), True), ((24, 40), False)])
def test_large_frames_of_which_little_is_left_are_made_smaller_by_the_decoder(
    tmp_path: Path, target: tuple[int, int], is_cut: bool
) -> None:
    path = clip(tmp_path / "a.mp4", (90, 160), 6, options=H264)
    wanted = request(path, target, size=(90, 160))
    read = planes.load(wanted, planes.most_bytes(wanted))
    size = read.data.nbytes if isinstance(read, Planes) else read.nbytes
    assert isinstance(read, Planes) == is_cut
    assert abs(size - planes.expected_bytes(wanted)) <= 0.05 * size


def work_of(row: int, requests: list[Request]) -> MicroBatchRequest:
    n = len(requests)
    return MicroBatchRequest(
        epoch=0,
        row=row,
        index=0,
        ends_step=True,
        is_idle=False,
        bucket=0,
        shape=requests[0].shape,
        uids=np.arange(n, dtype=np.uint64),
        copies=np.zeros(n, dtype=np.int64),
        repeat_index=np.zeros(n, dtype=np.int32),
        requests=tuple(requests),
        captions=("",) * n,
        fps=(24.0,) * n,
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_micro_batch_may_have_clips_of_all_kinds(tmp_path: Path, num_workers: int) -> None:
    plain, deep = clip(tmp_path / "a.mp4", options=H264), tmp_path / "b.mkv"
    clip(deep, codec="ffv1", pixel_format="yuv420p10le")
    large = clip(tmp_path / "c.mp4", (72, 128), 6, options=H264)  # of which more bytes than of frames are needed
    requests = [request(plain), request(tmp_path / "none.mp4"), request(deep), request(large, crop_draw=(0.9, 0.1))]
    pool = DecodePool(num_workers, LONG_SECONDS)
    works = [work_of(row, requests) for row in range(3)]
    here, there = (list(read_ahead(works, pool, device=device)) for device in (None, CPU))
    pool.close()
    for ours, theirs in zip(here, there, strict=True):
        difference = (ours.frames.int() - theirs.frames.int()).abs()
        assert difference[0].max() > 0, "frames of planes round at other places"
        assert difference[3].max() > 0
        assert difference.max() <= MOST
        assert torch.equal(ours.frames[[1, 2]], theirs.frames[[1, 2]])
        assert ours.failures == theirs.failures
        assert ours.is_valid.tolist() == theirs.is_valid.tolist() == [True, False, True, True]


def test_a_loader_asks_for_planes_if_it_has_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    submit, asked = DecodePool.submit, list[int]()

    def noted(pool: DecodePool, *arguments: Any, planes_bytes: int = 0) -> Any:
        asked.append(planes_bytes)
        return submit(pool, *arguments, planes_bytes=planes_bytes)

    monkeypatch.setattr(DecodePool, "submit", noted)
    here, there = (
        [batch.frames for step in Loader(sample_dataset(), device=device) for batch in step] for device in (None, "cpu")
    )
    assert sum(count > 0 for count in asked) == sum(len(batch) for batch in there if batch.shape[1] > 1)
    assert all((ours.int() - theirs.int()).abs().max() <= MOST for ours, theirs in zip(here, there, strict=True))


def test_planes_count_in_the_budget_and_the_queue(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", (72, 128), options=H264)
    wanted = request(path, (40, 64), size=(72, 128))
    size = planes.expected_bytes(wanted)
    assert size > decode.load(wanted).nbytes
    pool = DecodePool(0, LONG_SECONDS)
    batches = read_ahead([work_of(row, [wanted]) for row in range(4)], pool, 2 * size, CPU)
    seen = []
    for batch in batches:
        pool.submit(wanted).result()  # what was queued before it has begun
        pool.submit(wanted).result()
        seen.append(batch.stream.queue_bytes)
    pool.close()
    assert max(seen) <= 2 * size
    assert set(seen) <= {0, size, 2 * size}
    assert max(seen) > 0
