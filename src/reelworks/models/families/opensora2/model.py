"""Open-Sora 2.0's network: a transformer with joint attention of texts and clips.

Source: Open-Sora 2.0 (branch `main`), whose published keys and numbers this network reproduces. Its double blocks have
weights of their own for texts, its single blocks use the same for both; both are those of FLUX.1 (Black Forest Labs),
except that the two elements of a rotated pair are half a head apart.

Shape legend: B batch, L tokens of the clip, M tokens of the text, S = M + L tokens of both, D width, A heads, E head
width. If ranks share the tokens, L, M and S are this rank's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from reelworks.data.distributed.sequence import SequenceGroup, Shares
from reelworks.models import recompute
from reelworks.models.families.opensora2.spec import OpenSora2Config
from reelworks.models.families.stdit3.layers import FREQUENCIES, sinusoid
from reelworks.models.recompute import Recompute

Rotation = tuple[Tensor, Tensor]  # cosines and sines, `[S, E / 2]` float32
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
_EPS = 1e-6


class MMDiTNorm(nn.Module):
    """Root-mean-square normalisation per head, with float32 statistics."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; shape and dtype do not change."""
        return F.rms_norm(x.float(), self.scale.shape, self.scale.float(), _EPS).to(x.dtype)


class QueryKeyNorm(nn.Module):
    """Norms of queries and keys."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.query_norm, self.key_norm = MMDiTNorm(head_dim), MMDiTNorm(head_dim)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise queries and keys per head."""
        return self.query_norm(query), self.key_norm(key)


def rotate(x_BASE: Tensor, rotation: Rotation) -> Tensor:
    """Rotate pairs of elements that are half a head apart."""
    cos, sin = rotation
    a, b = x_BASE.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x_BASE.dtype)


def rotation_of(positions_S3: Tensor, config: OpenSora2Config) -> Rotation:
    """Return the rotation of each token by its position along time, height and width."""
    angles = []
    for axis, width in enumerate(config.axes_dim):
        exponent = torch.arange(0, width, 2, dtype=torch.float32, device=positions_S3.device) / width
        angles.append(positions_S3[:, axis, None] / config.theta**exponent)
    angle = torch.cat(angles, dim=-1)
    return angle.cos(), angle.sin()


