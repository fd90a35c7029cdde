"""Recipe keys of training, validation and previews."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from reelworks.core.config import Config, Place, Private, Told, Weights
from reelworks.core.errors import UserError
from reelworks.data.catalog import sources
from reelworks.training.step import optimizer_names

# A smaller factor was probably meant as a learning rate of AdamW.
_MIN_PRODIGY_FACTOR = 0.01
# Prodigy multiplies it by its rate, which begins at 1e-6, and the least number of float32 is 1e-38.
_MIN_EPS = 1e-30


class TrainConfig(Config):
    """`[train]`.

    Attributes:
        max_steps: Optimizer steps at which training ends.
        max_epochs: Passes over the data.
        max_clips: Clips trained, each use as one, after which training ends; a step is not cut.
        gradient_accumulation_steps: Micro-batches per rank and step.
        micro_batches_per_step: G; default: ranks at the run's start x gradient_accumulation_steps.
        same_bucket_run: L, consecutive micro-batches of one bucket; default: ranks at the start, or G if they do
            not divide it.
        step_seconds: Longest planned time of a micro-batch whose batch_size is "auto": of the clips that fit into
            memory, as many as take no longer, by the times in buckets.tuned. A single clip may take longer.
        optimizer: Prodigy and Adafactor need whole weights; the others work on shards, too. Muon updates the matrices
            of blocks, and AdamW the rest. Schedule-free AdamW has an average of its own in place of ema_decay.
        learning_rate: Rate after warm-up. Prodigy multiplies the rate that it finds by this (default 1.0), Adafactor
            the size of the weights (default 0.01), and lowers it to 1 / √step; the default of schedule-free AdamW is
            0.0025.
        text_encoder_learning_rate: With `lora.text_encoders`: rate of their part, with the same warm-up and course;
            default: learning_rate.
        learning_rate_schedule: Course of the rate after warm-up: constant, or falling until max_steps; without that,
            over the steps of max_epochs, each of which counts as many as the first one had when training began.
        learning_rate_cycles: With cosine: equally long falls, each of which begins at the full rate again.
        final_learning_rate: Rate to which linear and cosine fall.
        warmup_steps: Steps of linear warm-up.
        betas: Coefficients of AdamW and Prodigy, and the first two of CAME, whose third is 0.9999; Adafactor has none.
        eps: Epsilon of AdamW and Prodigy; Adafactor has its own.
        weight_decay: Decoupled from the gradient.
        max_grad_norm: Norm to which the whole gradient is clipped.
        ema_decay: Decay of the weight average; in early steps (1 + step) / (10 + step).
        ema_device: Where the average is kept: beside the weights, or in CPU memory with "cpu", which saves 4 bytes of
            GPU memory per trained weight and copies the weights there after each step.
        loss_reduction: Unit that has the same weight everywhere in the loss.
        skip_steps: Steps that are counted but not trained, as [first, last]: their clips are skipped, for data that
            break a run; to use it, resume from a checkpoint before them.
        non_finite: Whether a loss or gradient that is not finite skips the step, or stops the run.
        max_non_finite: Number of such consecutive steps that stops the run with skip.
        spikes: Whether a step whose loss or gradient norm is far above the recent ones is reported with its clips, or
            also skipped: its update is not applied.
        spike_threshold: Distance of such a spike from the median of the recent values, in robust standard deviations.
        clip_losses: What each clip has been learnt, for `reelworks learning`: its losses in training, and measurements
            with fixed noise, with its caption and without, of so many clips at a time; "auto" spreads these so that
            their forward passes are 2 % of those of training. Losses and weights are the same with and without.
        clip_losses_every: With a number of clips in clip_losses: steps between two times that so many are measured;
            default: 100.
        log_block_grad_norms_every: Steps between two measurements of the gradient norm of each block; default: none.
        log_balance_every: Steps between two comparisons of the ranks' times with the plan, with several ranks.
        log_every: Steps between two lines of progress.
        compile: Compile the model's blocks and the encoder of its autoencoder: steps are faster, and the first step
            with each graph takes up to minutes longer. The sizes of buckets change too, unless buckets.token_families =
            false.
        compile_graphs: With compile: largest number of graphs, each for one batch size, number of frames and number of
            tokens; buckets beyond it run without compilation, and plan names them. As many shapes are compiled of the
            encoder.
        compile_backend: Backend of torch.compile. "aot_eager" and "eager" trace blocks and do not make them faster;
            they tell in which part a fault of compilation lies.
        memory_gb: Memory of a GPU that `model.gradient_checkpointing = "auto"` may fill, in GB; default: 95 % of the
            smallest GPU of the run, and without a GPU no limit.
        threads: CPU threads of each rank; default: OMP_NUM_THREADS, or the job's cores / ranks.
    """

    max_steps: int | None = Field(default=None, ge=1)
    max_epochs: int | None = Field(default=None, ge=1)
    max_clips: int | None = Field(default=None, ge=1)
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    micro_batches_per_step: int | None = Field(default=None, ge=1)
    same_bucket_run: int | None = Field(default=None, ge=1)
    step_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    optimizer: Literal["adamw", "adamw8bit", "muon", "prodigy", "adafactor", "came", "schedulefree"] = "adamw"
    learning_rate: float = Field(default=1e-4, gt=0)
    text_encoder_learning_rate: float | None = Field(default=None, gt=0)
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    learning_rate_cycles: int = Field(default=1, ge=1)
    final_learning_rate: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    betas: list[float] | None = Field(default=[0.9, 0.99])
    # As in v1.2: bfloat16 gradients are far below the usual 1e-8.
    eps: float | None = Field(default=1e-15, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    ema_decay: float | None = Field(default=0.9999, ge=0, lt=1)
    ema_device: Literal["auto", "cpu"] = "auto"
    loss_reduction: Literal["token", "sample", "micro_batch"] = "token"
    skip_steps: list[list[int]] = Field(default=[])
    non_finite: Literal["skip", "stop"] = "skip"
    max_non_finite: int = Field(default=10, ge=1)
    spikes: Literal["off", "report", "skip"] = "report"
    spike_threshold: float = Field(default=8.0, gt=0)
    clip_losses: Literal["off", "auto"] | Annotated[int, Field(ge=1)] = "off"
    clip_losses_every: int | None = Field(default=None, ge=1)
    log_block_grad_norms_every: int | None = Field(default=None, ge=1)
    log_balance_every: int | None = Field(default=50, ge=1)
    log_every: int = Field(default=1, ge=1)
    compile: bool = False
    compile_graphs: int = Field(default=32, ge=1)
    compile_backend: Literal["inductor", "aot_eager", "eager"] = "inductor"
    memory_gb: Told[float | None] = Field(default=None, gt=0, allow_inf_nan=False)
    threads: int | None = Field(default=None, ge=1, le=1024)  # a process that cannot start as many ends without a word

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        return optimizer_names.complete(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        if self.betas is not None and (len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas)):
            raise UserError(
                "they are not two numbers from 0 to below 1",
                code="betas-invalid",
                field="train.betas",
                value=self.betas,
                remedy="give two, as in [0.9, 0.99]; the third that CAME has is fixed",
            )
        if self.eps is not None and self.eps < _MIN_EPS:
            raise UserError(
                "updates are divided by it where there is no gradient, and in float32 it would be 0",
                code="eps-too-small",
                field="train.eps",
                value=self.eps,
                remedy=f"give {_MIN_EPS:g} or more, as 1e-8, or 1e-15 for gradients in bfloat16",
            )
        if self.optimizer == "schedulefree" and self.betas is not None and not self.betas[0]:
            raise UserError(
                "schedule-free AdamW divides by the first one",
                code="betas-invalid",
                field="train.betas",
                value=self.betas,
                remedy="give one above 0, as in [0.9, 0.99]",
            )
        return self

    @model_validator(mode="after")
    def _check_choices(self) -> TrainConfig:
        if self.optimizer == "prodigy" and self.learning_rate < _MIN_PRODIGY_FACTOR:
            raise UserError(
                "prodigy multiplies the rate that it finds by this number, and would hardly train",
                code="learning-rate-too-low",
                field="train.learning_rate",
                value=self.learning_rate,
                remedy="leave it out, or set it to 1.0",
            )
        if self.optimizer == "schedulefree" and self.learning_rate_schedule != "constant":
            raise UserError(
                "schedule-free AdamW averages in place of a schedule, and needs a constant rate",
                code="schedule-with-schedulefree",
                field="train.learning_rate_schedule",
                value=self.learning_rate_schedule,
                remedy="leave it out; warmup_steps may stay",
            )
        if self.learning_rate_schedule == "constant" and self.final_learning_rate:
            raise UserError(
                "a constant learning rate does not fall",
                code="constant-rate-does-not-fall",
                field="train.final_learning_rate",
                value=self.final_learning_rate,
                remedy='leave it out, or set train.learning_rate_schedule to "linear" or "cosine"',
            )
        if self.learning_rate_cycles > 1 and self.learning_rate_schedule != "cosine":
            raise UserError(
                f"a {self.learning_rate_schedule} learning rate does not begin again",
                code="key-without-effect",
                field="train.learning_rate_cycles",
                value=self.learning_rate_cycles,
                remedy='leave it out, or set train.learning_rate_schedule to "cosine"',
            )
        if self.final_learning_rate > self.learning_rate:
            raise UserError(
                f"it is above train.learning_rate, {self.learning_rate:g}",
                code="final-rate-above-rate",
                field="train.final_learning_rate",
                value=self.final_learning_rate,
                remedy="lower it",
            )
        if self.clip_losses_every is not None and not isinstance(self.clip_losses, int):
            raise UserError(
                f'it has no effect with clip_losses = "{self.clip_losses}"',
                code="key-without-effect",
                field="train.clip_losses_every",
                value=self.clip_losses_every,
                remedy="leave it out, or set train.clip_losses to a number of clips",
            )
        return self

    @field_validator("skip_steps")
    @classmethod
    def _check_skip_steps(cls, value: list[list[int]]) -> list[list[int]]:
        for pair in value:
            if len(pair) != 2 or not 1 <= pair[0] <= pair[1]:
                raise UserError(
                    "not a pair of a first and a last step, counted from 1",
                    code="step-range-invalid",
                    field="train.skip_steps",
                    value=pair,
                    remedy="give pairs such as [[12001, 12300]]; one step is [[7, 7]]",
                )
        return value

    @property
    def has_end(self) -> bool:
        """Whether it says when training ends."""
        return any(end is not None for end in (self.max_steps, self.max_epochs, self.max_clips))

    @property
    def lacks_end(self) -> bool:
        """True if the learning rate falls, and neither steps nor epochs say until when."""
        return self.learning_rate_schedule != "constant" and self.max_steps is None and self.max_epochs is None

    @property
    def falls_over_epochs(self) -> bool:
        """Whether the learning rate falls over epochs, whose steps only a plan tells."""
        return self.learning_rate_schedule != "constant" and self.max_steps is None and self.max_epochs is not None

    def skips(self, step: int) -> bool:
        """Whether a step, counted from 1, is to be skipped."""
        return any(first <= step <= last for first, last in self.skip_steps)

    def last_skipped(self, step: int) -> int:
        """Return the last of the steps to be skipped that follow one another from `step` on."""
        while ends := [last for first, last in self.skip_steps if first <= step + 1 <= last]:
            step = max(ends)
        return step if self.max_steps is None else min(step, self.max_steps)


class ValidationConfig(Config):
    """`[validation]`: loss of the averaged weights on held-out clips at fixed times and fixed noise.

    Attributes:
        split: Share of source files, or of folders, held out, by their content.
        group: Unit that is held out: each file by itself, or all clips of a folder; copies and measured near-duplicates
            go with it.
        every_steps: Steps between two validations.
        timesteps: Timesteps in (0, 1000], of those that are trained; default: five of them in equal distances, 100 to
            900 of all.
        max_clips: Held-out clips that are evaluated, the same ones each time.
        patience: Consecutive scheduled validations without a lower loss after which training ends; default: it does not
            end early.
        min_delta: Decrease of the loss that counts as lower, with patience.
    """

    split: float = Field(default=0.01, ge=0, lt=1)
    group: Literal["file", "folder"] = "file"
    every_steps: int | None = Field(default=500, ge=1)
    timesteps: list[float] | None = None
    max_clips: int = Field(default=64, ge=1)
    patience: int | None = Field(default=None, ge=1)
    min_delta: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _check_patience(self) -> ValidationConfig:
        if self.patience is None and self.min_delta:
            raise UserError(
                "it has no effect without patience",
                code="key-without-effect",
                field="validation.min_delta",
                value=self.min_delta,
                remedy="leave it out, or set validation.patience",
            )
        if self.patience is not None and (self.every_steps is None or not self.split):
            lacking = "split" if self.every_steps is not None else "every_steps"
            raise UserError(
                f"there is no validation during training, as validation.{lacking} says so",
                code="patience-without-validation",
                field="validation.patience",
                value=self.patience,
                remedy=f"leave it out, or set validation.{lacking}",
            )
        return self

    @field_validator("timesteps")
    @classmethod
    def _check_timesteps(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and (not value or (wrong := [t for t in value if not 0 < t <= 1000])):
            raise UserError(
                "a timestep must lie in (0, 1000], 1000 being pure noise" if value else "no timestep to validate at",
                code="validation-timesteps-invalid",
                field="validation.timesteps",
                value=wrong[0] if value else value,
                remedy="leave it out, or give timesteps such as [100.0, 500.0, 900.0]",
            )
        return value


class SamplesConfig(Config):
    """`[samples]`: clips generated on schedule into the run folder.

    Attributes:
        prompts: Prompts; each gives one clip.
        every_steps: Steps between previews; default: only at the end.
        height: Height in pixels; default: that of the bucket with the most trained tokens.
        width: Width in pixels; same default.
        num_frames: Frames; same default, among buckets of videos if there are any; 1 gives images.
        fps: Frames per second; default: that of trained videos as read, or of the model.
        num_inference_steps: Steps of the sampler; default: usual value of the model.
        guidance_scale: Strength of the prompt; 1 is no guidance; default: usual value of the model.
        image_guidance_scale: Strength of the reference, for Open-Sora 2.0, which then predicts once more without it; 1
            is no guidance; default: usual value of the model.
        guided_channels: Latent channels to which iddpm applies guidance, the first; default: usual value of the model
            with its published autoencoder (3 for Open-Sora 1.1), else all.
        metrics: Metrics of the previews that need no references, such as "motion", "clip-score" or a class of yours
            ("my_metrics.py:Sharpness"): samples/NAME in logs and for checkpoints.keep_best. With them, previews are
            made before the checkpoint is saved.
        metric_weights: Local weights of networks that metrics need, as in { clip = "models/clip" }.
        reference: Image that every clip begins with; i2v models need one.
        last_frame: Image that every clip ends with, for models that know given frames; models of first and last frames
            need one.
        control: Control image or clip of all previews.
        source: Image that all previews edit, or a list of images, clips and sounds in order.
        inpaint: Image or clip of which the black areas of samples.mask are kept.
        mask: Mask of all previews: white areas are generated, black ones are kept.
        model: Model that the LoRA is shown on in previews and by `generate`, of the family of the trained one, such as
            the distilled one of a base; default: the trained one.
        weights: Weights of that model: folder, `.safetensors` file or hub id; default: the published ones.
    """

    prompts: Told[list[str]] = Field(default=[])
    every_steps: int | None = Field(default=None, ge=1)
    height: int | None = Field(default=None, ge=1)
    width: int | None = Field(default=None, ge=1)
    num_frames: int | None = Field(default=None, ge=1)
    fps: float | None = Field(default=None, gt=0, le=240)
    num_inference_steps: int | None = Field(default=None, ge=1)
    guidance_scale: float | None = Field(default=None, ge=1)
    image_guidance_scale: float | None = Field(default=None, ge=1)
    guided_channels: int | None = Field(default=None, ge=1)
    metrics: Private[list[str]] = Field(default=[])
    metric_weights: Private[dict[str, str]] = Field(default={})
    reference: Place[str | None] = Field(default=None, min_length=1)
    last_frame: Place[str | None] = Field(default=None, min_length=1)
    control: Place[str | None] = Field(default=None, min_length=1)
    source: Place[str | list[str] | None] = Field(default=None, min_length=1)
    inpaint: Place[str | None] = Field(default=None, min_length=1)
    mask: Place[str | None] = Field(default=None, min_length=1)
    model: Told[str | None] = Field(default=None, min_length=1)
    weights: Weights[str | None] = Field(default=None, min_length=1)

    @property
    def has_model(self) -> bool:
        """Whether previews are made with another model, or other weights, than the trained ones."""
        return self.model is not None or self.weights is not None

    @model_validator(mode="after")
    def _check_metrics(self) -> SamplesConfig:
        if self.metrics and not self.prompts:
            raise UserError(
                "metrics are measured on previews, and there are no prompts to make any from",
                code="metrics-without-prompts",
                field="samples.metrics",
                value=self.metrics,
                remedy="give samples.prompts, or leave it out",
            )
        return self

    @property
    def companions(self) -> dict[str, str]:
        """Files of the companions, by kind."""
        files = {"control": self.control, **sources.named(self.source), "mask": self.mask}
        return {kind: file for kind, file in files.items() if file is not None}


def no_end(config: TrainConfig, stage: str = "") -> UserError:
    """Return the error for a rate that falls, where only clips say when the recipe, or the stage of that name, ends."""
    return UserError(
        "the learning rate falls over steps or epochs, and neither is set",
        code="schedule-without-end",
        field="train.learning_rate_schedule",
        value=config.learning_rate_schedule,
        remedy=f"write steps or epochs in [[stage]] {stage}" if stage else "set train.max_steps or train.max_epochs",
    )
