"""The complete recipe as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from reelworks.core.config import Config, Place, Private
from reelworks.core.errors import UserError
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig, BucketsField
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.query import captions
from reelworks.data.catalog.sources import SOUNDS, SOURCES, source_of
from reelworks.data.catalog.store import measured_columns
from reelworks.data.checkpoint.config import CheckpointsConfig
from reelworks.data.distributed.config import ParallelConfig
from reelworks.data.media.config import DataConfig
from reelworks.data.run.config import CoverageConfig, LoggingConfig
from reelworks.data.schedule.cost import CostConfig
from reelworks.models import components, registry
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.export.config import ExportsConfig
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.config import PrecisionConfig
from reelworks.models.sound.config import SoundConfig
from reelworks.training.encoding.config import EncodeConfig
from reelworks.training.loop.config import SamplesConfig, TrainConfig, ValidationConfig
from reelworks.training.recipe import annex_tables
from reelworks.training.recipe.stages import StageConfig


class Recipe(Config):
    """Description of a complete run. Relative paths start at the current folder of the command.

    Attributes:
        version: Version of the recipe format.
        output: The run folder; default: runs/<the recipe's file name>.
        catalog: Folder of the catalog; default: <output>/catalog.
        seed: Seed of all random choices.
        exclude_file: A text file that lists clips not to train, one dataset/path per line as reports print them; lines
            that begin with # are comments.
        bucket: Required, unless the recipe has `buckets = "auto"` or `[buckets.opensora]`.
        lora: Train a LoRA; without it, all weights are trained.
        sound: Train with the sound of clips, for models that have it.
        annex: Tables of other packages' annexes, by their names.
        stage: Parts of the run that follow each other; the keys of the recipe are those of the first.

    Examples:
        >>> import reelworks as rw
        >>> recipe = rw.Recipe.model_validate({
        ...     "version": 1, "output": "runs/mine", "dataset": [{"path": "footage"}],
        ...     "bucket": [{"resolution": "256px", "num_frames": 1, "batch_size": 4}],
        ...     "train": {"max_steps": 100},
        ... })
        >>> recipe.seed, recipe.catalog_folder
        (42, 'runs/mine/catalog')
    """

    version: Literal[1]
    output: Place[str] = Field(min_length=1)
    catalog: Private[str | None] = Field(default=None, min_length=1)
    seed: int = Field(default=42, ge=0, lt=2**63)
    exclude_file: Private[str | None] = Field(default=None, min_length=1)
    dataset: list[DatasetConfig] = Field(min_length=1)
    bucket: list[BucketEntryConfig] = Field(default=[])
    buckets: BucketsField = BucketsConfig()
    cost: CostConfig = CostConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    lora: LoraConfig | None = None
    autoencoder: AutoencoderConfig = AutoencoderConfig()
    text_encoder: TextEncoderConfig = TextEncoderConfig()
    sound: SoundConfig | None = None
    encode: EncodeConfig = EncodeConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    precision: PrecisionConfig = PrecisionConfig()
    parallel: ParallelConfig = ParallelConfig()
    train: TrainConfig
    validation: ValidationConfig = ValidationConfig()
    samples: SamplesConfig = SamplesConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    exports: ExportsConfig = ExportsConfig()
    coverage: CoverageConfig = CoverageConfig()
    logging: Private[LoggingConfig] = LoggingConfig()
    annex: Private[dict[str, Any]] = Field(default={})
    stage: list[StageConfig] = Field(default=[])

    @model_validator(mode="wrap")
    @classmethod
    def _with_measures(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Let filters name columns of the catalog, and any if classes outside give some, which are read when their code may run."""
        given = values if isinstance(values, Mapping) else {}
        data = given.get("data")
        measures = data.get("measures") if isinstance(data, Mapping) else getattr(data, "measures", None)
        names = measures if isinstance(measures, list | tuple) else ()
        catalog = Path(str(given.get("catalog") or f"{given.get('output')}/catalog"))
        with (
            measured_columns.any_name(any(":" in str(name) or "=" in str(name) for name in names)),
            measured_columns.in_catalog(catalog),
        ):
            return handler(values)

    @field_validator("annex", mode="before")
    @classmethod
    def _parse_tables_of_annexes(cls, tables: Any) -> Any:
        return annex_tables.parse(tables) if isinstance(tables, Mapping) else tables

    @model_validator(mode="after")
    def _has_end(self) -> Self:
        if not self.stage and not self.train.has_end:
            raise UserError(
                "it does not say when training ends",
                code="no-end",
                field="train.max_steps",
                remedy="set train.max_steps, max_epochs or max_clips",
            )
        return self

    @model_validator(mode="after")
    def _files_can_hold_the_lora(self) -> Self:
        if self.lora is not None:
            preset = registry.PRESETS.get(self.model.name)  # unknown models are refused elsewhere
            network = None if preset is None else preset.config.network
            for format in self.exports.formats:
                self.lora.require_writable(format, "exports.formats", network)
        return self

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Set what the keys of other tables decide; a frozen value cannot be replaced while it is made by a call."""
        if self.data.fps == "model" and self.model.name in registry.PRESETS:  # unknown models are refused elsewhere
            resolved = self.data.model_copy(update={"fps": registry.frame_rate(self.model.name)})
            object.__setattr__(self, "data", resolved)
        buckets, update = self.buckets, dict[str, Any]()
        if self.train.compile and buckets.token_families is None and buckets.opensora is None:
            update["token_families"] = True
        if self.train.compile and "incomplete_batch" not in buckets.model_fields_set:
            update["incomplete_batch"] = "pad"  # a smaller micro-batch would need a graph of its own
        if update:
            object.__setattr__(self, "buckets", buckets.model_copy(update=update))
        return self

    @property
    def catalog_folder(self) -> str:
        """Folder of the catalog."""
        return self.catalog or f"{self.output}/catalog"

    @property
    def encoded_folder(self) -> str:
        """Folder of stored latents and embeddings."""
        return self.encode.folder or str(PurePath(self.output).parent / "encoded")

    @property
    def learns_preferences(self) -> bool:
        """Whether each clip is trained with a rejected one."""
        return any(dataset.rejected is not None for dataset in self.dataset)

    def with_trigger(self, prompts: Sequence[str]) -> list[str]:
        """Return prompts with the trigger word as captions have it, if all clips that are learnt and have one have the same."""
        words = {d.trigger for d in self.dataset if d.trigger is not None and not d.prior_prediction}
        return [*prompts] if len(words) != 1 else [captions.with_marks_filled(prompt, *words) for prompt in prompts]

    @property
    def validation_timesteps(self) -> list[float]:
        """Timesteps of the validation loss."""
        return self.validation.timesteps or self.objective.timesteps((1, 3, 5, 7, 9), parts=10)

    @property
    def clips_per_place(self) -> int:
        """Number of clips that the network sees for each clip of a micro-batch: 2 if it learns preferences."""
        return 2 if self.learns_preferences else 1

    @property
    def given_companions(self) -> tuple[str, ...]:
        """Names of companions that the model gets as inputs, sounds of sources among them; clips may lack some sources."""
        taken = components.conditioning(self.model).companions
        kinds = {kind for dataset in self.dataset for kind in dataset.companions}
        names = [*(["control"] if "control" in taken.takes else []), *(SOURCES if "source" in taken.takes else [])]
        names += [*(["mask"] if "mask" in taken.takes else []), *(SOUNDS if taken.sounds else [])]
        return tuple(name for name in names if source_of(name) in kinds)

    @property
    def has_training_adapter(self) -> bool:
        """Whether training, and validation in it, run with an adapter that all that comes of the run is without."""
        return self.lora is not None and self.lora.training_adapter is not None

    @property
    def trains_text_encoders(self) -> bool:
        """Whether the network embeds captions, of which it then gets the numbers of words."""
        return self.lora is not None and self.lora.text_encoders

    @property
    def text_inputs(self) -> TextEncoderConfig:
        """The text encoder with the sizes of what the network gets of captions."""
        if not self.trains_text_encoders:
            return self.text_encoder
        numbers = {"dim": len(registry.TEXT_ENCODERS[self.text_encoder.name].networks), "pooled_dim": 0}
        return self.text_encoder.model_copy(update=numbers)

    @property
    def keeps_autoencoder(self) -> bool:
        """Whether the autoencoder is in memory while the network trains: previews need it, stored latents do not."""
        return not self.encode.store or bool(self.samples.prompts)

    @property
    def keeps_text_encoder(self) -> bool:
        """Whether text encoders are in memory while the network trains: not if all texts are embedded before."""
        if not self.encode.store:
            return True
        known = registry.TEXT_ENCODERS.get(self.text_encoder.name)
        return bool(self.samples.prompts) and known is not None and known.sees_pictures
