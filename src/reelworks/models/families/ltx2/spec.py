"""Sizes, components and published releases of LTX-2 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.models import family

_EMBEDDERS = {
    "time_embed": "adaln_single",
    "prompt_adaln": "prompt_adaln_single",
    "audio_time_embed": "audio_adaln_single",
    "audio_prompt_adaln": "audio_prompt_adaln_single",
    "av_cross_attn_video_scale_shift": "av_ca_video_scale_shift_adaln_single",
    "av_cross_attn_audio_scale_shift": "av_ca_audio_scale_shift_adaln_single",
    "av_cross_attn_video_a2v_gate": "av_ca_a2v_gate_adaln_single",
    "av_cross_attn_audio_v2a_gate": "av_ca_v2a_gate_adaln_single",
}
_RELEASE_LAYERS = (
    *(
        family.KeyRule(f"{own}.{rest}", f"{release}.{rest}")
        for own, release in _EMBEDDERS.items()
        for rest in ("linear", "emb.timestep_embedder.linear_1", "emb.timestep_embedder.linear_2")
    ),
    family.KeyRule("proj_in", "patchify_proj"),
    family.KeyRule("audio_proj_in", "audio_patchify_proj"),
)


class LTX2Config(Config):
    """Arguments of diffusers' LTX2VideoTransformer3DModel; defaults are those of LTX-2.

    The network has video and audio branches with attention between them. With `sound`, both are trained, and captions
    have an embedding for each, side by side; else only the video branch. `folder`: where its weights lie in a pipeline.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = False

    in_channels: int = 128
    out_channels: int = 128
    num_attention_heads: int = 32
    attention_head_dim: int = 128
    cross_attention_dim: int = 4096
    audio_in_channels: int = 128
    audio_out_channels: int = 128
    audio_num_attention_heads: int = 32
    audio_attention_head_dim: int = 64
    audio_cross_attention_dim: int = 2048
    num_layers: int = 48
    caption_channels: int = 3840
    rope_type: str = "split"
    gated_attn: bool = False
    cross_attn_mod: bool = False
    audio_gated_attn: bool = False
    audio_cross_attn_mod: bool = False
    use_prompt_embeddings: bool = True
    perturbed_attn: bool = False
    ff_bias: bool = True
    use_keyframes_abs_pos_embedding: bool = False
    sound: bool = Field(default=False, exclude=True)
    folder: str = Field(default="transformer", exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network."""
        return family.Conditioning(frames=True, sound=self.sound, takes=("source",))

    @property
    def text_width(self) -> int:
        """Width of the video branch's part of the embeddings."""
        return self.caption_channels if self.use_prompt_embeddings else self.cross_attention_dim

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files; without sound, its branch gets no gradient."""
        in_blocks = (
            f"transformer_blocks.{i}.{modality}_" for i in range(self.num_layers) for modality in ("audio", "video")
        )
        of_sound = ("audio_", "av_cross_attn_", *in_blocks)
        return family.Network(
            "LTX2VideoTransformer3DModel",
            ("transformer_blocks",),
            folder=self.folder,
            # Pipelines add this embedding to single frames in the midst of a clip only.
            without_gradient=("keyframes_abs_pos_embedding", *(() if self.sound else of_sound)),
            release_layers=_RELEASE_LAYERS,
            renamed_keys={"prompt_adaln_single": "prompt_adaln"},  # in LTX-2.3
            sequence=None if self.sound else family.SequenceSplit(plan="reelworks.models.shared_tokens"),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components; texts that are not projected must have the network's."""
        if self.sound:
            return self._fit_both(components)
        width = self.num_attention_heads * self.attention_head_dim
        if not self.use_prompt_embeddings and components.text_dim != width:
            raise UserError(
                f"this model takes text embeddings of its own width, {width}",
                code="text-width-differs",
                field="text_encoder.dim",
                value=components.text_dim,
                remedy="choose the text encoder that the model was trained with",
            )
        text_dim = components.text_dim if self.use_prompt_embeddings else self.caption_channels
        channels = components.latent_channels
        return self.model_copy(update={"in_channels": channels, "out_channels": channels, "caption_channels": text_dim})

    def _fit_both(self, components: family.ComponentShapes) -> Self:
        """Return what `fit` does, for embeddings that consist of a part for each branch."""
        own = (self.cross_attention_dim, self.audio_cross_attention_dim)
        widths = (components.text_dim // 2,) * 2 if self.use_prompt_embeddings else own
        if sum(widths) != components.text_dim:
            raise UserError(
                f"this model takes text embeddings for picture and sound side by side, {sum(own)} wide in all",
                code="text-width-differs",
                field="text_encoder.dim",
                value=components.text_dim,
                remedy="choose the text encoder that the model was trained with, or an even width for a projected one",
            )
        channels, features = components.latent_channels, components.sound_features or self.audio_in_channels
        return self.model_copy(
            update={
                **{"in_channels": channels, "out_channels": channels},
                **{"audio_in_channels": features, "audio_out_channels": features},
                "caption_channels": widths[0] if self.use_prompt_embeddings else self.caption_channels,
            }
        )


_GATED = {
    "gated_attn": True,
    "cross_attn_mod": True,
    "audio_gated_attn": True,
    "audio_cross_attn_mod": True,
    "use_prompt_embeddings": False,
    "perturbed_attn": True,
}
_GATED_25 = _GATED | {"ff_bias": False, "use_keyframes_abs_pos_embedding": True, "folder": "transformer_full"}
_TINY = LTX2Config(
    num_attention_heads=2,
    attention_head_dim=16,
    cross_attention_dim=32,
    audio_in_channels=4,
    audio_out_channels=4,
    audio_num_attention_heads=2,
    audio_attention_head_dim=8,
    audio_cross_attention_dim=16,
    num_layers=1,
)
# The frame rate is the default of diffusers' LTX2Pipeline.
_preset = partial(
    family.Preset, parts=family.Parts("ltx-2", "ltx-2"), sampling=family.SamplingDefaults(3.0, 30), fps=24.0
)
_preset_25 = partial(_preset, parts=family.Parts("ltx-2.3", "ltx-2.5"))  # whose latents have not changed
# Its scheduler shifts by e^0.95 at 1,024 tokens and by e^2.05 at 4,096; this value is in between.
_release = partial(family.Release, side=640, lines=480, num_frames=121, timestep_shift=5.0)
_autoencoder = partial(
    family.PublishedAutoencoder,
    "AutoencoderKLLTX2Video",
    128,
    (8, 32, 32),
    (8, 1),
    signs=("per_channel_statistics.mean-of-means", "latents_mean"),
)
# Stereo of 16 kHz, as spectrograms of 64 bands a hundredth of a second apart; a latent frame covers four.
_sound = family.PublishedSound(16_000, 2, 640, 128, parameters=53_248_146, module=f"{__package__}.sound")
_GEMMA_4 = family.TextNetwork("text_encoder", "gemma4_unified_text", 262_144)
_GEMMA = family.TextNetwork("text_encoder", "gemma3_text", 262_208)
FAMILY = family.Family(
    name="ltx-2",
    network=f"{__package__}.network",
    presets={
        "ltx-2": _preset(LTX2Config(), release=_release("Lightricks/LTX-2")),
        "ltx-2.3": _preset(
            LTX2Config().model_copy(update=_GATED),
            parts=family.Parts("ltx-2.3", "ltx-2.3"),
            release=_release("diffusers/LTX-2.3-Diffusers"),
        ),
        "ltx-2-sound": _preset(
            LTX2Config(sound=True),
            parts=family.Parts("ltx-2", "ltx-2-sound"),
            sound="ltx-2",
            release=_release("Lightricks/LTX-2", architecture="ltx-2"),
        ),
        "ltx-2.3-sound": _preset(
            LTX2Config(sound=True).model_copy(update=_GATED),
            parts=family.Parts("ltx-2.3", "ltx-2.3-sound"),
            sound="ltx-2.3",
            release=_release("diffusers/LTX-2.3-Diffusers", architecture="ltx-2.3"),
        ),
        "ltx-2.5-distilled": _preset_25(
            LTX2Config().model_copy(update=_GATED_25 | {"folder": "transformer"}),
            sampling=family.SamplingDefaults(1.0, 8),
            release=_release("Lightricks/LTX-2.5-Diffusers", architecture="ltx-2.5-distilled", distilled=True),
        ),
        "ltx-2.5-sound": _preset_25(
            LTX2Config(sound=True).model_copy(update=_GATED_25),
            parts=family.Parts("ltx-2.3", "ltx-2.5-sound"),
            sound="ltx-2.3",
            release=_release("Lightricks/LTX-2.5-Diffusers", architecture="ltx-2.5"),
        ),
        # The address of the weights means the last one.
        "ltx-2.5": _preset_25(
            LTX2Config().model_copy(update=_GATED_25), release=_release("Lightricks/LTX-2.5-Diffusers")
        ),
        # The options of all releases together.
        "ltx-2-tiny": _preset(_TINY.model_copy(update=_GATED | {"use_prompt_embeddings": True})),
        "ltx-2-sound-tiny": _preset(
            _TINY.model_copy(update=_GATED_25 | {"use_prompt_embeddings": True, "sound": True, "num_layers": 2}),
            parts=family.Parts("ltx-2", "ltx-2-sound"),
            sound="ltx-2",
        ),
    },
    autoencoders={
        "ltx-2": _autoencoder(parameters=1_222_479_601, config={"decoder_spatio_temporal_scaling": (True,) * 3}),
        "ltx-2.3": _autoencoder(parameters=726_105_969, config={"decoder_spatio_temporal_scaling": (True,) * 4}),
    },
    text_encoders={
        "ltx-2": family.PublishedText("LTX2Pipeline", 3840, 1024, parameters=13_618_800_240, networks=(_GEMMA,)),
        "ltx-2.3": family.PublishedText("LTX2Pipeline", 4096, 1024, parameters=15_359_552_624, networks=(_GEMMA,)),
        "ltx-2.5": family.PublishedText("LTX2Pipeline", 4096, 1024, parameters=15_079_577_856, networks=(_GEMMA_4,)),
        # Embeddings for the video branch and for the audio branch, side by side.
        "ltx-2-sound": family.PublishedText(
            "LTX2Pipeline", 2 * 3840, 1024, parameters=13_618_800_240, networks=(_GEMMA,)
        ),
        "ltx-2.3-sound": family.PublishedText(
            "LTX2Pipeline", 4096 + 2048, 1024, parameters=15_359_552_624, networks=(_GEMMA,)
        ),
        "ltx-2.5-sound": family.PublishedText(
            "LTX2Pipeline", 4096 + 2048, 1024, parameters=15_079_577_856, networks=(_GEMMA_4,)
        ),
    },
    sound_encoders={"ltx-2": _sound, "ltx-2.3": _sound},
)
