"""The model card: its front matter as the hub reads it, and what people read below it."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import ModelCardData

from reelworks.annexes.hub.trained import Trained
from reelworks.core import digests, optional_imports, units, version
from reelworks.core.shape import Shape
from reelworks.inference.generate import diffusers_pipeline
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, registry
from reelworks.models.adapters.conventions import CONVENTIONS
from reelworks.models.diffusers_denoiser import DiffusersNetwork
from reelworks.models.family import SamplingDefaults
from reelworks.reports import run_facts
from reelworks.training.plan.plan_report import PlanSummary
from reelworks.training.recipe.recipe import Recipe

_MARK = re.compile(r"<!-- reelworks run (?P<run>\w+), text (?P<digest>\w+) -->\n")
# Names of https://huggingface.co/docs/hub/repositories-licenses; those that the hub added later are `other` until they stand here.
_OF_THE_HUB = frozenset((Path(__file__).parent / "licences.txt").read_text(encoding="utf-8").split())


@dataclass(frozen=True)
class Licence:
    """A licence as the front matter names it; those that the hub has no name for are `other`, with a name and a link."""

    license: str
    license_name: str | None = None
    license_link: str | None = None

    @classmethod
    def named(cls, text: str) -> Licence:
        """Return the licence that somebody named, by the hub's name or SPDX's, which differ in case, or in words of their own."""
        name = re.sub(r"[^\w.+-]+", "-", text).strip("-").lower()
        return cls(name) if name in _OF_THE_HUB else cls("other", name)


@dataclass(frozen=True)
class PublishedPreview:
    """A picture or clip that the model generated, by its path in the repository."""

    path: str
    prompt: str


@dataclass(frozen=True)
class Card:
    """Facts of a model card.

    Attributes:
        repository: As `owner/name`.
        base: Hub id of the base model; None if none is known, or the weights were trained from scratch.
        preview_step: Step of the previews; None if there are none.
        weights: Files of weights, with the convention of their names; None for full weights.
        shape: Frames, height and width of what it usually draws.
        sampling: Its usual sampler settings.
        fps: Frame rate of its clips.
    """

    repository: str
    run_id: str
    base: str | None
    licence: Licence | None
    trigger: str | None
    weights: list[tuple[str, str | None]]
    previews: list[PublishedPreview]
    preview_step: int | None
    trained: Trained
    shape: Shape
    sampling: SamplingDefaults
    fps: float

    @property
    def recipe(self) -> Recipe:
        """The recipe that trained the step, without names of places and people."""
        return self.trained.parts[-1].recipe

    @property
    def data(self) -> PlanSummary | None:
        """The plan that the step was trained by; None if it was removed."""
        return self.trained.parts[-1].data

    def to_text(self) -> str:
        """Return the card as Markdown."""
        scheduler = diffusers_pipeline.scheduler_settings(self.recipe)
        text = _template().render(card=self, scheduler=scheduler, version=version.__version__)
        front = ModelCardData(**self._front_matter()).to_yaml(line_break="\n")
        return f"---\n{front}\n---\n<!-- reelworks run {self.run_id}, text {_digest(front, text)} -->\n{text}"

    def _front_matter(self) -> dict[str, Any]:
        lora = self.recipe.lora is not None
        kinds = ["lora", "template:diffusion-lora"] if lora else []
        values: dict[str, Any] = {
            "library_name": "diffusers" if self.pipeline else "reelworks",
            "pipeline_tag": self.task,
            "tags": [self.task, *kinds, "reelworks"],
        }
        if self.base is not None:
            values |= {"base_model": self.base, "base_model_relation": "adapter" if lora else "finetune"}
        if self.licence is not None:
            values |= vars(self.licence)
        if self.trigger is not None:
            values["instance_prompt"] = self.trigger
        if self.previews:
            values["widget"] = [{"text": one.prompt or "-", "output": {"url": one.path}} for one in self.previews]
        return values

    @property
    def pipeline(self) -> str | None:
        """Name of the pipeline of diffusers that draws with the model; None if there is none."""
        known = registry.TEXT_ENCODERS.get(registry.PRESETS[self.recipe.model.name].parts.text)
        return known.pipeline if known and isinstance(self.network, DiffusersNetwork) else None

    @property
    def network(self) -> Any:
        """The calls of the family's networks and of its pipeline."""
        return registry.load_network(registry.family_of(self.recipe.model.name))

    @property
    def call(self) -> dict[str, Any] | None:
        """Arguments, beside the prompt, of a call of the pipeline that draws as Reelworks does; None if none does."""
        scale, steps, *_ = self.sampling
        options = GenerateOptions(self.shape, self.fps, steps, scale, seed=0)
        return diffusers_pipeline.arguments_with_words(self.recipe, options)

    @property
    def has_guider(self) -> bool:
        """Whether the pipeline guides by a part of it, and not by an argument."""
        return "guider" in self.network.pipeline_settings(components.family_config(self.recipe.model), 1.0)

    @property
    def takes_lora(self) -> bool:
        """Whether the pipeline loads a LoRA; else its network does."""
        return hasattr(optional_imports.from_diffusers(self.pipeline or ""), "load_lora_weights")

    @property
    def task(self) -> str:
        """Task of the model, as the hub names it."""
        conditioning = components.conditioning(self.recipe.model)
        result = "image" if components.family_config(self.recipe.model).pictures_only else "video"
        if conditioning.companions.needs:
            return "image-to-image" if result == "image" else "video-to-video"
        return f"image-to-{result}" if conditioning.needs_first_frame else f"text-to-{result}"

    @property
    def licence_note(self) -> str | None:
        """Restrictions of the base's licence, as a sentence without its end."""
        return registry.release_of(self.recipe.model.name).licence_note

    @property
    def left_out(self) -> dict[str, int]:
        """Number of clips that the data leave out, by reason."""
        return {} if self.data is None else {fact.label: fact.total for fact in run_facts.reasons(self.data)}

    @property
    def adapter(self) -> str | None:
        """Type and size of the adapter that was trained; None for full weights."""
        if (lora := self.recipe.lora) is None:
            return None
        name = {"lora": "DoRA" if lora.dora else "LoRA", "loha": "LoHa", "lokr": "LoKr", "oft": "OFT"}
        size = f"rank {lora.rank}" if "rank" in lora.kind.settings else f"{lora.block_size} inputs a block"
        return f"{name.get(lora.type, lora.type)} of {size}"

    @property
    def part(self) -> str:
        """Name of the network in a pipeline."""
        return components.family_config(self.recipe.model).network.part

    @property
    def files(self) -> list[tuple[str, str]]:
        """Each file of weights, with what it is for."""
        return [(name, CONVENTIONS[form].usage if form else "the network's weights") for name, form in self.weights]

    @property
    def of_diffusers(self) -> list[str]:
        """Files of an adapter that diffusers reads."""
        return [name for name, form in self.weights if form == "diffusers"] if self.pipeline else []


