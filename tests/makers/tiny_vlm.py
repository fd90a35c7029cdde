"""Tiny vision-language models of transformers with random weights, written as folders that `from_pretrained` reads."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
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


def tokenizer(image_tokens: tuple[str, ...], **named: str) -> Any:
    """A tokenizer that knows some words, and whatever tokens stand for pictures; it has attributes with those that are named."""
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
        **({"extra_special_tokens": named} if named else {"additional_special_tokens": ["<image>", *image_tokens]}),
    )


def _save(folder: Path, model: Any, processor: Any) -> Path:
    _let_write_words(model, list(range(model.config.get_text_config().vocab_size - len(WORDS))))
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 3, 1
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _let_write_words(model: Any, other_tokens: list[int]) -> None:
    """Suppress other tokens, and the same word again and again, which is refused: random weights would write both."""
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.suppress_tokens = other_tokens


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


def florence2(folder: Path) -> Path:
    """Florence-2: an encoder-decoder without a chat template, which is asked by names of tasks."""
    transformers = optional_imports.transformers()
    torch.manual_seed(5)
    words = tokenizer((), image_token="<image>")
    vision = {"embed_dim": [8] * 4, "num_heads": [2] * 4, "num_groups": [2] * 4, "depths": [1] * 4, "window_size": 2}
    text = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.Florence2Config(
        vision_config={**vision, "projection_dim": 16},
        text_config={"model_type": "bart", **text, **heads, "vocab_size": len(words), "forced_eos_token_id": None},
        image_token_id=words.image_token_id,
    )
    pictures = transformers.models.clip.CLIPImageProcessorPil(size={"height": 64, "width": 64}, do_center_crop=False)
    pictures.image_seq_length = 5
    processor = transformers.Florence2Processor(image_processor=pictures, tokenizer=words)
    return _save(folder, transformers.Florence2ForConditionalGeneration(config), processor)


_QWEN_SPECIAL = ["endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad"]
_QWEN_TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant."
    "<|im_end|>\n{% endif %}<|im_start|>{{ m['role'] }}\n{% for part in m['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|>"
    "<|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen2_5_vl(folder: Path) -> Path:
    """Qwen2.5-VL with the files and keys of the published ones: bytes as tokens, bfloat16 weights, a config without parts."""
    transformers = optional_imports.transformers()
    bytes_and_words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"Ġ{word}" for word in WORDS)]
    special = [f"<|{name}|>" for name in _QWEN_SPECIAL]
    words = transformers.Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(bytes_and_words)},
        merges=[],
        eos_token="<|im_end|>",
        additional_special_tokens=special,
    )
    words.save_pretrained(folder)
    end_of_text, _, end, vision_start, vision_end, image, video = words.convert_tokens_to_ids(special)
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {
        **text,
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "num_key_value_heads": 1,
        "vocab_size": len(words),
        "max_position_embeddings": 4096,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]},
        "torch_dtype": "bfloat16",
        "bos_token_id": end_of_text,
        "eos_token_id": end,
        "vision_start_token_id": vision_start,
        "vision_end_token_id": vision_end,
        "image_token_id": image,
        "video_token_id": video,
        "vision_config": {**vision, "in_chans": 3, "fullatt_block_indexes": [1]},
    }
    pictures = {
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures), encoding="utf-8")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": _QWEN_TEMPLATE}), encoding="utf-8")
    torch.manual_seed(5)
    model = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.from_pretrained(folder))
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)  # so that answers depend on what is shown
    _let_write_words(model, [i for i in range(len(words)) if not 256 <= i < len(bytes_and_words)])
    settings = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 1e-6}
    model.generation_config.update(**settings, pad_token_id=end_of_text, eos_token_id=[end, end_of_text])
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def qwen_video_processor() -> Any:
    """A class in place of `AutoVideoProcessor`, which needs torchvision: pictures of the first frame of each pair."""
    transformers = optional_imports.transformers()
    video_utils = importlib.import_module("transformers.video_utils")

    class FirstOfPairs(importlib.import_module("transformers.video_processing_utils").VideoProcessorMixin):
        temporal_patch_size = merge_size = 2

        @classmethod
        def from_pretrained(cls, folder: Path, **_: Any) -> Any:
            cls.pictures = transformers.AutoImageProcessor.from_pretrained(folder)
            return cls()

        def __call__(self, videos: Any, *, video_metadata: Any, do_sample_frames: bool, **_: Any) -> dict[str, Any]:
            assert not do_sample_frames
            shown = [self.pictures(list(frames[::2])) for frames in videos]
            grids = [[len(one["image_grid_thw"]), *one["image_grid_thw"][0][1:]] for one in shown]
            return {
                "pixel_values_videos": np.concatenate([one["pixel_values"] for one in shown]),
                "video_grid_thw": np.array(grids),
                "video_metadata": [video_utils.VideoMetadata(**times) for times in video_metadata],
            }

    return FirstOfPairs
