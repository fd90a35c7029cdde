"""Captions become the hidden states of a T5, padded and masked; a tiny random T5 stands for the published."""

import shutil

import pytest
import tiny_families
import torch
import transformers
from pydantic import ValidationError
from refused import refused
from safetensors.torch import load_file, save_file
from tiny_families import LINES

from reelworks.models import factory
from reelworks.models.config import TextEncoderConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A T5 and its tokenizer, as transformers saves them."""
    place = tmp_path_factory.mktemp("t5")
    tiny_families.tokenizer().save_pretrained(place)
    sizes = transformers.T5Config(
        vocab_size=80, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, initializer_factor=3.0
    )
    torch.manual_seed(0)
    transformers.T5EncoderModel(sizes).save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def encoder(folder):
    return factory.build_text_encoder(TextEncoderConfig(name="t5", weights=folder, dim=32, max_length=64))


def test_the_sizes_of_the_published_one_are_the_defaults(folder):
    """A recipe that names a T5 alone gets the width of T5-XXL and the 300 tokens of v1.2."""
    config = TextEncoderConfig(name="t5", weights="DeepFloyd/t5-v1_1-xxl")
    assert (config.dim, config.max_length) == (4096, 300)
    assert TextEncoderConfig.model_validate(config.model_dump()) == config
    assert TextEncoderConfig(name="t5", weights="x", max_length=200).max_length == 200


def test_captions_are_padded_masked_and_do_not_feel_their_padding(folder, encoder):
    """Shapes are fixed, the mask is True up to the end mark, and a caption's states are its own."""
    text, mask, pooled = encoder.encode([LINES[0], "waves", ""])
    assert pooled.shape == (3, 0)
    assert (text.shape, text.dtype, mask.dtype) == ((3, 64, 32), torch.float32, torch.bool)
    counts = mask.sum(1).tolist()
    assert counts[2] == 1
    assert counts[0] > counts[1] > 1
    assert all(row[:count].all() for row, count in zip(mask, counts, strict=True))
    narrow = factory.build_text_encoder(TextEncoderConfig(name="t5", weights=folder, dim=32, max_length=12))
    alone, kept, _ = narrow.encode(["waves"])
    torch.testing.assert_close(alone[kept], text[1][mask[1]], rtol=0, atol=0.05)
    assert not torch.allclose(text[0, 0], text[1, 0])
    assert not text.requires_grad


def test_words_that_are_cut_off_are_counted(folder, encoder):
    """What `unseen` counts is the end of a caption that changes nothing, and the word before it does."""
    assert encoder.unseen(LINES[0]) == 0
    short = factory.build_text_encoder(TextEncoderConfig(name="t5", weights=folder, dim=32, max_length=6))
    unseen = short.unseen(LINES[0])
    words = LINES[0].split()
    assert 1 < unseen < len(words)
    # The first of them may be seen in part.
    changed = " ".join(words[: len(words) - unseen + 1] + ["cats"] * (unseen - 1))
    made = short.encode([LINES[0]])[0]
    assert torch.equal(made, short.encode([changed])[0])
    words[-unseen - 1] = "cats"
    assert not torch.equal(made, short.encode([" ".join(words)])[0])


def test_what_cannot_be_loaded_and_another_width_are_refused(folder, tmp_path):
    """No folder, an empty one and a wrong width are told with the recipe's keys."""
    with refused("text-width-differs", "text_encoder.dim", says=r"text_encoder\.dim = 64.*set it to 32"):
        factory.build_text_encoder(TextEncoderConfig(name="t5", weights=folder, dim=64))
    with refused("text-encoder-unloadable", "text_encoder.weights"):
        factory.build_text_encoder(TextEncoderConfig(name="t5", weights=str(tmp_path)))
    with pytest.raises(ValidationError, match=r"text_encoder\.weights"):
        TextEncoderConfig(name="t5")


def test_weights_that_are_not_finite_are_refused(folder, tmp_path):
    """Also those that no caption meets until training does, such as the row of a rare word."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    state = load_file(tmp_path / "model.safetensors")
    state["shared.weight"][79, 0] = torch.nan
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with refused("weights-not-finite", "text_encoder.weights", says="shared.weight"):
        factory.build_text_encoder(TextEncoderConfig(name="t5", weights=str(tmp_path), dim=32))
