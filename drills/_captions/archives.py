"""Tar archives: which caption belongs to which clip, captions in JSON, odd members, and formats of headers."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PIL import Image

from drills._captions import SIZE, Case, Cases
from drills._captions.texts import COMPOSED, DECOMPOSED, LANGUAGES, WESTERN

CASES = Cases()
NONE_IS_CLEAR = "up to the first dot"


def add(
    name: str,
    members: Iterable[tuple[str, bytes | str]],
    expected: Mapping[str, str | None],
    says: str = "",
    form: int = tarfile.PAX_FORMAT,
) -> None:
    """Add a case: members in their order, where one that is named as a picture gets one if its content is empty."""
    content = [*members]

    def write(folder: Path) -> Path:
        with tarfile.open(folder / "a.tar", "w", format=form) as archive:
            for i, (member, data) in enumerate(content):
                whole = data.encode() if isinstance(data, str) else data
                whole = whole or (picture(i) if member.lower().endswith((".png", ".jpg")) else b"")
                info = tarfile.TarInfo(member)
                info.size = len(whole)
                archive.addfile(info, io.BytesIO(whole))
        return folder

    CASES.cases.append(Case(name, write, {f"a.tar/{clip}": caption for clip, caption in expected.items()}, says))


def picture(shade: int) -> bytes:
    """Return a small picture of its own colour."""
    data = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE), (40 * shade % 256, 90, 30)).save(data, "PNG")
    return data.getvalue()


def pairs(stems: Sequence[str], suffix: str = "txt", clip: str = "png") -> list[tuple[str, bytes | str]]:
    """Return a picture and a caption for each stem."""
    return [
        member
        for stem in stems
        for member in (
            (f"{stem}.{clip}", ""),
            (f"{stem}.{suffix}", json.dumps({"caption": f"of {stem}"}) if suffix == "json" else f"of {stem}"),
        )
    ]


def of(stems: Sequence[str], clip: str = "png") -> dict[str, str | None]:
    """Return the captions that `pairs` writes."""
    return {f"{stem}.{clip}": f"of {stem}" for stem in stems}


for case, stems in (
    ("plain", ["a", "b"]),
    ("dots", ["clip-1.0", "clip-1.5", "clip-2.0"]),
    ("frames_of_a_film", [f"film.{i:06}" for i in range(1, 5)]),
    ("many_dots", ["a.b.c", "a.b.d", "a.c"]),
    ("one_is_the_start_of_another", ["a", "a.b", "a.b.c"]),
    ("sizes_in_names", ["dog.1080p", "cat.1080p"]),
    ("folders", ["x/a", "y/a", "a"]),
    ("dots_in_folders", ["v1.0/a", "v1.5/a", "v1/a"]),
    ("spaces_and_signs", ["ü ñ#1", "日本 +%20"]),
    ("hidden_part", ["a..b", "a.b"]),
):
    add(case, pairs(stems), of(stems))
    add(f"{case}_json", pairs(stems, "json"), of(stems))
for suffix in ("TXT", "Caption", "png.txt", "png.TXT"):
    add(f"suffix_{suffix}", pairs(["a", "b.1"], suffix), of(["a", "b.1"]))
add("suffix_JSON", [("a.png", ""), ("a.JSON", '{"Caption": "of a"}')], of(["a"]))
add("upper_clip", pairs(["a.1", "a.2"], "txt", "PNG"), of(["a.1", "a.2"], "PNG"))
add("clips_first", sorted(pairs(["a.1", "a.2", "b"]), key=lambda m: m[0].endswith("txt")), of(["a.1", "a.2", "b"]))
add("captions_first", sorted(pairs(["a.1", "a.2", "b"]), key=lambda m: m[0].endswith("png")), of(["a.1", "a.2", "b"]))
add("from_here", [("./a.png", ""), ("./a.txt", "of a"), ("./b.png", ""), ("b.txt", "of b")], of(["a", "b"]))
for form, label in ((tarfile.USTAR_FORMAT, "ustar"), (tarfile.GNU_FORMAT, "gnu"), (tarfile.PAX_FORMAT, "pax")):
    long = ["d" * 90 + "/" + "e.1" * 25, "d" * 90 + "/" + "e.1" * 25 + "f"]
    add(f"long_{label}", pairs(long), of(long), form=form)

# WebDataset's own rule, where it is clear.
add(
    "first_dot",
    [("a.rgb.png", ""), ("a.txt", "of a"), ("b.rgb.png", ""), ("b.json", '{"text": "of b"}')],
    {"a.rgb.png": "of a", "b.rgb.png": "of b"},
)
add("first_dot_of_caption", [("a.png", ""), ("a.short.txt", "of a")], {"a.png": "of a"})
add("first_dot_both", [("a.rgb.png", ""), ("a.short.txt", "of a"), ("a.cls", "7")], {"a.rgb.png": "of a"})
add(
    "first_dot_text_and_json",
    [("a.rgb.png", ""), ("a.txt", "of a"), ("a.json", '{"caption": "no"}')],
    {"a.rgb.png": "of a"},
)
add(
    "first_dot_two_clips",
    [("a.left.png", ""), ("a.right.png", ""), ("a.txt", "of a"), *pairs(["b"])],
    {"a.left.png": None, "a.right.png": None, **of(["b"])},
    NONE_IS_CLEAR,
)
add(
    "first_dot_two_captions",
    [("a.png", ""), ("a.short.txt", "s"), ("a.long.txt", "l"), *pairs(["b"])],
    {"a.png": None, **of(["b"])},
    NONE_IS_CLEAR,
)
add(
    "one_lacks_its_own",
    [*pairs(["clip-1.0", "clip-1.5"]), ("clip-1.7.png", "")],
    {**of(["clip-1.0", "clip-1.5"]), "clip-1.7.png": None},
    NONE_IS_CLEAR,
)
add(
    "film_of_one_caption",
    [*((f"f.{i}.png", "") for i in range(3)), ("f.txt", "of f"), *pairs(["b"])],
    {**{f"f.{i}.png": None for i in range(3)}, **of(["b"])},
    NONE_IS_CLEAR,
)
add("caption_of_another_folder", [("x/a.png", ""), ("y/a.txt", "of a"), *pairs(["b"])], {"x/a.png": None, **of(["b"])})

add("clip_and_picture", [("a.png", ""), ("a.jpg", ""), ("a.txt", "of a")], {"a.png": "of a", "a.jpg": "of a"})
add("several", [("a.png", ""), ("a.txt", "one"), ("a.1.txt", "two")], {"a.png": "one\ntwo"})
add("number_of_another", [*pairs(["a", "a.1"])], of(["a", "a.1"]))
add("twice", [*pairs(["a.1", "a.2"]), ("a.1.txt", "anew"), ("a.2.png", "")], {"a.1.png": "anew", "a.2.png": "of a.2"})
add("text_before_json", [*pairs(["a"]), ("a.json", '{"caption": "no"}')], of(["a"]))
add("second_text", [*pairs(["a"]), ("a.caption", "another")], of(["a"]), "second caption")
add("decomposed_clip", [(f"{DECOMPOSED}.png", ""), (f"{COMPOSED}.txt", "one")], {f"{DECOMPOSED}.png": "one"})
add("word_for_nothing", [("a.png", ""), ("a.txt", "None"), *pairs(["b"])], {"a.png": None, **of(["b"])}, "nan, None")
add("empty", [("a.png", ""), ("a.txt", ""), *pairs(["b"])], {"a.png": None, **of(["b"])})
add("bytes_of_zero", [("a.png", ""), ("a.txt", b"\0" * 40), *pairs(["b"])], {"a.png": None, **of(["b"])}, "a.tar/a.txt")

for key in ("caption", "text", "prompt", "Caption", "TEXT"):
    add(f"json_{key}", [("a.png", ""), ("a.json", json.dumps({"width": 4, key: " of a "}))], of(["a"]))
add("json_list", [("a.png", ""), ("a.json", '{"captions": ["one", "two\\nlines"]}')], {"a.png": "one\ntwo lines"})
add("json_null", [("a.png", ""), ("a.json", '{"text": null, "caption": "of a"}')], of(["a"]))
add(
    "json_nan",
    [("a.png", ""), ("a.json", '{"text": NaN, "caption": "nan"}'), *pairs(["b"])],
    {"a.png": None, **of(["b"])},
)
add("json_damaged", [("a.png", ""), ("a.json", '{"text": "of a'), *pairs(["b"])], {"a.png": None, **of(["b"])})
add("json_with_mark", [("a.png", ""), ("a.json", '{"text": "of a"}'.encode("utf-8-sig"))], of(["a"]))
add("json_utf_16", [("a.png", ""), ("a.json", '{"text": "of a"}'.encode("utf-16"))], of(["a"]))
for language, codec, told in (
    ("chinese", "gbk", "GBK"),
    ("japanese", "cp932", "Shift-JIS"),
    ("french", "cp1252", WESTERN),
):
    texts = LANGUAGES[language]
    clips = [(f"a.{i}.png", "") for i in range(len(texts))]
    right = {f"a.{i}.png": text for i, text in enumerate(texts)}
    add(f"{language}_{codec}", [*clips, *((f"a.{i}.txt", t.encode(codec)) for i, t in enumerate(texts))], right, told)
    as_json = [(f"a.{i}.json", json.dumps({"text": t}, ensure_ascii=False).encode(codec)) for i, t in enumerate(texts)]
    add(f"{language}_{codec}_json", [*clips, *as_json], right, told)
