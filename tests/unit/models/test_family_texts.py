"""Each family's captions become what its pipeline in diffusers makes of them; tiny random encoders stand for its own."""

import inspect

import diffusers
import pytest
import tiny_families
import torch
import transformers
from diffusers.modular_pipelines import SequentialPipelineBlocks
from diffusers.modular_pipelines.anima import before_denoise as anima_conditioning
from diffusers.modular_pipelines.anima import encoders as anima_encoders
from diffusers.modular_pipelines.flux3 import encoders
from refused import refused
from safetensors.torch import load_file, save_file

from reelworks.models import factory, registry
from reelworks.models.config import AutoencoderConfig, TextEncoderConfig
from reelworks.models.family import Conditioning
from reelworks.training.encoding.encoders import FrozenEncoders

LINES = tiny_families.LINES
SIZES = {name: sizes for name, sizes in tiny_families.TEXTS.items() if name not in ("wan", "flux")}
# The pipeline of this family alone is told how many captions it gets, so that it is one of the quick cases.
SIZES = {name: SIZES[name] for name in sorted(SIZES, key=lambda name: name != "hunyuan-image-2.1")}


@pytest.fixture(scope="module", params=SIZES)
def family(request, tmp_path_factory):
    name = request.param
    place = tiny_families.write(tiny_families.network_of(name), tmp_path_factory.mktemp(name))
    config = TextEncoderConfig(name=name, weights=str(place), **SIZES[name])
    return name, place, factory.build_text_encoder(config)


@pytest.mark.quick_cases(4)
def test_shapes_are_fixed_and_captions_do_not_feel_their_neighbours(family):
    """Whatever the captions, tokens and masks have one length, and a caption's are its own."""
    name, _, encoder = family
    made = encoder.encode(LINES)
    assert made.tokens.shape == (3, SIZES[name]["max_length"], SIZES[name]["dim"])
    assert made.mask.shape == made.tokens.shape[:2]
    assert (made.mask.dtype, made.tokens.dtype, made.pooled.dtype) == (torch.bool, torch.float32, torch.float32)
    assert made.pooled.shape == (3, SIZES[name].get("pooled_dim", 0))
    assert not made.tokens.requires_grad
    alone = encoder.encode(LINES[2:])
    mask = alone.mask[0]
    assert torch.equal(mask, made.mask[2])
    torch.testing.assert_close(alone.tokens[0][mask], made.tokens[2][mask], rtol=0, atol=0.1)
    assert not torch.allclose(made.tokens[0], made.tokens[1], atol=0.01)
    assert encoder.unseen("waves") == 0


@pytest.mark.quick_cases(3)
def test_batches_and_repeats_change_no_bit_of_what_training_sees(family):
    """A caption's embedding is the one that it has alone, beside any others, the first time and later."""
    _, _, encoder = family
    live = FrozenEncoders(factory.build_autoencoder(AutoencoderConfig()), encoder, torch.device("cpu"), Conditioning())
    captions = [LINES[2], LINES[0], "", LINES[2]]
    first, again = (live.texts(captions, [False] * 4) for _ in range(2))
    for i, caption in enumerate(captions):
        for alone, *seen in zip(encoder.encode([caption]), first, again, strict=True):
            assert all(torch.equal(alone[0], one[i]) for one in seen)


class Processor:
    """A processor of captions alone."""

    def __init__(self, tokenizer):
        self.tokenizer, self.apply_chat_template = tokenizer, tokenizer.apply_chat_template


def shortened(encoder):
    """A text encoder of CLIP without its last layer."""
    config = transformers.CLIPTextConfig(
        **encoder.config.to_dict() | {"num_hidden_layers": encoder.config.num_hidden_layers - 1}
    )
    short = transformers.CLIPTextModel(config).to(encoder.dtype)
    left_over = short.load_state_dict(encoder.state_dict(), strict=False)
    assert not left_over.missing_keys
    return short


