"""Tiny vision-language models of transformers with random weights, written as folders that `from_pretrained` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from reelworks.core import optional_imports

WORDS = [f"word{chr(97 + i)}" for i in range(24)]
_SPECIAL = ["<unk>", "<pad>", "<s>", "</s>", "<image>", "user", "assistant", ":"]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} : {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)


def tokenizer(image_tokens: tuple[str, ...]) -> Any:
    """A tokenizer that knows some words, and whatever tokens stand for pictures."""
    transformers = optional_imports.transformers()
    vocabulary = {word: i for i, word in enumerate([*_SPECIAL, *image_tokens, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>", *image_tokens],
    )


def _save(folder: Path, model: Any, processor: Any) -> Path:
    # Random weights repeat one word again and again, which is refused, and would write special tokens.
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.suppress_tokens = list(range(model.config.get_text_config().vocab_size - len(WORDS)))
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 3, 1
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def llava(folder: Path) -> Path:
    """LLaVA: each picture becomes as many tokens as CLIP has patches."""
    transformers = optional_imports.transformers()
    torch.manual_seed(5)
    words = tokenizer(())
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision, image_size=32, patch_size=16),
        text_config=transformers.LlamaConfig(**text, vocab_size=len(words), max_position_embeddings=2048),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    pictures = transformers.models.clip.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    processor = transformers.LlavaProcessor(
        image_processor=pictures,
        tokenizer=words,
        patch_size=16,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
        num_additional_image_tokens=1,
    )
    return _save(folder, transformers.LlavaForConditionalGeneration(config), processor)


def idefics3(folder: Path) -> Path:
    """Idefics3, of which SmolVLM is a kind: pictures of any size become tiles."""
    transformers = optional_imports.transformers()
    torch.manual_seed(5)
    tokens = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
    words = tokenizer((*tokens, *(f"<row_{r}_col_{c}>" for r in range(1, 3) for c in range(1, 3))))
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Idefics3Config(
        vision_config={**vision, "image_size": 32, "patch_size": 8},
        text_config=transformers.LlamaConfig(**text, vocab_size=len(words), pad_token_id=1),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=1,
    )
    pictures = transformers.models.idefics3.Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    processor = transformers.Idefics3Processor(
        image_processor=pictures, tokenizer=words, image_seq_len=4, chat_template=TEMPLATE.replace("IMAGE", "<image>")
    )
    return _save(folder, transformers.Idefics3ForConditionalGeneration(config), processor)
