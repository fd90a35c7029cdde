"""What the record of a segment costs, and how long it takes to read the account of every clip from it.

`python -m benchmarks.coverage --clips 10000000 --json` prints as its last line what was seen. A catalog of the
synthetic clips of `_weblike.py` is written to disk as a scan would, an epoch is planned on it, its record is
written, half of its steps are told as training tells them, and `reelworks coverage RUN` reads the account in a
process of its own. Sizes are exact; seconds depend on what else the machine does (see `load_average`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import _weblike
from benchmarks._results import AT_START, keep
from benchmarks.schedule import machine_name, timed
from reelworks.core import system
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import position as positions
from reelworks.data.loader import segment_record
from reelworks.data.loader.position import DataPosition
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData

Json = dict[str, Any]
RANKS = 8
RESULTS = Path(__file__).parent / "results" / "coverage.json"


def make_catalog(folder: Path, n: int) -> None:
    """Write a catalog of `n` clips without reading a file."""
    clips = _weblike.clips(n)
    number = pc.utf8_lpad(pa.array(np.arange(n)).cast(pa.string()), width=9, padding="0")
    shard = pc.utf8_slice_codeunits(number, 0, 5)
    path = pc.binary_join_element_wise(shard, pc.binary_join_element_wise("clip", number, "-"), "/")
    columns: dict[str, Any] = {
        "ordinal": np.arange(n),
        "uid": clips.uid,
        "path": path,
        "fingerprint": number,
        "group": path,
        "caption": pc.binary_join_element_wise("a shot of something that moves, number", number, " "),
        "num_frames": clips.num_frames,
        "height": clips.height,
        "width": clips.width,
        "fps": np.where(clips.is_image, 0.0, 24.0),
        "duration_seconds": np.where(clips.is_image, 0.0, clips.num_frames / 24),
        "size_bytes": np.full(n, 1_000_000),
        "kind": pa.array(["video", "image"]).take(pa.array(clips.is_image.astype(np.int32))),
        **{
            name: np.zeros(n, np.bool_)
            for name in ("variable_fps", "has_alpha", "mirrored", "interlaced", "full_range")
        },
        "pixel_aspect_ratio": np.ones(n),
        "error": pa.nulls(n, pa.string()),
    }
    texts = {"dataset": "web", "root": "/data/web", "codec": "h264", "pixel_format": "yuv420p"}
    texts |= dict.fromkeys(("color_matrix", "hdr", "icc_profile", "sound", "cut"), "")
    columns |= {name: pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), [text]) for name, text in texts.items()}
    zeros = np.zeros(n, np.int64)
    table = pa.table({f.name: columns.get(f.name, zeros) for f in SCHEMA}).cast(SCHEMA)
    folder.mkdir(parents=True)
    Catalog(folder, ()).append(table, np.zeros(0, np.int64), [{"name": "web", "root": "/data/web"}])


def begin(root: Path) -> tuple[RunFolder, RecipeData, DataPosition]:
    """Plan an epoch of a run on the catalog."""
    recipe = recipe_file.parse(
        {
            "version": 1,
            "output": str(root / "run"),
            "catalog": str(root / "catalog"),
            "dataset": [{"path": str(root / "web"), "name": "web"}],
            "buckets": {
                "opensora": _weblike.STAGE_1,
                "probability": "opensora-1.2",
                "opensora_drop_exact_length": True,
            },
            "model": {"name": "stdit3-xl"},
            "autoencoder": {"name": "opensora-1.2", "weights": "not-read"},
            "train": {"max_epochs": 1},
        }
    )
    run = RunFolder(root / "run")
    run.create(RANKS)
    run.keep_recipe(recipe_file.dump(recipe))
    data = RecipeData.open(recipe)
    return run, data, positions.begin_epoch(data, data.plan_spec(RANKS, RANKS), epoch=0)


def tell(run: RunFolder, position: DataPosition) -> int:
    """Write the events of the first half of the epoch's steps; returns how many clips they trained."""
    plan, now = position.plan, time.time()
    own = np.concatenate([plan.own_clips, [0]])
    per_step = own[plan.steps].sum(axis=1)
    half = plan.num_steps // 2
    common = {"v": 1, "time": now}
    shape = {
        "micro_batches_per_step": RANKS,
        "same_bucket_run": RANKS,
        "world_size": RANKS,
        "recipe": run.recipe_file.name,
    }
    epoch = {
        "data_restarts": 0,
        "epoch": 0,
        "segment": 0,
        "planned": plan.planned,
        "plan_steps": plan.num_steps,
        "plan": plan.digest(),
    }
    numbers = {
        "epoch": 0,
        "loss": 0.5,
        "learning_rate": 1e-4,
        "grad_norm": 1.0,
        "repeated": 0,
        "applied": True,
        "seconds": 1.0,
    }
    with run.events_file.open("w", encoding="utf-8") as f:
        f.write(json.dumps({**common, "kind": "start", "step": 0, "resumed_from": None, **shape}) + "\n")
        f.write(json.dumps({**common, "kind": "epoch", "step": 0, **epoch}) + "\n")
        for plan_step in range(half):
            step = {
                "kind": "step",
                "step": plan_step + 1,
                "plan_step": plan_step,
                "clips": int(per_step[plan_step]),
                **numbers,
            }
            f.write(json.dumps({**common, **step}) + "\n")
    return int(per_step[:half].sum())


