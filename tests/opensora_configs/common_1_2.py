# What the three stages of Open-Sora 1.2 have in common.
dataset = {"type": "VariableVideoTextDataset", "transform_name": "resize_crop"}
grad_checkpoint = True
num_workers = 8
num_bucket_build_workers = 16
dtype = "bf16"
plugin = "zero2"
model = {
    "type": "STDiT3-XL/2",
    "from_pretrained": None,
    "qk_norm": True,
    "enable_flash_attn": True,
    "enable_layernorm_kernel": True,
    "freeze_y_embedder": True,
}
vae = {
    "type": "OpenSoraVAE_V1_2",
    "from_pretrained": "hpcai-tech/OpenSora-VAE-v1.2",
    "micro_frame_size": 17,
    "micro_batch_size": 4,
}
text_encoder = {"type": "t5", "from_pretrained": "DeepFloyd/t5-v1_1-xxl", "model_max_length": 300, "shardformer": True}
scheduler = {"type": "rflow", "use_timestep_transform": True, "sample_method": "logit-normal"}
seed = 42
outputs = "outputs"
wandb = False
epochs = 1000
log_every = 10
ckpt_every = 200
load = None
grad_clip = 1.0
lr = 1e-4
ema_decay = 0.99
adam_eps = 1e-15
