"""Whole families of diffusers with tiny random parts, written to a folder in its layout."""

import diffusers
import torch
import transformers
from diffusers.pipelines import ltx2

from reelworks.models import factory, registry
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.sound.config import SoundConfig

LINES = ["a red circle moves right before a dark background", "two cats sit on a wall in the sun", "waves"]
CHAT = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] if m['content'] is string else "
    "m['content'][0]['text'] }} {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)
T5 = {"vocab_size": 80, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
CLIP = {
    "vocab_size": 80,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "projection_dim": 12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
QWEN = {
    "vocab_size": 80,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
KL = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (8, 8, 8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
}
GEMMA = QWEN | {"head_dim": 16, "sliding_window": 8}
SIGLIP = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "vision_use_head": False,
}
CONNECTORS = {
    "caption_channels": 32,
    "text_proj_in_factor": 3,  # states of Gemma
    "rope_type": "split",
    "connector_rope_base_seq_len": 32,
    **{
        f"{modality}_connector_{size}": value
        for modality in ("video", "audio")
        for size, value in {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 1,
            "num_learnable_registers": 4,
        }.items()
    },
}
LTX2 = {
    "block_out_channels": (8,) * 4,
    "decoder_block_out_channels": (8, 16, 32),
    "layers_per_block": (1,) * 5,
    "decoder_layers_per_block": (1,) * 4,
    "decoder_causal": False,
}
WAN = {"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
WAN_22 = {
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.01 * i for i in range(48)],
    "latents_std": [1 + 0.02 * i for i in range(48)],
}
AUTOENCODERS = {
    "flux": KL | {"latent_channels": 16, "shift_factor": 0.1159, "scaling_factor": 0.3611},
    "flux2": KL | {"latent_channels": 32},
    "kandinsky5-image": KL | {"latent_channels": 16, "shift_factor": 0.1159, "scaling_factor": 0.3611},
    "ideogram-4": KL | {"latent_channels": 32},
    "hunyuan-video": {"block_out_channels": (32,) * 4, "layers_per_block": 1, "norm_num_groups": 4},
    "hunyuan-image-2.1": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 64,
        "block_out_channels": (32, 32, 32, 32, 64, 128),
        "layers_per_block": 1,
        "spatial_compression_ratio": 32,
        "sample_size": 64,
        "scaling_factor": 0.75289,
    },
    "hunyuan-video-1.5": {"block_out_channels": (32, 32, 32, 32, 64), "layers_per_block": 1},
    "ltx-video": {
        "block_out_channels": (8,) * 4,
        "decoder_block_out_channels": (8,) * 4,
        "layers_per_block": (1,) * 5,
        "decoder_layers_per_block": (1,) * 5,
    },
    "ltx-2": LTX2,
    "ltx-2.3": LTX2
    | {
        "decoder_block_out_channels": (8, 16, 16, 32),
        "decoder_layers_per_block": (1,) * 5,
        "decoder_spatio_temporal_scaling": (True,) * 4,
        "decoder_inject_noise": (False,) * 5,
        "upsample_type": ("spatiotemporal", "spatiotemporal", "temporal", "spatial"),
        "upsample_residual": (False,) * 4,
        "upsample_factor": (2, 2, 1, 2),
        "decoder_spatial_padding_mode": "zeros",
    },
    "minimax-h3": {
        "block_out_channels": (8,) * 6,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "decoder_num_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_attention_head_dim": 16,
        "latents_mean": [0.01 * i for i in range(24)],
        "latents_std": [1 + 0.02 * i for i in range(24)],
    },
    "qwen-image": WAN,
    "qwen-image-2.1": {"base_dim": 8, "decoder_base_dim": 8, "dim_mult": [1, 1, 1, 1, 1], "num_res_blocks": 1},
    "sd3": KL | {"latent_channels": 16, "shift_factor": 0.0609, "scaling_factor": 1.5305},
    "sd1.5": KL | {"latent_channels": 4, "scaling_factor": 0.18215},
    "sdxl": KL | {"latent_channels": 4, "scaling_factor": 0.13025},
    "wan-2.1": WAN,
    "wan-2.2": WAN | WAN_22,
}
# Sizes of the tiny text encoders, as a recipe says them.
TEXTS = {
    "anima": {"dim": 32, "max_length": 12},
    "wan": {"dim": 32, "max_length": 12},
    "chroma": {"dim": 32, "max_length": 12},
    "ernie-image": {"dim": 32, "max_length": 16},
    "flux": {"dim": 32, "max_length": 12, "pooled_dim": 16},
    "flux2": {"dim": 96, "max_length": 512},
    "flux2-klein-4b": {"dim": 96, "max_length": 512},
    "flux3": {"dim": 256, "max_length": 160},
    "ideogram-4": {"dim": 416, "max_length": 64},
    "hidream": {"dim": 128, "max_length": 12, "pooled_dim": 24},
    "longcat-image": {"dim": 32, "max_length": 512},
    "lumina2": {"dim": 32, "max_length": 256},
    "kandinsky5": {"dim": 32, "max_length": 512, "pooled_dim": 16},
    "kandinsky5-image": {"dim": 32, "max_length": 512, "pooled_dim": 16},
    "krea2": {"dim": 64, "max_length": 512},
    "minimax-h3": {"dim": 32, "max_length": 24},
    "qwen-image": {"dim": 32, "max_length": 512},
    "qwen-image-2.1": {"dim": 32, "max_length": 512},
    "z-image": {"dim": 32, "max_length": 64},
    "ltx-video": {"dim": 32, "max_length": 12},
    "ltx-2": {"dim": 32, "max_length": 12},
    "hunyuan-image-2.1": {"dim": 32, "max_length": 384},
    "hunyuan-video-1.5": {"dim": 32, "max_length": 1000},
    "sana-video": {"dim": 32, "max_length": 12},
    "sd1.5": {"dim": 16, "max_length": 16},
    "sdxl": {"dim": 32, "max_length": 16, "pooled_dim": 12},
    "sd3": {"dim": 32, "max_length": 28, "pooled_dim": 24},
}
MINIMAX_H3_SOUND = {
    "encoder_dim": 4,
    "latent_dim": 32,
    "decoder_dim": 128,
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3, 5),),
    "latents_mean": [0.1 * i for i in range(32)],
    "latents_std": [1 + 0.1 * i for i in range(32)],
}
UNETS = ("sd1.5", "sdxl")


