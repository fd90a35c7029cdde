# Stage 1 of Open-Sora 1.1.
bucket_config = {
    "144p": {1: (0.5, 48), 16: (1.0, 6), 32: (1.0, 3), 96: (1.0, 1)},
    "256": {1: (0.5, 24), 16: (0.5, 3), 48: (0.5, 1), 64: (0.0, None)},
    "240p": {16: (0.3, 2), 32: (0.3, 1), 64: (0.0, None)},
    "512": {1: (0.4, 12)},
    "1024": {1: (0.3, 3)},
}
mask_ratios = {
    "identity": 0.75,
    "quarter_random": 0.025,
    "quarter_head": 0.025,
    "quarter_tail": 0.025,
    "quarter_head_tail": 0.05,
    "image_random": 0.025,
    "image_head": 0.025,
    "image_tail": 0.025,
    "image_head_tail": 0.05,
}
dataset = {
    "type": "VariableVideoTextDataset",
    "data_path": None,
    "num_frames": None,
    "frame_interval": 3,
    "image_size": (None, None),
    "transform_name": "resize_crop",
}
dtype = "bf16"
grad_checkpoint = False
plugin = "zero2"
sp_size = 1
model = {
    "type": "STDiT2-XL/2",
    "from_pretrained": None,
    "input_sq_size": 512,
    "qk_norm": True,
    "qk_norm_legacy": True,
    "enable_flash_attn": True,
    "enable_layernorm_kernel": True,
}
vae = {"type": "VideoAutoencoderKL", "from_pretrained": "stabilityai/sd-vae-ft-ema", "micro_batch_size": 4}
text_encoder = {"type": "t5", "from_pretrained": "DeepFloyd/t5-v1_1-xxl", "model_max_length": 200, "shardformer": True}
scheduler = {"type": "iddpm", "timestep_respacing": ""}
seed = 42
outputs = "outputs"
wandb = False
epochs = 1000
log_every = 10
ckpt_every = 500
load = None
batch_size = None
lr = 2e-5
grad_clip = 1.0
