"""How fast clips are encoded ahead of training, and what training gains: `python -m benchmarks.encode --json`.

The footage is made here, and the autoencoder is Wan's with drawn weights, small on a CPU, at full size on a GPU. In one
run it measures

- `encode_ratio`: clips per second of `reelworks encode` (decoding, encoding, writing and syncing) over those of the
  autoencoder alone on frames that lie in memory, in the same batch shapes; from the first batch on, without the start of
  processes. The two are measured in turn, several times, and the medians compared.
- `train_speedup`: steps per second from stored latents over those that decode and encode live, with the same model.
- `bytes_per_clip`: disk space of a clip, and `clips_s` and `frames_s` of encoding.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import av
import diffusers
import numpy as np
import torch

from benchmarks._results import keep
from reelworks.data.distributed.mesh import World
from reelworks.data.media.config import PREFETCH_BYTES
from reelworks.data.media.decode_pool import DecodePool
from reelworks.training.assembly import build
from reelworks.training.encoding import reachable, stored_batches, upkeep
from reelworks.training.encoding.encode_worker import Progress
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.plan import plan_forecast
from reelworks.training.precompute import encoding
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step.examples import ExampleBuilder, Predicted

RESULTS = Path(__file__).parent / "results" / "encode.json"
_WAN = {"z_dim": 16, "num_res_blocks": 1}


def footage(folder: Path, clips: int, frames: int, height: int, width: int) -> None:
    """Write clips of moving noise with captions."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(clips):
        still = generator.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        with av.open(str(folder / f"{number:04d}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=16)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for frame in range(frames):
                picture = av.VideoFrame.from_ndarray(np.roll(still, 4 * frame, axis=1), format="rgb24")
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        (folder / f"{number:04d}.txt").write_text(f"clip number {number}", encoding="utf-8")


def recipe_in(place: Path, frames: int, height: int, width: int, batch: int) -> dict[str, Any]:
    """Return the recipe of the benchmark."""
    return {
        "version": 1,
        "output": str(place / "run"),
        "dataset": [{"path": str(place / "footage")}],
        "bucket": [{"resolution": f"{height}x{width}", "num_frames": frames, "batch_size": batch}],
        # On a CPU, processes would take the cores from the autoencoder, and their start much of a short run.
        "data": {"clip_start": "start", "num_workers": 4 if torch.cuda.is_available() else 0},
        "model": {"name": "wan-tiny"},
        "autoencoder": {"name": "wan-2.1", "weights": str(place / "vae")},
        "text_encoder": {"name": "hashed", "dim": 32, "max_length": 12, "pooled_dim": 0},
        "objective": {"caption_dropout": 0.0},
        "encode": {"store": True},
        "validation": {"split": 0.0},
        "train": {"max_epochs": 1},
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def bare_seconds(encoder: FrozenEncoders, data: RecipeData, passes: int) -> float:
    """Return the seconds that the autoencoder needs for all clips, without decoding and writing."""
    bucket = data.table.buckets[0]
    shape = bucket.shape
    frames = torch.randint(
        0, 256, (bucket.batch_size, shape.num_frames, shape.height, shape.width, 3), dtype=torch.uint8
    )
    _wait(encoder.device)
    began = time.perf_counter()
    for _ in range(passes):
        encoder.latents(frames)
    _wait(encoder.device)
    return time.perf_counter() - began


def encode_seconds(data: RecipeData, encoder: FrozenEncoders) -> tuple[float, Progress, StoredLatents]:
    """Encode all clips into an empty store, and return the seconds of a clip from the first batch to the last commit."""
    shutil.rmtree(data.recipe.encoded_folder, ignore_errors=True)
    source = encoding.open_store(data)
    job = encoding.build_encoding_job(data, source, encoder.device, plan_forecast.plan_spec(data), encoder=encoder)
    _, progress = encoding.encode_missing(job)
    return (time.monotonic() - progress.first_at) / (progress.done - progress.first), progress, source


def step_seconds(data: RecipeData, encoder: FrozenEncoders, source: StoredLatents | None, steps: int) -> float:
    """Return the mean seconds of a forward and backward pass with all that prepares its inputs."""
    device, recipe = encoder.device, data.recipe
    torch.manual_seed(0)
    denoiser = build.denoiser(recipe, device)
    clips, size = data.entries(0), data.table.buckets[0].batch_size
    each = [
        reachable.request(data, clips.take(np.arange(i, i + size)), 0) for i in range(0, len(clips) - size + 1, size)
    ]
    work = (each[i % len(each)] for i in range(steps + 2))
    pool = DecodePool(recipe.data.num_workers, 120.0)
    began = 0.0
    try:
        examples = ExampleBuilder(recipe, data.table, stored_batches.choose(encoder, World(0, 1, device), source))
        for number, batch in enumerate(examples.encoder.read(work, pool, PREFETCH_BYTES)):
            if number == 2:  # workers have started, memory is allocated
                _wait(device)
                began = time.perf_counter()
            example = examples.build(examples.encode(batch), recipe.objective)
            output = Predicted(denoiser.predict(example.inputs))
            torch.autograd.backward(example.losses(output).sum())
        _wait(device)
        return (time.perf_counter() - began) / steps
    finally:
        pool.close()


def measure(args: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Measure everything in a folder of its own."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    size = {} if device.type == "cuda" else {"base_dim": 16}
    library: Any = diffusers
    library.AutoencoderKLWan(**_WAN, **size).save_pretrained(place / "vae")
    footage(place / "footage", args.clips, args.frames, args.height, args.width)
    recipe = recipe_file.parse(recipe_in(place, args.frames, args.height, args.width, args.batch))
    dataset.scan_recipe(recipe)
    data, encoder = RecipeData.open(recipe), build.encoder(recipe, device)
    bare_seconds(encoder, data, 1)
    bare, stored = [], []
    for _ in range(args.trials):
        bare.append(bare_seconds(encoder, data, args.clips // args.batch) / args.clips)
        seconds, progress, source = encode_seconds(data, encoder)
        stored.append(seconds)
    assert progress.done == args.clips
    latents = next(group for group in upkeep.summarise(source.store) if group.kind == "latent")
    live = [step_seconds(data, encoder, None, args.steps) for _ in range(args.trials)]
    from_store = [step_seconds(data, encoder, source, args.steps) for _ in range(args.trials)]
    middle = statistics.median
    return {
        "encode_ratio": round(middle(bare) / middle(stored), 3),
        "train_speedup": round(middle(live) / middle(from_store), 2),
        "bytes_per_clip": latents.bytes // latents.entries,
        "clips_s": round(1 / middle(stored), 3),
        "frames_s": round(args.frames / middle(stored), 2),
        "bare_clips_s": round(1 / middle(bare), 3),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "clips": args.clips,
        "shape": f"{args.frames}x{args.height}x{args.width}",
        "batch_size": args.batch,
    }


def main() -> None:
    """Measure, print, and save if asked."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=96 if cuda else 16)
    parser.add_argument("--frames", type=int, default=17 if cuda else 9)
    parser.add_argument("--height", type=int, default=480 if cuda else 128)
    parser.add_argument("--width", type=int, default=832 if cuda else 192)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3, help="their median counts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        seen = measure(args, Path(place))
    for name, value in seen.items() if not args.json else ():
        print(f"{name:16} {value}")
    print(json.dumps(seen))
    if args.save:
        keep(RESULTS, seen)


if __name__ == "__main__":
    main()
