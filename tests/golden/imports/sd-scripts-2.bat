@echo off
rem A LoRA of FLUX.1, started on Windows.
set DATA=C:\sets\flux.toml
accelerate launch --num_cpu_threads_per_process 2 --num_processes 2 --mixed_precision bf16 flux_train_network.py ^
  --pretrained_model_name_or_path="D:\models\flux1-dev.safetensors" --clip_l=D:\models\clip_l.safetensors ^
  --t5xxl=D:\models\t5xxl.safetensors --ae=D:\models\ae.safetensors --dataset_config="sd-scripts-2.toml" ^
  --output_dir=runs --output_name=style --network_module=lycoris.kohya --network_dim=16 --network_alpha=8 ^
  --network_args "algo=lokr" "factor=8" "preset=attn-mlp" --network_train_unet_only ^
  --optimizer_type=adafactor --optimizer_args "relative_step=False" "scale_parameter=False" "warmup_init=False" ^
  --learning_rate=4e-4 --max_train_steps=600 --gradient_accumulation_steps=2 --lr_warmup_steps=0.1 ^
  --lr_scheduler=constant_with_warmup --timestep_sampling=flux_shift --model_prediction_type=raw --guidance_scale=1.0 ^
  --save_every_n_steps=200 --save_last_n_steps=400 --mixed_precision=bf16 --fp8_base --blocks_to_swap=8 ^
  --cache_latents_to_disk --cache_text_encoder_outputs --sdpa --gradient_checkpointing --max_grad_norm=0