def heads(x_BLD: Tensor, count: int) -> Tensor:
    """Split the width into heads: `[B, A, L, E]`."""
    B, L, D = x_BLD.shape
    return x_BLD.view(B, L, count, D // count).transpose(1, 2)


def modulated(x_BLD: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalise tokens, then scale and shift them."""
    return torch.addcmul(shift, F.layer_norm(x_BLD, x_BLD.shape[-1:], eps=_EPS), 1 + scale)


class MMDiTModulation(nn.Module):
    """Shifts, scales and gates of a block, which depend on the timestep and the pooled text."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.lin = nn.Linear(width, count * width)

    def forward(self, vector_BD: Tensor) -> tuple[Tensor, ...]:
        """Return `count` tensors `[B, 1, D]`."""
        out: Tensor = self.lin(F.silu(vector_BD))[:, None]
        return out.chunk(self.count, dim=-1)


def embedder(in_features: int, width: int) -> nn.Sequential:
    """Return two linear layers with a SiLU in between."""
    first, last = nn.Linear(in_features, width), nn.Linear(width, width)
    return nn.Sequential(OrderedDict(in_layer=first, act=nn.SiLU(), out_layer=last))


def mlp(width: int, hidden: int) -> nn.Sequential:
    """Return the MLP of a stream."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width))


class Attention(nn.Module):
    """Projections of one of the two streams of a double block."""

    def __init__(self, config: OpenSora2Config) -> None:
        super().__init__()
        D, self.num_heads = config.hidden_size, config.num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(D, D, bias=config.qkv_bias) for _ in range(3))
        self.norm = QueryKeyNorm(config.head_dim)
        self.proj = nn.Linear(D, D)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalised queries and keys, and values, `[B, A, L, E]`."""
        q, k, v = (heads(project(x_BLD), self.num_heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        return *self.norm(q, k), v


class DoubleBlock(nn.Module):
    """Joint attention of a clip and its text, then an MLP for each, with weights of their own."""

    def __init__(self, config: OpenSora2Config) -> None:
        super().__init__()
        D, hidden = config.hidden_size, int(config.hidden_size * config.mlp_ratio)
        self.img_mod, self.txt_mod = MMDiTModulation(D, 6), MMDiTModulation(D, 6)
        self.img_attn, self.txt_attn = Attention(config), Attention(config)
        self.img_mlp, self.txt_mlp = mlp(D, hidden), mlp(D, hidden)

    def forward(
        self, clip_BLD: Tensor, text_BMD: Tensor, vector_BD: Tensor, rotation: Rotation, shares: Shares | None
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens of the clip and of the text."""
        clip, text = self.img_mod(vector_BD), self.txt_mod(vector_BD)
        of_text = self.txt_attn(modulated(text_BMD, *text[:2]))
        of_clip = self.img_attn(modulated(clip_BLD, *clip[:2]))
        q, k, v = (torch.cat(pair, dim=2) for pair in zip(of_text, of_clip, strict=True))
        from_text, from_clip = _attention(q, k, v, rotation, shares).tensor_split([text_BMD.shape[1]], dim=1)
        return (
            _finish(clip_BLD, self.img_attn.proj(from_clip), clip, self.img_mlp),
            _finish(text_BMD, self.txt_attn.proj(from_text), text, self.txt_mlp),
        )


def _attention(q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, shares: Shares | None) -> Tensor:
    """Return attention among all tokens, `[B, S, D]`."""
    attend: Attend = F.scaled_dot_product_attention if shares is None else shares.attend
    return attend(rotate(q, rotation), rotate(k, rotation), v).transpose(1, 2).flatten(2)


def _finish(x_BLD: Tensor, attended_BLD: Tensor, modulation: tuple[Tensor, ...], layers: nn.Module) -> Tensor:
    """Add the results of a stream's attention and MLP to its tokens."""
    _, _, gate, mlp_shift, mlp_scale, mlp_gate = modulation
    x_BLD = torch.addcmul(x_BLD, gate, attended_BLD)
    return torch.addcmul(x_BLD, mlp_gate, layers(modulated(x_BLD, mlp_shift, mlp_scale)))


class SingleBlock(nn.Module):
    """Attention and MLP side by side, with the same weights for clip and text."""

    def __init__(self, config: OpenSora2Config) -> None:
        super().__init__()
        D, hidden = config.hidden_size, int(config.hidden_size * config.mlp_ratio)
        self.num_heads = config.num_heads
        self.q_proj, self.k_proj = nn.Linear(D, D), nn.Linear(D, D)
        self.v_mlp = nn.Linear(D, D + hidden)  # values, and the first layer of the MLP
        self.linear2 = nn.Linear(D + hidden, D)  # the last layers of both
        self.norm = QueryKeyNorm(config.head_dim)
        self.modulation = MMDiTModulation(D, 3)

    def forward(self, x_BSD: Tensor, vector_BD: Tensor, rotation: Rotation, shares: Shares | None) -> Tensor:
        """Return the tokens of text and clip."""
        shift, scale, gate = self.modulation(vector_BD)
        y_BSD = modulated(x_BSD, shift, scale)
        q, k = self.norm(heads(self.q_proj(y_BSD), self.num_heads), heads(self.k_proj(y_BSD), self.num_heads))
        value, hidden = self.v_mlp(y_BSD).tensor_split([x_BSD.shape[-1]], dim=-1)
        attended_BSD = _attention(q, k, heads(value, self.num_heads), rotation, shares)
        out_BSD = self.linear2(torch.cat([attended_BSD, F.gelu(hidden, approximate="tanh")], dim=-1))
        return torch.addcmul(x_BSD, gate, out_BSD)


class MMDiTFinalLayer(nn.Module):
    """Projects tokens to the values of their patches."""

    def __init__(self, width: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out_features)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x_BLD: Tensor, vector_BD: Tensor) -> Tensor:
        """Return `[B, L, out_features]`."""
        out: Tensor = self.linear(modulated(x_BLD, *self.adaLN_modulation(vector_BD)[:, None].chunk(2, dim=-1)))
        return out


class MMDiT(nn.Module):
    """The network of Open-Sora 2.0; see the module's docstring."""

    def __init__(self, config: OpenSora2Config, *, gradient_checkpointing: Recompute = False) -> None:
        super().__init__()
        D = config.hidden_size
        self.config, self.gradient_checkpointing = config, gradient_checkpointing
        self.sequence: SequenceGroup | None = None  # ranks that share the tokens of this one's clips
        self.img_in = nn.Linear(config.in_channels, D)
        self.time_in, self.vector_in = embedder(FREQUENCIES, D), embedder(config.vec_in_dim, D)
        self.txt_in = nn.Linear(config.context_in_dim, D)
        if config.cond_embed:  # latents of condition frames, and a mask for each latent element
            self.cond_in = nn.Linear(config.in_channels + config.patch**2, D)
            nn.init.zeros_(self.cond_in.weight)
            nn.init.zeros_(self.cond_in.bias)
        self.double_blocks = nn.ModuleList(DoubleBlock(config) for _ in range(config.depth))
        self.single_blocks = nn.ModuleList(SingleBlock(config) for _ in range(config.depth_single_blocks))
        self.final_layer = MMDiTFinalLayer(D, config.in_channels)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        text: Tensor,
        time: Tensor,
        pooled: Tensor,
        condition: Tensor | None = None,
    ) -> Tensor:
        """Return the velocity towards the noise, `[B, L, in_channels]`.

        Args:
            tokens: `[B, L, in_channels]` patches of noised latents.
            positions: `[L, 3]` of the tokens along time, height and width, float32; texts have position 0.
            text: `[B, M, context_in_dim]` text embeddings, of which all tokens are attended to.
            time: `[B]` in [0, 1000], float32.
            pooled: `[B, vec_in_dim]` pooled text embeddings.
            condition: `[B, L, in_channels + patch²]` patches of the mask and of the latents of condition frames.
        """
        clip = self.img_in(tokens)
        if condition is not None:
            clip = clip + self.cond_in(condition)
        vector = self.time_in(sinusoid(time).to(clip.dtype)) + self.vector_in(pooled)
        words, count = self.txt_in(text), clip.shape[1]
        rotation = rotation_of(F.pad(positions, (0, 0, words.shape[1], 0)), self.config)
        shares = None
        if self.sequence is not None:
            clip, words, rotation, shares = _divided(self.sequence, clip, words, rotation)
        run = recompute.run_block
        for block in self.double_blocks:
            clip, words = run(block, self.gradient_checkpointing, clip, words, vector, rotation, shares)
        both = torch.cat([words, clip], dim=1)
        for block in self.single_blocks:
            both = run(block, self.gradient_checkpointing, both, vector, rotation, shares)
        if shares is None:
            out: Tensor = self.final_layer(both[:, -count:], vector)
            return out
        # Of the texts' tokens too, since each rank must have the gradient of its own tokens alone.
        return shares.gather(self.final_layer(both, vector), 1)[:, -count:]


def _divided(
    group: SequenceGroup, clip: Tensor, words: Tensor, rotation: Rotation
) -> tuple[Tensor, Tensor, Rotation, Shares]:
    """Return this rank's share of the text's tokens and the clip's behind them, which may be of one kind alone."""
    shares = group.shares(words.shape[1] + clip.shape[1])
    mine = shares.split(torch.cat([words, clip], dim=1), 1)
    cos, sin = (shares.split(part, 0) for part in rotation)
    text = min(max(words.shape[1] - group.rank * shares.length, 0), shares.length)
    words, clip = mine.tensor_split([text], dim=1)
    return clip, words, (cos, sin), shares
