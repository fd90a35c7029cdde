"""A text is decoded as what it surely is, or not at all."""

from __future__ import annotations

import codecs
import itertools

import pytest

from reelworks.core import text_encoding

# Subjects, what they do, and how it looks; of each language, all sentences of these are captions.
_WORDS = {
    "chinese": (["一只橘猫", "穿红色外套的男人", "两位老奶奶"], ["在草地上奔跑", "静静地坐在窗边", "在厨房里做饭"], ["阳光明媚", "镜头缓慢推进", "背景模糊"]),
    "taiwanese": (["一隻橘貓", "穿紅色外套的男人", "兩位老奶奶"], ["在草地上奔跑", "靜靜地坐在窗邊", "在廚房裡做飯"], ["陽光明媚", "鏡頭緩慢推進", "背景模糊"]),
    "japanese": (["白い猫が", "赤いコートの男性が", "二人のおばあさんが"], ["草原を走っている", "窓際に静かに座っている", "台所で料理している"], ["晴れた日", "カメラがゆっくり近づく", "背景はぼやけている"]),
    "korean": (["흰 고양이가", "빨간 코트를 입은 남자가", "할머니 두 분이"], ["풀밭에서 달리고 있다", "창가에 조용히 앉아 있다", "부엌에서 요리한다"], ["맑은 날", "카메라가 천천히 다가간다", "배경이 흐리다"]),
    "russian": (["рыжий кот", "мужчина в красном пальто", "пожилая женщина"], ["бежит по траве", "тихо сидит у окна", "готовит на кухне"], ["солнечный день", "камера медленно приближается", "размытый фон"]),
    "french": (["un chat tacheté", "un garçon en manteau", "une femme âgée"], ["court près de la forêt", "est assis à la fenêtre", "prépare un gâteau"], ["journée ensoleillée", "la caméra s'approche", "arrière-plan très flou"]),
    "german": (["eine rötliche Katze", "ein Mann mit Hütchen", "ein Mädchen"], ["läuft über die Wiese", "sitzt müde am Fenster", "kocht Gemüse"], ["schönes Wetter", "die Kamera nähert sich", "unscharfe Umgebung, Großaufnahme"]),
    "polish": (["mała dziewczynka", "mężczyzna w płaszczu", "źrebię"], ["biegnie po łące", "śpi pod drzewem", "siedzi przy oknie, tańczy"], ["słoneczny dzień", "kamera się zbliża", "rozmyte tło"]),
    "greek": (["μια γάτα", "ένας άνδρας", "ένα κορίτσι"], ["τρέχει στο γρασίδι", "κάθεται ήσυχα", "χορεύει"], ["ηλιόλουστη μέρα", "θολό φόντο", "κοντινό πλάνο"]),
}  # fmt: skip
_ENCODINGS = {
    "chinese": ("gbk", "gb18030"),
    "taiwanese": ("big5", "gbk"),
    "japanese": ("cp932", "euc_jp"),
    "korean": ("cp949", "euc_kr"),
    "russian": ("cp1251", "koi8-r", "iso8859-5", "cp866", "mac_cyrillic"),
    "french": ("cp1252", "latin-1", "cp850", "mac_roman"),
    "german": ("cp1252", "latin-1", "cp850", "mac_roman"),
    "polish": ("cp1250", "iso8859-2", "cp852"),
    "greek": ("cp1253", "iso8859-7", "cp737"),
}
_PAIRS = [(language, encoding) for language, encodings in _ENCODINGS.items() for encoding in encodings]
_UNSURE = ("cp866", "mac_cyrillic", "cp850", "cp852", "cp737", "mac_roman")  # of DOS and Mac


def captions(language: str) -> list[str]:
    """Return 27 captions."""
    return [f"{a} {b}, {c}" for a, b, c in itertools.product(*_WORDS[language])]


@pytest.mark.parametrize(("language", "encoding"), _PAIRS)
@pytest.mark.parametrize("number", [9, *(pytest.param(n, marks=pytest.mark.slow(reason="as 9")) for n in (1, 3, 27))])
@pytest.mark.quick_cases(2)
def test_no_text_is_decoded_as_what_it_is_not(language: str, encoding: str, number: int) -> None:
    texts = captions(language)
    for i in range(0, 27, number):
        found = text_encoding.settle([text.encode(encoding) for text in texts[i : i + number]]).texts
        assert all(text in (right, None) for text, right in zip(found, texts[i : i + number], strict=True))


@pytest.mark.parametrize(("language", "encoding"), [p for p in _PAIRS if p[1] not in _UNSURE])
@pytest.mark.quick_cases(6)
def test_what_systems_write_is_read_if_there_is_enough_of_it(language: str, encoding: str) -> None:
    texts = captions(language)
    settled = text_encoding.settle([text.encode(encoding) for text in texts])
    assert settled.texts == texts
    assert settled.encodings.total() == 27


@pytest.mark.parametrize("encoding", ["cp932", "euc_jp"])
def test_short_texts_are_read_as_the_others(encoding: str) -> None:
    """A word of kana alone tells nothing, and nothing speaks against it."""
    texts = [*captions("japanese"), "カメラがゆっくり近づく", "窓際"]
    assert text_encoding.settle([text.encode(encoding) for text in texts]).texts == texts


def test_an_encoding_that_breaks_words_is_no_rival() -> None:
    """In that of a Mac, the last letter of the Russian alphabet is a sign of money, and another one a capital."""
    texts = [*captions("russian")[:3], "камера приближается, объёмный свет"]
    assert text_encoding.settle([text.encode("cp1251") for text in texts]).texts == texts


