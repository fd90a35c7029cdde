"""What captioners answer becomes a caption of one line, or is refused with a reason; prompts ask what they should."""

from __future__ import annotations

import time

import pytest
from catalog_rows import rows
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.annexes.captions import prompts
from reelworks.annexes.captions.answers import CaptionFailed, caption_of, with_trigger
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.annexes.quality import caption_advice

KEPT = [
    ("a cat on a mat", "a cat on a mat"),
    ("  A cat\n on a mat.\n", "A cat on a mat."),
    ('"A cat on a mat."', "A cat on a mat."),
    ('"Cats" and "dogs"', '"Cats" and "dogs"'),
    ("**A cat** on a __mat__", "A cat on a mat"),
    ("```\nA cat\n```", "A cat"),
    ("# Caption\n- a cat\n- a dog", "Caption a cat a dog"),
    ("Sure! Here is the caption: A cat.", "A cat."),
    ("Here's a caption for this picture: A cat.", "A cat."),
    ("Caption: A cat.", "A cat."),
    ("The image shows a cat.", "A cat."),
    ("This video clip depicts a man who walks.", "A man who walks."),
    ("The picture frame shows age.", "The picture frame shows age."),
    ("<think>It is a cat, I think.</think>\nA cat.", "A cat."),
    ("Here’s a caption:\nA cat on a mat.", "A cat on a mat."),
    ("<think>x</think><answer>A cat.</answer>", "A cat."),
    ("<|begin_of_box|>A cat.<|end_of_box|>", "A cat."),
    ('Caption: "A cat on a mat."\n\nLet me know if you want it longer!', "A cat on a mat."),
    ("A cat on a mat. I hope this helps!", "A cat on a mat."),
    ("A sign asks: is there anything else?", "A sign asks: is there anything else?"),
    ("so it is a cat.\n</think>A cat.", "A cat."),
    ("Two dogs are here: one brown, one white.", "Two dogs are here: one brown, one white."),
    ("This is a red car: a Ferrari.", "This is a red car: a Ferrari."),
    ("Certainly lit, the room is empty.", "Certainly lit, the room is empty."),
    ("a man, 1girl, 5 < 6 apples", "a man, 1girl, 5 < 6 apples"),
    ("一只猫。", "一只猫。"),
]
REFUSED = [
    ("", "empty"),
    (" \n", "empty"),
    ("...", "no words"),
    ("<think>hm", "thoughts"),
    ("<!DOCTYPE html><html>x</html>", "HTML"),
    ("<html><body>Bad gateway</body></html>", "HTML"),
    ('{"caption": "a cat"}', "JSON"),
    ('["a", "b"]', "JSON"),
    ('```json\n{"caption": "A cat"}\n```', "JSON"),
    ('Here is the caption you asked for:\n{"caption": "A cat"}', "JSON"),
    ("Sure, {'caption': 'A cat", "JSON"),
    ("I’m sorry, but I can’t assist with that.", "refused"),
    ("I apologize, but I cannot describe this image.", "refused"),
    ("My apologies, I can't see it.", "refused"),
    ("caf\ufffd", "not text"),
    ("a\x00b", "not text"),
    ("a\ud800b", "not text"),
    ("I'm sorry, but I cannot describe this.", "refused"),
    ("As an AI model, I see nothing", "refused"),
    ("cat " * 9, "repeats itself"),
    ("A red " + "cat " * 8, "repeats itself"),
    ("a red cat and " * 30, "repeats itself"),
    ("猫" * 3000, "repeats itself"),
    ("一只猫在跑" * 30, "repeats itself"),
    ("一只猫在跑，" * 30, "repeats itself"),
    ("x" * 9000, "letters"),
]


@pytest.mark.parametrize(("answer", "caption"), KEPT)
def test_what_stands_around_a_caption_is_removed(answer: str, caption: str) -> None:
    assert caption_of(answer) == caption
    assert caption_of(caption) == caption


@pytest.mark.parametrize(
    "caption",
    [
        "A man at a desk. Feel free to relax is written on the wall behind him. He types.",
        'A code editor shows {"name": "x"} in white text.',
    ],
)
def test_what_only_looks_like_an_answer_to_someone_stays(caption: str) -> None:
    assert caption_of(caption) == caption


def test_no_caption_has_what_the_advice_on_captions_calls_leftovers() -> None:
    written = [{"caption": caption_of(answer)} for answer, _ in KEPT]
    assert "captions_leftovers" in {one.name for one in caption_advice.advise(rows(*({"caption": a} for a, _ in KEPT)))}
    assert "captions_leftovers" not in {one.name for one in caption_advice.advise(rows(*written))}


def test_brackets_in_brackets_are_no_fault_of_the_program() -> None:
    with pytest.raises(CaptionFailed):
        caption_of("[" * 2500)


@pytest.mark.parametrize(("answer", "reason"), REFUSED)
def test_what_is_no_caption_is_refused(answer: str, reason: str) -> None:
    with pytest.raises(CaptionFailed, match=reason) as caught:
        caption_of(answer)
    assert len(str(caught.value)) < 120


