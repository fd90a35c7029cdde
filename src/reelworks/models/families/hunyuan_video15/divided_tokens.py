"""Divide the tokens of a HunyuanVideo 1.5 network over ranks.

The clip's tokens are divided. Those of texts and of the first frame, few and masked, are whole on each rank, which computes
attention of its heads among all of them.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.sequence.divided_tokens import DividedTokens, Places


class HunyuanVideo15Processor:
    """Compute the joint attention of a block as the network's own processor does, with divided tokens of the clip.

    Legend: B clips, S tokens of this rank, M tokens of texts, D width, A heads, E head width.
    """

    def __init__(self, divided: DividedTokens, backend: Any) -> None:
        self._divided, self._backend = divided, backend

    def __call__(
        self,
        attention: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor,
        image_rotary_emb: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return `[B, S, D]` and `[B, M, D]`; `attention_mask` `[B, M]` is nonzero where a token is attended to."""
        embeddings: Any = importlib.import_module("diffusers.models.embeddings")
        attend: Any = importlib.import_module("diffusers.models.attention_dispatch").dispatch_attention_fn
        clip_BSD, text_BMD = hidden_states, encoder_hidden_states
        own = [layer(clip_BSD) for layer in (attention.to_q, attention.to_k, attention.to_v)]
        q, k, v = (each.unflatten(2, (attention.heads, -1)) for each in own)
        q, k = attention.norm_q(q), attention.norm_k(k)
        q, k = (embeddings.apply_rotary_emb(each, image_rotary_emb, sequence_dim=1) for each in (q, k))
        of_text = [layer(text_BMD) for layer in (attention.add_q_proj, attention.add_k_proj, attention.add_v_proj)]
        text_q, text_k, text_v = (each.unflatten(2, (attention.heads, -1)) for each in of_text)
        if attention.norm_added_q is not None:
            text_q, text_k = attention.norm_added_q(text_q), attention.norm_added_k(text_k)

        def among_all(q_BAE: Tensor, k_BAE: Tensor, v_BAE: Tensor) -> Tensor:
            # A masked token attends to others here, and to none in the network's own attention: nothing depends on it.
            mask = pad(attention_mask, (k_BAE.shape[1] - attention_mask.shape[1], 0), value=True).bool()
            out: Tensor = attend(q_BAE, k_BAE, v_BAE, attn_mask=mask[:, None, None], backend=self._backend)
            return out

        shares = self._divided.shares
        assert shares is not None, "the first block has set it"
        clip, text = shares.attend_with_whole((q, k, v), (text_q, text_k, text_v), among_all)
        clip, text = clip.flatten(2).to(q.dtype), text.flatten(2).to(q.dtype)
        return attention.to_out[1](attention.to_out[0](clip)), attention.to_add_out(text)


PLACES = Places(
    attentions=lambda path: re.fullmatch(r"transformer_blocks\.\d+\.attn", path) is not None,
    first="transformer_blocks.0",
    angles="rope",
    angles_dim=0,
    processor=HunyuanVideo15Processor,
)
