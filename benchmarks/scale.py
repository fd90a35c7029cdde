"""Catalogs of millions of rows: seconds and memory to open and to plan; and the speed of scans of real small files.

`python -m benchmarks.scale --json` prints as its last line what was seen; `--rows` sets the size of the synthetic
catalog (`_catalogs.py`), of which `--catalog` keeps the folder for the next time, `--files` the number of real pictures, which are scanned and scanned again, and `--videos` that of
short videos. Each measurement has a process of its own. `scan_ratio` compares the videos that a scan examines in a second
with a bare loop that reads and probes the same files in as many processes, `picture_ratio` tiny pictures, which are probed
in a fifth of a millisecond, so that listing them and writing their rows takes as long. Seconds depend on what else the machine does (see
`load_average`); `cpu_s` less so.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import _catalogs, _ranks
from benchmarks._results import AT_START, keep
from benchmarks.schedule import machine_name
from reelworks.core import machine
from reelworks.core.worker_pool import WorkerPool
from reelworks.data.catalog.scan import probe_pool
from reelworks.data.media import location, probe
from reelworks.inference.generate import writers

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "scale.json"
RECIPE = Path(__file__).parents[1] / "recipes" / "opensora-1.2-stage1.toml"
_COMPACTED_ROWS = 10_000_000  # more are compacted in proportion
_COMMAND = """
import json, sys, time
began = time.perf_counter()
try:
    {body}
finally:
    seen = {{"s": time.perf_counter() - began, "cpu_s": time.process_time()}}
    # Not ru_maxrss, which begins with what the parent used.
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    seen["rss_gb"] = int(peak.split()[1]) * 1024 / 1e9
    sys.stderr.write("\\n" + json.dumps(seen) + "\\n")
    sys.stderr.flush()
