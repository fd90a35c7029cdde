"""Rules of the settings of training that sd-scripts and musubi-tuner share.

Both count optimizer steps, each of `gradient_accumulation_steps` batches on each process, as `train.max_steps` does here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reelworks.annexes.imports import datasets, optimizers, rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import adapters, reading
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome, Rule
from reelworks.annexes.imports.trainer import BATCHES_COUNT_ALIKE, convert_by_rules
from reelworks.annexes.imports.values import is_on, number_of, whole_of

_OPTIMIZERS = optimizers.of_trainer("kohya")
_SCHEDULES = optimizers.schedules_of("kohya")
_OFF = (False, "False", "false")
_FLOAT8 = ("fp8_base", "fp8_scaled", "fp8_base_unet")


def optimizer_of(draft: ImportDraft) -> str:
    """Return the name of the trainer's optimizer in lower case, without its package."""
    name = draft.settings.get("optimizer_type")
    if not isinstance(name, str) or not name:
        old = "lion" if is_on(draft.settings.get("use_lion_optimizer")) else "adamw"
        return "adamw8bit" if is_on(draft.settings.get("use_8bit_adam")) else old
    return name.rpartition(".")[2].lower().replace("_", "")


def _is_absolute(draft: ImportDraft) -> bool:
    """Whether an Adafactor has updates of a size of their own, which do not grow with the weights."""
    return draft.settings.get("optimizer_args.scale_parameter") in _OFF


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    name = optimizer_of(draft)
    absolute = name == "adafactor" and _is_absolute(draft)
    return tables.fitting(_OPTIMIZERS, f"{name} without scale_parameter" if absolute else name).set(draft, name)


def rate(value: Any, draft: ImportDraft) -> Outcome:
    """Take the learning rate of the network, where the optimizer does not find it."""
    own = number_of(value)
    if draft.key == "learning_rate" and draft.settings.get("unet_lr") is not None:
        return Fate.NO_MEANING, "unet_lr decides"
    finds = draft.settings.get("optimizer_args.relative_step") not in _OFF
    if finds and optimizer_of(draft) == "adafactor" and not _is_absolute(draft):
        return Fate.NO_MEANING, f"relative_step finds the rate: {draft.set('train.learning_rate', 0.01)} bounds it"
    if draft.get("train.optimizer") == "prodigy":
        return optimizers.rate(own, draft)
    return rules.within(value, draft, "train.learning_rate", above=True)


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    found = value if isinstance(value, list) else re.findall(r"[\d.eE+-]+", str(value))
    fate, remark = optimizers.betas([number_of(each) for each in found], draft)
    return fate, remark if len(found) == 2 else f"{remark}; the third has its default"


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).partition(":")[0]
    power = draft.settings.get("lr_scheduler_power", 1)
    if name == "polynomial" and power in (1, 1.0, None):
        name = "linear"
    if name == "adafactor":
        return Fate.NO_MEANING, "the optimizer finds the rate"
    outcome = tables.fitting(_SCHEDULES, name).set(draft)
    if name == "constant":
        draft.remove("train.warmup_steps")
    return outcome


def _warmup(value: Any, draft: ImportDraft) -> Outcome:
    """Convert a number of steps, or a share of all; a constant rate without warm-up refuses any."""
    is_percent = isinstance(value, str) and value.endswith("%")
    steps = number_of(str(value)[:-1]) / 100 if is_percent else number_of(value)
    if not steps:
        return Fate.DEFAULT, "no warm-up"
    if draft.settings.get("lr_scheduler", "constant") == "constant":
        return Fate.NO_MEANING, "a constant rate has no warm-up there: constant_with_warmup has one"
    processes = max(whole_of(draft.settings.get("accelerate.num_processes") or 1), 1)
    if steps >= 1 and not is_percent:  # counted by each process, of which accelerate's schedule takes all at each step
        return rules.within(round(steps / processes), draft, "train.warmup_steps", 0, whole=True)
    return Fate.TAKEN, optimizers.take_warmup_share(draft, steps, processes)


