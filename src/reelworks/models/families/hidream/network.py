"""Call a HiDream-I1 network, and encode texts as its pipeline does.

Each of its blocks sees the states of another layer of a Llama, and sends each token of the picture through two of four experts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from reelworks.core import optional_imports
from reelworks.models import hub
from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, grid
from reelworks.models.families.hidream.spec import HiDreamConfig

_LLAMA = "unsloth/Meta-Llama-3.1-8B-Instruct"  # which the releases leave to its own publisher


def predict(module: Any, inputs: DenoiserInputs, config: HiDreamConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the data.

    Pictures that are not square are filled up with tokens whose keys are zeros. All tokens of texts are attended to.
    """
    latent = inputs.latent[:, :, 0]
    B, C, H, W = latent.shape
    _, *patch = config.patch_size
    sizes = H // patch[0], W // patch[1]
    count = sizes[0] * sizes[1]
    more = 0 if H == W else max(config.network.passes.filled_tokens - count, 0)
    patches = latent.reshape(B, C, sizes[0], patch[0], sizes[1], patch[1]).permute(0, 2, 4, 3, 5, 1)
    places = pad(grid(*sizes, device=latent.device), (1, 0, 0, more))
    t5, *states = inputs.text.split_with_sizes([config.caption_channels[0]] * (2 + max(config.llama_layers)), dim=2)
    with embedded(module.t_embedder.time_proj, inputs.time):
        out: Tensor = module(
            pad(patches.reshape(B, count, -1), (0, 0, 0, more)),
            timesteps=inputs.time,
            encoder_hidden_states_t5=t5,
            encoder_hidden_states_llama3=states,
            pooled_embeds=inputs.pooled,
            img_ids=places.expand(B, -1, -1),
            img_sizes=[sizes] * B,
            # In a dtype that makes keys no wider.
            hidden_states_masks=pad(latent.new_ones(B, count, dtype=torch.bfloat16), (0, more)),
            return_dict=False,
        )[0]
    return out[:, :, None]


@final
class RoutedExperts(nn.Module):
    """Experts of a block beside one that all tokens share, in place of the module of diffusers.

    That one has no gradients while its network does not train, and cannot run on the meta device. Here experts have equal shares there.
    """

    def __init__(self, former: Any) -> None:
        super().__init__()
        self.shared_experts, self.experts, self.gate = former.shared_experts, former.experts, former.gate
        self.gate.alpha = 0.0  # a loss that nobody reads

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, hidden_BND: Tensor) -> Tensor:
        """Return the sum of the outputs `[B, N, D]`; each token goes through those experts whose scores are highest."""
        chosen, weight, _ = self.gate(hidden_BND)
        tokens, experts = hidden_BND.flatten(0, 1), chosen.flatten()
        order = experts.argsort(stable=True)
        if experts.is_meta:
            counts = [len(part) for part in experts.tensor_split(len(self.experts))]
        else:
            counts = torch.stack([(experts == number).sum() for number in range(len(self.experts))]).tolist()
        inputs = tokens[order // chosen.shape[1]].split_with_sizes(counts)
        outputs = torch.cat([expert(part) for expert, part in zip(self.experts, inputs, strict=True)])
        by_token = outputs[order.argsort()].view(*chosen.shape, -1)
        routed: Tensor = (by_token * weight[..., None]).sum(dim=1).to(hidden_BND.dtype).view_as(hidden_BND)
        shared: Tensor = self.shared_experts(hidden_BND)
        return routed + shared


def prepare(module: Any) -> None:
    """Let gradients reach experts whatever the mode of the network, and let it run on the meta device."""
    for wrapped in (*module.double_stream_blocks, *module.single_stream_blocks):
        wrapped.block.ff_i = RoutedExperts(wrapped.block.ff_i)
    # They are no blocks, of which estimates leave most out.
    module.caption_projection = nn.Sequential(*module.caption_projection)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions: each token is a state of the T5 and those of the Llama's layers; padding is attended to."""
    t5, _, states, _, pooled, _ = pipeline.encode_prompt(
        captions, do_classifier_free_guidance=False, max_sequence_length=length
    )
    return EncodedText(torch.cat([t5, *states], dim=2), pooled=pooled)


def load_text_parts(source: str, dtype: torch.dtype) -> Any:
    """Load a pipeline with text encoders alone; the fourth one comes from its own publisher if the source has none."""
    others: dict[str, Any] = dict.fromkeys(("vae", "transformer", "scheduler"))
    if not Path(source, "text_encoder_4").expanduser().is_dir():
        library = optional_imports.transformers()
        others["tokenizer_4"] = library.AutoTokenizer.from_pretrained(_LLAMA)
        others["text_encoder_4"] = library.LlamaForCausalLM.from_pretrained(_LLAMA, dtype=dtype)
    kind = optional_imports.from_diffusers("HiDreamImagePipeline")
    return hub.pretrained(kind.from_pretrained, source, dtype=dtype, **others)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"hidream": encode_text},
    no_pipeline=lambda *_: "the family's pipeline draws pictures of one area only",
    prepare=prepare,
    load_text_parts=load_text_parts,
)
