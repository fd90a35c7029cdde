"""Options of SimpleTuner that no recipe key corresponds to: without meaning here, or not possible, each with the reason."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule

_ATTENTION = ["to_k", "to_q", "to_v", "to_out.0", "add_k_proj", "add_q_proj", "add_v_proj", "to_add_out"]
_CONTEXT = ["add_k_proj", "add_q_proj", "add_v_proj", "to_add_out"]
# Values of flux_lora_target, as lora.targets.
LAYERS: dict[str, Any] = {
    "all": _ATTENTION,
    "all+ffs": "blocks",
    "all+ffs+embedder": "blocks",
    "ai-toolkit": "blocks",
    "context": _CONTEXT,
    "context+ffs": [*_CONTEXT, "ff_context.net.0.proj", "ff_context.net.2"],
    "tiny": ["single_transformer_blocks.7.proj_out", "single_transformer_blocks.20.proj_out"],
    "nano": ["single_transformer_blocks.7.proj_out"],
}

_WITHOUT_MEANING = {
    "caches are made by encode.store": """
        cache_dir cache_dir_text cache_dir_vae compress_disk_cache text_cache_disable text_cache_ondemand text_embed_full_cache
        text_encoder_batch_size vae_batch_size vae_cache_disable vae_cache_ondemand vae_cache_scan_behaviour keep_vae_loaded
        fully_unload_text_encoder offload_during_startup offload_during_save delete_model_after_load save_text_encoder
        preserve_data_backend_cache image_processing_batch_size read_batch_size write_batch_size metadata_update_interval
        skip_file_discovery override_dataset_config""",
    "data.num_workers and data.prefetch_bytes decide": """
        aspect_bucket_worker_count aws_max_pool_connections dataloader_prefetch dataloader_prefetch_qlen enable_multiprocessing
        max_workers torch_num_threads""",
    "each clip of an epoch is trained once, whatever its bucket": """
        allow_dataset_oversubscription disable_bucket_pruning aspect_bucket_disable_rebuild aspect_bucket_rounding
        data_backend_sampling ignore_missing_files strict_epoch_limit ignore_final_epochs""",
    "it only affects memory or speed": """
        accelerator_cache_clear_interval base_model_default_dtype disable_benchmark disable_tf32 ema_foreach_disable
        enable_chunked_feed_forward feed_forward_chunk_size find_unused_parameters fuse_optimizer fused_qkv_projections
        fuse_qkv_projections gradient_checkpointing_backend gradient_checkpointing_interval
        gradient_checkpointing_offload_attention gradient_checkpointing_offload_pin_memory_max_buckets
        gradient_checkpointing_offload_prefetch gradient_checkpointing_segment_stride group_offload_blocks_per_group
        group_offload_text_encoder group_offload_to_disk_path group_offload_type group_offload_use_stream group_offload_vae
        musubi_block_swap_device quantize_via set_grads_to_none unet_attention_slice vae_enable_patch_conv vae_enable_slicing
        vae_enable_temporal_roll vae_enable_tiling optimizer_cpu_offload_method optimizer_offload_gradients
        optimizer_release_gradients context_parallel_comm_strategy ramtorch_controlnet ramtorch_disable_extensions
        ramtorch_disable_sync_hooks ramtorch_target_modules ramtorch_text_encoder ramtorch_text_encoder_percent
        ramtorch_transformer_percent ramtorch_vae offload_param_path sageattention_usage sdnq_compile_mode
        dynamo_dynamic dynamo_fullgraph dynamo_mode dynamo_use_regional_compilation
        gradient_precision vae_dtype enable_xformers_memory_efficient_attention""",
    "torchrun starts the processes, with one recipe for any number": """
        accelerate_config accelerate_extra_args local_rank machine_rank main_process_ip main_process_port num_machines
        num_processes same_network""",
    "parallel.strategy decides": """
        fsdp_activation_checkpointing fsdp_auto_wrap_policy fsdp_cpu_ram_efficient_loading fsdp_limit_all_gathers
        fsdp_reshard_after_forward fsdp_state_dict_type fsdp_transformer_layer_cls_to_wrap fsdp_version""",
    "a run resumes by itself, and a checkpoint is whole or not there": """
        resume_from_checkpoint checkpointing_use_tempdir delete_invalid_checkpoints merge_environment_config configs_dir
        i_know_what_i_am_doing""",
    "`reelworks` reports what becomes of each clip": """
        debug_aspect_buckets debug_dataset_loader print_filenames print_sampler_statistics""",
    "logs are in the run's folder": """
        logging_dir tracker_image_layout tracker_project_name tracker_run_name webhook_config webhook_reporting_interval
        custom_tracker""",
    "files are not sent to the hub": """
        hub_model_id model_card_note model_card_private model_card_safe_for_work modelspec_comment publishing_config
        push_to_hub_background""",
    "it belongs to a switch that decides": """
        noise_offset noise_offset_probability input_perturbation_steps internal_guidance_block_index
        internal_guidance_loss_weight irepa_projector_kernel_size irepa_spatial_norm_alpha layersync_lambda
        layersync_student_block layersync_teacher_block mixflow_gamma nextlat_block_index nextlat_kl_weight nextlat_state_loss
        nextlat_weight soft_min_snr_sigma_data timestep_bias_begin timestep_bias_end timestep_bias_multiplier
        timestep_bias_portion twinflow_target_step_count xm_block_size xm_candidate_count xm_selection_scope xm_training_target
        diff2flow_loss flow_timesteps_mode hidream_load_balancing_loss_weight disk_low_action disk_low_script
        refiner_training_invert_schedule refiner_training_strength singlora_ramp_up_steps init_lora_step
        freeze_encoder_after freeze_encoder_before freeze_encoder_strategy ema_update_interval ema_warmup_steps
        assistant_lora_inference_strength nsfw_check_backend_types nsfw_check_min_votes nsfw_check_models
        nsfw_check_sample_types nsfw_check_video_frame_count nsfw_check_video_frame_selection
        nsfw_check_video_min_flagged_frames sdnq_group_size sdnq_quantized_matmul_dtype sdnq_use_quantized_matmul
        sdnq_use_hadamard sdnq_hadamard_group_size sdnq_weights_dtype sdnq_use_svd sdnq_svd_rank sdnq_svd_steps
        prodigy_steps disable_assistant_lora lora_init_type maximum_image_size target_downsample_size distillation_config
        adam_beta1 adam_beta2 adam_epsilon adam_weight_decay flux_guidance_min flux_guidance_max init_lokr_norm
        minimax_h3_sparse_block_shape minimax_h3_sparse_share_heads minimax_h3_sparse_start_layer
        minimax_h3_sparse_video_kv_fraction""",
    "it belongs to CREPA, REPA, UREPA or scheduled sampling, whose switch decides": """
        crepa_adjacent_distance crepa_adjacent_tau crepa_block_index crepa_cutoff_step crepa_decay_steps crepa_drop_vae_encoder
        crepa_encoder crepa_encoder_frames_batch_size crepa_encoder_image_size crepa_feature_source crepa_lambda
        crepa_lambda_end crepa_normalize_by_frames crepa_normalize_neighbour_sum crepa_power crepa_scheduler
        crepa_self_flow_mask_ratio crepa_similarity_ema_decay crepa_similarity_threshold crepa_spatial_align
        crepa_teacher_block_index crepa_threshold_mode crepa_use_backbone_features crepa_use_tae crepa_warmup_steps
        urepa_cutoff_step urepa_decay_steps urepa_encoder_image_size urepa_lambda urepa_lambda_end urepa_manifold_weight
        urepa_model urepa_power urepa_scheduler urepa_similarity_ema_decay urepa_similarity_threshold urepa_threshold_mode
        urepa_use_tae urepa_warmup_steps scheduled_sampling_order scheduled_sampling_prob_end scheduled_sampling_prob_start
        scheduled_sampling_probability scheduled_sampling_ramp_shape scheduled_sampling_ramp_steps
        scheduled_sampling_reflexflow scheduled_sampling_reflexflow_alpha scheduled_sampling_reflexflow_beta1
        scheduled_sampling_reflexflow_beta2 scheduled_sampling_sampler scheduled_sampling_start_step
        scheduled_sampling_strategy""",
    "it belongs to another model": """
        acestep_lora_target cosmos3_generator_component cosmos3_reasoner_component custom_text_encoder_intermediary_layers
        deepfloyd_validation_pipeline_mode deepfloyd_validation_stage1_model deepfloyd_validation_stage2_model
        deepfloyd_validation_stage3_mode deepfloyd_validation_stage3_model deepfloyd_validation_stage3_noise_level
        deepfloyd_validation_stage1_num_inference_steps deepfloyd_validation_stage2_num_inference_steps
        deepfloyd_validation_stage1_guidance deepfloyd_validation_stage2_guidance deepfloyd_validation_stage3_guidance
        hidream_use_load_balancing_loss ideogram_auto_json ideogram_fp8_base_upcast ideogram_load_unconditional_transformer
        ideogram_prompt_enhancer_head_id ideogram_prompt_upsample ideogram_schedule_mu ideogram_schedule_std
        ideogram_uncond_ramtorch ideogram_validation lyrics_embedder_lr lyrics_embedder_lr_scheduler lyrics_embedder_optimizer
        lyrics_embedder_train minimax_music_lm_adapter minimax_music_lm_adapter_strength minimax_music_lm_max_frames
        minimax_music_lm_precache_mode minimax_music_train_component pixart_validation_pipeline_mode
        pixart_validation_stage1_model pixart_validation_stage2_model sana_complex_human_instruction
        pretrained_gemma_model_name_or_path pretrained_grounding_model_name_or_path max_grounding_entities
        audio_channels audio_duration_interval audio_max_duration_seconds audio_min_duration_seconds audio_truncation_mode
        validation_audio_duration validation_audio_only validation_lyrics data_aesthetic_score
        sdxl_refiner_uses_full_range""",
    "the released parts of the model decide": """
        pretrained_transformer_subfolder pretrained_unet_subfolder revision variant trust_remote_code tokenizer_max_length
        t5_padding sd3_clip_uncond_behaviour sd3_t5_uncond_behaviour text_encoder_limit wan_force_2_1_time_embedding
        inference_scheduler_timestep_spacing training_scheduler_timestep_spacing disable_segmented_timestep_sampling
        ltx_train_mode ltx_protect_first_frame krea2_reference_latents minimax_h3_reference_mode minimax_h3_target_mode
        conditioning_multidataset_sampling""",
    "previews are made by the objective's sampler, with the same noise each time": """
        validation_seed validation_seed_source seed_for_each_device validation_randomize validation_noise_scheduler
        validation_guidance_real validation_no_cfg_until_timestep validation_disable_unconditional validation_method
        validation_multigpu validation_image_format validation_image_quality validation_preview validation_preview_steps
        validation_on_startup validate_after_step validate_after_epoch validation_external_background
        validation_stitch_input_location enable_watermark wan_validation_load_other_stage sdxl_validation_pipeline_mode
        sdxl_validation_stage1_model sdxl_validation_stage2_model ltx2_validation_pipeline_mode
        ltx2_validation_spatial_upsampler_filename ltx2_validation_spatial_upsampler_model num_validation_images
        validation_guidance_skip_layers_start validation_guidance_skip_layers_stop validation_guidance_skip_scale
        validation_adapter_mode validation_adapter_name validation_adapter_strength validation_internal_guidance_scale
        validation_lycoris_strength ltx2_validation_audio_guidance""",
    "it belongs to an evaluation": """
        eval_dataset_id eval_dataset_pooling eval_epoch_interval eval_loss_disable eval_timesteps num_eval_images
        pretrained_evaluation_model_name_or_path""",
    "exports.formats decides on the file": "lora_format",
    "it belongs to lists of clips, which have the columns path and text here": "parquet_caption_column parquet_filename_column",
}

_NOT_POSSIBLE = {
    "ControlNets are not trained: flux-control and VACE take a control, with dataset.control": """
        controlnet control controlnet_custom_config controlnet_model_name_or_path""",
    "text encoders are not trained": "train_text_encoder text_encoder_lr",
    "this term of the loss is not there": """
        crepa_enabled crepa_self_flow irepa_enabled urepa_enabled layersync_enabled nextlat_enabled internal_guidance_enabled
        twinflow_enabled xm_enabled mixflow_enabled diff2flow_enabled scheduled_sampling_max_step_offset use_soft_min_snr
        snr_weight ltx_partial_noise_fraction ltx2_intrinsic_conditioning ltx2_first_frame_conditioning_probability
        ltx2_prefix_conditioning_probability ltx2_prefix_conditioning_frames ltx2_reference_spatial_scale_factor
        ltx2_reference_temporal_scale_factor""",
    "noise is drawn as the model was trained with it": "offset_noise input_perturbation rescale_betas_zero_snr",
    "all timesteps between objective.timestep_range are trained, by objective.timestep_sampling": """
        flow_cubic_schedule_weights flow_custom_timesteps flux_fast_schedule timestep_bias_strategy""",
    "the sound's timesteps are shifted by sound.timestep_shift": "audio_flow_schedule_shift",
    "no tokens are left out of training": "tread_config sla_config minimax_h3_sparse_attention diffusion_blocks_config",
    "models are not distilled": "distillation_method",
    "there is no refiner": "refiner_training",
    "all weights are trained, or those of a LoRA: lora.targets": "layer_freeze_strategy",
    "this form of LoRA is not there": "singlora slider_lora_target init_lora_ema",
    "weights are quantised by lora.base alone": "quantization_config quantize_activations",
    "DeepSpeed is not there: parallel.strategy shards weights, and parallel.offload keeps them in CPU memory": "deepspeed_config",
    "the guidance that the network is given in training is that of the release": "flux_guidance_mode flux_guidance_value",
    "the padding of captions is treated as in the release": "flux_attention_masked_training",
    "no script is run by a training": "post_checkpoint_script post_upload_script validation_external_script",
    "files are not sent to the hub: use `hf upload`": "push_to_hub push_checkpoints_to_hub",
    "no file of yours is deleted: clips are left out, and a report names them": """
        delete_problematic_images delete_unwanted_images delete_nsfw_images""",
    "pictures are not judged: leave them out with exclude_file": "enable_nsfw_check",
    "checkpoints.keep_last and every_minutes keep more of the newest": "checkpointing_rolling_steps",
    "checkpoints.min_free keeps space free": "disk_low_threshold",
    "set samples.prompts": "user_prompt_library validation_prompt_library",
    "previews have no negative prompt: the empty caption takes its place": "validation_negative_prompt",
    "previews have the given pictures alone: samples.source or samples.reference": """
        validation_using_datasets validation_input validation_ltx2_video_conditioning""",
    "previews are made by steps: samples.every_steps": "validation_epoch_interval",
    "guidance is neither rescaled nor left out in some layers": "validation_guidance_rescale validation_guidance_skip_layers",
    "previews have the trained LoRA alone": "validation_adapter_config validation_adapter_path",
    "set validation.split, which keeps clips back and tells their loss; `reelworks eval` measures more": """
        eval_steps_interval evaluation_type""",
    "point text_encoder.weights to the folder of all text encoders": """
        pretrained_t5_model_name_or_path qwen_text_encoder_model_name_or_path""",
    "set buckets.upscale = false, which leaves smaller clips out": "max_upscale_threshold",
}
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("text_encoder_lr", "validation_epoch_interval"), (None, "", 0)),
    "flux_guidance_mode": ("constant", None),
    "flux_guidance_value": (1, 1.0, None),
    "evaluation_type": ("none", "None", None, ""),
    "minimax_h3_sparse_attention": ("disabled", None, ""),
    "snr_weight": (1, 1.0, None),
    "timestep_bias_strategy": ("none", "None", None, ""),
    "layer_freeze_strategy": ("none", "None", None, ""),
}
_OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", "None", "none", [])


def _attention(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    if name in ("diffusers", "none", "", "xformers", "sageattention"):
        fate = Fate.DEFAULT if name in ("diffusers", "none", "") else Fate.NOT_POSSIBLE
        return fate, "torch chooses the kernel"
    kind = next(
        (
            kernel
            for part, kernel in (("4", "flash-4"), ("3", "flash-3"), ("flash", "flash"), ("cudnn", "cudnn"))
            if part in name
        ),
        None,
    )
    if kind is None:
        return Fate.NOT_POSSIBLE, "this kernel is not there: torch chooses"
    return Fate.TAKEN, draft.set("model.attention", kind)


def _texts(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, "no_change", "None", ""):
        return Fate.DEFAULT, "not quantised"
    return (
        Fate.NOT_POSSIBLE,
        'text encoders are not quantised: encode.store = true or text_encoder.device = "cpu" saves memory',
    )


RULES: dict[str, Rule] = {
    **{name: rules.without_meaning(why) for why, names in _WITHOUT_MEANING.items() for name in names.split()},
    **{
        name: rules.impossible(why, _DEFAULTS.get(name, _OFF))
        for why, names in _NOT_POSSIBLE.items()
        for name in names.split()
    },
    **{
        f"{name}.*": rules.impossible(why, ())
        for why, names in _NOT_POSSIBLE.items()
        for name in names.split()
        if name.endswith("_config")
    },
    **{f"{name}.*": rules.without_meaning("not shown") for name in ("webhook_config", "publishing_config")},
    "distillation_config.*": rules.without_meaning("models are not distilled"),
    "attention_mechanism": _attention,
    **{f"text_encoder_{number}_precision": _texts for number in (1, 2, 3, 4)},
    "peft_lora_mode": rules.only(("standard", None), "an ordinary LoRA", "this form of LoRA is not there"),
    "ema_validation": rules.without_meaning("previews are made with the average if there is one"),
    "assistant_lora_strength": rules.only((1, 1.0), "1", "the adapter has its full strength in training"),
    "masked_loss_probability": rules.only((1, 1.0), "1", "dataset.loss_mask is used for every clip"),
    "checkpoints_rolling_total_limit": rules.without_meaning("checkpoints.save_total_limit decides"),
    "_metadata.*": rules.without_meaning("a note of its page"),
}
