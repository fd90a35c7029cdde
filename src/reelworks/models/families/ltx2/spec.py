"""Sizes of LTX-2 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.errors import UserError
from reelworks.models import family, family_file
from reelworks.models.families.ltx.spec import RELEASE_LAYERS


class LTX2Config(family.NetworkConfig):
    """Arguments of diffusers' LTX2VideoTransformer3DModel; defaults are those of LTX-2.

    The network has video and audio branches with attention between them. With `sound`, both are trained, and captions
    have an embedding for each, side by side; else only the video branch. `folder`: where its weights lie in a pipeline.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)

    in_channels: family.LatentWidth = 128
    out_channels: family.LatentWidth = 128
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
        return family.Conditioning(frames=True, companions=family.Companions(("source",)), sound=self.sound)

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
            # Pipelines add this embedding to single frames in the midst of a clip only.
            without_gradient=("keyframes_abs_pos_embedding", *(() if self.sound else of_sound)),
            files=family.NetworkFiles(
                folder=self.folder,
                renamed_keys={"prompt_adaln_single": "prompt_adaln"},  # in LTX-2.3
            ),
            lora=family.LoraNames(RELEASE_LAYERS),
            sequence=None if self.sound else family.SequenceSplit(plan="reelworks.models.sequence.shared_tokens"),
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
        return super().fit(components).model_copy(update={"caption_channels": text_dim})

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
        features = components.sound_features or self.audio_in_channels
        both = {"audio_in_channels": features, "audio_out_channels": features}
        text_dim = widths[0] if self.use_prompt_embeddings else self.caption_channels
        return super().fit(components).model_copy(update=both | {"caption_channels": text_dim})


FAMILY = family_file.read(__package__, LTX2Config)
