#!/bin/bash
# A LoRA of Wan 2.1 on clips and pictures.
DIT=models/wan2.1_t2v_1.3B_bf16.safetensors
python src/musubi_tuner/wan_cache_latents.py --dataset_config musubi-tuner-1.toml --vae models/wan_vae.safetensors
python src/musubi_tuner/wan_cache_text_encoder_outputs.py --dataset_config musubi-tuner-1.toml --t5 models/t5.pth --batch_size 16
accelerate launch --num_cpu_threads_per_process 1 --mixed_precision bf16 src/musubi_tuner/wan_train_network.py \
    --task t2v-1.3B --dit $DIT --dataset_config musubi-tuner-1.toml --sdpa --mixed_precision bf16 --fp8_base \
    --optimizer_type adamw8bit --learning_rate 2e-4 --gradient_checkpointing \
    --network_module networks.lora_wan --network_dim 32 --network_alpha 16 \
    --timestep_sampling shift --discrete_flow_shift 3.0 --max_train_epochs 16 --save_every_n_epochs 1 --seed 42 \
    --output_dir out --output_name dance