def anima_tokens(place, caption, length):
    """The tokens that the blocks of Anima's modular pipeline hand to its network."""
    words, dtype = transformers.AutoTokenizer.from_pretrained, torch.bfloat16
    sizes = {"num_layers": 1, "num_attention_heads": 1, "attention_head_dim": 16}
    parts = {
        "text_encoder": transformers.Qwen3Model.from_pretrained(place / "text_encoder", dtype=dtype),
        "tokenizer": words(place / "tokenizer"),
        "t5_tokenizer": words(place / "t5_tokenizer"),
        "text_conditioner": diffusers.AnimaTextConditioner.from_pretrained(place / "text_conditioner", dtype=dtype),
        "transformer": diffusers.CosmosTransformer3DModel(**sizes).to(dtype),  # whose dtype is asked for
    }
    steps = anima_encoders.AnimaTextEncoderStep, anima_conditioning.AnimaTextConditioningStep
    pipeline = SequentialPipelineBlocks.from_blocks_dict(
        {"encoder": steps[0](), "conditioning": steps[1]()}
    ).init_pipeline()
    pipeline.update_components(**parts)
    return pipeline(prompt=[caption], max_sequence_length=length, output="prompt_embeds")[0]


def modular_tokens(place, caption, length):
    """The tokens that the blocks of a modular pipeline hand to its network; its template needs no pictures."""
    pipeline = encoders.Flux3DistilledTextEncoderStep().init_pipeline()
    words = transformers.AutoTokenizer.from_pretrained(place / "tokenizer")
    kind = transformers.Qwen3VLForConditionalGeneration
    parts = {
        "text_encoder": kind.from_pretrained(place / "text_encoder", dtype=torch.bfloat16),
        "tokenizer": Processor(words),
    }
    pipeline.update_components(**parts)
    return pipeline(prompt=caption, max_sequence_length=length, output="prompt_embeds")[0]


def states_before_the_last_norm(place, caption):
    """What the layers of Qwen3-VL make of the template of Qwen-Image 2.1, without its system message."""
    words = transformers.AutoTokenizer.from_pretrained(place / "processor")
    kind = transformers.Qwen3VLForConditionalGeneration
    layers = kind.from_pretrained(place / "text_encoder", dtype=torch.bfloat16).model.language_model
    layers.norm = torch.nn.Identity()
    system = "Comprehend and analyze the provided prompt."
    turns = (f"system\n{system}<|im_end|>\n", f"user\n{caption}<|im_end|>\n", "assistant\n")
    ids = words("".join(f"<|im_start|>{turn}" for turn in turns), return_tensors="pt").input_ids
    message = [{"role": "system", "content": [{"type": "text", "text": system}]}]
    return layers(ids).last_hidden_state[0, len(words.apply_chat_template(message)["input_ids"]) :]


@pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated:FutureWarning")
@torch.no_grad()
@pytest.mark.quick_cases(4)
def test_tokens_are_the_pipelines(family):
    """The tokens that count are those that the family's pipeline hands to its network."""
    name, place, encoder = family
    kind = getattr(diffusers, registry.TEXT_ENCODERS[name].pipeline)
    if name == "flux3":
        tokens = modular_tokens(place, LINES[0], SIZES[name]["max_length"])
        assert len(tokens) == 80
        assert torch.equal(encoder.encode(LINES[:1]).tokens[0, :80], tokens.float())
        assert encoder.encode(LINES[:1]).mask.sum() == 80
        return
    if name == "anima":
        made = encoder.encode(["", *LINES[:1]])
        assert made.mask.sum(dim=1).tolist() == [1, 12]  # the end of the text alone
        for caption, tokens, mask in zip(["", LINES[0]], made.tokens, made.mask, strict=True):
            asked = anima_tokens(place, caption, SIZES[name]["max_length"])
            assert torch.equal(tokens[mask], asked[:12][mask].float())
            assert asked.shape[0] == 512
            assert not asked[mask.sum() :].any()
        assert encoder.unseen("") == 0
        return
    if name == "minimax-h3":
        words = transformers.AutoTokenizer.from_pretrained(place / "tokenizer")
        kind = transformers.Qwen3VLForConditionalGeneration
        layers = kind.from_pretrained(place / "text_encoder", dtype=torch.bfloat16).model.language_model
        ids = words(LINES[0], add_special_tokens=False, return_tensors="pt").input_ids[:, :24]
        states = layers(ids, output_hidden_states=True).hidden_states[50][0]
        made = encoder.encode(LINES[:1])
        assert torch.equal(made.tokens[0][made.mask[0]], states.float())
        return
    if name == "qwen-image-2.1":
        made = encoder.encode(LINES[:1])
        assert torch.equal(made.tokens[0][made.mask[0]], states_before_the_last_norm(place, LINES[0]).float())
        return
    unused = dict.fromkeys({"audio_vae", "vocoder", "text_processor"} & set(kind._get_signature_keys(kind)[0]))
    pipeline = kind.from_pretrained(place, dtype=torch.bfloat16, **unused)
    made = encoder.encode(LINES[:1])
    if name in ("sdxl", "sd3"):
        repeats = [LINES[:1]] * (3 if name == "sd3" else 1)
        more = {"max_sequence_length": 12} if name == "sd3" else {}
        tokens, _, pooled, _ = pipeline.encode_prompt(*repeats, do_classifier_free_guidance=False, **more)
        assert torch.equal(made.pooled, pooled.float())
        tokens = tokens[0][: SIZES[name]["max_length"]]
    elif name == "sd1.5":
        tokens = pipeline.encode_prompt(LINES[:1], "cpu", 1, False)[0][0]
        config = TextEncoderConfig(name="sd1.5-clip-skip-2", weights=str(place), **SIZES[name])
        skipped = factory.build_text_encoder(config).encode(LINES[:1])
        pipeline.text_encoder = shortened(pipeline.text_encoder)
        assert torch.equal(skipped.tokens[0], pipeline.encode_prompt(LINES[:1], "cpu", 1, False)[0][0].float())
    elif name == "z-image":
        tokens = pipeline.encode_prompt(LINES[:1], do_classifier_free_guidance=False, max_sequence_length=64)[0][0]
    elif name == "ernie-image":
        tokens = pipeline.encode_prompt(LINES[:1], "cpu")[0]
    elif name in ("qwen-image", "longcat-image", "flux2", "flux2-klein-4b"):
        tokens = pipeline.encode_prompt(LINES[:1])[0][0]
    elif name == "chroma":
        tokens, _, mask, *_ = pipeline.encode_prompt(
            LINES[:1], do_classifier_free_guidance=False, max_sequence_length=12
        )
        tokens = tokens[mask.bool()]
    elif name == "ideogram-4":
        padded, _, _, indicator = pipeline.encode_prompt(LINES[:1], 0, 0, 64, "cpu")
        tokens = pipeline.encode_prompt(LINES[:1], 0, 0, int((indicator == 3).sum()), "cpu")[0][0]
        assert torch.allclose(tokens, padded[indicator == 3], atol=0.02)  # padding changes roundings
        long = encoder.encode([" ".join(LINES * 9)])  # which the pipeline refuses
        assert long.mask.sum() == 64
        assert torch.equal(long.tokens[0, :30], encoder.encode([" ".join(LINES * 2)]).tokens[0, :30])
    elif name == "krea2":
        tokens, mask = pipeline.encode_prompt(LINES[:1])
        mask = mask[:, :512].bool()
        tokens = tokens.flatten(2)[:, :512][mask]
    elif name == "sana-video":
        instruction = inspect.signature(kind.__call__).parameters["complex_human_instruction"].default
        settings = {"do_classifier_free_guidance": False, "max_sequence_length": 12}
        empty, mask, *_ = pipeline.encode_prompt("", **settings)
        assert torch.equal(encoder.encode([""]).tokens[0][mask[0].bool()], empty[0][mask[0].bool()].float())
        tokens, mask, *_ = pipeline.encode_prompt(LINES[:1], **settings, complex_human_instruction=instruction)
        tokens = tokens[mask.bool()]
    elif name == "hidream":
        settings = {"do_classifier_free_guidance": False, "max_sequence_length": 12}
        t5, _, states, _, pooled, _ = pipeline.encode_prompt(LINES[:1], **settings)
        assert torch.equal(made.pooled, pooled.float())
        tokens = torch.cat([t5[0], *states[:, 0]], dim=1)
    elif name == "lumina2":
        tokens, mask, empty, empty_mask = pipeline.encode_prompt(LINES[:1])
        both = encoder.encode([LINES[0], ""])
        assert torch.equal(both.tokens[1][both.mask[1]], empty[0][empty_mask[0].bool()].float())
        assert both.mask.sum(dim=1).tolist() == [mask.sum(), 1]
        tokens = tokens[mask.bool()]
    elif name.startswith("kandinsky5"):
        tokens, pooled, _ = pipeline.encode_prompt(LINES[0])
        assert torch.equal(made.pooled, pooled.float())
        tokens = tokens[0]
    elif name == "hunyuan-image-2.1":
        assert not made.mask[:, :128].any()  # no word is quoted
        made = encoder.encode(['a sign that says "waves"'])
        words, mask, letters, letters_mask = pipeline.encode_prompt(['a sign that says "waves"'])
        assert letters_mask.sum() > len("waves")
        assert torch.equal(made.tokens[0, :128, :8][made.mask[0, :128]], letters[letters_mask.bool()].float())
        assert not made.tokens[0, :128, 8:].any()
        made = made._replace(mask=made.mask.index_fill(1, torch.arange(128), value=False))
        tokens = words[mask.bool()]
    elif name == "hunyuan-video-1.5":
        tokens, mask, *_ = pipeline.encode_prompt(LINES[:1])
        tokens = tokens[mask.bool()]
    else:
        tokens, mask, *_ = pipeline.encode_prompt(LINES[:1], None, False, max_sequence_length=12)
        if name == "ltx-2":
            tokens, _, mask = pipeline.connectors(tokens, mask)
        tokens = tokens[mask.bool()]
    assert torch.equal(made.tokens[0][made.mask[0]], tokens.float())


