"""Other programs' own code reads our LoRA files: what it adds to the weights is what was trained, or it takes nothing."""

import os
from pathlib import Path

import pytest

from drills import readers

# Files that a program takes in part, of a convention that is not its own; the page for LoRAs says which file is for whom.
IN_PART = {
    "diffusers": {f"{name}-tiny.lokr.comfyui" for name in ("flux", "flux2", "longcat-image", "sd3")},
    "comfyui": {f"{name}-tiny.{kind}.diffusers" for name in ("sd1.5", "sdxl") for kind in ("lora", "loha", "lokr")},
    "diffsynth": {"flux-tiny.lora.kohya"},
}
OWN = {
    **dict.fromkeys(("diffusers", "peft", "simpletuner"), "diffusers"),
    **dict.fromkeys(("comfyui", "wan2gp"), "comfyui"),
    "sdnext": "kohya",
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", readers.READERS)
def test_a_program_takes_a_file_whole_and_right_or_not_at_all(reader: str) -> None:
    given = os.environ.get("READER_SOURCES")
    ((_, _, found),) = readers.measure([reader], None if given is None else Path(given))
    if isinstance(found, str):
        pytest.skip(found)
    assert not {case: reading for case, reading in found.items() if reading.outcome == "other"}
    assert {case for case, reading in found.items() if reading.outcome == "part"} <= IN_PART.get(reader, set())
    # Of its own convention it takes the LoRA of each network that it has.
    mine = {case: one for case, one in found.items() if case.endswith(f".lora.{OWN.get(reader)}")}
    assert not {case: one for case, one in mine.items() if one.outcome not in ("all", "absent")}
    assert any(reading.outcome == "all" for reading in found.values())
