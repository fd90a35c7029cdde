"""The request of `reelworks publish` and of `annexes.hub.publish`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reelworks.core import requests
from reelworks.core.errors import UserError
from reelworks.core.requests import arg
from reelworks.models import hub


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """A checkpoint to publish, and the repository of the hub that is to hold it."""

    source: Path = arg(..., "A run folder, or one checkpoint.", metavar="RUN|CHECKPOINT", is_option=False)
    to: str = arg(..., "Repository on the hub; created if there is none.", metavar="OWNER/NAME")
    step: int | None = arg(None, "Checkpoint of the run; default: the newest good one.", least=0)
    best: bool = arg(False, "Use the best checkpoint by the recipe's keep_best.")
    raw_weights: bool = arg(False, "Publish the trained weights instead of their average.")
    dtype: Literal["bfloat16", "float16", "float32"] = arg("bfloat16", "Dtype of floating-point tensors.")
    formats: tuple[str, ...] = arg(
        (),
        "Naming convention of a LoRA's tensors: diffusers, comfyui or kohya; give it several times for a file of each. "
        "Default: exports.formats of the recipe.",
        names=("--format",),
        metavar="NAME",
    )
    private: bool | None = arg(
        None,
        "Who may see a new repository; default: private. One that exists must be as asked for.",
        names=("--private/--public",),
    )
    replace: bool = arg(
        False, "Replace files of the repository that this run did not publish, or that were edited since."
    )
    base: str | None = arg(
        None, "Hub id of the base model; default: model.weights of the recipe, or the published weights.", metavar="ID"
    )
    license: str | None = arg(
        None,
        "Licence, as the hub names it, such as apache-2.0; default: model.license of the recipe, or what the base's "
        "page on the hub says.",
        metavar="ID",
    )
    trigger: str | None = arg(
        None, "Trigger word to name; default: what dataset.caption of the recipe puts before each caption."
    )
    dry_run: bool = arg(False, "Only write the folder that would be uploaded.")
    output: Path | None = arg(
        None,
        "Folder to write, new or empty; default: publish/ in the run folder with --dry-run, else one that is removed.",
        names=("--output", "-o"),
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        with requests.checked(self):
            for field in ("to", "base"):
                name = getattr(self, field)
                if name is not None and ((id_ := hub.parse(name)) is None or id_.revision is not None):
                    raise UserError(
                        "this is not the name of a repository on the hub",
                        code="repository-name-invalid",
                        field=field,
                        value=name,
                        remedy="write OWNER/NAME, as in the address of its page",
                    )