"""
_OPEN = "from reelworks.data.catalog.store.store import Catalog; Catalog.open(sys.argv[1]).live()"
_DIGEST = "from reelworks.data.catalog.store.store import Catalog; Catalog.open(sys.argv[1]).digest()"  # once for each version
_SCAN = "from reelworks.data.catalog.store.store import Catalog; Catalog.scan(sys.argv[1], to=sys.argv[2])"
_CLI = "from reelworks.commands.main import app; app(sys.argv[1:], standalone_mode=False)"


def alone(body: str, *arguments: str) -> Json:
    """Run a line of Python in a fresh process; return its seconds, processor seconds and peak memory."""
    command = [sys.executable, "-c", _COMMAND.format(body=body), *arguments]
    done = subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    seen: Json = json.loads(done.stderr.strip().splitlines()[-1])
    return {name: round(value, 3) for name, value in seen.items()}


def of_rows(rows: int, folder: Path, catalog: Path) -> Json:
    """Open, plan and compact a synthetic catalog, and begin and resume a run on it with eight ranks."""
    if not (catalog / "catalog.json").exists():
        _catalogs.make(catalog, rows)
    keys = ['dataset=[{path="/data/web", name="web"}]', f'catalog="{catalog}"', f'output="{folder}/run"']
    plan = ["plan", str(RECIPE), "--world", "8", "--json", "--no-scan", *(a for key in keys for a in ("--set", key))]
    result = {"rows": rows, "open": alone(_OPEN, str(catalog)), "plan": alone(_CLI, *plan)}
    result |= {"digest": alone(_DIGEST, str(catalog)), **of_ranks(folder, keys)}
    if rows > _COMPACTED_ROWS:
        return result
    return result | {
        "compact": alone(_CLI, "catalog", "compact", str(catalog)),
        "open_compacted": alone(_OPEN, str(catalog)),
    }


def of_ranks(folder: Path, keys: list[str]) -> Json:
    """Begin and resume a run with eight ranks, as far as the first micro-batch of each."""
    (begun, again) = (_ranks.begin(RECIPE, keys, folder / "cursor.json", resume=resume) for resume in (False, True))
    return {
        "plan_s": begun.plan_s,
        "first_micro_batch_s": begun.first_s,
        "start_s": begun.start_s,
        "node_peak_bytes": begun.node_peak_bytes,
        "node_own_bytes": begun.node_own_bytes,
        "planner_bytes": begun.planner_bytes,
        "per_rank_bytes": begun.per_rank_bytes,
        "seek_s": again.first_s,
        "seek_start_s": again.start_s,
        "seek_node_own_bytes": again.node_own_bytes,
    }


def of_files(files: int, folder: Path) -> Json:
    """Scan real pictures, beside a bare loop over the same files; then scan them again, unchanged."""
    catalog = folder / "scanned"
    bare_s, scan_s = _scanned(_copies(folder / "pictures", files, _picture(), ".jpg"), catalog)
    again = alone(_CLI, "scan", str(folder / "pictures"), "-o", str(catalog), "--json")
    return {
        "files": files,
        "bare_pictures_s": round(files / bare_s),
        "scan_pictures_s": round(files / scan_s),
        "picture_ratio": round(bare_s / scan_s, 3),
        "again": again,
    }


def of_videos(files: int, folder: Path) -> Json:
    """Scan real short videos, beside a bare loop over the same files."""
    bare_s, scan_s = _scanned(_copies(folder / "videos", files, _video(folder), ".mp4"), folder / "scanned-videos")
    return {
        "videos": files,
        "bare_videos_s": round(files / bare_s),
        "scan_videos_s": round(files / scan_s),
        "scan_ratio": round(bare_s / scan_s, 3),
    }


def _scanned(paths: list[Path], catalog: Path) -> tuple[float, float]:
    """Return the seconds of a bare loop over files, and of their scan."""
    os.sync()  # so that their writing is over
    bare_s = _bare(paths, machine.cores())
    return bare_s, alone(_SCAN, str(paths[0].parents[1]), str(catalog))["s"]


def _bare(paths: list[Path], workers: int) -> float:
    """Seconds to read and probe all files in threads; processes from where a scan uses them."""
    began = time.perf_counter()
    if len(paths) < 2000:
        with ThreadPoolExecutor(workers) as threads:
            for _ in threads.map(_probe, paths, chunksize=64):
                pass
    else:
        pool = WorkerPool()
        pooled = partial(probe_pool.map_ordered, processes=pool, chunk_size=64, most_seconds=lambda chunk: 600.0)
        for _ in pooled(_probe, paths, workers=workers, failed=lambda path, why: why):
            pass
    return time.perf_counter() - began


def _probe(path: Path) -> str:
    location.fingerprint(path)
    return str(probe.probe(path))


def _picture() -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


def _video(folder: Path) -> bytes:
    """Return a video of two seconds, with the head of a box for the bytes that follow."""
    file = folder / "video.mp4"
    frames = np.random.default_rng(0).integers(0, 256, (48, 96, 128, 3), dtype=np.uint8)
    writers.write_video(file, frames, 24.0)
    return file.read_bytes() + (12).to_bytes(4, "big") + b"free"


def _copies(data: Path, files: int, content: bytes, suffix: str) -> list[Path]:
    """Write files that differ in their last bytes, 1000 in a folder."""
    paths = [data / f"{i // 1000:04d}" / f"{i:07d}{suffix}" for i in range(files)]
    for i, path in enumerate(paths):
        if i % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(content + i.to_bytes(4, "little"))
    return paths


def main() -> None:
    """Parse, measure, print; keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--catalog", type=Path, help="folder of the synthetic catalog; it is made if there is none")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--videos", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        catalog = arguments.catalog or Path(folder, "catalog")
        result: Json = of_rows(arguments.rows, Path(folder), catalog) if arguments.rows else {}
        result |= of_files(arguments.files, Path(folder)) if arguments.files else {}
        result |= of_videos(arguments.videos, Path(folder)) if arguments.videos else {}
    result |= {"machine": machine_name(), **AT_START}
    if not arguments.json:
        for name, value in result.items():
            print(f"{name}: {value}")
    if arguments.save:
        keep(RESULTS, result, str(arguments.rows))  # what was left out now stays as it was
    print(json.dumps(result))


if __name__ == "__main__":
    main()
