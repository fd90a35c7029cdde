"""Advice on captions speaks where it should, with the right number and the right clips, and is silent elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tiny_recipe
from catalog_rows import BAD, rows
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.annexes.quality import caption_advice, caption_needs
from reelworks.annexes.quality.caption_needs import CaptionNeeds, ReadingEncoder
from reelworks.annexes.quality.caption_texts import frequent_phrases, is_near
from reelworks.training.plan import data_advice
from reelworks.training.recipe import recipe_file

MUG = CaptionNeeds(trigger="rwmug")
PUT_BEFORE = CaptionNeeds(trigger="rwmug", templates=(("data", "rwmug, {text}"),))
T5 = CaptionNeeds(encoder=ReadingEncoder("t5", 10, english_only=True))
QWEN = CaptionNeeds(encoder=ReadingEncoder("qwen-image", 512, english_only=False))
NONE = CaptionNeeds()

CATS = [f"cat {i}" for i in range(60)]

# name, needs, captions that need it, what it says, the clips that it names, captions that do not
CASES = [
    ("captions_long", NONE, ["word " * 78, "a, " * 40, "b"], "2 captions are longer than 77", [0, 1], ["word " * 77, "w" * 500]),
    ("captions_long", T5, ["a b c d e f g h i j k", "b"], "1 caption is longer than 10 tokens", [0], ["a b c d e f g h i j"]),
    ("captions_repeated", NONE, [*CATS[:9], *["a cat"] * 5], "5 clips share", [9, 10, 11, 12, 13], [*CATS, *["a cat"] * 4]),
    ("captions_trigger_missing", MUG, ["rwmug, blue", "a mug"], "1 of 2 captions lacks the trigger", [1], ["a rwmug."]),
    ("captions_trigger_missing", CaptionNeeds(trigger="小明"), ["小红在跑步", "小明在跑步"], "1 of 2", [0], ["一个叫小明的男孩"]),
    ("captions_trigger_twice", PUT_BEFORE, ["rwmug, blue", "a mug"], "1 caption has the trigger word", [0], ["a mug"]),
    ("captions_trigger_misspelt", MUG, ["rwmgu, blue", "Rwmug here", "a mug"], '"Rwmug", "rwmgu"', [0, 1], ["a mug", "rwmug"]),
    ("captions_contradict", NONE, ["a street at night in daylight", "b"], "day and night (1)", [0], ["a street at night"]),
    ("captions_contradict", NONE, ["no humans, 1girl"], "no people and people (1)", [0], ["no humans, tree", "no people"]),
    ("captions_contradict", NONE, ["no_humans, 2girls"], "no people and people (1)", [0], ["no text, no watermark"]),
    ("captions_contradict", NONE, ["an indoor pool, outdoors"], "indoors and outdoors", [0], ["an indoor pool"]),
    ("captions_contradict", NONE, ["static camera, camera pans"], "moving camera", [0], ["static camera, then the camera pans"]),
    ("captions_script", NONE, ["一只猫在桌子上", "a cat", "кот"], "2 captions are in another script", [0, 2], ["un café très noir"]),
    ("captions_script", T5, ["猫 cat", "一只猫"], "1 caption is in another script", [1], ["cat"]),
    ("captions_leftovers", NONE, ["The image shows a cat.", "a cat"], 'an opening such as "The image shows" (1)', [0], ["a cat"]),
    ("captions_leftovers", NONE, ["Sure, here is it: a cat", "As an AI, I cannot"], "a refusal (1)", [0, 1], ["sure-footed goat"]),
    ("captions_leftovers", NONE, ["Here’s a cat", "I’m sorry, but I can’t", "I apologize, but I cannot"], "a refusal (2)", [0, 1, 2], ["I’m"]),
    ("captions_leftovers", NONE, ['{"caption": "A cat"}', '["cat"]', "<answer>a</answer>"], "JSON (2)", [0, 1, 2], ["[a] {b: c}"]),
    ("captions_leftovers", NONE, ["a **red** cat", '"a cat"', "<think>a</think>"], "markdown (1)", [0, 1, 2], ['a "cat" sign']),
]  # fmt: skip


def advice(name, needs, captions):
    found = caption_advice.advise(rows(*({"caption": text} for text in captions)), needs)
    return next((one for one in found if one.name == name), None)


@pytest.mark.parametrize(("name", "needs", "captions", "said", "clips", "quiet"), CASES)
def test_each_rule_names_its_clips(name, needs, captions, said, clips, quiet):
    found = advice(name, needs, captions)
    assert found is not None
    assert said in found.text
    assert found.remedy
    assert found.files == tuple(f"data/clip-{i:04d}" for i in clips)
    assert advice(name, needs, quiet) is None


def test_the_template_of_each_dataset_counts_for_its_own_captions():
    """The trigger word is in the template of one dataset and in the texts of the other, as it should be."""
    needs = CaptionNeeds("rwmug", T5.encoder, (("a", "rwmug, {text} at {fps:.0f}."), ("b", "{text}")))

    def names(*captions):
        told = caption_advice.advise(rows(*({"dataset": name, "caption": text} for name, text in captions)), needs)
        return {one.name: one.files for one in told}

    assert names(("a", "blue"), ("b", "rwmug, red")) == {}
    keyed = replace(needs, triggered_datasets=("a",))
    assert (
        caption_advice.advise(rows({"dataset": "a", "caption": "rwmug"}, {"dataset": "a", "caption": "blue"}), keyed)
        == []
    )
    assert names(("a", "rwmug"), ("b", "red")) == {
        "captions_trigger_twice": ("a/clip-0000",),
        "captions_trigger_missing": ("b/clip-0001",),
    }
    five = "one two three four five"
    assert names(("a", five), ("b", f"rwmug {five} six seven")) == {}
    assert names(("a", f"{five} six"), ("b", f"rwmug {five} six")) == {"captions_long": ("a/clip-0000",)}


def test_an_encoder_without_a_limit_reads_all():
    assert advice("captions_long", CaptionNeeds(encoder=ReadingEncoder("mine", None)), ["word " * 200]) is None


def test_every_rule_has_a_case():
    assert {case[0] for case in CASES} | {"captions_phrase"} == set(caption_advice.RULES)
    assert not caption_advice.RULES.keys() & data_advice.RULES.keys()


def test_no_captions_no_advice():
    for needs in (NONE, MUG, T5):
        assert caption_advice.advise(rows(), needs) == []
        assert caption_advice.advise(rows({"caption": None}, {"caption": " "}, BAD), needs) == []


def test_a_phrase_in_most_captions_is_named_whole_and_counted():
    common = [f"rwmug, a photo of a thing on a wooden table number{i}" for i in range(9)]
    found = advice("captions_phrase", MUG, [*common, "something else"])
    assert found is not None
    assert '"a photo of a thing on" (90%)' in found.text
    assert "rwmug" not in found.text  # which is meant to be in all
    assert advice("captions_phrase", MUG, [*common[:8], "one", "two"]) is None  # 80 % is not more than 80 %
    assert advice("captions_phrase", MUG, common[:9]) is None  # too few to tell


def test_stop_words_alone_are_no_phrase():
    assert advice("captions_phrase", NONE, [f"there is a thing{i} in the box{i}" for i in range(20)]) is None


@given(
    st.lists(
        st.lists(st.sampled_from(["red", "blue", "cat", "dog", ",", ".", "the"]), max_size=7), min_size=1, max_size=12
    )
)
def test_phrases_are_those_of_a_plain_count(words):
    """Each phrase is in more than the share, and no phrase that is longer or another is missing."""
    captions = [" ".join(one) for one in words]
    parts = [[part.split() for part in text.replace(".", ",").split(",")] for text in captions]

    def has(of, phrase):
        return any(part[i : i + len(phrase)] == phrase for part in of for i in range(len(part)))

    every = {
        tuple(part[i:j]) for of in parts for part in of for i in range(len(part)) for j in range(i + 1, len(part) + 1)
    }
    often = {p for p in every if len(p) <= 6 and sum(has(of, list(p)) for of in parts) > 0.5 * len(captions)}
    longest = {p for p in often if not any(len(q) > len(p) and has([list(q)], list(p)) for q in often)}
    assert set(frequent_phrases(captions, 0.5)) == {" ".join(p) for p in longest if set(p) != {"the"}}


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_near_words_are_symmetric_and_those_of_the_plain_distance(one, other):
    def distance(a, b):
        table = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
        table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
        for i in range(1, len(a) + 1):
            for j in range(1, len(b) + 1):
                costs = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a[i - 1] != b[j - 1])]
                if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                    costs.append(table[i - 2, j - 2] + 1)
                table[i, j] = min(costs)
        return table[-1, -1]

    for most in (1, 2):
        assert is_near(one, other, most) == is_near(other, one, most) == (distance(one, other) <= most)


def test_each_line_counts_where_a_recipe_draws_lines():
    of_lines = "\n".join(["word " * 40] * 3)
    assert advice("captions_long", NONE, [of_lines]) is not None
    needs = CaptionNeeds(line_datasets=("data",))
    assert advice("captions_long", needs, [of_lines]) is None
    found = advice("captions_long", needs, ["short\n" + "word " * 80, "a cat"])
    assert found is not None
    assert found.files == ("data/clip-0000",)


def test_a_recipe_tells_the_text_encoder_and_the_template(tmp_path: Path):
    recipe = recipe_file.parse(
        tiny_recipe.least(
            train={"max_epochs": 1},
            model={"name": "wan-2.1-1.3b"},
            autoencoder={"name": "wan-2.1", "weights": "-"},
            text_encoder={"name": "wan", "weights": "owner/name"},
            dataset=[{"path": str(tmp_path / "data"), "caption": "rwmug, {text}", "captions": "lines"}],
            bucket=[{"resolution": "480p", "num_frames": 17, "batch_size": 1}],
            output=str(tmp_path / "run"),
        )
    )
    needs = caption_needs.find("rwmug", None, recipe)
    assert needs.encoder is not None
    assert (needs.encoder.max_tokens, needs.encoder.english_only, needs.encoder.count) == (512, False, None)
    assert needs.trigger_datasets == ("data",)
    assert needs.line_datasets == ("data",)


def test_text_encoders_by_name():
    clip, sdxl, flux, wan = (caption_needs.find(text_encoder=name).encoder for name in ("clip", "sdxl", "flux", "wan"))
    assert clip is not None
    assert sdxl is not None
    assert flux is not None
    assert wan is not None
    assert (clip.max_tokens, sdxl.max_tokens, flux.max_tokens, wan.max_tokens) == (77, 77, 512, 512)
    assert (clip.english_only, sdxl.english_only, flux.english_only, wan.english_only) == (True, True, True, False)
    with refused("text-encoder-unknown", "--text-encoder"):
        caption_needs.find(text_encoder="no-such-thing")


def test_a_tokenizer_counts_tokens_and_unknown_words(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "cat": 3}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>", model_max_length=8
    )
    made.save_pretrained(str(tmp_path / "tokenizer"))
    needs = caption_needs.find(text_encoder=str(tmp_path))
    assert needs.encoder is not None
    assert needs.encoder.max_tokens == 8
    shutil.copytree(tmp_path / "tokenizer", tmp_path / "both" / "tokenizer_2")
    made.model_max_length = 4  # as that of CLIP beside T5
    made.save_pretrained(str(tmp_path / "both" / "tokenizer"))
    both = caption_needs.find(text_encoder=str(tmp_path / "both")).encoder
    assert both is not None
    assert both.max_tokens == 8
    captions = ["a cat " * 5, "a cat", "a qrx"]
    long = advice("captions_long", needs, captions)
    assert long is not None
    assert long.text == "1 caption is longer than 8 tokens; the longest loses 2"
    unknown = advice("captions_script", needs, captions)
    assert unknown is not None
    assert unknown.files == ("data/clip-0002",)
    assert "does not know" in unknown.text


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path):
    with refused("text-encoder-unknown", "--text-encoder", says="no tokenizer"):
        caption_needs.find(text_encoder=str(tmp_path))


@pytest.mark.slow
def test_a_million_captions_take_seconds():
    """Each caption is another one; the limit is far above what it takes, and far below a loop in Python."""
    import time

    words = np.array(
        [
            "a",
            "the",
            "cat",
            "dog",
            "street",
            "red",
            "blue",
            "runs",
            "along",
            "under",
            "bright",
            "evening",
            "sky",
            "camera",
            "slowly",
            "towards",
        ]
    )
    draws = np.random.default_rng(0).integers(0, len(words), (1_000_000, 24))
    columns = [pa.array(words[draws[:, i]]) for i in range(24)]
    texts = columns[0]
    for column in columns[1:]:
        texts = pa.compute.binary_join_element_wise(texts, column, " ")
    one = rows({"caption": "x"}).to_table()
    many = pa.concat_tables([one]).take(pa.array(np.zeros(1_000_000, dtype=np.int64)))
    many = many.set_column(
        many.column_names.index("caption"), many.schema.field("caption"), texts.cast(pa.large_string())
    )
    from reelworks.data.catalog.store.rows import CatalogRows

    began = time.process_time()
    found = caption_advice.advise(CatalogRows.from_table(many), MUG)
    took = time.process_time() - began
    print(f"{took:.1f} s of processor time")
    assert {one.name for one in found} >= {"captions_trigger_missing"}
    assert took < 60
