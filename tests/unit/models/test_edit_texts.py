"""Qwen-Image-Edit reads an instruction beside the picture that is edited, as its pipeline lets it."""

from __future__ import annotations

import diffusers
import pytest
import torch
import transformers
from PIL import Image

from reelworks.models import factory
from reelworks.models.config import TextEncoderConfig
from reelworks.models.families.qwen_image import network

TEXT = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
SPECIAL = ["<pad>", "</s>", "<unk>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
LINES = ["paint the cat blue", "two cats"]
SIDES = [(32, 64), (48, 48), (96, 32)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The pipeline with tiny random weights."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=SPECIAL, unk_token="<unk>")
    unigram.train_from_iterator([*LINES, "waves on the wall"], trainer)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    names |= {"extra_special_tokens": {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=unigram, **names)
    torch.manual_seed(0)
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    config = transformers.Qwen2_5_VLConfig(
        text_config=TEXT,
        vision_config=VISION,
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
    made = encoder.encode(LINES, [pictures])
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
    same = encoder.encode(LINES[:1] * 2, [pictures])
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
    shades = [torch.full((2, height, width, 3), 90 * i, dtype=torch.uint8) for i, (height, width) in enumerate(SIDES)]
    pipeline = diffusers.QwenImageEditPlusPipeline.from_pretrained(
        place, vae=None, transformer=None, processor=None, dtype=torch.bfloat16
    )
    pipeline.processor = encoder._pipeline.processor
    for count in range(4):
        made = encoder.encode(LINES, shades[:count])
        shown = []
        for shade in shades[:count]:
            ratio = shade.shape[2] / shade.shape[1]
            size = diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus.calculate_dimensions(96 * 96, ratio)
            shown.append(pipeline.image_processor.resize(Image.fromarray(shade[0].numpy()), size[1], size[0]))
        for i, line in enumerate(LINES):
            tokens, _ = pipeline.encode_prompt([line], shown or None)
            mask = made.mask[i]
            assert mask.sum() == tokens.shape[1]
            torch.testing.assert_close(made.tokens[i][mask], tokens[0].float(), rtol=0, atol=0.1)
    turned = encoder.encode(LINES, shades[::-1])
    assert not torch.allclose(turned.tokens, made.tokens, atol=0.05)
