"""The two encoders that need no download: pixels come back, words are the same everywhere."""

import hashlib

import numpy as np
import pytest
import torch
from refused import refused

from reelworks.core.shape import Geometry
from reelworks.models import factory
from reelworks.models.config import AutoencoderConfig, TextEncoderConfig
from reelworks.models.text import hashed


@pytest.mark.parametrize(("stride", "mean", "std"), [(1, 0.0, 1.0), (2, -0.25, 0.3), (8, 0.0, 0.5)])
def test_pixels_come_back(stride, mean, std):
    autoencoder = factory.build_autoencoder(AutoencoderConfig(stride=stride, mean=mean, std=std))
    video = torch.rand(2, 3, 3, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latent = autoencoder.encode(video)
    assert latent.shape == (2, autoencoder.latent_channels, 3, 16 // stride, 24 // stride)
    assert (autoencoder.decode(latent, 3) - video).abs().max() <= 2 * torch.finfo(torch.float32).eps
    assert autoencoder.geometry == Geometry(stride=(1, stride, stride), patch=(1, 1, 1))


def test_channels_are_color_row_column():
    autoencoder = factory.build_autoencoder(AutoencoderConfig(stride=2, mean=0.0, std=1.0))
    video = torch.arange(3 * 4 * 6, dtype=torch.float32).reshape(1, 3, 1, 4, 6)
    latent = autoencoder.encode(video)
    for color, row, column in [(0, 0, 0), (1, 0, 1), (2, 1, 0)]:
        channel = latent[0, (color * 2 + row) * 2 + column, 0]
        assert torch.equal(channel, video[0, color, 0, row::2, column::2])


def test_default_scale_gives_about_unit_variance_to_uniform_pixels():
    video = torch.rand(1, 3, 2, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert 0.8 < factory.build_autoencoder(AutoencoderConfig()).encode(video).std() < 1.3


def test_sizes_that_the_stride_does_not_divide_are_refused():
    with refused("size-not-a-multiple", "autoencoder.stride", says="16×12 pixels.*multiples of 8"):
        factory.build_autoencoder(AutoencoderConfig()).encode(torch.zeros(1, 3, 1, 12, 16))


def encode(*captions, dim=16, max_length=4):
    return factory.build_text_encoder(TextEncoderConfig(dim=dim, max_length=max_length)).encode(captions)


def test_equal_words_have_equal_vectors_whatever_their_case_and_neighbours():
    text, mask, _ = encode("A red, red KITE", "kite")
    assert mask.tolist() == [[True] * 4, [True, False, False, False]]
    assert torch.equal(text[0, 1], text[0, 2])
    assert torch.equal(text[0, 3], text[1, 0])
    assert not torch.equal(text[0, 0], text[0, 1])
    assert not text[1, 1:].any()


def test_a_summary_is_the_scaled_sum_of_the_words_that_are_kept():
    """A caption's summary is its words' sum over the square root of their number, in a width of its own."""
    config = TextEncoderConfig(dim=16, max_length=4, pooled_dim=16)
    text, mask, pooled = factory.build_text_encoder(config).encode(["a red kite", "one two three four five"])
    torch.testing.assert_close(pooled, text.sum(1) / mask.sum(1, keepdim=True).sqrt())
    narrow = factory.build_text_encoder(config.model_copy(update={"pooled_dim": 0})).encode(["a"])
    assert narrow.pooled.shape == (1, 0)


def test_long_captions_keep_their_first_words_and_empty_ones_have_a_token():
    text, mask, _ = encode("one two three four five six", "", "?!")
    assert torch.equal(text[0], encode("one two three four")[0][0])
    assert mask.sum(1).tolist() == [4, 1, 1]
    assert torch.equal(text[1], text[2])
    assert text[1, 0].any()


@pytest.mark.parametrize(
    ("caption", "unseen"), [("", 0), ("one two three four", 0), ("One, two-three: four FIVE six!", 2)]
)
def test_words_beyond_the_end_are_counted(caption, unseen):
    encoder = factory.build_text_encoder(TextEncoderConfig(dim=16, max_length=4))
    assert encoder.unseen(caption) == unseen
    seen = " ".join(hashed.split_words(caption)[: len(hashed.split_words(caption)) - unseen])
    assert torch.equal(encoder.encode([caption])[0], encoder.encode([seen])[0])


def test_vectors_are_the_same_on_every_platform():
    vectors = np.stack([hashed.word_vector(word, 64) for word in ("kite", "größe", "")])
    assert hashlib.sha256(vectors.astype("<f4").tobytes()).hexdigest()[:16] == "e9622ef851e6db85"


def test_vectors_are_close_to_standard_normal_and_to_orthogonal():
    vectors = np.stack([hashed.word_vector(f"word{i}", 256) for i in range(100)])
    assert abs(vectors.mean()) < 0.02
    assert abs(vectors.std() - 1) < 0.02
    assert abs((np.abs(vectors) < 1).mean() - 0.683) < 0.01
    cosine = np.corrcoef(vectors) - np.eye(100)
    assert np.abs(cosine).max() < 0.35
