"""Rules of musubi-tuner's settings: its argument parsers of June 2026 and its dataset config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import adapters, datasets, timesteps, training
from reelworks.annexes.imports.kohya.training import impossible
from reelworks.annexes.imports.kohya.values import whole_of
from reelworks.annexes.imports.musubi import models
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.models import components
from reelworks.models.config import ModelConfig

_PARTS = "the text encoders and the autoencoder of the release are used: text_encoder.weights, autoencoder.weights"
_SPEED = "it affects speed or memory only"
_OTHER_MODEL = "of a model that is not here"
_FRAME_PACK = "only FramePack and training of single frames have it"
DEFAULT_SHIFT = 1.0


def _sampling(value: Any, draft: ImportDraft) -> Outcome:
    return timesteps.sampling(value, draft, default_shift=DEFAULT_SHIFT, shifts_sigma=False)


def _bound(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, ""):
        return Fate.DEFAULT, "not set"
    if draft.get("model.experts") is not None:
        return Fate.NO_MEANING, "model.experts has the timesteps of each network"
    return timesteps.bound(value, draft, default_sampling="sigma")


def _of_density(value: Any, draft: ImportDraft) -> Outcome:
    if draft.key == "discrete_flow_shift" and draft.settings.get("timestep_sampling", "sigma") == "sigma":
        return Fate.NO_MEANING, "timestep_sampling = sigma draws from timesteps that are not shifted, there too"
    return Fate.NO_MEANING, "the density of timesteps has it"


def _stratified(value: Any, draft: ImportDraft) -> Outcome:
    if not value or whole_of(value) < 2:
        return Fate.DEFAULT, "off"
    return Fate.NOT_POSSIBLE, "each timestep is drawn by itself, from the same density"


RULES: Mapping[str, Rule] = {
    **training.RULES,
    **adapters.RULES,
    **dict.fromkeys(
        ("task", "model_version", "edit", "edit_plus", "is_edit"), rules.without_meaning("model.name has it")
    ),
    **dict.fromkeys(
        (
            *("vae", "t5", "clip", "byt5", "image_encoder", "text_encoder", "text_encoder1", "text_encoder2"),
            *("text_encoder_dtype", "vae_dtype", "dit_dtype", "fp8_t5", "fp8_llm", "fp8_vl", "fp8_text_encoder"),
        ),
        rules.without_meaning(_PARTS),
    ),
    **dict.fromkeys(
        (
            *("vae_tiling", "vae_chunk_size", "vae_spatial_tile_sample_min_size", "vae_cache_cpu", "vae_sample_size"),
            *("vae_enable_patch_conv", "offload_inactive_dit", "use_32bit_attention", "turbo_dit_cache", "bulk_decode"),
            *("offload_dit_during_sampling", "no_vae_load", "debug_dataset", "show_timesteps"),
        ),
        rules.without_meaning(_SPEED),
    ),
    "dit_in_channels": rules.without_meaning("the model has them"),
    "dit_high_noise": rules.without_meaning("this model has one network"),
    "timestep_boundary": rules.without_meaning("model.experts has the release's"),
    "force_v2_1_time_embedding": impossible("the time of each token is as in the release"),
    "one_frame": impossible("training of single frames is not there: a [[bucket]] of 1 frame takes pictures"),
    "turbo_dit": impossible("samples.weights shows a LoRA on another model"),
    "num_layers": impossible("all layers are kept"),
    "remove_first_image_from_target": impossible("layers of pictures are not there"),
    "timestep_sampling": _sampling,
    "weighting_scheme": timesteps.weighting,
    **dict.fromkeys(("discrete_flow_shift", "sigmoid_scale", "logit_mean", "logit_std", "mode_scale"), _of_density),
    "preserve_distribution_shape": rules.without_meaning("bounds never change the density here"),
    "num_timestep_buckets": _stratified,
    "min_timestep": _bound,
    "max_timestep": _bound,
    "guidance_scale": rules.only((None, 1, 1.0), "guidance is 1 in training", "guidance is 1 in training"),
    "trainable_modules": impossible("all weights are trained, or a LoRA with lora.targets"),
    **dict.fromkeys(
        (
            *("self_flow", "self_flow_gamma", "self_flow_gamma_warmup_steps", "mask_ratio", "student_feature_layer"),
            *("teacher_feature_layer", "self_flow_teacher_coupling_prob", "self_flow_teacher_coupling_decay"),
            *("self_flow_teacher_coupling_decay_steps", "self_flow_teacher_mismatch_ratio", "network_weights_ema"),
            "network_weights_proj",
        ),
        impossible("self-flow is not there: the plain loss is trained"),
    ),
    "ema_decay": impossible("self-flow is not there; train.ema_decay is the average of the weights"),
    **dict.fromkeys(
        (
            *("latent_window_size", "f1", "model_type", "noise_scale_start", "noise_scale_end", "noise_clip_std"),
            *("skip_t2i_visual_dummy", "unconditional_dit", "use_unconditional_dit_for_lora_sampling"),
            *("sampler_preset", "initial_sigma", "log_loss_stats", "ideogram4_timestep_mu", "ideogram4_timestep_std"),
            *("validate_caption_structure", "warn_on_caption_issues", "override_dit", "text_encoder_qwen"),
            *("text_encoder_clip", "scheduler_scale", "i2v_mode", "force_nabla_attention", "nabla_P", "nabla_wT"),
            *("nabla_wH", "nabla_wW", "nabla_method", "nabla_add_sta", "no_nabla_add_sta"),
            *(f"dino_loss_{name}" for name in ("weight", "backend", "model_type", "layer", "feature_mode", "resize")),
            *(f"dino_loss_{name}" for name in ("use_gram", "no_norm", "every_n_steps")),
        ),
        rules.without_meaning(_OTHER_MODEL),
    ),
    "datasets": lambda value, draft: (Fate.TO_FILL_IN, "there is no dataset in it: set dataset.path"),
    "general": rules.without_meaning("there is no setting in it"),
}

DEFAULTS: Mapping[str, Any] = {**training.DEFAULTS, "timestep_sampling": "sigma"}
OF_ADAPTERS: Mapping[str, Any] = {"network_dim": 4, "network_alpha": 1}


def _control(value: Any, draft: ImportDraft) -> Outcome:
    """Take the folder of pictures that an edit begins with, if the model takes one."""
    if not isinstance(value, str) or not value:
        raise TypeError
    takes = components.conditioning(ModelConfig(name=draft.get("model.name"))).takes
    kind = next((kind for kind in ("source", "control") if kind in takes), None)
    if kind is None:
        return Fate.NOT_POSSIBLE, "this model takes no pictures beside the caption"
    return (
        Fate.TAKEN,
        f"{draft.set(rules.numbered(f'dataset.*.{kind}', draft), str(value))}; several pictures of a clip, name_0 and "
        "name_1, are in a folder each here",
    )


def _extraction(value: Any, draft: ImportDraft) -> Outcome:
    """Take what part of a video is read: its beginning, or a random one for all that read several parts."""
    if value == "head":
        return Fate.TAKEN, draft.set("data.clip_start", "start")
    remark = draft.set("data.clip_start", "random")
    if value == "full":
        return (
            Fate.TAKEN,
            f"{draft.set('data.clip_start', 'start')}, and all lengths of 4 n + 1 frames up to max_frames",
        )
    if value == "uniform":
        return Fate.TAKEN, f"{remark}: each use begins at another frame, frame_sample times in an epoch"
    if value in ("chunk", "slide"):
        return (
            Fate.NOT_POSSIBLE,
            f"{remark} replaces it: each use begins at another frame; set dataset.clip_seconds to train all parts of a video",
        )
    return Fate.NOT_POSSIBLE, "there is no such way to read a video"


def _sample(value: Any, draft: ImportDraft) -> Outcome:
    key = rules.numbered("dataset.*.repeats", draft)
    place = draft.key.rpartition(".")[0]
    if draft.settings.get(f"{place}.frame_extraction") != "uniform":
        return Fate.NO_MEANING, "only frame_extraction = uniform has it"
    times = max(whole_of(value), 1)
    return Fate.TAKEN, draft.set(key, times * draft.get(key, 1))


def _rate(value: Any, draft: ImportDraft) -> Outcome:
    rate = models.frame_rate_of(draft.settings)
    if rate is None:
        return Fate.NO_MEANING, "pictures have no rate"
    return (
        Fate.TAKEN,
        f"{draft.set('data.fps', rate)}, by the rate of each file; those without source_fps are read so too",
    )


DATASETS: Mapping[str, Rule] = {
    "image_directory": datasets.path,
    "image_jsonl_file": datasets.list_of_files,
    "video_directory": datasets.path,
    "video_jsonl_file": datasets.list_of_files,
    "num_repeats": datasets.repeats,
    "caption_extension": datasets.caption_extension,
    "cache_directory": rules.without_meaning("encode.folder holds what is stored, and no two runs can mix it up"),
    "control_directory": _control,
    "frame_extraction": _extraction,
    "frame_sample": _sample,
    "frame_stride": rules.without_meaning("each use begins at another frame"),
    "source_fps": _rate,
    "multiple_target": impossible("layers of pictures are not there"),
    **dict.fromkeys(
        ("fp_latent_window_size", "fp_1f_clean_indices", "fp_1f_target_index", "fp_1f_no_post"),
        rules.without_meaning(_FRAME_PACK),
    ),
    **dict.fromkeys(
        ("no_resize_control", "flux_kontext_no_resize_control", "qwen_image_edit_no_resize_control"),
        impossible("sources have the size of their clip"),
    ),
    **dict.fromkeys(
        ("control_resolution", "qwen_image_edit_control_resolution"), impossible("sources have the size of their clip")
    ),
}
SIZES = ("resolution", "batch_size", "enable_bucket", "bucket_no_upscale")
LENGTHS = ("target_frames", "max_frames")
DATASET_DEFAULTS: Mapping[str, Any] = {}