def is_own(text: str, run_id: str) -> bool:
    """Return whether a card is one that `to_text` wrote for a run, and that nobody edited."""
    mark = _MARK.search(text)
    if mark is None or mark["run"] != run_id:
        return False
    front, body = text[: mark.start()], text[mark.end() :]
    return mark["digest"] == _digest(front.removeprefix("---\n").removesuffix("\n---\n"), body)


def _digest(front: str, body: str) -> str:
    return digests.digest_bytes(f"{front}\0{body}".encode(errors="replace"))


def trigger_of(recipe: Recipe) -> str | None:
    """Return the trigger word of a recipe, or the words before each caption; None if there are none, or datasets differ."""
    if len(named := {d.trigger for d in recipe.dataset if not d.prior_prediction}) == 1 and (word := next(iter(named))):
        return word
    forms = {dataset.caption.partition("{text}")[0] for dataset in recipe.dataset if not dataset.prior_prediction}
    words = {form.replace("{{", "").replace("}}", "").strip(" ,.:;") for form in forms}
    if len(forms) != 1 or "{" in "".join(forms).replace("{{", ""):
        return None
    return next(iter(words)) or None


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for function in (units.count, units.duration, units.learning_rate, units.plural, units.loss):
        environment.filters[function.__name__] = function
    # A text of JSON is one of Python too.
    environment.filters |= {"code": _code, "python": partial(json.dumps, ensure_ascii=False)}
    return environment.get_template("card.md")


def _code(text: str) -> str:
    """Return a text as code in Markdown, whatever it is made of."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{' '.join(text.split())}{padding}{fence}"
