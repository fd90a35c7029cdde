"""Each family meets captions, no captions and the guidance scale in the way that it was trained with."""

import dataclasses
from types import SimpleNamespace

import torch
from refused import refused

from reelworks.core.shape import Shape
from reelworks.data.loader import decode_requests
from reelworks.inference.generate import pipeline
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, factory
from reelworks.models.config import ModelConfig
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.testing import contract
from reelworks.training.encoding.encoders import FrozenEncoders


def encoder_for(name):
    return FrozenEncoders(
        factory.build_autoencoder(contract.AUTOENCODER),
        factory.build_text_encoder(contract.TEXT),
        torch.device("cpu"),
        components.conditioning(ModelConfig(name=name)),
    )


def met(name, prompt="a red kite", guidance_scale=4.0, num_frames=1):
    """The inputs of a generation's first step."""
    seen = []

    def boundary(inputs):
        seen.append(inputs)
        return torch.zeros_like(inputs.latent)

    options = GenerateOptions(Shape(num_frames, 8, 8), 24.0, 1, guidance_scale, seed=0)
    pipeline.generate(boundary, encoder_for(name), ObjectiveConfig(), [prompt], options)
    return seen[0]


def test_a_distilled_network_is_told_the_scale_and_others_are_not():
    """FLUX.1-dev takes the scale as an input; for the rest it weighs two answers, and the input stays 1."""
    assert met("flux-tiny").guidance.tolist() == [4.0, 4.0]
    for name in ("wan-tiny", "stdit3-tiny"):
        assert met(name).guidance.tolist() == [1.0, 1.0]


def test_a_picture_is_told_the_rate_that_pictures_are_trained_with():
    """120, as Open-Sora has it, whatever the rate of clips; a clip has its own."""
    assert decode_requests.shown_fps(SimpleNamespace(rows=SimpleNamespace(is_image=[True])), 0) == 120.0
    assert met("stdit3-tiny").fps.tolist() == [120.0, 120.0]
    assert met("stdit3-tiny", num_frames=5).fps.tolist() == [24.0, 24.0]


def test_the_empty_caption_is_encoded_unless_the_network_has_its_own():
    """Half of the batch has no caption: for Wan it holds the encoding of no words, for STDiT3 a flag alone."""
    none = factory.build_text_encoder(contract.TEXT).encode([""])
    wan, stdit3 = met("wan-tiny"), met("stdit3-tiny")
    assert wan.drop_text.tolist() == stdit3.drop_text.tolist() == [False, True]
    assert torch.equal(wan.text[1], none.tokens[0])
    assert torch.equal(wan.pooled[1], none.pooled[0])
    assert not torch.equal(wan.text[0], none.tokens[0])
    assert torch.equal(stdit3.text[0], stdit3.text[1])


def test_dropped_captions_of_a_batch_are_the_empty_ones():
    """In training, a dropped caption is shown as no words, and its neighbours as they are."""
    encoder = encoder_for("wan-tiny")
    made = encoder.texts(["a red kite", "a blue kite"], [True, False])
    alone = encoder.texts(["", "a blue kite"], [False, False])
    assert all(torch.equal(one, other) for one, other in zip(made, alone, strict=True))


def test_given_frames_are_refused_where_the_network_is_not_told():
    """HunyuanVideo 1.5 as it stands cannot know a given frame; it is said before anything runs."""
    options = GenerateOptions(Shape(5, 8, 8), 24.0, 1, 1.0, seed=0)
    options = dataclasses.replace(options, conditions=Conditions(None, 2, 1))
    with refused("conditions-not-taken", "--reference, --loop"):
        pipeline.generate(None, encoder_for("hunyuan-video-1.5-tiny"), ObjectiveConfig(), ["waves"], options)
