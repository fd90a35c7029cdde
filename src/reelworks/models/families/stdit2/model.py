"""STDiT2: a transformer over video latents whose blocks attend within frames, then across them.

Source: Open-Sora v1.1, whose state-dict keys and numbers this network reproduces. It draws no
random numbers: an input selects the captions to drop.

Shape legend: B batch, C latent channels, D width, T frames, H W latent size, S tokens per frame,
L text tokens, K caption width; R is T if frames differ in their timesteps, else 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from reelworks.data.distributed.sequence import Shares
from reelworks.models.families.stdit2.spec import STDiT2Config
from reelworks.models.families.stdit3 import layers
from reelworks.models.families.stdit3.model import STDiT, STDiTFinalLayer, modulate, modulation_of_frames
from reelworks.models.recompute import Recompute


class STDiT2Modulation(NamedTuple):
    """Modulation that depends on timesteps, sizes and length: `[B, R, 6, D]` and `[B, R, 3, D]`."""

    spatial: Tensor
    temporal: Tensor


class STDiT2Block(nn.Module):
    """Attention within frames, across frames and to the text, then an MLP."""

    def __init__(self, config: STDiT2Config) -> None:
        super().__init__()
        D, heads = config.hidden_size, config.num_heads
        self.scale_shift_table = nn.Parameter(torch.empty(6, D))
        self.scale_shift_table_temporal = nn.Parameter(torch.empty(3, D))
        self.attn = layers.SelfAttention(D, heads, qk_norm=config.qk_norm)
        self.attn_temp = layers.SelfAttention(D, heads, qk_norm=config.qk_norm, rotate_first=True)
        self.cross_attn = layers.CrossAttention(D, heads)
        self.mlp = layers.MLP(D, int(D * config.mlp_ratio), D)

    def forward(
        self,
        x_BTSD: Tensor,
        text_BLD: Tensor,
        mask_B11L: Tensor | None,
        modulation: STDiT2Modulation,
        rotation: layers.Rotation,
        shares: Shares | None = None,
    ) -> Tensor:
        """Return tokens `[B, T, S, D]`; `shares` as in `SelfAttention`."""
        spatial = (self.scale_shift_table + modulation.spatial).unsqueeze(2)
        temporal = (self.scale_shift_table_temporal + modulation.temporal).unsqueeze(2)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = spatial.unbind(3)
        x_BTSD = torch.addcmul(x_BTSD, gate, self.attn(modulate(x_BTSD, shift, scale), None, shares))
        shift, scale, gate = temporal.unbind(3)
        out = self.attn_temp(modulate(x_BTSD, shift, scale).transpose(1, 2), rotation)
        x_BTSD = torch.addcmul(x_BTSD, gate, out.transpose(1, 2))
        x_BTSD = x_BTSD + self.cross_attn(x_BTSD.flatten(1, 2), text_BLD, mask_B11L).view_as(x_BTSD)
        return torch.addcmul(x_BTSD, mlp_gate, self.mlp(modulate(x_BTSD, mlp_shift, mlp_scale)))


class STDiT2(STDiT):
    """The STDiT2 network; see the module's docstring."""

    def __init__(self, config: STDiT2Config, *, gradient_checkpointing: Recompute = False) -> None:
        super().__init__(config, gradient_checkpointing)
        D = config.hidden_size
        self.csize_embedder = layers.ScalarEmbedding(D // 3)
        self.ar_embedder = layers.ScalarEmbedding(D // 3)
        self.fl_embedder = layers.ScalarEmbedding(D)
        self.fps_embedder = layers.ScalarEmbedding(D)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
        self.t_block_temp = nn.Sequential(nn.SiLU(), nn.Linear(D, 3 * D))
        self.y_embedder = layers.CaptionEmbedding(config.caption_channels, D, config.model_max_length)
        self.blocks = nn.ModuleList(STDiT2Block(config) for _ in range(config.depth))
        _, ph, pw = config.patch_size
        self.final_layer = STDiTFinalLayer(D, ph * pw * config.out_channels)

    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        *,
        num_frames: Tensor,
        height: Tensor,
        width: Tensor,
        ar: Tensor,
        fps: Tensor,
        drop_text: Tensor | None = None,
    ) -> Tensor:
        """Return `[B, out_channels, T, H, W]` in float32.

        Arguments are those of `STDiT3.forward`, and these:

        Args:
            num_frames: `[n]` number of latent frames of the clip.
            ar: `[n]` height / width.
        """
        B = len(x)
        sizes = (self.csize_embedder(height), self.csize_embedder(width), self.ar_embedder(ar))
        size_BD = layers.tile_rows(torch.cat(sizes, dim=-1), B)
        length_BD = layers.tile_rows(self.fl_embedder(num_frames) + self.fps_embedder(fps), B)
        time_BD = self.t_embedder(timestep)
        clean_BD = None if x_mask is None else self.t_embedder(torch.zeros_like(timestep))
        sized_BD, long_BD = (None if clean_BD is None else clean_BD + info for info in (size_BD, length_BD))
        modulation = STDiT2Modulation(
            modulation_of_frames(self.t_block, time_BD + size_BD, sized_BD, x_mask),
            modulation_of_frames(self.t_block_temp, time_BD + length_BD, long_BD, x_mask),
        )
        # As in v1.1, sizes enter only the final modulation of condition frames.
        return self.transform(
            x, y, mask, drop_text, (height, width), self.blocks, modulation, time_BD, sized_BD, x_mask
        )
