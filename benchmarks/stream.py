"""How fast clips reach training, beside a bare decoding loop and PyTorch's DataLoader in the same run.

`python -m benchmarks.stream --json` makes small videos and pictures and prints as its last line what was seen. All ways
have two decoders: `bare` is two threads that open, decode, resize and crop with PyAV and keep nothing; `stream` is
`read_ahead` over a `DecodePool` of one process with two threads; the DataLoader has two spawned processes with the same
decode function, and torch's own settings otherwise. They take turns, and ratios are medians over the rounds.

`slow_wait_ratio` is the time that training waits with `stream`, over that with the DataLoader, if 2 % of the clips take
about 20 times as long (they are cut from the end of a long video that has one keyframe) and a step takes 1.3 times as long
as decoding its clips. `slow_wait_ratio_same_memory` is the same with as few batches ahead as the DataLoader has.
`rss_growth` is the growth of memory, workers included, over many batches of two pictures with a budget of 64 MB.

Seconds depend on what else the machine does (see `load_average`), ratios less so.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import torch
from av.video.reformatter import Interpolation
from PIL import Image

from benchmarks._results import AT_START, keep
from reelworks.core import machine
from reelworks.core.shape import Shape
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.loader.prefetch import read_ahead
from reelworks.data.media import decode
from reelworks.data.media.config import PREFETCH_BYTES
from reelworks.data.media.decode import Frames, Request
from reelworks.data.media.decode_pool import THREADS_PER_WORKER, DecodePool

RESULTS = Path(__file__).parent / "results" / "stream.json"
WORKERS = 1
DECODERS = WORKERS * THREADS_PER_WORKER
BATCH = 4
CLIP = Shape(17, 192, 320)
SOURCE = (360, 640)
PICTURE = Shape(1, 416, 416)  # two have 1.04 MB, so that a budget of 64 MB holds 61 batches
SLOW_SHARE, SLOW_FACTOR = 0.02, 20
STEP_OVER_DECODING = 1.3
DATALOADER_AHEAD = 2 * DECODERS  # batches, torch's default
MEMORY_BUDGET_BYTES = 64_000_000
TIMEOUT_SECONDS = 600.0
_BICUBIC = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


@dataclass(frozen=True)
class Sizes:
    """Amounts of work."""

    clips: int
    slow_clips: int
    rounds: int
    small_batches: int


FULL = Sizes(clips=240, slow_clips=600, rounds=5, small_batches=20_000)
QUICK = Sizes(clips=32, slow_clips=200, rounds=2, small_batches=600)


def write_video(path: Path, frames: int) -> None:
    """Write a moving pattern with noise, H.264 with a single keyframe."""
    height, width = SOURCE
    rng = np.random.default_rng(frames)
    y, x = np.mgrid[0:height, 0:width]
    with av.open(str(path), "w") as container:
        options = {"preset": "ultrafast", "g": "100000", "sc_threshold": "0"}
        stream = container.add_stream("libx264", rate=24, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        still = (np.stack([x, y, x + y], axis=-1) % 232 + rng.integers(0, 24, (height, width, 1))).astype(np.uint8)
        for t in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(still, 3 * t, axis=1), format="rgb24")))
        container.mux(stream.encode(None))


def write_pictures(folder: Path, number: int = 32) -> list[Path]:
    """Write small JPEG files."""
    paths = [folder / f"{i}.jpg" for i in range(number)]
    rng = np.random.default_rng(0)
    for path in paths:
        small = rng.integers(0, 256, (13, 13, 3), dtype=np.uint8)
        Image.fromarray(small).resize((PICTURE.width, PICTURE.height)).save(path)
    return paths


def request(path: Path, draw: float = 0.0) -> Request:
    """Return the request for 17 frames of a video."""
    return Request(path, False, CLIP, first_frame_draw=draw)


def seconds_of(one: Request) -> float:
    """Return the time that a clip takes to decode, the best of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        decode.load(one)
        times.append(time.perf_counter() - began)
    return min(times)


