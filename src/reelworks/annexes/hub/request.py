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
    """A checkpoint to publish, and the repository of the hub that is to hold it.

    Attributes:
        source: A run folder, or one checkpoint.
        to: Repository on the hub; created if there is none.
        step: Checkpoint of the run; default: the newest good one.
        best: Use the best checkpoint by the recipe's keep_best.
        raw_weights: Publish the trained weights instead of their average.
        dtype: Dtype of floating-point tensors.
        formats: Naming convention of a LoRA's tensors: diffusers, comfyui or kohya; give it several times for a file of
            each. Default: exports.formats of the recipe.
        private: Who may see a new repository; default: private. One that exists must be as asked for.
        replace: Replace files of the repository that this run did not publish, or that were edited since.
        base: Hub id of the base model; default: model.weights of the recipe, or the published weights.
        license: Licence, as the hub names it, such as apache-2.0; default: model.license of the recipe, or what the
            base's page on the hub says.
        trigger: Trigger word to name; default: what dataset.caption of the recipe puts before each caption.
        dry_run: Only write the folder that would be uploaded.
        output: Folder to write, new, empty or of an earlier publication of this run, and unchanged; default: publish/ in
            the run folder with --dry-run, else one that is removed.
    """

    source: Path = arg(..., metavar="RUN|CHECKPOINT", is_option=False)
    to: str = arg(..., metavar="OWNER/NAME")
    step: int | None = arg(None, least=0)
    best: bool = arg(False)
    raw_weights: bool = arg(False)
    dtype: Literal["bfloat16", "float16", "float32"] = arg("bfloat16")
    formats: tuple[str, ...] = arg((), names=("--format",), metavar="NAME")
    private: bool | None = arg(None, names=("--private/--public",))
    replace: bool = arg(False)
    base: str | None = arg(None, metavar="ID")
    license: str | None = arg(None, metavar="ID")
    trigger: str | None = arg(None)
    dry_run: bool = arg(False)
    output: Path | None = arg(None, names=("--output", "-o"), metavar="DIR")

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
