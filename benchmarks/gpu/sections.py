"""What is measured, most valuable first: sections, their units, and how long each may take.

A unit runs in a process of its own, so that neither memory nor a crash of one reaches the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reelworks.core.errors import UserError, nearest


@dataclass(frozen=True)
class Unit:
    """Part of a section that runs in one process.

    Attributes:
        module: File of this package whose `rows(unit, device, tiny)` yields the figures.
        seconds: Time that it takes on an H200, by estimate; with less left, it waits for the next call.
        limit_seconds: Time after which it is ended.
    """

    section: str
    own_name: str
    module: str
    about: str
    seconds: int
    limit_seconds: int

    @property
    def name(self) -> str:
        """Name in the file of figures."""
        return f"{self.section}/{self.own_name}" if self.own_name else self.section


def _step(own_name: str, about: str, seconds: int, limit_seconds: int) -> Unit:
    return Unit("steps", own_name, "steps", about, seconds, limit_seconds)


UNITS = (
    Unit("tests", "", "tests", "tests marked gpu", 90, 320),
    Unit(
        "attention",
        "",
        "attention",
        "attention kernels against exact attention, for the calls of every family",
        150,
        300,
    ),
    _step("stdit3-51x480p", "a step of STDiT3-XL/2, clips of 51 frames in 480p", 60, 180),
    _step("wan-49x480p", "a step of Wan 2.1 1.3B against the loop of diffusers", 100, 240),
    _step("sd3.5-1024px", "a step of Stable Diffusion 3.5 medium against the loop of diffusers", 100, 240),
    _step("stdit3-16x240p", "a step of STDiT3-XL/2, clips of 16 frames in 240p", 45, 150),
    _step("stdit3-1x720p", "a step of STDiT3-XL/2, pictures in 720p", 45, 150),
    *(
        Unit(
            "lora",
            name,
            "loras",
            f"a step of a LoRA on {model}, with all, some or nothing recomputed",
            seconds,
            3 * seconds,
        )
        for name, model, seconds in (
            ("wan-1.3b", "Wan 2.1 1.3B, clips of 81 frames", 70),
            ("flux", "FLUX.1", 75),
            ("qwen-image", "Qwen-Image", 75),
            ("z-image", "Z-Image", 60),
            ("sdxl", "SDXL", 75),
            ("wan-14b", "Wan 2.1 14B, clips of 81 frames", 120),
            ("sd3.5", "Stable Diffusion 3.5 medium", 60),
            ("chroma", "Chroma", 70),
            ("krea2", "Krea 2", 75),
        )
    ),
    Unit("tune", "", "tuning", "batch size of `tune` against the largest that fits", 100, 300),
    Unit(
        "latents", "training", "latents", "clips per second, live and from stored latents, plain and compiled", 150, 400
    ),
    Unit(
        "latents", "encoder", "latents", "clips per second of encoders alone, plain, channels last, compiled", 150, 400
    ),
    Unit("saves", "", "saves", "time that training waits for an asynchronous save", 45, 180),
    Unit("memory", "full", "training", "memory of a training of all weights against its estimate", 100, 300),
    Unit("memory", "lora", "training", "the same for LoRAs on bases of all storages", 150, 400),
    Unit("memory", "more", "training", "the same with offload, validation, previews, or compiled", 180, 400),
    Unit("gaps", "", "training", "a profile of training: where the device waits for more than 2 % of a step", 60, 180),
    Unit("syncs", "", "syncs", "where a pass of each family makes the host wait for the device", 40, 120),
    Unit("families", "", "families", "compiled steps over nine aspect ratios, with token families or not", 200, 400),
)
SECTIONS = tuple(dict.fromkeys(unit.section for unit in UNITS))


def chosen(names: Sequence[str], field: str) -> list[Unit]:
    """Return the units of sections, or single units, by name; all for no names.

    Raises:
        UserError: There is no such section or unit.
    """
    known = {*SECTIONS, *(unit.name for unit in UNITS)}
    for name in names:
        if name not in known:
            raise UserError(
                "there is no such section", code="unknown-section", field=field, value=name, remedy=nearest(name, known)
            )
    return [unit for unit in UNITS if not names or unit.section in names or unit.name in names]
