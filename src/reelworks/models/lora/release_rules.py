"""Layers of diffusers' networks and what their first releases call them, as patterns."""

from __future__ import annotations

from typing import NamedTuple


class KeyRule(NamedTuple):
    """Layers of diffusers, a part each, and the layer of the release; N is a number."""

    parts: str
    release: str
    heights: tuple[int, ...] = ()
    swapped: bool = False


def _blocks(own: str, release: str, layers: dict[str, str]) -> list[KeyRule]:
    """Rules of the layers of a list of blocks."""
    return [
        KeyRule(" ".join(f"{own}.N.{part}" for part in parts.split()), f"{release}.N.{layer}")
        for parts, layer in layers.items()
    ]


_QKV, _ADDED_QKV = "attn.to_q attn.to_k attn.to_v", "attn.add_q_proj attn.add_k_proj attn.add_v_proj"
_TWO_STREAMS = {
    _QKV: "img_attn.qkv",
    _ADDED_QKV: "txt_attn.qkv",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
_FINAL = [
    KeyRule("norm_out.linear", "final_layer.adaLN_modulation.1", swapped=True),
    KeyRule("proj_out", "final_layer.linear"),
]
_FLUX_INPUTS = [
    KeyRule(f"{own}.{embedder}_embedder.linear_{i}", f"{release}_in.{side}_layer")
    for own in ("time_text_embed", "time_guidance_embed")
    for embedder, release in (("timestep", "time"), ("text", "vector"), ("guidance", "guidance"))
    for i, side in ((1, "in"), (2, "out"))
]
_LTX2_EMBEDDERS = {
    "time_embed": "adaln_single",
    "prompt_adaln": "prompt_adaln_single",
    "audio_time_embed": "audio_adaln_single",
    "audio_prompt_adaln": "audio_prompt_adaln_single",
    "av_cross_attn_video_scale_shift": "av_ca_video_scale_shift_adaln_single",
    "av_cross_attn_audio_scale_shift": "av_ca_audio_scale_shift_adaln_single",
    "av_cross_attn_video_a2v_gate": "av_ca_a2v_gate_adaln_single",
    "av_cross_attn_audio_v2a_gate": "av_ca_v2a_gate_adaln_single",
}
RULES: dict[str, list[KeyRule]] = {
    "FluxTransformer2DModel": [
        *_blocks("transformer_blocks", "double_blocks", _TWO_STREAMS),
        KeyRule(
            " ".join(f"single_transformer_blocks.N.{part}" for part in (*_QKV.split(), "proj_mlp")),
            "single_blocks.N.linear1",
            heights=(1, 1, 1, 4),
        ),
        *_blocks(
            "single_transformer_blocks",
            "single_blocks",
            {"norm.linear": "modulation.lin", "proj_out": "linear2"},
        ),
        *_FLUX_INPUTS,
        KeyRule("context_embedder", "txt_in"),
        KeyRule("x_embedder", "img_in"),
        *_FINAL,
    ],
    "Flux2Transformer2DModel": [
        *_blocks("transformer_blocks", "double_blocks", _TWO_STREAMS),
        *_blocks(
            "single_transformer_blocks",
            "single_blocks",
            {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2"},
        ),
        *(
            KeyRule(f"{name}.linear", f"{name}.lin")
            for name in (
                "double_stream_modulation_img",
                "double_stream_modulation_txt",
                "single_stream_modulation",
            )
        ),
        *_FLUX_INPUTS,
        KeyRule("context_embedder", "txt_in"),
        KeyRule("x_embedder", "img_in"),
        *_FINAL,
    ],
    "HunyuanVideo15Transformer3DModel": [
        *_blocks("transformer_blocks", "double_blocks", _TWO_STREAMS),
        *_blocks(
            "context_embedder.token_refiner.refiner_blocks",
            "txt_in.individual_token_refiner.blocks",
            {
                _QKV: "self_attn.qkv",
                "attn.to_out.0": "self_attn.proj",
                "ff.net.0.proj": "mlp.0",
                "ff.net.2": "mlp.2",
                "norm_out.linear": "adaLN_modulation.1",
            },
        ),
        *(
            KeyRule(f"{own}.linear_{i}", f"{release}.{side}_layer")
            for own, release in (
                ("time_embed.timestep_embedder", "time_in"),
                ("context_embedder.time_text_embed.timestep_embedder", "txt_in.t_embedder"),
                ("context_embedder.time_text_embed.text_embedder", "txt_in.c_embedder"),
            )
            for i, side in ((1, "in"), (2, "out"))
        ),
        KeyRule("context_embedder.proj_in", "txt_in.input_embedder"),
        *(KeyRule(f"context_embedder_2.linear_{i}", f"byt5_in.fc{i}") for i in (1, 2, 3)),
        KeyRule("image_embedder.linear_1", "vision_in.proj.1"),
        KeyRule("image_embedder.linear_2", "vision_in.proj.3"),
        *_FINAL,
    ],
    "LTXVideoTransformer3DModel": [
        KeyRule("proj_in", "patchify_proj"),
        KeyRule("time_embed.linear", "adaln_single.linear"),
        *(
            KeyRule(f"time_embed.{rest}", f"adaln_single.{rest}")
            for rest in ("emb.timestep_embedder.linear_1", "emb.timestep_embedder.linear_2")
        ),
    ],
    "LTX2VideoTransformer3DModel": [
        *(
            KeyRule(f"{own}.{rest}", f"{release}.{rest}")
            for own, release in _LTX2_EMBEDDERS.items()
            for rest in ("linear", "emb.timestep_embedder.linear_1", "emb.timestep_embedder.linear_2")
        ),
        KeyRule("proj_in", "patchify_proj"),
        KeyRule("audio_proj_in", "audio_patchify_proj"),
    ],
    "SD3Transformer2DModel": [
        *_blocks(
            "transformer_blocks",
            "joint_blocks",
            {
                _QKV: "x_block.attn.qkv",
                _ADDED_QKV: "context_block.attn.qkv",
                _QKV.replace("attn", "attn2"): "x_block.attn2.qkv",
                "attn.to_out.0": "x_block.attn.proj",
                "attn2.to_out.0": "x_block.attn2.proj",
                "attn.to_add_out": "context_block.attn.proj",
                "norm1.linear": "x_block.adaLN_modulation.1",
                "norm1_context.linear": "context_block.adaLN_modulation.1",
                "ff.net.0.proj": "x_block.mlp.fc1",
                "ff.net.2": "x_block.mlp.fc2",
                "ff_context.net.0.proj": "context_block.mlp.fc1",
                "ff_context.net.2": "context_block.mlp.fc2",
            },
        ),
        *(
            KeyRule(f"time_text_embed.{own}_embedder.linear_{i}", f"{release}_embedder.mlp.{2 * i - 2}")
            for own, release in (("timestep", "t"), ("text", "y"))
            for i in (1, 2)
        ),
        *_FINAL,
    ],
    "WanTransformer3DModel": [
        *_blocks(
            "blocks",
            "blocks",
            {
                f"{own}.{part}": f"{release}.{layer}"
                for own, release in (("attn1", "self_attn"), ("attn2", "cross_attn"))
                for part, layer in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "o"))
            },
        ),
        *_blocks("blocks", "blocks", {"ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2"}),
        *(
            KeyRule(f"condition_embedder.{own}_embedder.linear_{i}", f"{own}_embedding.{2 * i - 2}")
            for own in ("time", "text")
            for i in (1, 2)
        ),
        KeyRule("condition_embedder.time_proj", "time_projection.1"),
        KeyRule("proj_out", "head.head"),
    ],
    "ZImageTransformer2DModel": [
        *(
            rule
            for blocks in ("layers", "noise_refiner", "context_refiner")
            for rule in _blocks(
                blocks,
                blocks,
                {_QKV.replace("attn", "attention"): "attention.qkv", "attention.to_out.0": "attention.out"},
            )
        ),
        KeyRule("all_x_embedder.2-1", "x_embedder"),
        KeyRule("all_final_layer.2-1.linear", "final_layer.linear"),
        KeyRule("all_final_layer.2-1.adaLN_modulation.1", "final_layer.adaLN_modulation.1"),
    ],
}