SPECIAL = ["<pad>", "</s>", "<unk>"]
SHOWN = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def tokenizer(lines=LINES, special=SPECIAL, ends=True, **settings):
    """A tokenizer of 80 pieces with an end mark, or without."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>")
    unigram.train_from_iterator(lines, trainer)
    if ends:
        unigram.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=unigram, **marks, **settings)


def _words():
    return tokenizer(model_max_length=16, chat_template=CHAT)


def _clip(with_projection, **sizes):
    kind = transformers.CLIPTextModelWithProjection if with_projection else transformers.CLIPTextModel
    return kind(transformers.CLIPTextConfig(**CLIP | sizes))


def _t5(kind="T5", **sizes):
    config = getattr(transformers, f"{kind}Config")(**T5 | sizes)
    return getattr(transformers, f"{kind}EncoderModel")(config)


def _qwen_vl():
    return transformers.Qwen2_5_VLConfig(text_config=QWEN | {"rope_parameters": ROPE}, vision_config=VISION)


def _encoders(text):
    """Text encoders and tokenizers of a family by their names in its pipeline."""
    words = _words()
    one = {"tokenizer": words}
    if text == "wan":
        return one | {"text_encoder": _t5("UMT5")}
    if text in ("chroma", "ltx-video"):
        return one | {"text_encoder": _t5()}
    if text == "flux":
        return one | {"text_encoder": _clip(False), "text_encoder_2": _t5(), "tokenizer_2": words}
    if text == "sd1.5":
        return one | {"text_encoder": _clip(False), "safety_checker": None, "feature_extractor": None}
    if text == "sdxl":
        return one | {"text_encoder": _clip(False), "text_encoder_2": _clip(True), "tokenizer_2": words}
    if text == "sd3":
        clips = {"text_encoder": _clip(True), "text_encoder_2": _clip(True), "tokenizer_2": words}
        return one | clips | {"text_encoder_3": _t5(), "tokenizer_3": words}
    if text == "hidream":
        clips = {"text_encoder": _clip(True), "text_encoder_2": _clip(True), "tokenizer_2": words}
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**QWEN | {"num_hidden_layers": 3}))
        return (
            one | clips | {"text_encoder_3": _t5(), "tokenizer_3": words, "text_encoder_4": llama, "tokenizer_4": words}
        )
    if text == "z-image":
        return one | {"text_encoder": transformers.Qwen3Model(transformers.Qwen3Config(**QWEN, head_dim=16))}
    if text == "anima":
        sizes = {"model_dim": 32, "num_layers": 1, "num_attention_heads": 2, "target_vocab_size": 80}
        return {
            "text_encoder": transformers.Qwen3Model(transformers.Qwen3Config(**QWEN, head_dim=16)),
            "tokenizer": tokenizer(ends=False, model_max_length=16),
            "t5_tokenizer": words,
            "text_conditioner": diffusers.AnimaTextConditioner(source_dim=32, target_dim=32, **sizes),
        }
    if text == "qwen-image":
        return one | {"text_encoder": transformers.Qwen2_5_VLForConditionalGeneration(_qwen_vl())}
    if text.startswith("kandinsky5"):
        encoder = transformers.Qwen2_5_VLForConditionalGeneration(_qwen_vl())
        clip = {"text_encoder_2": _clip(False, max_position_embeddings=77), "tokenizer_2": words}
        return one | clip | {"text_encoder": encoder}
    if text == "longcat-image":  # its processor only rewrites prompts
        encoder = transformers.Qwen2_5_VLForConditionalGeneration(_qwen_vl())
        return one | {"text_encoder": encoder, "text_processor": None}
    if text in ("flux3", "minimax-h3"):
        # Eight of its states, the thirty-second among them; and the fiftieth.
        layers = 33 if text == "flux3" else 51
        sizes = QWEN | {"head_dim": 16, "rope_parameters": ROPE, "num_hidden_layers": layers}
        config = transformers.Qwen3VLConfig(text_config=sizes, vision_config=VISION | {"deepstack_visual_indexes": [0]})
        return one | {"text_encoder": transformers.Qwen3VLForConditionalGeneration(config)}
    if text == "qwen-image-2.1":
        sizes = QWEN | {"head_dim": 16, "rope_parameters": ROPE}
        config = transformers.Qwen3VLConfig(text_config=sizes, vision_config=VISION | {"deepstack_visual_indexes": [0]})
        return {"text_encoder": transformers.Qwen3VLForConditionalGeneration(config), "processor": words}
    if text in ("ideogram-4", "krea2"):
        layers = 36 if text == "ideogram-4" else 2  # of which thirteen states are taken, or two
        sizes = QWEN | {"head_dim": 16, "rope_parameters": ROPE, "num_hidden_layers": layers}
        config = transformers.Qwen3VLConfig(text_config=sizes, vision_config=VISION | {"deepstack_visual_indexes": [0]})
        return one | {"text_encoder": transformers.Qwen3VLModel(config)}
    if text == "flux2-klein-4b":
        # Three of its states again, the twenty-seventh among them.
        config = transformers.Qwen3Config(**QWEN | {"num_hidden_layers": 28}, head_dim=16)
        return one | {"text_encoder": transformers.Qwen3ForCausalLM(config)}
    if text == "flux2":
        # Its tokens are three of the states between layers, the thirtieth among them.
        sizes = transformers.MistralConfig(**QWEN | {"num_hidden_layers": 30}, head_dim=16)
        vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.Mistral3Config(text_config=sizes, vision_config={"model_type": "pixtral"} | vision)
        return one | {"text_encoder": transformers.Mistral3ForConditionalGeneration(config)}
    if text == "ernie-image":
        sizes = transformers.Ministral3Config(**QWEN, head_dim=16)
        vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        config = transformers.Mistral3Config(text_config=sizes, vision_config=vision | {"num_attention_heads": 2})
        enhancer = transformers.Ministral3ForCausalLM(sizes)
        return one | {"text_encoder": transformers.Mistral3Model(config), "pe": enhancer, "pe_tokenizer": words}
    if text in ("lumina2", "sana-video"):
        return one | {"text_encoder": transformers.Gemma2Model(transformers.Gemma2Config(**GEMMA))}
    if text == "ltx-2":
        config = transformers.Gemma3Config(text_config=GEMMA, vision_config=SIGLIP, mm_tokens_per_image=4)
        parts = {"connectors": ltx2.LTX2TextConnectors(**CONNECTORS), "audio_vae": None, "vocoder": None}
        return one | parts | {"text_encoder": transformers.Gemma3ForConditionalGeneration(config)}
    assert text.startswith("hunyuan")
    sizes = {"vocab_size": 384} if text == "hunyuan-image-2.1" else {}  # which reads letters too
    glyphs = {"text_encoder_2": _t5(d_model=8, **sizes), "tokenizer_2": transformers.ByT5Tokenizer()}
    if text == "hunyuan-image-2.1":
        # The state before the last two layers.
        config = _qwen_vl()
        return one | glyphs | {"text_encoder": transformers.Qwen2_5_VLForConditionalGeneration(config)}
    return one | glyphs | {"text_encoder": transformers.Qwen2_5_VLTextModel(_qwen_vl().text_config)}


def _scheduler(text):
    if text in UNETS:
        betas = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
        return diffusers.EulerDiscreteScheduler(**betas, timestep_spacing="leading", steps_offset=1)
    return diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)


def network_of(text):
    """Name of the tiny network that goes with text encoders."""
    return next(n for n in registry.PRESETS if n.endswith("-tiny") and registry.PRESETS[n].parts.text == text)


def recipe_of(name, place):
    """The tables of a recipe that load a family from where it lies."""
    parts, weights = registry.PRESETS[name].parts, str(place)
    return {
        "model": {"name": name, "weights": weights},
        "autoencoder": {"name": parts.autoencoder, "weights": weights},
        "text_encoder": {"name": parts.text, "weights": weights} | TEXTS[parts.text],
    }


def network(name, seed=1, sound=None, **changes):
    """A tiny network with widths of its family's tiny neighbours; where fresh weights are zero they get a value."""
    parts = registry.PRESETS[name].parts
    module = factory.build_denoiser(
        ModelConfig(name=name, **changes),
        autoencoder=AutoencoderConfig(name=parts.autoencoder, weights="-"),
        text=TextEncoderConfig(name=parts.text, weights="-", **TEXTS[parts.text]),
        device="cpu",
        seed=seed,
        sound=sound and SoundConfig(name=sound, weights="-"),
    ).module
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1, generator=generator)
    return module


