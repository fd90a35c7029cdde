"""The request of `reelworks generate` and of `clip_files.generate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reelworks.core import requests
from reelworks.core.errors import UserError
from reelworks.core.requests import arg


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Clips or pictures to generate from prompts with a trained model, and the files to write them to.

    Attributes:
        source: A run folder, or one checkpoint.
        output: A .mp4 or .webm file, or a .png for one frame. Several clips need {index} in its name, which becomes 00,
            01, ... With --prompt-file, a folder.
        prompts: Text to generate from, with [trigger] for the trigger word; give it several times for several clips.
        prompt_file: Generate clips for VBench from a prompt in each line, or from VBench_full_info.json: PROMPT-0.mp4,
            ...
        samples: Clips of each prompt of --prompt-file; the next one has the next seed.
        height: Pixels; default: those of the bucket with the most trained tokens.
        width: Pixels; default: those of the same bucket.
        num_frames: Default: 1 for a .png, else those of the same bucket.
        fps: Frames per second; default: samples.fps of the recipe, or what most trained videos are read at, or the
            model's rate.
        guidance_scale: 1 turns guidance off; default: samples.guidance_scale of the recipe, or the model's usual value.
        num_inference_steps: Default: samples.num_inference_steps of the recipe, or the model's usual value.
        seed: Seed of the noise, as of the generator that a script gives to diffusers.
        reference: A picture or clip to begin with: the result starts with the picture, or with the clip's last frames.
        last_frame: A picture to end with, or a clip whose last frame is taken; for models that know given frames.
        loop: Clips to join; each begins with the last frames of the one before.
        condition_frames: Frames to take from --reference and, with --loop, from the end of each clip; default: 17, or 1
            for i2v models.
        control: A picture or clip of control signals, for models that take one.
        edited: A picture or clip to edit, or a sound, for models that take one; repeatable, in order.
        inpaint: A picture or clip of which the black areas of --mask are kept, for models that take a mask.
        mask: A picture or clip that is white where --inpaint is generated anew.
        sound: A file of sound, or a video with sound, for which the picture is generated; for models with sound.
        sampler: Sampler of the family's diffusers pipeline, or of Reelworks; default: the pipeline's, if there is one.
        raw_weights: Use the trained weights instead of their average.
        lora_scale: Strength of a LoRA: what it adds to the weights is multiplied by it.
        trained_base: Add a LoRA to the model that it was trained on, and not to that of samples.model.
    """

    source: Path = arg(..., metavar="RUN|CHECKPOINT", is_option=False)
    output: Path = arg(..., names=("--output", "-o"))
    prompts: tuple[str, ...] = arg((), names=("--prompt",))
    prompt_file: Path | None = arg(None, metavar="FILE")
    samples: int = arg(5, least=1, most=100)
    height: int | None = arg(None, least=1)
    width: int | None = arg(None, least=1)
    num_frames: int | None = arg(None, least=1)
    fps: float | None = arg(None, least=1, most=240)
    guidance_scale: float | None = arg(None, least=1)
    num_inference_steps: int | None = arg(None, least=1)
    seed: int = arg(0, least=0, most=2**63 - 1)
    reference: Path | None = arg(None)
    last_frame: Path | None = arg(None)
    loop: int = arg(1, least=1)
    condition_frames: int | None = arg(None, least=1)
    control: Path | None = arg(None)
    edited: tuple[Path, ...] = arg((), names=("--source",))
    inpaint: Path | None = arg(None)
    mask: Path | None = arg(None)
    sound: Path | None = arg(None)
    sampler: Literal["own", "pipeline"] | None = arg(None)
    raw_weights: bool = arg(False)
    lora_scale: float = arg(1.0, least=-10, most=10)
    trained_base: bool = arg(False)

    def __post_init__(self) -> None:
        with requests.checked(self):
            if (self.prompt_file is None) == (not self.prompts):
                raise UserError(
                    "prompts come from --prompt or from --prompt-file",
                    code="prompts-not-given",
                    field="prompts",
                    value=list(self.prompts) or None,
                    remedy="give one of the two",
                )
