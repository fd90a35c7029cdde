"""Terminal output of `new lora`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.cli.show import line

if TYPE_CHECKING:
    from reelworks.quickstart.quickstart import QuickstartResult


def made(path: Path, new: QuickstartResult) -> None:
    """Print the data, the estimates, the chosen settings, and the next command."""
    from reelworks.train.preflight.estimate import BUS_GB, UTILISATION

    found, estimate = new.found, new.choice.estimate
    line(
        f"data: {found.to_text()}" + (f", {found.uncaptioned} without a caption" if found.uncaptioned else "")
    )
    for remark in new.remarks:
        line(f"  {remark}")
    if found.uncaptioned and any(d.missing_caption is None for d in new.recipe.dataset):
        line("  clips without a caption are not trained; write text files, or give --trigger WORD")
    line(
        f"model: {new.recipe.model.name}, {estimate.parameters:,} parameters; "
        f"the LoRA has {estimate.trained_parameters:,}"
    )
    memory = estimate.memory
    line(f"memory, estimated: {memory.total / 1e9:.1f} GB ({memory.to_text()})")
    if memory.host >= 5e7:
        line(f"  and {memory.host / 1e9:.1f} GB of CPU memory, for weights that stay there")
    if not estimate.measured:
        line("  without activations: this network does not run on the meta device")
    _settings(new)
    moving = estimate.moving_seconds
    line(
        f"time, estimated: {new.steps:,} steps of {max(new.seconds_per_step, 0.001):.2g} s, {_duration(new)}, at {UTILISATION:.0%} "
        f"of {new.tflops:g} TFLOP/s"
        + (f" and {moving:.2g} s to move weights at {BUS_GB:g} GB/s" if estimate.moved_bytes else "")
        + "; decoding and encoding come on top"
    )
    line(f"\nwritten: {path}, with the reason of each value. Next:")
    quoted = shlex.quote(str(path))
    line(f"  reelworks plan {quoted}")
    line(f"  reelworks train {quoted}")


def _settings(new: QuickstartResult) -> None:
    choice = new.choice
    if choice.fits is None:
        line("  give --vram GB to check whether it fits, and to choose settings that do")
    for i, tier in enumerate(choice.tiers):
        why = (
            f"at least {choice.without[i] / 1e9:.1f} GB without it"
            if choice.without
            else "nearly all need it"
        )
        line(f"  {tier.to_text()}: {tier.why}; {why}")
    if choice.fits:
        line("  it fits")


def _duration(new: QuickstartResult) -> str:
    minutes = new.steps * new.seconds_per_step / 60
    return (
        f"{minutes / 60:.1f} hours"
        if minutes >= 90
        else f"{minutes:.0f} minutes"
        if minutes >= 1.5
        else "a minute"
    )
