"""Qwen-Image 2.1 reads texts and source pictures as one sequence, as its pipeline lets it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_families
import torch
import transformers
from PIL import Image

from reelworks.models import factory
from reelworks.models.config import TextEncoderConfig
from reelworks.models.families.qwen_image21 import network
from reelworks.testing import contract

LINES = ["paint the cat blue", "two cats"]
SIDES = [(64, 128), (96, 96), (192, 64)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The text encoder of edits with tiny random weights, and tokens for pictures."""
    lines, special = [*LINES, "waves on the wall"], tiny_families.SPECIAL + tiny_families.SHOWN
    settings = {"chat_template": tiny_families.CHAT, "extra_special_tokens": tiny_families.SHOWN}
    words = tiny_families.tokenizer(lines, special, ends=False, **settings)
    ids = {f"{part}_token_id": words.convert_tokens_to_ids(f"<|{token}|>") for part, token in PLACES.items()}
    torch.manual_seed(0)
    config = transformers.Qwen3VLConfig(
        text_config=tiny_families.QWEN | {"head_dim": 16, "rope_parameters": tiny_families.ROPE, "vocab_size": 90},
        vision_config=tiny_families.VISION | {"deepstack_visual_indexes": [0]},
        **ids,
    )
    folder = tmp_path_factory.mktemp("edit")
    transformers.Qwen3VLForConditionalGeneration(config).save_pretrained(folder / "text_encoder")
    words.save_pretrained(folder / "processor")
    transformers.Qwen2VLImageProcessorPil(
        patch_size=16, size={"shortest_edge": 32 * 32, "longest_edge": 512 * 512}
    ).save_pretrained(folder / "processor")
    return encoder_of("qwen-image-2.1-edit", folder)


def encoder_of(name, folder):
    return factory.build_text_encoder(TextEncoderConfig(name=name, weights=str(folder), dim=32, max_length=96))


PLACES = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}


def pictures_of(count):
    g = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (1, 1, h, w, 3), dtype=torch.uint8, generator=g) for h, w in SIDES[:count]]


def inputs_of(made, count):
    """Inputs with the pictures' latents, four elements for each of the text encoder's places."""
    whole = contract.example(contract.shapes("qwen-image-2.1-edit-tiny")[0], "qwen-image-2.1-edit-tiny", batch=1)
    g = torch.Generator().manual_seed(1)
    sources = tuple(torch.randn(1, 3, 1, h // 16, w // 16, generator=g) for h, w in SIDES[:count])
    return replace(whole, text=made.tokens, text_mask=made.mask, sources=sources)


@pytest.mark.parametrize("count", [0, 1, 3])
@torch.no_grad()
def test_the_network_sees_what_the_pipeline_shows_it(encoder, count):
    """Texts and pictures in the embedding's short form lead to the network's answer to the pipeline's own form."""
    shown, pipeline = pictures_of(count), encoder._pipeline
    made = encoder.encode(LINES[:1], shown)
    assert int((~made.tokens[0].any(dim=1) & made.mask[0]).sum()) == count
    inputs, module = inputs_of(made, count), contract.build("qwen-image-2.1-edit-tiny").module
    tokens, mask, places = pipeline.encode_prompt(LINES[:1], [Image.fromarray(p[0, 0].numpy()) for p in shown] or None)
    pictures = [*inputs.sources, inputs.latent]
    *_, H, W = inputs.latent.shape
    wanted = module(
        torch.cat([p.flatten(2).transpose(1, 2) for p in pictures], dim=1),
        encoder_hidden_states=tokens.float(),
        encoder_hidden_states_mask=mask,
        timestep=inputs.time / 1000,
        img_shapes=[[(1, *p.shape[3:]) for p in pictures]],
        img_mask=torch.cat([places, places.new_ones(1, H * W // 4)], dim=1),
    ).sample[:, -H * W :]
    found = network.predict(module, inputs, module.config)
    torch.testing.assert_close(-found.flatten(2).transpose(1, 2), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_captions_alone_are_embedded_as_by_the_pipeline(encoder):
    made = encoder_of(
        "qwen-image-2.1", encoder._pipeline.text_encoder.name_or_path.removesuffix("/text_encoder")
    ).encode(LINES)
    wanted, mask, _ = encoder._pipeline.encode_prompt(LINES)
    assert torch.equal(made.mask[:, : mask.shape[1]], mask.bool())
    torch.testing.assert_close(made.tokens[made.mask], wanted.float()[mask.bool()])


def test_words_feel_the_picture_before_them(encoder):
    """Behind another picture they are embedded otherwise; each caption of a batch sees its own picture."""
    one, two = pictures_of(1)[0], 255 - pictures_of(1)[0]
    both = encoder.encode(LINES[:1] * 2, [torch.cat([one, two])]).tokens
    alone = [encoder.encode(LINES[:1], [each]).tokens[0] for each in (one, two)]
    assert torch.equal(both, torch.stack(alone))
    place = int((~alone[0].any(dim=1)).nonzero()[0])
    assert place > 0
    assert torch.equal(alone[0][: place + 1], alone[1][: place + 1])
    assert not (alone[0][place + 1 :] == alone[1][place + 1 :]).all(dim=1)[:4].any()
