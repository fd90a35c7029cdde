"""Caption files beside clips: their names, their encodings, and what is no caption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drills._captions import Case, Cases, pictures

CASES = Cases()
COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
LANGUAGES = {
    "chinese": ("一只橘猫在草地上奔跑", "两位老奶奶坐在窗边喝茶", "穿红色外套的男人在弹吉他", "镜头缓慢推进, 背景模糊"),
    "taiwanese": ("一隻橘貓在草地上奔跑", "兩位老奶奶坐在窗邊喝茶", "穿紅色外套的男人在彈吉他", "鏡頭緩慢推進, 背景模糊"),
    "japanese": ("白い猫が草原を走っている", "窓際に座っているおばあさん", "赤いコートの男性がギターを弾く", "カメラがゆっくり近づく"),
    "korean": ("고양이가 풀밭에서 달린다", "할머니 두 분이 창가에 앉아 있다", "빨간 코트를 입은 남자", "카메라가 천천히 다가간다"),
    "russian": ("рыжий кот бежит по траве, солнечный день", "пожилая женщина сидит у окна и читает", "мужчина играет на гитаре; размытый фон", "камера медленно приближается, объёмный свет"),
    "french": ("un garçon court près de la forêt, début d'été", "une femme âgée à la fenêtre, très éclairée", "même scène, très floue, caméra baissée", "l'été à la plage, où jouent des élèves bronzés"),
    "german": ("ein Mädchen läuft über die Wiese", "zwei müde Frauen, Großaufnahme", "ein Mann mit weißem Hütchen", "schönes Wetter, die Kamera nähert sich"),
    "polish": ("źrebię biegnie po łące", "mężczyzna śpi pod drzewem", "dziewczynka tańczy, zbliżenie", "rozmyte tło, słoneczny dzień, żółw"),
}  # fmt: skip
WESTERN = "Windows-1252|Latin-1|ISO 8859-15"  # which are one for these texts
FOUR = ("a.png", "b.png", "c.png", "d.png")


def add(name: str, files: Mapping[str, bytes | str], expected: Mapping[str, str | None], says: str = "") -> None:
    """Add a case: files beside pictures, each of which is expected to be trained with a caption, or to have none."""

    def write(folder: Path) -> Path:
        pictures(folder, [*expected])
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    CASES.cases.append(Case(name, write, expected, says))


def encoded(language: str, encoding: str) -> dict[str, bytes | str]:
    """Return the captions of `FOUR` in a language and encoding."""
    return {f"{name[0]}.txt": text.encode(encoding) for name, text in zip(FOUR, LANGUAGES[language], strict=True)}


def captions(language: str) -> dict[str, str | None]:
    """Return the captions of `FOUR` as they are meant."""
    return dict(zip(FOUR, LANGUAGES[language], strict=True))


for suffix in ("txt", "TXT", "Txt", "caption", "CAPTION", "png.txt", "png.TXT", "PNG.txt"):
    clip = "a.PNG" if suffix.startswith("PNG") else "a.png"
    add(f"name_{suffix}", {f"a.{suffix}": "a cat"}, {clip: "a cat", "b.png": None})
add("txt_before_caption", {"a.txt": "a cat", "a.caption": "a dog"}, {"a.png": "a cat"}, "second caption")
add("own_name_before_whole_name", {"a.txt": "a cat", "a.png.txt": "a dog"}, {"a.png": "a cat"}, "second caption")
add("same_text_twice", {"a.txt": "a cat", "a.png.txt": "a cat\n"}, {"a.png": "a cat"})
add("dots", {"v1.0.txt": "one", "v1.5.txt": "two"}, {"v1.0.png": "one", "v1.5.png": "two", "v1.7.png": None})
add("frames", {"film.1.txt": "one", "film.2.txt": "two"}, {"film.1.png": "one", "film.2.png": "two", "film.png": None})
add("several", {"a.txt": "one", "a.1.txt": "two", "a.2.TXT": "three"}, {"a.png": "one\ntwo\nthree"})
add("number_of_another", {"a.txt": "one", "a.1.txt": "two"}, {"a.png": "one", "a.1.png": "two"})
add("clip_and_picture", {"a.txt": "one"}, {"a.png": "one", "a.jpg": "one"})
add("folders", {"x/a.txt": "one", "y/a.txt": "two"}, {"x/a.png": "one", "y/a.png": "two"})
add("other_case", {"A.txt": "one"}, {"a.png": None})
add("decomposed_clip", {f"{COMPOSED}.txt": "one"}, {f"{DECOMPOSED}.png": "one"})
add("composed_clip", {f"{DECOMPOSED}.txt": "one"}, {f"{COMPOSED}.png": "one"})
add("both_forms", {f"{DECOMPOSED}.txt": "one"}, {f"{COMPOSED}.png": None, f"{DECOMPOSED}.png": "one"})
add("not_a_caption", {"a.txt.bak": "one", "a.md": "two", "a.json": '{"likes": 3}'}, {"a.png": None})
add(
    "json",
    {"a.json": '{"caption": "a dog"}', "b.txt": "a cat", "b.json": '{"caption": "a dog"}'},
    {"a.png": "a dog", "b.png": "a cat"},
)
add("empty", {"a.txt": "", "b.txt": " \r\n", "c.txt": "a cat"}, {"a.png": None, "b.png": None, "c.png": "a cat"})
add("line_ends", {"a.txt": "\r\n  a cat\r\n"}, {"a.png": "a cat"})

for word in ("nan", "NaN", "None", "null", "NULL", "N/A", "#N/A"):
    expected: dict[str, str | None] = {"a.png": None, "b.png": "a nan bread"}
    add(f"word_{word.replace('/', '-')}", {"a.txt": f"{word}\n", "b.txt": "a nan bread"}, expected, "nan, None")

for codec in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
    add(f"german_{codec}", encoded("german", codec), captions("german"))
for codec in ("utf-8-sig", "utf-16", "utf-32"):
    add(f"chinese_{codec}", encoded("chinese", codec), captions("chinese"))
for language, codec, told in (
    ("chinese", "gbk", "GBK"),
    ("chinese", "gb18030", "GBK"),
    ("taiwanese", "big5", "Big5"),
    ("taiwanese", "gbk", "GBK"),
    ("japanese", "cp932", "Shift-JIS"),
    ("japanese", "euc_jp", "EUC-JP"),
    ("korean", "cp949", "EUC-KR"),
    ("russian", "cp1251", "Windows-1251"),
    ("russian", "koi8-r", "KOI8-R"),
    ("french", "cp1252", WESTERN),
    ("french", "latin-1", WESTERN),
    ("german", "cp1252", "Windows-1252"),
    ("polish", "cp1250", "Windows-1250"),
):
    add(f"{language}_{codec}", encoded(language, codec), captions(language), f"4 captions are in ({told}), and read so")
add(
    "one_word_of_gbk_is_utf_8_too",
    encoded("chinese", "gbk") | {"e.txt": "一只猫".encode("gbk"), "f.txt": "猫".encode("gbk")},
    captions("chinese") | {"e.png": "一只猫", "f.png": "猫"},
    "6 captions are in GBK",
)
add(
    "utf_8_by_chance",
    {"a.txt": "一只猫".encode("gbk"), "b.txt": "ok"},
    {"a.png": None, "b.png": "ok"},
    "first is a.txt",
)
add("beside_utf_8", {**encoded("chinese", "gbk"), "e.txt": "一只狗"}, captions("chinese") | {"e.png": "一只狗"}, "GBK")
add(
    "too_little_to_be_sure",
    {"a.txt": "été".encode("cp1252"), "b.txt": "forêt".encode("cp1252"), "c.txt": "ok"},
    {"a.png": None, "b.png": None, "c.png": "ok"},
    "2 captions are no text in UTF-8.*first is a.txt",
)
add("one_short_text", {"a.txt": b"caf\xe9", "b.txt": "ok"}, {"a.png": None, "b.png": "ok"}, "save such files as UTF-8")
add(
    "two_encodings",
    encoded("russian", "koi8-r") | {"e.txt": "猫在草地上".encode("gbk")},
    captions("russian") | {"e.png": None},
    "first is e.txt",
)
add(
    "damaged", {"a.txt": b"ein K\xc3\xa4tzchen, m\xc3", "b.txt": "ok"}, {"a.png": None, "b.png": "ok"}, "first is a.txt"
)
add("lost_before", {"a.txt": "caf\ufffd\ufffd", "b.txt": "ok\ufffd"}, {"a.png": None, "b.png": "ok"}, "first is a.txt")
add("zeros", {"a.txt": b"\0" * 64, "b.txt": "ok"}, {"a.png": None, "b.png": "ok"}, "first is a.txt")
add("ends_in_a_zero", {"a.txt": b"a cat\0", "b.txt": "ok"}, {"a.png": "a cat", "b.png": "ok"})
add("binary", {"a.txt": bytes(range(256)), "b.txt": "ok"}, {"a.png": None, "b.png": "ok"}, "first is a.txt")
add(
    "one_of_several_damaged",
    {"a.txt": "one", "a.1.txt": b"tw\xff", "b.txt": "ok"},
    {"a.png": "one", "b.png": "ok"},
    "a.1.txt",
)
