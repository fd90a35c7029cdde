"""Options of SimpleTuner that no recipe key corresponds to: without meaning here, or not possible, each with the reason."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome

_ATTENTION = ["to_k", "to_q", "to_v", "to_out.0", "add_k_proj", "add_q_proj", "add_v_proj", "to_add_out"]
_CONTEXT = ["add_k_proj", "add_q_proj", "add_v_proj", "to_add_out"]
# Values of flux_lora_target, as lora.targets.
LAYERS: dict[str, Any] = {
    "all": _ATTENTION,
    "all+ffs": "blocks",
    "all+ffs+embedder": "blocks",
    "ai-toolkit": "blocks",
    "context": _CONTEXT,
    "context+ffs": [*_CONTEXT, "ff_context.net.0.proj", "ff_context.net.2"],
    "tiny": ["single_transformer_blocks.7.proj_out", "single_transformer_blocks.20.proj_out"],
    "nano": ["single_transformer_blocks.7.proj_out"],
}


def _attention(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    if name in ("diffusers", "none", "", "xformers", "sageattention"):
        fate = Fate.DEFAULT if name in ("diffusers", "none", "") else Fate.NOT_POSSIBLE
        return fate, "torch chooses the kernel"
    kind = next(
        (
            kernel
            for part, kernel in (("4", "flash-4"), ("3", "flash-3"), ("flash", "flash"), ("cudnn", "cudnn"))
            if part in name
        ),
        None,
    )
    if kind is None:
        return Fate.NOT_POSSIBLE, "this kernel is not there: torch chooses"
    return Fate.TAKEN, draft.set("model.attention", kind)


def _texts(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, "no_change", "None", ""):
        return Fate.DEFAULT, "not quantised"
    return (
        Fate.NOT_POSSIBLE,
        'text encoders are not quantised: encode.store = true or text_encoder.device = "cpu" saves memory',
    )