def slow_request(folder: Path, normal: Request) -> tuple[Request, float]:
    """Return a request that takes about `SLOW_FACTOR` times as long as a normal one, and how many times it does."""
    path, frames, base = folder / "long.mp4", 1200, seconds_of(normal)
    write_video(path, frames)
    per_draw = (seconds_of(request(path, 0.9)) - seconds_of(request(path, 0.1))) / 0.8
    draw = min(max((SLOW_FACTOR * base - seconds_of(request(path))) / per_draw, 0.1), 0.999)
    slow = request(path, draw)
    return slow, seconds_of(slow) / base


def bare_clip(one: Request) -> Frames:
    """Open, decode, resize and crop with nothing else."""
    frames = []
    with av.open(str(one.path)) as container:
        stream = container.streams.video[0]
        stream.thread_type, stream.thread_count = "NONE", 1
        height, width = one.cover(*SOURCE)
        top, left = (height - CLIP.height) // 2, (width - CLIP.width) // 2
        for frame in container.decode(stream):
            pixels = frame.reformat(width=width, height=height, format="rgb24", interpolation=_BICUBIC).to_ndarray()
            frames.append(pixels[top : top + CLIP.height, left : left + CLIP.width])
            if len(frames) == CLIP.num_frames:
                break
    return np.stack(frames)


def bare_speed(requests: list[Request]) -> float:
    """Return the clips per second of threads that keep nothing."""
    began = time.perf_counter()
    with ThreadPoolExecutor(DECODERS) as threads:
        for done in [threads.submit(lambda one: bare_clip(one).shape, one) for one in requests]:
            done.result()
    return len(requests) / (time.perf_counter() - began)


