"""`reelworks generate`: make clips and pictures from prompts."""

from __future__ import annotations

from reelworks.commands import show
from reelworks.commands.options import Json
from reelworks.inference.generate.request import GenerateRequest


def generate(request: GenerateRequest, json: Json = False) -> None:
    """Generate clips or pictures from prompts.

    Uses the averaged weights of a run's newest checkpoint, or of one checkpoint, and the recipe that trained it. Warns
    if a prompt has more tokens than the text encoder takes. Prints a line for each file, with its sampler, steps and
    guidance scale.

    With --prompt-file, clips that are in the folder already are kept, so that the same command goes on.
    """
    with show.loading():
        from reelworks.inference.generate import clip_files

    if json:
        show.json(clip_files.generate(request, lambda note: show.line(note, error=True)))
    else:
        clip_files.generate(request, show.line, lambda clip: show.line(clip.to_text()))