def _least_rate(value: Any, draft: ImportDraft) -> Outcome:
    rate = number_of(draft.get("train.learning_rate", 1e-4)) * min(max(number_of(value), 0.0), 1.0)
    return Fate.TAKEN, draft.set("train.final_learning_rate", rate)


def _output(value: Any, draft: ImportDraft) -> Outcome:
    name = draft.settings.get("output_name")
    folder = str(value).rstrip("/\\") or "."
    return Fate.TAKEN, draft.set("output", f"{folder}/{name}" if isinstance(name, str) and name else folder)


def _output_name(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("output_dir") is None and value:
        return Fate.TAKEN, draft.set("output", f"runs/{value}")
    return Fate.TAKEN, "the run folder has this name"


def _save_epochs(value: Any, draft: ImportDraft) -> Outcome:
    epochs = whole_of(value)
    remark = draft.set("checkpoints.at_epoch_end", True)
    if draft.settings.get("save_every_n_steps") in (None, 0):
        draft.set("checkpoints.every_steps", None)
        if epochs > 1:
            remark += f", {draft.set('exports.every_n_saves', epochs)}"
    return Fate.TAKEN, remark


def _kept_steps(value: Any, draft: ImportDraft, target: str) -> Outcome:
    """Convert a number of steps for which files stay to a number of files."""
    every = whole_of(draft.settings.get("save_every_n_steps") or 1)
    return Fate.TAKEN, draft.set(target, max(math.ceil(whole_of(value) / max(every, 1)), 1))


def _processes(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.NO_MEANING, f"start `torchrun --standalone --nproc-per-node {value} -m reelworks train`"


def _swap(value: Any, draft: ImportDraft) -> Outcome:
    is_float8 = any(is_on(draft.settings.get(key)) for key in _FLOAT8)
    return datasets.offload(draft, is_quantised=is_float8 and draft.get("lora.type") is not None)


def _dataset_config(value: Any, draft: ImportDraft) -> Outcome:
    if any(key.startswith("datasets.") for key in draft.settings.values):
        return Fate.NO_MEANING, "it is read too"
    return Fate.UNREAD, "this file is not there, or is no dataset config: give it too, or --data"


_TABLE = tables.table("kohya", "defaults")
FIRST: list[str] = _TABLE["first"]
DEFAULTS: Mapping[str, Any] = _TABLE["all"]


WITHOUT_ARGUMENTS = ImportedKey(
    "command",
    None,
    Fate.TO_FILL_IN,
    "the dataset alone is given: a LoRA with the defaults here is trained; give --command for learning rate and network",
)


def finish(draft: ImportDraft) -> None:
    """Set what these trainers do not have, but a recipe has by default."""
    draft.set("train.ema_decay", 0.0, "no average of the weights there")
    draft.set("exports.weights", "model", "no average of the weights there")
    draft.set("train.loss_reduction", "micro_batch", BATCHES_COUNT_ALIKE)
    if draft.get("validation.split") is None:
        draft.set("validation.split", 0.0, "no validation there")
    if draft.get("train.max_steps") is None and draft.get("train.max_epochs") is None:
        draft.set("train.max_steps", DEFAULTS["max_train_steps"], "default of max_train_steps")
    if draft.get("train.learning_rate_schedule", "constant") == "constant":
        draft.remove("train.final_learning_rate")
    if not draft.get("samples.prompts"):
        draft.remove("samples.every_steps")


def convert(draft: ImportDraft, known: Mapping[str, Rule], defaults: Mapping[str, Any]) -> Iterator[ImportedKey]:
    """Yield what became of each key; defaults are those of arguments, which a dataset alone does not have."""
    if not reading.has_arguments(draft.settings):
        defaults = {}
        yield WITHOUT_ARGUMENTS
    yield from datasets.needed(draft)
    yield from convert_by_rules(draft, known, defaults, FIRST)
    finish(draft)
    adapters.finish(draft)
