"""Open-Sora 1.1, 1.2 and 2.0: training configs in Python, with Open-Sora's defaults, which often differ from ours.

The config is read as literals. Features that are not there are left out of the recipe or replaced by the nearest one, and
are listed as such; the recipe loads either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.opensora import keys, literals
from reelworks.annexes.imports.rules import ImportedKey
from reelworks.annexes.imports.trainer import BATCHES_COUNT_ALIKE, FormerBuckets, FormerTrainer, convert_by_rules
from reelworks.core.errors import UserError, nearest
from reelworks.data.buckets.opensora import parse

_DEFAULTS: dict[str, Any] = tables.defaults(tables.table("opensora", "defaults")) | {"optim.betas": (0.9, 0.999)}
# With the name that version 2.0 gives it in `optim`.
_OPTIMIZER = {"lr": ("lr", 1e-4), "weight_decay": ("weight_decay", 0.0), "adam_eps": ("eps", 1e-8)}
_MEANINGS: tuple[parse.Meaning, ...] = ("opensora-1.2", "opensora-2.0", "downgrade")


@final
class _OpenSora(FormerTrainer):
    name = "opensora"
    gives = "a training config, such as configs/opensora-v1-2/train/stage1.py"
    each_file_trains = True

    def recognises(self, file: ConfigFile) -> bool:
        return file.path.suffix == ".py" and "bucket_config" in file.text

    def read(self, files: Sequence[ConfigFile]) -> FormerSettings:
        read = literals.read(files[0].path)
        if "bucket_config" not in read.values:
            raise UserError(
                "no bucket_config can be read without running the file",
                code="opensora-config-without-buckets",
                field="FILE",
                value=str(files[0].path),
                remedy=read.unread.get("bucket_config", "give a training config of version 1.1, 1.2 or 2.0"),
            )
        return FormerSettings(dict(keys.flatten(read.values)), read.unread)

    def convert(self, draft: ImportDraft) -> Iterator[ImportedKey]:
        values = draft.settings.values
        if draft.request.data:
            values["dataset.data_path"] = str(draft.request.data[0])
        draft.set("train.loss_reduction", "micro_batch", BATCHES_COUNT_ALIKE)
        optimizer = {key: value for key, (of_2, value) in _OPTIMIZER.items() if f"optim.{of_2}" not in values}
        of_2 = {"ema_decay": None} if keys.type_of(draft, "model") == "flux" else {}
        # Conversions of other keys depend on the data path.
        yield from convert_by_rules(draft, keys.RULES, _DEFAULTS | optimizer | of_2, ["dataset.data_path"])
        draft.begin("bucket_config")
        meaning = _meaning(draft)
        table = keys.bucket_table(draft.settings.get("bucket_config"))
        draft.set("buckets.probability", meaning, "of this release")
        for name, lengths in table.items():
            draft.set(f"buckets.opensora.{name}", lengths, "")
        if draft.get("autoencoder.name") is None:
            draft.set("autoencoder.name", "pixel", "a placeholder")
            entries, _ = parse.parse(table, meaning, drop_exact_length=False)
            sides = [side for entry in entries if entry.named for size in entry.named.sizes for side in size]
            # The largest one, since the pixel autoencoder cannot pad.
            stride = next(stride for stride in (8, 4, 2, 1) if all(side % stride == 0 for side in sides))
            draft.set("autoencoder.stride", stride, "divides every size of the table")

    def buckets(self, settings: FormerSettings, dataset: int) -> FormerBuckets | None:
        return None

    def caption(self, settings: FormerSettings, beside: Beside) -> FormerCaption | None:
        return None


OPEN_SORA = _OpenSora()


def _meaning(draft: ImportDraft) -> parse.Meaning:
    asked = draft.request.probability
    if asked is not None:
        if asked not in _MEANINGS:
            raise UserError(
                "no such meaning is known",
                code="opensora-release-unknown",
                field="--probability",
                value=asked,
                remedy=nearest(asked, _MEANINGS),
            )
        return asked
    kind = keys.type_of(draft, "model")
    if kind.startswith(("STDiT2", "STDiT3")):
        return "opensora-1.2"
    if kind.startswith("flux"):
        return "opensora-2.0"
    raise UserError(
        "this model does not identify the release, on which the meaning of bucket_config's probabilities depends",
        code="opensora-release-unknown",
        field="model.type",
        value=kind,
        remedy="give --probability opensora-1.2 (also for 1.1), opensora-2.0 or downgrade",
    )
