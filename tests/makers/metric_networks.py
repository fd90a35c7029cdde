"""Tiny networks with random weights, saved as the published ones are, for metrics that compare their features."""

from __future__ import annotations

from pathlib import Path

import torch


def _save_clip(folder: Path) -> Path:
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "red": 3}, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    ends = [("</s>", 1)]
    words.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=ends)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 1, "projection_dim": 8}
    vision = {**size, "image_size": 16, "patch_size": 8, "projection_dim": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.CLIPImageProcessor(**sizes).save_pretrained(folder)
    named = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
    return folder


def _save_dinov2(folder: Path) -> Path:
    import transformers

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 2}
    config = transformers.Dinov2Config(**size, image_size=28, patch_size=14)
    transformers.Dinov2Model(config).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    transformers.BitImageProcessor(**sizes).save_pretrained(folder)
    return folder


def _save_videomae(folder: Path) -> Path:
    import transformers

    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.VideoMAEConfig(**size, image_size=16, patch_size=8, num_frames=4, tubelet_size=2)
    transformers.VideoMAEModel(config).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.VideoMAEImageProcessor(**sizes).save_pretrained(folder)
    return folder


def save_classifier(folder: Path) -> Path:
    """Save a classifier of pictures with the labels `Watermark` and `no watermark`."""
    import transformers

    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    labels = {0: "Watermark", 1: "no watermark"}
    vit = transformers.ViTConfig(**size, image_size=16, patch_size=8, id2label=labels)
    transformers.ViTForImageClassification(vit).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


class _Detector(torch.nn.Module):
    """Called as the published file is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, 8)

    def forward(self, images: torch.Tensor, return_features: bool = False) -> torch.Tensor:
        small = torch.nn.functional.adaptive_avg_pool2d(images.float() / 255, [2, 2])
        return self.layer(small.flatten(1)) if return_features else small


def _save_inception(folder: Path) -> Path:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(_Detector()), str(folder))
    return folder


TINY = {"clip": _save_clip, "dinov2": _save_dinov2, "videomae": _save_videomae, "inception": _save_inception}