def write(name, place, *, without=(), **settings):
    """Write a family around the tiny network `name`, such as "wan-tiny", in diffusers' layout; returns the folder."""
    torch.manual_seed(0)
    parts = registry.PRESETS[name].parts
    kind = getattr(diffusers, registry.TEXT_ENCODERS[parts.text].pipeline)
    autoencoder = getattr(diffusers, registry.AUTOENCODERS[parts.autoencoder].network)
    made = _encoders(parts.text) | {
        "scheduler": _scheduler(parts.text),
        "vae": autoencoder(**AUTOENCODERS[parts.autoencoder]),
        "unet" if parts.text in UNETS else "transformer": network(name),
    }
    if name == "wan-2.2-tiny":
        made["transformer_2"], settings["boundary_ratio"] = network(name, seed=2), 0.875
    if name == "ideogram-4-tiny":
        made["unconditional_transformer"] = network(name, seed=2)
    if parts.text == "krea2":
        settings["text_encoder_select_layers"] = (1, 2)
    if parts.text.startswith("hunyuan"):
        made["guider"] = diffusers.ClassifierFreeGuidance()
    if parts.text in ("anima", "flux3", "minimax-h3", "qwen-image-2.1"):  # whose pipelines are not built from parts
        for folder, part in made.items():
            part.save_pretrained(place / folder)
        if parts.text == "qwen-image-2.1":
            transformers.Qwen2VLImageProcessorPil().save_pretrained(place / "processor")
        return place
    kind(**made | dict.fromkeys(without), **settings).save_pretrained(place)
    return place
