"""Translations of the settings of `train` to recipe keys."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.core.toml_none import WORD as NONE

_RELEASE_SHIFTS = ("shift", "flux_shift", "lumina2_shift")

_FLAT = ("linear", "weighted", "one_step", "two_step", "four_step", "eight_step", "next_sample")

_ADAMW = {"betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01}

# By the beginning of its name: the optimizer here, its settings in ai-toolkit, and how it differs; "" if it does not.
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "prodigy8bit": ("prodigy", {"eps": 1e-6, "betas": [0.9, 0.999]}, "its state has 32 bits here"),
    "prodigy": ("prodigy", {"eps": 1e-6, "betas": [0.9, 0.999]}, ""),
    "dadapt": ("prodigy", {"eps": 1e-6, "betas": [0.9, 0.999]}, "D-Adaptation is not there, and Prodigy replaces it"),
    "adamw8": ("adamw8bit", _ADAMW, ""),
    "adam8": ("adamw8bit", {**_ADAMW, "weight_decay": 0.0}, "weight decay is decoupled here"),
    "adamw": ("adamw", _ADAMW, ""),
    "adam": ("adamw", {**_ADAMW, "weight_decay": 0.0}, "weight decay is decoupled here"),
    "adafactor": (
        "adafactor",
        {"weight_decay": 0.0},
        "its rate is a share of the size of the weights here: 0.01 is usual",
    ),
    "automagic": ("adamw", {**_ADAMW, "weight_decay": 0.0}, "it is not there, and AdamW with this rate replaces it"),
    "lion": (
        "adamw",
        {**_ADAMW, "weight_decay": 0.0},
        "Lion is not there, and AdamW replaces it: give it 3 to 10 times the rate",
    ),
}

_OTHER_OPTIMIZER = ("adamw", _ADAMW, "it is not there, and AdamW replaces it")

_LEAST_PRODIGY_RATE = 0.1  # a smaller one becomes 1.0 in ai-toolkit

_SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine",
}

DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16"), "bfloat16"),
    **dict.fromkeys(("fp32", "float32", "float"), "float32"),
}


def accumulation(settings: FormerSettings) -> int:
    """Return the number of its steps until the optimizer's; only the older of its two settings counts so."""
    value = settings.get("train.gradient_accumulation_steps", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 1 else 1


def _steps(value: Any, draft: ImportDraft) -> Outcome:
    own = max(int(value) // accumulation(draft.settings), 1)
    remark = draft.set("train.max_steps", own)
    if own != value:
        return (
            Fate.TAKEN,
            f"{remark}: its steps are micro-batches, {accumulation(draft.settings)} for each optimizer step",
        )
    return Fate.TAKEN, remark


def interval(target: str) -> Rule:
    """Convert steps between two events, which are micro-batches if ai-toolkit accumulates in its older way."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        steps = NONE if not value else max(int(value) // accumulation(draft.settings), 1)
        return Fate.TAKEN, draft.set(target, steps)

    return handle


def _accumulation(value: Any, draft: ImportDraft) -> Outcome:
    if value == -1:
        return (
            Fate.NOT_POSSIBLE,
            "an optimizer step is not an epoch here: set train.gradient_accumulation_steps to its micro-batches",
        )
    if value in (None, 0, 1):
        return Fate.DEFAULT, "1"
    return Fate.TAKEN, draft.set("train.gradient_accumulation_steps", value)


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    here, settings, why = next((own for start, own in _OPTIMIZERS.items() if name.startswith(start)), _OTHER_OPTIMIZER)
    remark = draft.set("train.optimizer", here)
    for key, number in settings.items():
        draft.set(f"train.{key}", number, f"default of {value} in ai-toolkit")
    return (Fate.NOT_POSSIBLE, f"{remark}: {why}") if why else (Fate.TAKEN, remark)


def _learning_rate(value: Any, draft: ImportDraft) -> Outcome:
    rate = float(value)
    if draft.get("train.optimizer") == "prodigy" and rate < _LEAST_PRODIGY_RATE:
        return Fate.TAKEN, f"{draft.set('train.learning_rate', 1.0)}, as ai-toolkit does below {_LEAST_PRODIGY_RATE}"
    return Fate.TAKEN, draft.set("train.learning_rate", rate)


def _own_rate(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, draft.settings.get("train.lr")):
        return Fate.DEFAULT, "train.lr"
    return Fate.TAKEN, draft.set("train.learning_rate", float(value))


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    if value in _SCHEDULES:
        if (
            value == "constant_with_warmup"
            and "train.lr_scheduler_params.num_warmup_steps" not in draft.settings.values
        ):
            draft.set("train.warmup_steps", 1000)
        return Fate.TAKEN, draft.set("train.learning_rate_schedule", _SCHEDULES[value])
    remark = draft.set("train.learning_rate_schedule", "constant")
    return (
        Fate.NOT_POSSIBLE,
        f"{remark} replaces it: cosine, linear (falling) and constant are there, with train.warmup_steps",
    )


def _timesteps(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("objective.name", "rectified-flow") != "rectified-flow":
        return Fate.NO_MEANING, "all 1000 steps are trained alike"
    flat = value in _FLAT or any(draft.settings.get(f"train.linear_timesteps{v}") for v in ("", "2"))
    if value in _RELEASE_SHIFTS and not flat:
        remark = draft.set("objective.timestep_sampling", "uniform")
        shift = draft.get("objective.timestep_shift")
        if value == "flux_shift":
            return (
                Fate.TAKEN,
                f"{remark}, with the release's shift, {shift}, for all sizes, which grows with them in ai-toolkit",
            )
        return Fate.TAKEN, f"{remark}, with the release's shift, {shift}"
    draft.set("objective.timestep_shift", NONE)
    if flat:
        remark = draft.set("objective.timestep_sampling", "uniform")
        if value == "weighted":
            return Fate.NOT_POSSIBLE, f"{remark}; its table of weights is not there, all timesteps count alike"
        if value not in ("linear", "sigmoid"):
            return Fate.NOT_POSSIBLE, f"{remark}; all timesteps are trained, and not a few"
        return Fate.TAKEN, remark
    remark = draft.set("objective.timestep_sampling", "logit-normal")
    if value == "sigmoid":
        return Fate.TAKEN, f"{remark}, without a shift"
    return Fate.NOT_POSSIBLE, f"{remark} replaces it"


def _flat_timesteps(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    remark = draft.set("objective.loss_weighting", "bell")
    if draft.key == "train.linear_timesteps2":
        return Fate.NOT_POSSIBLE, f"{remark}; its weights do not fall towards noise"
    return Fate.TAKEN, f'objective.timestep_sampling = "uniform", {remark}'


def _emphasis(value: Any, draft: ImportDraft) -> Outcome:
    if value == "balanced":
        return Fate.DEFAULT, "balanced"
    mean = 1.0 if value == "content" else -1.0
    return Fate.NOT_POSSIBLE, (
        f"its cubic density is not there: objective.timestep_sampling = 'logit-normal' with objective.logit_mean = {mean} is similar"
    )


def _limit(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the first and last index of its descending timesteps to a range."""
    low, high = (draft.settings.get(f"train.{which}_denoising_steps", end) for which, end in (("min", 0), ("max", 999)))
    if (low, high) == (0, 999):
        return Fate.DEFAULT, "all timesteps"
    if draft.get("objective.name", "rectified-flow") != "rectified-flow":
        return Fate.NOT_POSSIBLE, "all timesteps are trained"
    return Fate.TAKEN, draft.set("objective.timestep_range", [float(max(999 - high, 0)), float(min(1000 - low, 1000))])


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    if value in ("mse", None):
        return Fate.DEFAULT, "squared error"
    if value == "pseudo_huber":
        draft.set("objective.huber_delta", 0.01)
        return Fate.TAKEN, f"{draft.set('objective.loss', 'huber')}, whose bend is sharper"
    if value == "mae":
        draft.set("objective.huber_delta", 0.01)
        return Fate.NOT_POSSIBLE, f"{draft.set('objective.loss', 'smooth-l1')} with a small delta replaces it"
    return Fate.NOT_POSSIBLE, "this loss is not there; the squared error replaces it"


def _snr(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if draft.get("objective.name", "rectified-flow") == "rectified-flow":
        return Fate.NO_MEANING, "flow matching has no such weights in ai-toolkit"
    draft.set("objective.loss_weighting", "min-snr")
    return Fate.TAKEN, f'objective.loss_weighting = "min-snr", {draft.set("objective.snr_gamma", float(value))}'


def _guidance(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    target = draft.settings.get("train.guidance_loss_target", 3.0)
    scale = sum(target) / len(target) if isinstance(target, list) else float(target)
    remark = draft.set("objective.target_guidance_scale", scale)
    same = not isinstance(target, list) and not draft.settings.get("train.do_guidance_loss_cfg_zero")
    return (Fate.TAKEN, remark) if same else (Fate.NOT_POSSIBLE, f"{remark} for all clips, without CFG-Zero")


def _guidance_embedding(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if not str(draft.get("model.name")).startswith("flux-"):
        return Fate.NO_MEANING, "ai-toolkit reads it for FLUX.1 alone"
    return (
        Fate.NOT_POSSIBLE,
        "the guidance that the network is given in training is that of the release; it cannot be switched off",
    )


def _average(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("train.ema_config.use_ema") is not True:
        draft.set("exports.weights", "model", "no average")
        return Fate.TAKEN, draft.set("train.ema_decay", 0.0)
    draft.set("exports.weights", "ema", "")
    return Fate.TAKEN, draft.set("train.ema_decay", draft.settings.get("train.ema_config.ema_decay", 0.999))


def _average_rate(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("train.ema_config.use_ema") is not True:
        return Fate.NO_MEANING, "it belongs to use_ema"
    return _average(value, draft)


def _attention(value: Any, draft: ImportDraft) -> Outcome:
    if value == "native":
        return Fate.DEFAULT, "torch chooses"
    known = next((name for name in ("flash_3", "flash_4", "flash", "cudnn") if name in str(value)), None)
    if known is None:
        return Fate.NOT_POSSIBLE, "this kernel is not there: torch chooses"
    return Fate.TAKEN, draft.set("model.attention", known.replace("_", "-"))


def _never(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    for key in (
        "prompts",
        "every_steps",
        "width",
        "height",
        "num_frames",
        "fps",
        "guidance_scale",
        "num_inference_steps",
    ):
        draft.remove(f"samples.{key}")
    return Fate.TAKEN, "no samples.prompts"


def _dtype(value: Any, draft: ImportDraft) -> Outcome:
    if value in ("fp16", "float16"):
        return Fate.NOT_POSSIBLE, f"float16 is not there, {draft.set('precision.compute', 'bfloat16')} replaces it"
    return rules.by_name("precision.compute", DTYPES, "bfloat16", "this dtype is not there")(value, draft)


_NOISE = "noise is drawn as the model was trained with it; noise is changed by nothing here"

OTHER_LOSS = "this term of the loss is not there"

_TEXTS = "text encoders are not trained: leave it out; lora.targets decides what of the denoiser is"

PRIOR = "not there in this form: dataset.prior_prediction on clips of the class keeps what the model knows"

RULES: dict[str, Rule] = {
    "train.steps": _steps,
    "train.lr": _learning_rate,
    "train.unet_lr": _own_rate,
    "train.text_encoder_lr": rules.without_meaning("text encoders are not trained"),
    "train.refiner_lr": rules.without_meaning("there is no refiner"),
    "train.embedding_lr": rules.without_meaning("textual inversions are not trained"),
    "train.adapter_lr": rules.without_meaning("adapters are not trained"),
    "train.optimizer": _optimizer,
    "train.optimizer_params.weight_decay": rules.to("train.weight_decay"),
    "train.optimizer_params.betas": rules.to("train.betas"),
    "train.optimizer_params.eps": rules.to("train.eps"),
    "train.optimizer_params.*": rules.impossible("the optimizer has no such setting here: leave it out"),
    "train.optimizer_params": rules.without_meaning("empty"),
    "train.lr_scheduler": _schedule,
    "train.lr_scheduler_params.num_warmup_steps": rules.to("train.warmup_steps", none=0),
    "train.lr_scheduler_params.warmup_steps": rules.to("train.warmup_steps", none=0),
    "train.lr_scheduler_params.eta_min": rules.to("train.final_learning_rate", none=0.0),
    "train.lr_scheduler_params.T_max": rules.without_meaning("the rate falls until train.max_steps"),
    "train.lr_scheduler_params.total_iters": rules.without_meaning("the rate falls until train.max_steps"),
    "train.lr_scheduler_params.*": rules.impossible("the schedule has no such setting here: leave it out"),
    "train.lr_scheduler_params": rules.without_meaning("empty"),
    "train.batch_size": rules.to("buckets.batch_size"),
    "train.gradient_accumulation": _accumulation,
    "train.gradient_accumulation_steps": _accumulation,
    "train.dtype": _dtype,
    "train.gradient_checkpointing": rules.to("model.gradient_checkpointing", none=False),
    "train.max_grad_norm": rules.to("train.max_grad_norm", none=NONE),
    "train.ema_config": _average,
    "train.ema_config.use_ema": _average,
    "train.ema_config.ema_decay": _average_rate,
    "train.ema_config.use_feedback": rules.impossible("the average does not change the weights"),
    "train.ema_config.param_multiplier": rules.only(
        (1, 1.0), "1", "weights are not multiplied: set train.weight_decay"
    ),
    "train.noise_scheduler": rules.without_meaning("the model's objective decides"),
    "train.num_train_timesteps": rules.only((1000,), "1000", "there are 1000 timesteps"),
    "train.timestep_type": _timesteps,
    "train.linear_timesteps": _flat_timesteps,
    "train.linear_timesteps2": _flat_timesteps,
    "train.next_sample_timesteps": rules.without_meaning("all timesteps are trained"),
    "train.content_or_style": _emphasis,
    "train.min_denoising_steps": _limit,
    "train.max_denoising_steps": _limit,
    "train.loss_type": _loss,
    "train.snr_gamma": _snr,
    "train.min_snr_gamma": _snr,
    "train.do_guidance_loss": _guidance,
    "train.guidance_loss_target": rules.read_with("train.do_guidance_loss"),
    "train.do_guidance_loss_cfg_zero": rules.read_with("train.do_guidance_loss"),
    "train.guidance_loss_schedule": rules.only(("constant",), "constant", "the scale is the same at all timesteps"),
    "train.unconditional_prompt": rules.only(("", None), "the empty caption", "the empty caption is the other one"),
    "train.do_differential_guidance": rules.impossible(OTHER_LOSS),
    "train.differential_guidance_scale": rules.without_meaning("it belongs to do_differential_guidance"),
    "train.bypass_guidance_embedding": _guidance_embedding,
    "train.train_unet": rules.only((True,), "the denoiser is trained", "the denoiser is what is trained"),
    "train.train_text_encoder": rules.impossible(_TEXTS),
    "train.train_refiner": rules.without_meaning("there is no refiner"),
    "train.prompt_dropout_prob": lambda value, draft: (
        (Fate.TAKEN, draft.set("objective.caption_dropout", float(value))) if value else (Fate.DEFAULT, "off")
    ),
    "train.cache_text_embeddings": lambda value, draft: (
        (Fate.TAKEN, draft.set("encode.store", True)) if value else (Fate.DEFAULT, "off")
    ),
    "train.unload_text_encoder": rules.without_meaning(
        "encode.store leaves it out of memory; captions are embedded once either way, and not replaced by the trigger word"
    ),
    "train.disable_sampling": _never,
    "train.skip_first_sample": rules.without_meaning("previews begin after samples.every_steps"),
    "train.force_first_sample": rules.without_meaning("previews begin after samples.every_steps"),
    "train.attention_backend": _attention,
    "train.xformers": rules.without_meaning("model.attention decides"),
    "train.sdp": rules.without_meaning("model.attention decides"),
    "train.start_step": rules.impossible("a run continues where its checkpoint is: give `train --load`"),
    "train.reg_weight": rules.only((1, 1.0), "1", "all clips have the same weight: set dataset.repeats"),
    "train.switch_boundary_every": rules.without_meaning("each step trains one of both networks"),
    "train.diff_output_preservation": rules.impossible(PRIOR),
    "train.diff_output_preservation_multiplier": rules.without_meaning("it belongs to diff_output_preservation"),
    "train.diff_output_preservation_class": rules.without_meaning("it belongs to diff_output_preservation"),
    "train.blank_prompt_preservation": rules.impossible(PRIOR),
    "train.blank_prompt_preservation_multiplier": rules.without_meaning("it belongs to blank_prompt_preservation"),
    "train.inverted_mask_prior": rules.impossible(PRIOR),
    "train.inverted_mask_prior_multiplier": rules.without_meaning("it belongs to inverted_mask_prior"),
    "train.do_prior_divergence": rules.impossible(OTHER_LOSS),
    "train.negative_prompt": rules.impossible(OTHER_LOSS),
    "train.max_negative_prompts": rules.without_meaning("it belongs to negative_prompt"),
    "train.short_and_long_captions": rules.impossible(
        'write both captions into a file, a line each, and set captions = "lines"'
    ),
    "train.short_and_long_captions_encoder_split": rules.impossible("both text encoders get the same caption"),
    "train.single_item_batching": rules.impossible("set train.gradient_accumulation_steps, and a batch size of 1"),
    "train.merge_network_on_save": rules.impossible("merge the LoRA into weights with another program"),
    "train.merge_network_on_save_strength": rules.without_meaning("it belongs to merge_network_on_save"),
    "train.audio_loss_multiplier": lambda value, draft: (
        (Fate.TAKEN, draft.set("sound.loss_weight", float(value)))
        if draft.get("sound.name")
        else (Fate.NO_MEANING, "no sound")
    ),
    "train.max_loss_debug": rules.without_meaning("train.spikes reports steps with a high loss"),
    "train.max_loss": rules.impossible('a loss is not cut: train.spikes = "skip" leaves such steps out'),
    "train.validation_config.*": rules.impossible("set validation.split, and keep clips back for it", ()),
    "train.cfg_rescale": rules.without_meaning("it belongs to do_cfg"),
    "train.cfg_scale": rules.without_meaning("it belongs to do_cfg"),
    "train.max_cfg_scale": rules.without_meaning("it belongs to do_cfg"),
    "train.show_turbo_outputs": rules.without_meaning("it belongs to train_turbo"),
    "train.do_paramiter_swapping": rules.impossible(
        "all weights are trained in each step: parallel.offload saves memory"
    ),
    "train.paramiter_swapping_factor": rules.without_meaning("it belongs to do_paramiter_swapping"),
    **{
        f"train.{key}": rules.only(values, "off", _NOISE)
        for key, values in {
            "noise_offset": (0, 0.0, None),
            "noise_multiplier": (1, 1.0),
            "target_noise_multiplier": (1, 1.0),
            "random_noise_multiplier": (0, 0.0),
            "random_noise_shift": (0, 0.0),
            "img_multiplier": (1, 1.0),
            "noisy_latent_multiplier": (1, 1.0),
            "latent_multiplier": (1, 1.0),
            "optimal_noise_pairing_samples": (1,),
            "pred_scaler": (1, 1.0),
        }.items()
    },
    **{
        f"train.{key}": rules.impossible(_NOISE)
        for key in (
            *(
                "dynamic_noise_offset",
                "do_signal_correction_noise",
                "do_batch_noise_correction",
                "do_signal_amplification",
            ),
            *("force_consistent_noise", "blended_blur_noise", "match_noise_norm", "adaptive_scaling_factor"),
            *("standardize_images", "standardize_latents", "weight_jitter", "free_u", "prompt_saturation_chance"),
        )
    },
    **{
        f"train.{key}": rules.without_meaning("its switch decides")
        for key in (
            *("signal_correction_noise_scale", "batch_noise_correction_scale", "signal_amplification_strength"),
            *("correct_pred_norm_multiplier", "target_norm_std_value", "latent_feature_loss_weight"),
            *("diffusion_feature_extractor_weight", "adapter_assist_type", "t0_velocity_equiv_weight"),
            "do_fft_velocity_equiv_weight",
        )
    },
    **{
        f"train.{key}": rules.impossible(OTHER_LOSS)
        for key in (
            *("train_turbo", "learnable_snr_gos", "do_cfg", "do_random_cfg", "correct_pred_norm", "target_norm_std"),
            *("t0_loss_target", "do_fft_loss", "latent_feature_extractor_path", "diffusion_feature_extractor_path"),
            *("adapter_assist_name_or_path", "match_adapter_assist", "match_adapter_chance", "do_blank_stabilization"),
        )
    },
    "train.loss_target": rules.only(("noise",), "the objective's own", OTHER_LOSS),
}
