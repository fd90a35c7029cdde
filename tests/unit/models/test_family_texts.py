"""Each family's captions become what its pipeline in diffusers makes of them; tiny random encoders stand for its own."""

import diffusers
import pytest
import torch
import transformers

from reelworks.models import registry
from reelworks.models.config import TextConfig

LINES = ["a red circle moves right before a dark background", "two cats sit on a wall in the sun", "waves"]
CHAT = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] if m['content'] is string else "
    "m['content'][0]['text'] }} {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)
T5 = {"vocab_size": 80, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
CLIP = {
    "vocab_size": 80,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "projection_dim": 12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
QWEN = {
    "vocab_size": 80,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def tokenizer():
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>")
    unigram.train_from_iterator(LINES, trainer)
    unigram.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=unigram,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=16,
        chat_template=CHAT,
    )


def clip(with_projection):
    sizes = transformers.CLIPTextConfig(**CLIP)
    kind = transformers.CLIPTextModelWithProjection if with_projection else transformers.CLIPTextModel
    return kind(sizes)


def t5():
    return transformers.T5EncoderModel(transformers.T5Config(**T5))


def sdxl(tokenizer):
    return diffusers.StableDiffusionXLPipeline(
        vae=None,
        unet=None,
        scheduler=diffusers.EulerDiscreteScheduler(),
        text_encoder=clip(False),
        text_encoder_2=clip(True),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        add_watermarker=False,
    )


def sd3(tokenizer):
    return diffusers.StableDiffusion3Pipeline(
        vae=None,
        transformer=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        text_encoder=clip(True),
        text_encoder_2=clip(True),
        text_encoder_3=t5(),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        tokenizer_3=tokenizer,
    )


def ltx(tokenizer):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return diffusers.LTXPipeline(scheduler, None, t5(), tokenizer, None)


def z_image(tokenizer):
    model = transformers.Qwen3Model(transformers.Qwen3Config(**QWEN, head_dim=16))
    return diffusers.ZImagePipeline(diffusers.FlowMatchEulerDiscreteScheduler(), None, model, tokenizer, None)


def qwen_vl():
    text = QWEN | {
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)


def qwen_image(tokenizer):
    model = transformers.Qwen2_5_VLForConditionalGeneration(qwen_vl())
    return diffusers.QwenImagePipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(), None, model, tokenizer, None
    )


SIZES = {
    "sdxl": {"dim": 32, "pooled_dim": 12, "max_length": 16},
    "sd3": {"dim": 32, "pooled_dim": 24, "max_length": 28},
    "ltx-video": {"dim": 32, "max_length": 12},
    "z-image": {"dim": 32, "max_length": 64},
    "qwen-image": {"dim": 32, "max_length": 512},
}
MAKE = {"sdxl": sdxl, "sd3": sd3, "ltx-video": ltx, "z-image": z_image, "qwen-image": qwen_image}


@pytest.fixture(scope="module", params=MAKE)
def family(request, tokenizer, tmp_path_factory):
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp(request.param)
    MAKE[request.param](tokenizer).save_pretrained(place)
    config = TextConfig(name=request.param, weights=str(place), **SIZES[request.param])
    return request.param, place, registry.build_text_encoder(config)


def test_shapes_are_fixed_and_captions_do_not_feel_their_neighbours(family):
    """Whatever the captions, tokens and masks have one length, and a caption's are its own."""
    name, _, encoder = family
    made = encoder.encode(LINES)
    assert made.tokens.shape == (3, SIZES[name]["max_length"], 32)
    assert made.mask.shape == made.tokens.shape[:2]
    assert (made.mask.dtype, made.tokens.dtype, made.pooled.dtype) == (
        torch.bool,
        torch.float32,
        torch.float32,
    )
    assert made.pooled.shape == (3, SIZES[name].get("pooled_dim", 0))
    assert not made.tokens.requires_grad
    alone = encoder.encode(LINES[2:])
    mask = alone.mask[0]
    assert torch.equal(mask, made.mask[2])
    torch.testing.assert_close(alone.tokens[0][mask], made.tokens[2][mask], rtol=0, atol=0.1)
    assert not torch.allclose(made.tokens[0], made.tokens[1], atol=0.1)
    assert encoder.unseen("waves") == 0


@torch.no_grad()
def test_tokens_are_the_pipelines(family):
    """The tokens that count are those that the family's pipeline hands to its network."""
    name, place, encoder = family
    kind = type(encoder._pipeline)
    off = {"unet": None} if name == "sdxl" else {"transformer": None}
    pipeline = kind.from_pretrained(place, vae=None, dtype=torch.bfloat16, **off)
    made = encoder.encode(LINES[:1])
    if name in ("sdxl", "sd3"):
        repeats = [LINES[:1]] * (3 if name == "sd3" else 1)
        more = {"max_sequence_length": 12} if name == "sd3" else {}
        tokens, _, pooled, _ = pipeline.encode_prompt(*repeats, do_classifier_free_guidance=False, **more)
        assert torch.equal(made.pooled, pooled.float())
        tokens = tokens[0][: SIZES[name]["max_length"]]
    elif name == "z-image":
        tokens = pipeline.encode_prompt(LINES[:1], do_classifier_free_guidance=False, max_sequence_length=64)[
            0
        ][0]
    elif name == "qwen-image":
        tokens = pipeline.encode_prompt(LINES[:1])[0][0]
    else:
        tokens, mask, *_ = pipeline.encode_prompt(LINES[:1], None, False, max_sequence_length=12)
        tokens = tokens[mask.bool()]
    assert torch.equal(made.tokens[0][made.mask[0]], tokens.float())


@pytest.mark.parametrize("family", ["sdxl"], indirect=True)
def test_no_words_are_zeros_where_the_release_says_so(family):
    """SDXL was trained with zeros in place of no words."""
    made = family[2].encode(["", "waves"])
    assert not made.tokens[0].any()
    assert not made.pooled[0].any()
    assert made.tokens[1].any()
