"""docs/reference/gpu-figures.md: what `python -m benchmarks.gpu` has measured, from benchmarks/results/gpu-*.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HEAD = """# Figures of GPUs

<!-- Written by scripts/generate_reference.py (make reference); do not edit. -->

One command measures what only a GPU can show:

```
python -m benchmarks.gpu --save                # what is not measured yet, for at most nine minutes
python -m benchmarks.gpu --save --list         # what there is, and how it ended
python -m benchmarks.gpu --save --only steps   # one section, as far as it is missing
python -m benchmarks.gpu --save --again failed # what failed, once more
python -m benchmarks.gpu --device cpu --tiny   # everything on small networks, to see that it works
```

It runs in a checkout, with `PYTHONPATH=src` where Reelworks is not installed, and needs no network. With
`--save` figures go to `benchmarks/results/gpu-NAME.json` while they are measured, with the load of the machine, and this
page is made from these files; without it they go to `runs/gpu-figures`. Each unit runs in a process of its own with a
time limit. One that fails leaves its error in the file, and the others go on; another call goes on with what is missing.

**Steps** are forward pass, backward pass, clipping, AdamW and weight average, in bfloat16 over float32 weights, on
latents that are there. **Of peak** is the work of three forward passes, over the time and the published dense
bfloat16 rate of the device: what gradient checkpointing computes twice does not count. The loop of diffusers is that of
its example scripts, over the same network.

**LoRAs** are on a base that is frozen in bfloat16, with drawn weights. The work of their steps is twice the linear layers and
three times the attention of a forward pass. **Time error** and **memory error** are those of the forecast.

## Memory

Estimates are of tensors, and of what a GPU takes beside them: the CUDA context, and what torch's allocator holds. **Estimate
error** compares the former with the peak of tensors, **fit error** all with what the card has given away.

What is known without these figures: on a CPU, whole trainings take what is estimated to 0.1 %, validations and previews
included: of all weights and of LoRAs on bases of all storages, with recomputation of each kind (`python -m benchmarks.memory`,
where RMS norms keep what they keep on a GPU, since those of a CPU keep more). Of the steps that an H100 has taken, the
estimates are off by -1.1 % (Wan 2.1 1.3B, recomputed), -0.3 % (SD3.5 medium, recomputed), -2.9 % (STDiT3-XL, selective) and,
compiled with selective recomputation, +3.7, +3.7 and +0.9 %. Of those of an H200 below they are off by -1.9 to +5.5 % and, compiled
without recomputation, by +0.8 % (Wan), +10.8 % (SD3.5) and +0.9 % (STDiT3): what compiled blocks save is told by a rule, which is
within -13 and +54 % of what torch's partitioner saves in 15 small networks. Not measured: offload on a GPU, and the passes of
autoencoders and text encoders while they encode and decode, which no estimate counts. How much the allocator holds is computed by a model of it for steps of one
shape; buckets of many shapes make it hold more, which it gives back before memory runs out.
"""
NOTHING = "\nNothing has been measured on a GPU yet.\n"


def page(files: Iterable[Path] | None = None) -> str:
    """Return the page; without files, of all that are in benchmarks/results."""
    found = sorted(RESULTS.glob("gpu-*.json")) if files is None else sorted(files)
    measured = [file for file in found if not file.stem.endswith("-tiny")]
    return HEAD + ("".join(_device(json.loads(file.read_text(encoding="utf-8"))) for file in measured) or NOTHING)


def _device(found: dict[str, Any]) -> str:
    units: dict[str, dict[str, Any]] = found["units"]
    published = f"{found['published_tflops']} TFLOP/s published" if found["published_tflops"] else "no rate published"
    lines = [
        f"\n## {found['device']}\n",
        f"{found['memory_gb']} GB, torch {found['torch']}; {published}, {found['measured_tflops']} TFLOP/s measured "
        "in large products, both in bfloat16.\n",
    ]
    for section in dict.fromkeys(name.partition("/")[0] for name in units):
        own = {name: unit for name, unit in units.items() if name.partition("/")[0] == section}
        lines.append(f"### {section}\n")
        rows = [row for unit in own.values() for row in unit["rows"]]
        for columns in dict.fromkeys(tuple(_shown(row)) for row in rows):
            lines.append(_table(columns, [row for row in rows if tuple(_shown(row)) == columns]))
        lines += [f"`{name}` {unit['status']}: {_last_line(unit)}\n" for name, unit in own.items() if unit["error"]]
    return "\n".join(lines)


def _shown(row: dict[str, Any]) -> list[str]:
    """Return the keys of a row; when it came is left out."""
    return [key for key in row if key != "at_s"]


def _last_line(unit: dict[str, Any]) -> str:
    return str(unit["error"].strip().splitlines()[-1][:300])


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    head = " | ".join(column.replace("_", " ") for column in columns)
    lines = [f"| {head} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(column, row[column]) for column in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (
        column.startswith("of_")
        or column.endswith(("_error", "_share"))
        or (column == "error" and isinstance(value, float))
    ):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int | float) else " ".join(str(value).replace("|", "/").split())