def test_each_line_is_a_tag_where_tags_are_asked_for() -> None:
    for answer in ("Here are the tags:\ncat\nred mat", "- cat\n- red mat", "cat,\nred mat", "1. cat\n\n2. red mat"):
        assert caption_of(answer, of_tags=True) == "cat, red mat"
    assert caption_of("x__x, o__o, __1girl__", of_tags=True) == "x__x, o__o, 1girl"


def test_a_long_answer_is_refused_at_once() -> None:
    began = time.process_time()
    with pytest.raises(CaptionFailed, match="letters"):
        caption_of("**a " * 100_000)
    assert time.process_time() - began < 2


@given(st.text(), st.integers(3, 10))
def test_a_caption_is_one_line_of_at_most_so_many_words(answer: str, most: int) -> None:
    try:
        caption = caption_of(answer, max_words=most)
    except CaptionFailed:
        return
    assert caption == " ".join(caption.split()) != ""
    assert len(caption.split()) <= most


def test_a_long_caption_ends_with_a_whole_sentence_or_tag() -> None:
    assert caption_of("A cat sits. It looks at a bird outside.", max_words=6) == "A cat sits."
    assert caption_of("cat, red bird, green tree", max_words=4) == "cat, red bird"
    assert caption_of("a cat that sits on a mat", max_words=3) == "a cat that"
    assert caption_of("A cat sits. It looks at a bi", is_cut=True) == "A cat sits."


def test_chinese_and_japanese_have_sentences_and_words_without_spaces() -> None:
    text = "一只橘猫坐在木桌上，看着窗外的雨。远处有一座山。桌上放着一本书。"
    assert caption_of(text) == caption_of(text, max_words=99) == text
    assert caption_of(text, max_words=20) == "一只橘猫坐在木桌上，看着窗外的雨。"
    assert caption_of(text, max_words=12) == "一只橘猫坐在木桌上"
    assert caption_of("猫が座っている。窓の外を見て", is_cut=True) == "猫が座っている。"
    assert caption_of("他说：“你好。”然后走了出", is_cut=True) == "他说：“你好。”"
    assert caption_of("橘猫、木桌、窗外的雨", max_words=5, of_tags=True) == "橘猫、木桌"


def test_the_trigger_word_is_in_once_or_not_at_all() -> None:
    assert with_trigger("a blue mug", "rwmug", is_in=True) == "rwmug, a blue mug"
    assert with_trigger("rwmug, a blue mug", "rwmug", is_in=True) == "rwmug, a blue mug"
    assert with_trigger("RWMUG: a blue mug", "rwmug", is_in=True) == "rwmug, a blue mug"
    assert with_trigger("Rwmug is standing here", "rwmug", is_in=True) == "rwmug is standing here"
    assert with_trigger("rwmug's owner sits.", "rwmug", is_in=True) == "rwmug's owner sits."
    assert with_trigger("Rwmugs", "rwmug", is_in=True) == "rwmug, Rwmugs"
    assert with_trigger("A rwmug on a table", "rwmug", is_in=False) == "A on a table"
    assert with_trigger("Rwmug, on a table", "rwmug", is_in=False) == "On a table"
    assert with_trigger("tags, rwmug, blue", "rwmug", is_in=False) == "tags, blue"
    assert with_trigger("rwmugs on a table", "rwmug", is_in=False) == "rwmugs on a table"
    assert with_trigger("a mug", None, is_in=True) == "a mug"
    assert with_trigger("小明在公园里跑步", "小明", is_in=True) == "小明在公园里跑步"
    assert with_trigger("公园里的小明在跑步", "小明", is_in=False) == "公园里的在跑步"
    with pytest.raises(CaptionFailed, match="nothing is left"):
        with_trigger("rwmug.", "rwmug", is_in=False)


@pytest.mark.parametrize("style", prompts.STYLES)
def test_each_style_has_a_whole_prompt(style: prompts.Style) -> None:
    request = CaptionRequest(data=("clips",), model="captioner", style=style, max_words=30)
    text = request.prompt_for(kind="video", name="kite", caption="")
    assert "{" not in text
    assert "this video" in text
    assert text.endswith("Use at most 30 words.")


def test_a_template_is_filled_and_a_wrong_one_refused() -> None:
    template = prompts.check("{kind} {name} {trigger} {{x}}: improve {caption}")
    request = CaptionRequest(data=("clips",), model="captioner", style="tags", prompt=template, trigger="rwkite")
    asked = request.prompt_for(kind="picture", name="kite", caption="a kite")
    assert asked == "picture kite rwkite {x}: improve a kite"
    with refused("prompt-invalid", "prompt", says="there is no {nane}.*name"):
        prompts.check("{nane}")
    with refused("prompt-invalid", "prompt", says="braces"):
        prompts.check("{")
    for attack in ("{name.__class__}", "{name[0]}", "{name!r}", "{}"):
        with refused("prompt-invalid", "prompt"):
            prompts.check(attack)


def test_further_captions_are_asked_for_in_other_ways() -> None:
    asked = prompts.variants("What is it?", 3)
    assert asked[0] == "What is it?"
    assert len(set(asked)) == 3