def test_one_short_text_that_many_encodings_hold_is_none() -> None:
    assert text_encoding.settle([b"caf\xe9 au lait"]).texts == [None]


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_texts_that_say_their_encoding_are_read_alone(codec: str) -> None:
    assert text_encoding.decoded("ein Kätzchen".encode(codec)) == "ein Kätzchen"
    assert text_encoding.decoded("一只橘猫".encode(codec)) == "一只橘猫"


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["a cat", "ein Kätzchen, müde", "рыжий кот, камера, a 4k film"])
def test_the_places_of_zeros_tell_what_has_no_mark(codec: str, text: str) -> None:
    data = text.encode(codec)
    assert text_encoding.decoded(data) is None
    assert text_encoding.settle([data]).texts == [text]


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["一只红色的猫坐在墙上", "一人", "最大的一只猫", "一"])
def test_what_has_no_mark_is_read_rightly_or_not_at_all(codec: str, text: str) -> None:
    """The lower byte of some signs is 0 too, so that the places of zeros are those of the other order."""
    assert text_encoding.settle([text.encode(codec)]).texts in ([None], [text])


@pytest.mark.parametrize(
    "data",
    [
        "ein Kätzchen, müde".encode() + b"\xe4",
        "一只橘猫在草地上奔跑".encode()[:-1],
        "two \ufffd\ufffd letters".encode(),
        b"\0a cat that runs over the grass\0",
        b"\x01\x02",
        b"\0" * 40,
        b"\0" * 41,
        "a cat\0 on a mat, and a dog".encode("utf-16-le"),
        codecs.BOM_UTF16_LE + b"\0\xd8a",
        "白い猫".encode("iso2022_jp"),
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    ],
)
def test_damage_is_no_text(data: bytes) -> None:
    """Neither alone nor beside others, whose encoding it does not hide."""
    good = captions("chinese")
    assert text_encoding.decoded(data) is None
    assert text_encoding.settle([data, *(text.encode("gbk") for text in good)]).texts == [None, *good]


@pytest.mark.parametrize(
    ("most", "few"),
    [
        (("chinese", "gbk"), ("german", "cp1252")),
        (("chinese", "gbk"), ("japanese", "cp932")),
        (("russian", "cp1251"), ("french", "cp1252")),
        (("russian", "cp1251"), ("korean", "cp949")),
        (("german", "cp1252"), ("polish", "cp1250")),
        (("japanese", "euc_jp"), ("taiwanese", "big5")),
    ],
)
@pytest.mark.parametrize("number", [1, 5])
def test_a_few_texts_of_another_encoding_are_left_out(most: tuple[str, str], few: tuple[str, str], number: int) -> None:
    """They do not become something else, and one does not hide the encoding of the others."""
    texts = captions(most[0])
    data = [text.encode(most[1]) for text in texts]
    data[3:3] = [text.encode(few[1]) for text in captions(few[0])[-number:]]
    wanted = [*texts[:3], *[None] * number, *texts[3:]]
    found = text_encoding.settle(data).texts
    assert found == wanted if number == 1 else all(a in (b, None) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("text", ["猫", "一只猫", "一只猫, 4k"])
def test_what_is_utf_8_by_chance_is_read_as_the_others(text: str) -> None:
    data = text.encode("gbk")
    assert text_encoding.is_doubtful(data.decode())
    assert text_encoding.settle([data, *(other.encode("gbk") for other in captions("chinese"))]).texts[0] == text


def test_what_is_no_writing_is_no_text() -> None:
    assert text_encoding.settle(["一只猫".encode("gbk")]).texts == [None]


@pytest.mark.parametrize("text", ["é", "ñ, ü", "Излазни кôд"])
def test_what_may_be_writing_is_utf_8_unless_others_tell(text: str) -> None:
    settled = text_encoding.settle([text.encode()])
    assert settled.texts == [text]
    assert not settled.encodings


@pytest.mark.parametrize("language", [*_WORDS])
def test_what_people_write_is_not_doubtful(language: str) -> None:
    assert not any(text_encoding.is_doubtful(text) for text in captions(language))


@pytest.mark.parametrize(
    "text", ["a cat", "à la plage", "5 µm × 3", "XL-размер", "3Dпринтер", "cafe\u0301", "שלום", "قطة", ""]
)
def test_words_of_two_scripts_with_ascii_are_not_doubtful(text: str) -> None:
    assert not text_encoding.is_doubtful(text)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("signs", [("\0", ""), ("\x1b", ""), ("\x01", "\x01"), ("\ufffd", "\ufffd")])
def test_a_stray_sign_costs_itself_alone(codec: str, signs: tuple[str, str]) -> None:
    text = text_encoding.decoded("一只 {}cat{}, 4k, in the sun".format(*signs).encode(codec))
    assert text is not None
    assert text_encoding.cleaned(text) == "一只 cat, 4k, in the sun"


@pytest.mark.parametrize("text", ["...", "👩\u200d👩\u200d👧", "नमस्ते", "☔\ufe0f", "1", "\u200eשלום\u200e"])
def test_what_is_seen_is_not_blank(text: str) -> None:
    assert text_encoding.cleaned(f" {text}\n") == text


def test_empty_texts() -> None:
    assert text_encoding.decoded(b"") == ""
    assert text_encoding.settle([]).texts == []