_READ = """
import json, sys, time
from pathlib import Path
began = time.perf_counter()
from reelworks.training.coverage import clip_history
from reelworks.core import results
from reelworks.data.run.folder import RunFolder
(epoch,) = clip_history.counts(RunFolder(Path(sys.argv[1]))).epochs
seconds = time.perf_counter() - began
# Of this process alone: what getrusage tells is inherited from the process that started it.
status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "peak": peak, **results.as_json(epoch)}))
"""


def write(root: Path) -> Json:
    """Write a segment's record, and the events of its steps."""
    run, data, position = begin(root)
    seconds, _ = timed(lambda: segment_record.begin(run, data, position, "recipe.toml"))
    files = {f.name: f.stat().st_size for f in sorted(records.path(run, position.key).iterdir())}
    return {
        "planned": position.plan.planned,
        "steps": position.plan.num_steps,
        "trained": tell(run, position),
        "record_s": seconds,
        "record_bytes": sum(files.values()),
        "record_files": files,
    }


def read(root: Path) -> Json:
    """Read the account in a fresh process."""
    command = [sys.executable, "-c", _READ, str(root / "run")]
    out = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    return dict(json.loads(out.splitlines()[-1]))


def measure(n: int) -> Json:
    """Everything for `n` clips."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_catalog(root / "catalog", n)
        written, account = write(root), read(root)
    if not account["adds_up"] or account["counts"]["trained"] != written["trained"]:
        raise AssertionError(f"the account is wrong: {account}")
    if sum(account["counts"].values()) != n:
        raise AssertionError(f"clips are missing from the account: {account['counts']}")
    return {
        "clips": n,
        **written,
        "coverage_s": account["seconds"],
        "coverage_peak_bytes": account["peak"],
        "writer_peak_bytes": system.peak_bytes(),
        "machine": machine_name(),
        **AT_START,
    }


def show(result: Json) -> None:
    """Print the figures for people."""
    print(f"{result['clips']:,} clips, {result['planned']:,} planned in {result['steps']:,} steps")
    print(f"record: {result['record_s']:.2f} s, {result['record_bytes'] / 1e6:.1f} MB")
    print(
        f"coverage: {result['coverage_s']:.2f} s, {result['coverage_peak_bytes'] / 1e9:.2f} GB; on {result['machine']}"
    )


def main() -> None:
    """Parse, measure, print; keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    arguments = parser.parse_args()
    result = measure(arguments.clips)
    if not arguments.json:
        show(result)
    if arguments.save:
        keep(RESULTS, result, str(arguments.clips))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