def micro_batches(requests: Iterable[Request], size: int = BATCH) -> Iterator[MicroBatchRequest]:
    """Yield the micro-batches of a list of requests."""
    requests = list(requests)
    for plan_step in range(len(requests) // size):
        chosen = tuple(requests[plan_step * size : (plan_step + 1) * size])
        yield MicroBatchRequest(
            epoch=0,
            plan_step=plan_step,
            index=0,
            ends_step=True,
            is_idle=False,
            bucket=0,
            shape=chosen[0].shape,
            uids=np.arange(size, dtype=np.uint64),
            copies=np.zeros(size, dtype=np.int64),
            repeat_index=np.zeros(size, dtype=np.int32),
            requests=chosen,
            captions=("",) * size,
            fps=(24.0,) * size,
        )


class Clips(torch.utils.data.Dataset[torch.Tensor]):
    """The clips as a dataset of torch."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(decode.load(self.requests[index]))


def dataloader(requests: list[Request]) -> Any:
    """Return torch's loader with as many decoders; iterating it again uses the same processes."""
    return torch.utils.data.DataLoader(
        Clips(requests),
        batch_size=BATCH,
        num_workers=DECODERS,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )


def speed(batches: Iterable[Any], clips: int) -> float:
    """Return the clips per second of batches that are dropped at once."""
    began = time.perf_counter()
    for _ in batches:
        pass
    return clips / (time.perf_counter() - began)


def throughput(requests: list[Request], pool: DecodePool, rounds: int) -> dict[str, float]:
    """Return rates of all ways, taken in turn, and the ratios of `stream` to the others."""
    loader = dataloader(requests)
    ways: dict[str, Callable[[], float]] = {
        "bare": lambda: bare_speed(requests),
        "stream": lambda: speed(read_ahead(micro_batches(requests), pool), len(requests)),
        "dataloader": lambda: speed(loader, len(requests)),
    }
    for way in ways.values():  # starts processes, fills caches
        way()
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[number % 3 :] + list(ways)[: number % 3]:
            rates[name].append(ways[name]())
    return {
        **{f"{name}_clips_s": statistics.median(own) for name, own in rates.items()},
        "ratio": of_pairs(rates["stream"], rates["bare"]),
        "dataloader_ratio": of_pairs(rates["stream"], rates["dataloader"]),
    }


def of_pairs(own: list[float], others: list[float]) -> float:
    """Return the median ratio of rounds."""
    return statistics.median(a / b for a, b in zip(own, others, strict=True))


def waiting(batches: Iterable[Any], step_seconds: float) -> float:
    """Return how long training waits for batches after the first, if a device computes for a time between them."""
    source, total = iter(batches), 0.0
    next(source)
    while True:
        time.sleep(step_seconds)  # the step is computed elsewhere, as by a GPU
        began = time.perf_counter()
        if next(source, None) is None:
            return total
        total += time.perf_counter() - began


def slow_waits(normal: list[Request], slow: Request, pool: DecodePool, sizes: Sizes) -> dict[str, float]:
    """Return how long `stream` and the DataLoader wait with a few slow clips among the others."""
    count = sizes.slow_clips
    rng = np.random.default_rng(7)
    places = set(rng.choice(np.arange(8 * BATCH, count), round(SLOW_SHARE * count), replace=False).tolist())
    requests = [slow if i in places else normal[i % len(normal)] for i in range(count)]
    loader = dataloader(requests)
    speed(loader, count)
    rate = speed(read_ahead(micro_batches(requests), pool), count)
    step_seconds = STEP_OVER_DECODING * BATCH / rate
    few_bytes = DATALOADER_AHEAD * BATCH * CLIP.num_frames * CLIP.height * CLIP.width * 3
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        "stream": lambda: read_ahead(micro_batches(requests), pool, PREFETCH_BYTES),
        "same_memory": lambda: read_ahead(micro_batches(requests), pool, few_bytes),
        "dataloader": lambda: loader,
    }
    waits: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(max(sizes.rounds // 2, 1)):
        for name, batches in ways.items():
            waits[name].append(waiting(batches(), step_seconds))
    return {
        **{f"slow_wait_{name}_s": statistics.median(own) for name, own in waits.items()},
        "slow_wait_ratio": of_pairs(waits["stream"], waits["dataloader"]),
        "slow_wait_ratio_same_memory": of_pairs(waits["same_memory"], waits["dataloader"]),
    }


def rss_bytes() -> int:
    """Return the memory of this process and its workers."""
    own = psutil.Process()
    return sum(process.memory_info().rss for process in (own, *own.children(recursive=True)))


def memory(pictures: list[Path], batches: int) -> dict[str, float]:
    """Return the memory after a tenth of the batches, at the end, and its growth."""
    requests = [Request(pictures[i % len(pictures)], True, PICTURE) for i in range(2 * batches)]
    pool, seen = DecodePool(WORKERS, TIMEOUT_SECONDS), []
    for number, batch in enumerate(read_ahead(micro_batches(requests, 2), pool, MEMORY_BUDGET_BYTES)):
        assert int(batch.frames[..., 0].max()) > 0, "the frames are read, as training does"
        if number % (max(batches // 200, 1)) == 0:
            seen.append(rss_bytes())
    pool.close()
    first, last = statistics.median(seen[20:40]), statistics.median(seen[-20:])
    return {"rss_warm_bytes": first, "rss_end_bytes": last, "rss_growth": last / first - 1}


def machine_name() -> str:
    """Return the processor and what runs on it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line] or [platform.machine()]
    return f"{machine.cores()} × {names[0]}, Python {platform.python_version()}, torch {torch.__version__}, PyAV {av.__version__}"


def measure(sizes: Sizes) -> dict[str, Any]:
    """Measure everything on new footage."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result |= memory(write_pictures(folder), sizes.small_batches)
        videos = [folder / f"{i}.mp4" for i in range(16)]
        for video in videos:
            write_video(video, CLIP.num_frames)
        requests = [request(videos[i % len(videos)]) for i in range(sizes.clips)]
        slow, factor = slow_request(folder, requests[0])
        pool = DecodePool(WORKERS, TIMEOUT_SECONDS)
        result |= throughput(requests, pool, sizes.rounds)
        result |= slow_waits(requests, slow, pool, sizes) | {"slow_factor": factor}
        pool.close()
    rounded = {key: float(f"{value:.4g}") for key, value in result.items()}
    return {**rounded, "decoders": DECODERS, "machine": machine_name(), **AT_START}


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, for a look")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    sizes = QUICK if args.quick else FULL
    seen = measure(sizes)
    if not args.json:
        for key, value in seen.items():
            print(f"{key:>28}  {value}")
    if args.save:
        keep(RESULTS, seen)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
