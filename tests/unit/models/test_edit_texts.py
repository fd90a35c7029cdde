"""Qwen-Image-Edit reads an instruction beside the picture that is edited, as its pipeline lets it."""

from __future__ import annotations

import diffusers
import pytest
import tiny_families
import torch
import transformers
from PIL import Image

from reelworks.models import factory
from reelworks.models.config import TextEncoderConfig
from reelworks.models.families.qwen_image import network

TEXT = tiny_families.QWEN | {"vocab_size": 90, "bos_token_id": 1, "eos_token_id": 1}
LINES = ["paint the cat blue", "two cats"]
SIDES = [(32, 64), (48, 48), (96, 32)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The pipeline with tiny random weights."""
    shown = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    special = tiny_families.SPECIAL + tiny_families.SHOWN
    lines = [*LINES, "waves on the wall"]
    tokenizer = tiny_families.tokenizer(lines, special, ends=False, extra_special_tokens=shown)
    torch.manual_seed(0)
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    config = transformers.Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": tiny_families.ROPE},
        vision_config=tiny_families.VISION,
        image_token_id=image,
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
    )
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    pipeline = diffusers.QwenImageEditPipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(), None, model, tokenizer, None, None
    )
    folder = tmp_path_factory.mktemp("edit")
    pipeline.save_pretrained(folder)
    transformers.Qwen2VLImageProcessorPil().save_pretrained(folder / "processor")
    return folder


@torch.no_grad()
def test_tokens_are_the_pipelines_and_feel_the_picture(place, monkeypatch):
    """The tokens that count are the pipeline's of picture and caption; another picture makes others of one caption."""
    monkeypatch.setattr(network, "_PICTURE_PX", 128 * 128)
    config = TextEncoderConfig(name="qwen-image-edit", weights=str(place), dim=32, max_length=512)
    encoder = factory.build_text_encoder(config)
    pictures = torch.zeros(2, 32, 64, 3, dtype=torch.uint8)
    pictures[1, :, 32:] = 255
    made = encoder.encode(LINES, [pictures[:, None]])
    assert made.tokens.shape == (2, 512, 32)
    pipeline = diffusers.QwenImageEditPipeline.from_pretrained(
        place, vae=None, transformer=None, processor=None, dtype=torch.bfloat16
    )
    pipeline.processor = encoder._pipeline.processor
    for i, line in enumerate(LINES):
        shown = Image.fromarray(pictures[i].numpy()).resize((192, 96), Image.Resampling.LANCZOS)
        tokens, _ = pipeline.encode_prompt([line], [shown])
        mask = made.mask[i]
        assert mask.sum() == tokens.shape[1]
        torch.testing.assert_close(made.tokens[i][mask], tokens[0].float(), rtol=0, atol=0.1)
    same = encoder.encode(LINES[:1] * 2, [pictures[:, None]])
    assert not torch.allclose(same.tokens[0], same.tokens[1], atol=0.05)
    # 192 × 96 pixels are looked at as 196 × 84, 28 × 28 a token.
    shown = Image.new("RGB", (192, 96))
    words = pipeline.processor(text=["<|image_pad|>"], images=[shown], padding=True, return_tensors="pt")
    assert (words["input_ids"] == encoder._tokenizer.convert_tokens_to_ids("<|image_pad|>")).sum() == 7 * 3


@torch.no_grad()
def test_tokens_of_several_pictures_are_those_of_the_pipeline_in_order(place, monkeypatch):
    """For none, one, two and three pictures of their own sizes; pictures that change places make other tokens."""
    monkeypatch.setattr(network, "_SMALL_PICTURE_PX", 96 * 96)
    config = TextEncoderConfig(name="qwen-image-edit-plus", weights=str(place), dim=32, max_length=512)
    encoder = factory.build_text_encoder(config)
    shades = [
        torch.full((2, 1, height, width, 3), 90 * i, dtype=torch.uint8) for i, (height, width) in enumerate(SIDES)
    ]
    pipeline = diffusers.QwenImageEditPlusPipeline.from_pretrained(
        place, vae=None, transformer=None, processor=None, dtype=torch.bfloat16
    )
    pipeline.processor = encoder._pipeline.processor
    for count in range(4):
        made = encoder.encode(LINES, shades[:count])
        shown = []
        for shade in shades[:count]:
            ratio = shade.shape[3] / shade.shape[2]
            size = diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus.calculate_dimensions(96 * 96, ratio)
            shown.append(pipeline.image_processor.resize(Image.fromarray(shade[0, 0].numpy()), size[1], size[0]))
        for i, line in enumerate(LINES):
            tokens, _ = pipeline.encode_prompt([line], shown or None)
            mask = made.mask[i]
            assert mask.sum() == tokens.shape[1]
            torch.testing.assert_close(made.tokens[i][mask], tokens[0].float(), rtol=0, atol=0.1)
    turned = encoder.encode(LINES, shades[::-1])
    assert not torch.allclose(turned.tokens, made.tokens, atol=0.05)
