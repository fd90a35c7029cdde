"""Each advice speaks where it should, with the right number, and is silent elsewhere."""

from __future__ import annotations

import pytest
from catalog_rows import BAD, PICTURE, VIDEO, rows

from reelworks.data.catalog.store.schema import SCORE
from reelworks.training.plan import data_advice

SIXTEEN_BY_NINE = {"height": 720, "width": 1280}
CASES = [
    ("unreadable", [VIDEO, BAD, BAD], "2 clips cannot be read", [VIDEO]),
    ("captions_missing", [VIDEO, {"caption": None}, BAD], "1 clip without a caption", [{"caption": ""}, BAD]),
    ("captions_empty", [{"caption": ""}, {"caption": " \n"}, VIDEO], "2 captions are empty", [{"caption": None}]),
    ("captions_empty", [{"caption": ""}], "1 caption is empty", [BAD]),
    (
        "captions_garbled",
        [{"caption": "caf\ufffd"}, {"caption": "a\0 \0c\0"}, VIDEO],
        "2 captions have bytes that are not UTF-8",
        [{"caption": None}, {"caption": "caf\u00e9 \U0001f600"}, BAD],
    ),
    (
        "captions_equal",
        [{"caption": "a cat"}] * 9 + [VIDEO],
        "9 of 10 captions are the same",
        [{"caption": "a cat"}] * 8 + [VIDEO] * 2,
    ),
    (
        "captions_lines",
        [{"caption": "a cat\na black cat"}, VIDEO],
        "1 caption has several lines",
        [{"caption": "a cat, black"}, VIDEO],
    ),
    ("few_pictures", [PICTURE] * 11, "11 pictures; 15 to 20 per subject train better", [PICTURE] * 15),
    (
        "few_pictures",
        [{**PICTURE, "path": f"{'ab'[i > 2]}/{i}.png"} for i in range(20)],
        "3 pictures in data/a; 15 to 20 per subject train better",
        [PICTURE, VIDEO],
    ),
    (
        "duplicates",
        [
            *({"fingerprint": f"9-{version}{'a' * 32}"} for version in ("", "", "5-")),
            VIDEO,
        ],  # one with its time of change
        "2 clips with the same content as another file",
        [VIDEO, VIDEO, {**BAD, "fingerprint": ""}, {**BAD, "fingerprint": ""}],
    ),
    (
        "near_duplicates",
        [{SCORE + "duplicate_rank": 0.0}, {SCORE + "duplicate_rank": 1.0}, {SCORE + "duplicate_rank": 2.0}, VIDEO],
        "2 clips that look like a better one",
        [{SCORE + "duplicate_rank": 0.0}, VIDEO],
    ),
    ("black", [{SCORE + "clipped_dark": 1.0}, VIDEO], "1 clip all black", [{SCORE + "clipped_dark": 0.9}]),
    (
        "small",
        [{"height": 255}, {"width": 100}, VIDEO],
        "2 clips with fewer than 256 pixels on the short side",
        [{"height": 256}],
    ),
    ("short", [{"num_frames": 16}], "1 clip with fewer than 17 frames", [{"num_frames": 17}, PICTURE]),
    ("long", [{"duration_seconds": 20.1}], "1 clip longer than 20 s", [{"duration_seconds": 20.0}]),
    (
        "mixed_fps",
        [{"fps": 12.0}, {"fps": 25.0}, {"fps": 25.0}],
        "videos have 12 to 25 frames per second, with a median of 25",
        [{"fps": 23.976}, {"fps": 25.0}, PICTURE],
    ),
    ("variable_fps", [{"variable_fps": True}], "1 clip with variable frame rate", [VIDEO]),
    (
        "one_aspect",
        [SIXTEEN_BY_NINE] * 19 + [{"height": 500, "width": 500}],
        "95% of the clips are about 16:9",
        [SIXTEEN_BY_NINE] * 8 + [PICTURE] * 2,
    ),
    ("transparent", [{"has_alpha": True}], "1 clip with transparency", [VIDEO]),
    ("hdr", [{"hdr": "pq"}, {"hdr": "hlg"}], "2 clips of high dynamic range (PQ or HLG)", [VIDEO]),
    ("interlaced", [{"interlaced": True}], "1 clip interlaced", [VIDEO]),
    ("pixel_shape", [{"pixel_aspect_ratio": 1.5}], "1 clip with pixels that are not square", [VIDEO, PICTURE]),
    ("mirrored", [{"mirrored": True}], "1 clip stored mirrored", [{"rotation": 90}]),
    ("hidden_frames", [{"hidden_frames": 3}], "1 clip with frames that an edit list hides", [VIDEO]),
    (
        "color_profile",
        [{"icc_profile": "Display P3"}],
        "1 clip with a colour profile other than sRGB",
        [{"icc_profile": "sRGB IEC61966-2.1"}, PICTURE],
    ),
    (
        "unusual_colors",
        [{"full_range": True}, {"color_matrix": "bt2020"}],
        "2 clips in full range or with a colour matrix other than BT.601 and BT.709",
        [{"color_matrix": "bt709"}, {"color_matrix": "bt601"}, VIDEO],
    ),
]


def advice(name, *clips):
    return next((found for found in data_advice.advise(rows(*clips)) if found.name == name), None)


@pytest.mark.parametrize(("name", "values", "said", "quiet"), CASES, ids=[case[2] for case in CASES])
def test_each_rule(name, values, said, quiet):
    found = advice(name, *values)
    assert found is not None
    assert found.text == said
    assert found.remedy
    assert advice(name, *quiet) is None


def test_every_rule_has_a_case_and_bears_an_empty_catalog():
    assert {case[0] for case in CASES} == set(data_advice.RULES)
    assert data_advice.advise(rows()) == []


def test_advice_names_the_files():
    found = advice("captions_missing", VIDEO, {"caption": None, "path": "b/x.mp4"})
    assert found is not None
    assert found.files == ("data/b/x.mp4",)


def test_a_plain_catalog_needs_none():
    shapes = [(720, 1280), (1280, 720), (1024, 1024)]
    plain = [{"height": h, "width": w} for h, w in shapes * 5]
    assert data_advice.advise(rows(*plain)) == []