@pytest.mark.parametrize("family", ["ltx-2"], indirect=True)
def test_a_length_that_learnt_tokens_do_not_fill_is_refused(family):
    """LTX-2's captions are a whole number of rows of learnt tokens long."""
    with refused("text-length-not-a-multiple", "text_encoder.max_length", says=r"text_encoder\.max_length = 10"):
        factory.build_text_encoder(TextEncoderConfig(name="ltx-2", weights=str(family[1]), dim=32, max_length=10))


@pytest.mark.parametrize("family", ["sdxl"], indirect=True)
def test_no_words_are_zeros_where_the_release_says_so(family):
    """SDXL was trained with zeros in place of no words."""
    made = family[2].encode(["", "waves"])
    assert not made.tokens[0].any()
    assert not made.pooled[0].any()
    assert made.tokens[1].any()


def test_captions_of_wan_are_cleaned_as_its_release_cleans_them(tmp_path):
    """Full-width punctuation and typographic quotes have other tokens; pipelines of diffusers clean them where they can."""
    place = tiny_families.write("wan-tiny", tmp_path)
    encoder = factory.build_text_encoder(
        TextEncoderConfig(name="wan", weights=str(place), **tiny_families.TEXTS["wan"])
    )
    odd, plain = (encoder.encode([text]) for text in ("a cat，“on” a wall", 'a cat,"on" a wall'))
    assert torch.equal(odd.mask, plain.mask)
    assert torch.equal(odd.tokens, plain.tokens)


def test_weights_of_encoders_that_are_not_finite_are_refused(tmp_path):
    """Also those that no caption meets until training does, such as the row of a rare word."""
    place = tiny_families.write("wan-tiny", tmp_path) / "text_encoder" / "model.safetensors"
    state = load_file(place)
    state["shared.weight"][-1, 0] = torch.inf
    save_file(state, place, {"format": "pt"})
    config = TextEncoderConfig(name="wan", weights=str(tmp_path), **tiny_families.TEXTS["wan"])
    with refused("weights-not-finite", "text_encoder.weights", says="shared.weight"):
        factory.build_text_encoder(config)
