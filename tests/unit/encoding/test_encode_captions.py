"""Captions are embedded alone and once: neither a batch nor what came before changes a bit of an embedding."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from reelworks.models import factory
from reelworks.models.api import TextEmbedding
from reelworks.models.config import AutoencoderConfig, TextEncoderConfig
from reelworks.models.family import Conditioning
from reelworks.training.encoding.encoders import CaptionCache, FrozenEncoders

CPU = torch.device("cpu")
ROW_BYTES = 2_000 + 2 * 4 * 8 + 4 + 0


def row(caption: str, dtype: torch.dtype = torch.bfloat16) -> TextEmbedding:
    """One caption as an encoder of that dtype might embed it."""
    generator = torch.Generator().manual_seed(len(caption))
    tokens = torch.randn(1, 4, 8, generator=generator).to(dtype).float()
    return TextEmbedding(tokens, torch.ones(1, 4, dtype=torch.bool), tokens.new_zeros(1, 0))


@example([0, 1, 0, 2, 0, 1], 2, torch.bfloat16)  # 0 came first, and 1 was not used for longest
@given(st.lists(st.integers(0, 9)), st.integers(0, 4), st.sampled_from([torch.bfloat16, torch.float32]))
def test_what_is_kept_is_what_was_made_and_stays_within_its_bytes(asked, room, dtype):
    """Whatever is asked for in whatever order; a repeat within the room makes nothing."""
    size = ROW_BYTES if dtype == torch.bfloat16 else ROW_BYTES + 2 * 4 * 8
    cache, made, recent = CaptionCache(room * size), [], []
    for number in asked:
        caption = "a" * number

        def embed(caption: str = caption) -> TextEmbedding:
            made.append(caption)
            return row(caption, dtype)

        before = len(made)
        found = cache.get(caption, embed)
        assert all(torch.equal(a, b) for a, b in zip(found, row(caption, dtype), strict=True))
        assert [a.dtype for a in found] == [torch.float32, torch.bool, torch.float32]
        assert (len(made) == before) == (caption in recent)
        recent = [one for one in [*recent, caption] if one != caption] + [caption]
        recent = recent[max(len(recent) - room, 0) :]


class Looking:
    """An encoder that looks at pictures, and tells what it was asked for."""

    sees_pictures = True

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[torch.Tensor]]] = []

    def encode(self, captions, pictures=()):
        """Numbers of the picture beside those of the caption."""
        self.asked.append((list(captions), list(pictures)))
        made = row(captions[0])
        return made._replace(tokens=made.tokens + sum(picture.sum() for picture in pictures))


def live(text) -> FrozenEncoders:
    return FrozenEncoders(factory.build_autoencoder(AutoencoderConfig()), text, CPU, Conditioning())


def test_what_is_said_of_a_picture_is_not_kept_and_another_encoder_does_not_mind_pictures():
    """One caption with two pictures has two embeddings; where none looks at them, one that was embedded once."""
    pictures = torch.tensor([1, 2], dtype=torch.uint8)[:, None, None, None].expand(2, 4, 4, 3)
    looking = Looking()
    made = live(looking).texts(["a cup", "a cup"], [False, False], [pictures])
    assert not torch.equal(made.tokens[0], made.tokens[1])
    assert [len(asked) for asked, _ in looking.asked] == [1, 1]
    looking = Looking()
    looking.sees_pictures = False
    made = live(looking).texts(["a cup", "a cup", "b"], [False, False, True], [pictures[:1].expand(3, -1, -1, -1)])
    assert [asked for asked, _ in looking.asked] == [["a cup"], [""]]
    assert torch.equal(made.tokens[0], made.tokens[1])


def test_an_encoder_in_cpu_memory_gives_what_the_other_gives():
    """`text_encoder.device` says where captions are embedded, and what is returned is on the training device."""
    text = factory.build_text_encoder(TextEncoderConfig())
    made = live(text).texts(["a cup", ""], [False, False])
    plain = text.encode(["a cup", ""])
    assert all(torch.equal(a, b) for a, b in zip(made, plain, strict=True))
