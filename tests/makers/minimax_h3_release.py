"""A tiny release of MiniMax-H3 with random weights, whose text encoder sees pictures."""

from pathlib import Path

import diffusers
import tiny_families
import torch
import transformers

SIDES = {"shortest_edge": 32 * 32, "longest_edge": 256 * 256}  # in pixels, of the pictures that it sees


def write(folder: Path, *, hears: bool = False) -> Path:
    """Write it; its autoencoder is sure of each latent. The network of references `hears` the sounds of its autoencoder."""
    torch.manual_seed(0)
    special = tiny_families.SPECIAL + tiny_families.SHOWN
    words = tiny_families.tokenizer(
        [*tiny_families.LINES, "<Picture 1>: <Video 2>: <Audio 1>: <0.2 seconds>"], special, ends=False
    )
    size = {"head_dim": 16, "rope_parameters": tiny_families.ROPE, "num_hidden_layers": 51, "vocab_size": 96}
    ids = {
        f"{key}_token_id": words.convert_tokens_to_ids(f"<|{name}|>")
        for key, name in (
            ("image", "image_pad"),
            ("video", "video_pad"),
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }
    vision = tiny_families.VISION | {"deepstack_visual_indexes": [0], "patch_size": 16}
    config = transformers.Qwen3VLConfig(text_config=tiny_families.QWEN | size, vision_config=vision, **ids)
    sizes = tiny_families.AUTOENCODERS["minimax-h3"]
    autoencoder = diffusers.AutoencoderKLMiniMaxH3(**sizes)
    with torch.no_grad():  # the second half of its channels are logarithms of variances
        autoencoder.quant_conv.bias[24:] = -40
        autoencoder.quant_conv.weight[24:] = 0
    parts = {
        "text_encoder": transformers.Qwen3VLForConditionalGeneration(config),
        "tokenizer": words,
        "processor": transformers.Qwen2VLImageProcessorPil(patch_size=16, size=SIDES),
        "vae": autoencoder,
        "audio_vae": diffusers.AutoencoderKLMiniMaxH3Audio(**tiny_families.MINIMAX_H3_SOUND),
        "transformer": tiny_families.network("minimax-h3-tiny"),
        "transformer_ref": tiny_families.network("minimax-h3-tiny", seed=2, sound="minimax-h3" if hears else None),
    }
    for name, part in parts.items():
        part.save_pretrained(folder / name)
    return folder
