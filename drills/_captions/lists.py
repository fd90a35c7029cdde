"""Lists of clips as people and programs write them: separators, quotes, encodings, columns, words for nothing, paths, formats."""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from drills._captions import PICTURES, Case, Cases, pictures

CASES = Cases()
Captions = Mapping[str, str | None]
FOUR: Captions = {name: f"caption {i}" for i, name in enumerate(PICTURES)}
TEXTS = [f"caption {i}" for i in range(len(PICTURES))]
NONE_OF_FIRST: Captions = {**FOUR, "0.png": None}


def _file(
    name: str, content: str | bytes, expected: Captions | None, file: str = "meta.csv", says: str = "", **more: Any
) -> None:
    """Add a case of one list of this content, beside the pictures, or those of `names`."""

    def write(folder: Path) -> Path:
        pictures(folder, more.get("names", PICTURES))
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / file

    CASES.cases.append(Case(name, write, expected, says))


def _refused(name: str, content: str | bytes, says: str, file: str = "meta.csv", **more: Any) -> None:
    _file(name, content, None, file, says, **more)


def _rows(
    *captions: str, header: str = "path,text", separator: str = ",", paths: tuple[str, ...] = PICTURES, end: str = "\n"
) -> str:
    """Return a list of the pictures with these cells for captions, or those of `FOUR`."""
    cells = captions or tuple(str(text) for text in FOUR.values())
    lines = [f"{path}{separator}{cell}" for path, cell in zip(paths, cells, strict=True)]
    return end.join([header, *lines, ""])


def _given(*captions: str | None) -> Captions:
    return dict(zip(PICTURES, captions, strict=True))


def _parquet(name: str, columns: Callable[[], dict[str, Any]], expected: Captions | None, says: str = "") -> None:
    def write(folder: Path) -> Path:
        pictures(folder)
        pq.write_table(pa.table(columns()), folder / "meta.parquet")
        return folder / "meta.parquet"

    CASES.cases.append(Case(name, write, expected, says))


def _json(
    name: str, value: Any, expected: Captions | None, file: str = "meta.json", says: str = "", **more: Any
) -> None:
    _file(name, json.dumps(value, **more), expected, file, says)


def _json_lines(name: str, rows: list[Any], expected: Captions | None, says: str = "") -> None:
    _file(name, "".join(json.dumps(row) + "\n" for row in rows), expected, "meta.jsonl", says)


def _texts(*texts: Any, path: str = "path", text: str = "text") -> list[dict[str, Any]]:
    return [{path: name, text: of} for name, of in zip(PICTURES, texts, strict=True)]


# Lines, separators and headers.
_file("plain", _rows(), FOUR)
_file("mark_and_windows_lines", b"\xef\xbb\xbf" + _rows(end="\r\n").encode(), FOUR)
_file("old_mac_lines", _rows(end="\r"), FOUR)
_file("no_last_line_end", _rows().rstrip(), FOUR)
_file("blank_lines", _rows().replace("\n", "\n\n"), FOUR)
_file("lines_of_spaces", _rows() + "   \n", FOUR)
_file("semicolons", _rows(header="path;text", separator=";"), FOUR)
_file("semicolons_and_commas", _rows(*["a; b"] * 4), _given(*["a; b"] * 4))
_file("tabs_in_csv", _rows(*["a, b"] * 4, header="path\ttext", separator="\t"), _given(*["a, b"] * 4))
_file("bars", _rows(header="path|text", separator="|"), FOUR)
_file("excel_names_its_separator", "sep=;\n" + _rows(header="path;text", separator=";"), FOUR)
_file("tsv", _rows(*["a, b"] * 4, header="path\ttext", separator="\t"), _given(*["a, b"] * 4), "meta.tsv")
_file("commas_in_tsv", _rows(), FOUR, "meta.tsv")
_file("an_index", ",path,text\n" + "".join(f"{i},{i}.png,caption {i}\n" for i in range(4)), FOUR)
_file("capitals", _rows(header="Path,TEXT"), FOUR)
_file("padded", "path , text \n" + "".join(f" {i}.png , caption {i} \n" for i in range(4)), FOUR)
_file("quoted_header", _rows(header='"path","text"'), FOUR)
_file("only_paths", "path\n" + "".join(f"{name}\n" for name in PICTURES), dict.fromkeys(PICTURES))
_file("one_file_missing", _rows() + "gone.png,gone\n", FOUR)
_file("words_in_a_score", "path,text,aes\n" + "".join(f"{i}.png,caption {i},n/a\n" for i in range(4)), FOUR)
_file("numbers", _rows("1", "007", "1.50", "1e3"), _given("1", "007", "1.50", "1e3"))
_file("dates", _rows(*["2024-01-02"] * 4), _given(*["2024-01-02"] * 4))
_file("truths", _rows("true", "false", "TRUE", "yes"), _given("true", "false", "TRUE", "yes"))
_refused("no_header", "0.png,caption 0\n1.png,caption 1\n", "write path,text above it")
_refused("other_names", _rows(header="a,b"), "no column named path; it has a, b")
_refused("unquoted_commas", _rows(*["a man, walking"] * 4), "line 2 has 3 cells .* put double quotes")
_refused("short_row", "path,text,aes\n0.png,a,1\n1.png,b\n2.png,c,1\n", "line 3 has 2 cells")
_refused("unquoted_line_break", _rows("a", "b\nc", "d", "e"), "line 4 has 1 cell")
_refused("twice", _rows() + "0.png,other\n", "0.png in rows 1, 5")
_refused("without_rows", "path,text\n", "the list has no rows")
_refused("empty", "", "cannot be read")

# Quotes.
_file("doubled_quotes", _rows(*['"he said ""hi"", and left"'] * 4), _given(*['he said "hi", and left'] * 4))
_file("quotes_and_lines", _rows(*['"one\ntwo, ""three"""'] * 4), _given(*['one\ntwo, "three"'] * 4))
_file("only_quotes", _rows('""', '""""', '"a"', '"""a"""'), _given(None, '"', "a", '"a"'))
_file("bare_quotes", _rows(*['a 5" screen'] * 4), _given(*['a 5" screen'] * 4))
_file("backslash_quotes", _rows(*[r'"he said \"hi\""'] * 4), _given(*['he said "hi"'] * 4))
_file("backslash_quotes_at_the_end", _rows(*[r'"a screen of 5\""'] * 4), _given(*['a screen of 5"'] * 4))
_file("backslash_quotes_and_commas", _rows(*[r'"\"a\", \"b\""'] * 4), _given(*['"a", "b"'] * 4))
_file(
    "backslashes_beside_backslash_quotes",
    _rows(r'"say \"a\\b\""', r'"C:\new\"x\""', "a", "b"),
    _given(r'say "a\b"', r'C:\new"x"', "a", "b"),
)
_file("backslashes_alone", _rows(*[r"C:\new\table"] * 4), _given(*[r"C:\new\table"] * 4))
_file("backslash_before_the_last_quote", _rows(*['"in C:\\dir\\"'] * 4), _given(*["in C:\\dir\\"] * 4))
_file("spaces_before_quotes", _rows(*[' "a, b"'] * 4, header="path, text"), _given(*["a, b"] * 4))
_file("spaces_before_plain_quotes", _rows(*[' "a mug"'] * 4, header="path, text"), _given(*["a mug"] * 4))
_file("single_quotes", _rows(*["it's a dog's day"] * 4), _given(*["it's a dog's day"] * 4))
_file("curly_quotes", _rows(*["“a”, ‘b’".replace(",", ";")] * 4), _given(*["“a”; ‘b’"] * 4))
_refused("quotes_in_quotes", _rows(*['"he said "hi" to me"'] * 4), "line 2")
_refused("commas_and_quotes_in_quotes", _rows(*['"a,"b",c"'] * 4, header="path,text,note"), "line 2")
_refused("text_after_quotes", _rows("a", '"b" c', "d", "e"), "line 3")
_refused("open_quote", _rows("a", '"b', "c", "d"), "line 3")

# Encodings.
_file("utf16", _rows(*["ein Mädchen"] * 4).encode("utf-16"), _given(*["ein Mädchen"] * 4))
_file("utf16_without_mark", _rows().encode("utf-16-le"), FOUR)
_file("utf16_tsv_of_excel", _rows(header="path\ttext", separator="\t").encode("utf-16"), FOUR, "meta.tsv")
_file("utf32", _rows().encode("utf-32"), FOUR)
_LATIN = (
    "une fille court dans la forêt près d'un château",
    "le café est fermé, la rue déserte".replace(",", ";"),
    "des pommes rouges sur une assiette brisée",
    "un garçon lève la tête vers le ciel étoilé",
)
_MANY = tuple(f"{i}.png" for i in range(24))
_file("latin1", _rows(*_LATIN * 6, paths=_MANY).encode("latin-1"), dict(zip(_MANY, _LATIN * 6, strict=True)), says="read as (Windows-1252|Latin-1|ISO 8859-15)", names=_MANY)  # fmt: skip
_refused("little_of_latin1", _rows("a café", "b", "c", "d").encode("latin-1"), "save it as UTF-8")
_CHINESE = ("一只猫坐在窗边看着外面的雨", "城市的夜晚灯火通明", "一个女孩在公园里奔跑", "老人在河边钓鱼")
_file("gbk", _rows(*_CHINESE).encode("gbk"), _given(*_CHINESE), says="GBK")
_file("gbk_json_lines", "\n".join(json.dumps(row, ensure_ascii=False) for row in _texts(*_CHINESE)).encode("gbk"), _given(*_CHINESE), "meta.jsonl", "GBK")  # fmt: skip
_JAPANESE = ("窓辺に座って雨を見ている猫", "夜の街の明かり", "公園を走っている女の子", "川で釣りをしている老人")
_file("shift_jis", _rows(*_JAPANESE).encode("cp932"), _given(*_JAPANESE), says="Shift-JIS")
_file("utf8_of_all_scripts", _rows("日本語", "émigré", "Привет", "👍🏽"), _given("日本語", "émigré", "Привет", "👍🏽"))
_refused("two_encodings", _rows(*_LATIN[:2], *_CHINESE[:2]).encode("gb18030")[:-20] + "\n9.png,fünf Äpfel\n".encode("latin-1"), "UTF-8")  # fmt: skip
_refused("utf8_and_latin1", _rows(*_LATIN[:3], "x").encode() + "gone.png,fünf grüne Äpfel\n".encode("latin-1"), "UTF-8")
_refused("other_bytes", b"path,text\n0.png,\x81\x8d\x8f\x00\xff\n", "UTF-8")

# Columns.
for _path in (
    *("file_name", "video_path", "image_path", "video", "image", "media_path", "file_path", "filename", "filepath"),
    *("File Name", "Video"),
):
    _file(f"paths_in_{_path}", _rows(header=f"{_path},text"), FOUR)
for _text in (
    "caption",
    "prompt",
    "captions",
    "text_prompt",
    "caption_text",
    "cap",
    "Caption",
    "PROMPT",
    "Text Prompt",
):
    _file(f"captions_in_{_text}", _rows(header=f"path,{_text}"), FOUR)
_file("two_captions", "path,caption,text\n" + "".join(f"{i}.png,other,caption {i}\n" for i in range(4)), FOUR, says="column text.* not .*caption")  # fmt: skip
_file("each_in_one_of_two", "path,text,caption\n0.png,caption 0,\n1.png,,caption 1\n2.png,,caption 2\n3.png,caption 3,\n", FOUR)  # fmt: skip
_file("videos_and_images", "video_path,image_path,text\n,0.png,caption 0\n1.png,,caption 1\n2.png,,caption 2\n,3.png,caption 3\n", FOUR)  # fmt: skip
_file("captions_of_no_known_name", _rows(header="path,beschreibung"), dict.fromkeys(PICTURES), says="no column of captions.*prompt")  # fmt: skip
_refused("two_of_a_name", "path,text,text\n0.png,a,b\n", "two columns are named text")
_refused("two_in_other_capitals", "path,Text,text\n0.png,a,b\n", "two columns are named text")

# Words for nothing.
for _word in ("nan", "NaN", "None", "NULL", "null", "N/A", "#N/A", "<NA>", "NA", "n/a", "-nan", "NONE", "\\N"):
    _file(f"nothing_is_{_word.replace('/', '-')}", _rows(_word, *TEXTS[1:]), NONE_OF_FIRST, says=rf"no caption: {re.escape(_word)} \(1\)")  # fmt: skip
_file("nothing_in_quotes", _rows('"nan"', '" None "', "c", "d"), _given(None, None, "c", "d"), says=r"nan \(1\)")
_file("empty_cells", _rows("", '""', "   ", "d"), _given(None, None, None, "d"))
_file(
    "words_that_begin_so",
    _rows("None of them", "nano", "null island", "a nan"),
    _given("None of them", "nano", "null island", "a nan"),
)
_json_lines("nothing_in_json_lines", _texts(None, "", float("nan"), "d"), _given(None, None, None, "d"))
_json_lines("nothing_in_lists", _texts(["nan"], [None, "b"], [], ["c", "None"]), _given(None, "b", None, "c"))
_json_lines(
    "nothing_in_lists_and_texts", _texts(["nan", "a"], "None", [float("nan")], "d"), _given("a", None, None, "d")
)
_parquet("nothing_in_parquet", lambda: {"path": PICTURES, "text": ["nan", "None", None, "d"]}, _given(None, None, None, "d"), r"nan \(1\)")  # fmt: skip
_parquet("nan_of_parquet", lambda: {"path": PICTURES, "text": pa.array([float("nan")] * 4)}, dict.fromkeys(PICTURES))

# Paths.
_SUB = tuple(f"v/{name}" for name in PICTURES)
_IN_SUB = {f"v/{name}": text for name, text in FOUR.items()}
_file("backslashes", _rows(paths=tuple(f"v\\{name}" for name in PICTURES)), _IN_SUB, names=_SUB)
_file("backslashes_and_dots", _rows(paths=tuple(f".\\v\\{name}" for name in PICTURES)), _IN_SUB, names=_SUB)
_file("dots", _rows(paths=tuple(f"./v//{name}" for name in PICTURES)), _IN_SUB, names=_SUB)
_ODD = tuple(f"my clip #{i} +ü%20 [{i}].png" for i in range(4))
_file("odd_signs", _rows(paths=_ODD), dict(zip(_ODD, FOUR.values(), strict=True)), names=_ODD)
_COMPOSED = tuple(f"Mädchen {i}.png" for i in range(4))
_DECOMPOSED = tuple(unicodedata.normalize("NFD", name) for name in _COMPOSED)
_MIXED = tuple(f"{unicodedata.normalize('NFD', 'für')}/Mädchen {i}.png" for i in range(4))
_file("composed_on_decomposed", _rows(paths=_COMPOSED), dict(zip(_DECOMPOSED, FOUR.values(), strict=True)), names=_DECOMPOSED)  # fmt: skip
_file("decomposed_on_composed", _rows(paths=_DECOMPOSED), dict(zip(_COMPOSED, FOUR.values(), strict=True)), names=_COMPOSED)  # fmt: skip
_file("composed_on_mixed", _rows(paths=tuple(unicodedata.normalize("NFC", name) for name in _MIXED)), dict(zip(_MIXED, FOUR.values(), strict=True)), names=_MIXED)  # fmt: skip
_file("capitals_of_a_name", _rows(paths=("0.PNG", *PICTURES[1:])), {name: text for name, text in FOUR.items() if name != "0.png"})  # fmt: skip
_refused("one_clip_in_two_spellings", _rows() + ".\\0.png,other\n", "0.png in rows 1, 5")
_refused("wrong_folder", _rows(paths=tuple(f"w/{name}" for name in PICTURES)), "no such file.*root", names=_SUB)
_refused("without_suffix", _rows(paths=("0", "1", "2", "3")), "no extension")
_refused("outside", _rows(paths=("../0.png", *PICTURES[1:])), "row 1.* lies outside")


@CASES.add(FOUR)
def absolute(folder: Path) -> Path:
    """Paths from the root of the disk."""
    pictures(folder)
    (folder / "meta.csv").write_text(_rows(paths=tuple(f"{folder}/{name}" for name in PICTURES)), encoding="utf-8")
    return folder / "meta.csv"


# JSON.
_json_lines("json_lines", _texts(*FOUR.values()), FOUR)
_file("ndjson", "\n".join(json.dumps(row) for row in _texts(*FOUR.values())), FOUR, "meta.ndjson")
_file("json_lines_with_mark", b"\xef\xbb\xbf" + b"\n".join(json.dumps(row).encode() for row in _texts(*FOUR.values())), FOUR, "meta.jsonl")  # fmt: skip
_json("json_array", _texts(*FOUR.values()), FOUR, indent=1)
_json("array_in_json_lines", _texts(*FOUR.values()), FOUR, "meta.jsonl")
_file("json_lines_in_json", "\n".join(json.dumps(row) for row in _texts(*FOUR.values())), FOUR, "meta.json")
_json("json_of_columns", {"path": list(PICTURES), "text": list(FOUR.values())}, FOUR)
_json("json_of_pandas", {"path": dict(enumerate(PICTURES)), "text": dict(enumerate(FOUR.values()))}, FOUR)
_json("json_of_paths", dict(FOUR), FOUR)
_json("json_of_paths_and_lists", {name: [text] for name, text in FOUR.items()}, FOUR)
_json("json_of_paths_and_objects", {name: {"caption": text, "tags": "x"} for name, text in FOUR.items()}, FOUR)
_json("json_below_a_name", {"data": _texts(*FOUR.values())}, FOUR)
_json("json_of_open_sora_plan", [{"path": n, "cap": [t], "resolution": {"height": 32, "width": 32}} for n, t in FOUR.items()], FOUR)  # fmt: skip
_json_lines("numbers_in_json", _texts(5, "c1", 1.5, "007"), _given("5", "c1", "1.5", "007"))
_json_lines("only_numbers_in_json", _texts(5, 6, 7, 1.0), _given("5", "6", "7", "1.0"))
_json_lines("dates_in_json", _texts(*["2024-01-02"] * 4), _given(*["2024-01-02"] * 4))
_json_lines("lists_in_json", _texts(["a", "b"], ["c"], [" d\ne "], ["f"]), _given("a\nb", "c", "d e", "f"))
_json_lines("one_list_in_json", _texts("a", ["b"], "c", "d"), _given("a", "b", "c", "d"))
_json_lines("rows_with_other_keys", [*_texts(*FOUR.values())[:2], {"video": "2.png", "prompt": "caption 2"}, {"video": "3.png", "prompt": "caption 3"}], FOUR)  # fmt: skip
_json_lines("objects_as_captions", _texts(*[{"long": "a", "short": "b"}] * 4), None, "text .*object|object.* text")
_refused("broken_json_line", '{"path": "0.png", "text": "a"}\n{"path": "1.png", "text": "b"\n', "line 2", "meta.jsonl")
_refused("json_of_other_values", "[1, 2]", "objects with a path", "meta.json")

# Parquet, and packed files.
_parquet("parquet", lambda: {"path": PICTURES, "text": list(FOUR.values())}, FOUR)
_parquet("categories_of_parquet", lambda: {n: pa.array(v).dictionary_encode() for n, v in (("path", PICTURES), ("text", list(FOUR.values())))}, FOUR)  # fmt: skip
_parquet("bytes_of_parquet", lambda: {"path": [n.encode() for n in PICTURES], "text": [str(t).encode() for t in FOUR.values()]}, FOUR)  # fmt: skip
_parquet("lists_of_parquet", lambda: {"path": PICTURES, "captions": [[t, "nan"] for t in FOUR.values()]}, FOUR)
_parquet("numbers_of_parquet", lambda: {"path": PICTURES, "text": [1, 2, 3, 40]}, _given("1", "2", "3", "40"))
_parquet("objects_of_hugging_face", lambda: {"video": [{"path": n, "bytes": None} for n in PICTURES], "prompt": list(FOUR.values())}, FOUR)  # fmt: skip
_parquet("bytes_of_hugging_face", lambda: {"image": [{"path": n, "bytes": b"x"} for n in ("x.png",) * 4], "text": list(FOUR.values())}, None, "the files themselves")  # fmt: skip
_parquet("only_bytes_of_hugging_face", lambda: {"image": pa.array([{"path": None, "bytes": b"x"}] * 4, pa.struct({"bytes": pa.binary(), "path": pa.string()})), "text": list(FOUR.values())}, None, "the files themselves")  # fmt: skip
_file("csv_gz", gzip.compress(_rows().encode()), FOUR, "meta.csv.gz")
_file("tsv_gz", gzip.compress(_rows(header="path\ttext", separator="\t").encode()), FOUR, "meta.tsv.gz")
_file("json_lines_gz", gzip.compress("\n".join(json.dumps(row) for row in _texts(*FOUR.values())).encode()), FOUR, "meta.jsonl.gz")  # fmt: skip
_refused("damaged_gz", gzip.compress(_rows().encode() * 50)[:-20], "cannot be read", "meta.csv.gz")
_file("plain_text_named_gz", _rows(), FOUR, "meta.csv.gz")
_refused("csv_named_parquet", _rows(), "cannot be read", "meta.parquet")
_refused("table_of_a_spreadsheet", b"PK\x03\x04", "csv", "meta.xlsx")
_refused("zip_of_a_list", b"PK\x03\x04", "csv", "meta.csv.zip")


@CASES.add(FOUR)
def parquet_folder(folder: Path) -> Path:
    """Parts of a table, as Spark writes it, the first of which has no captions."""
    pictures(folder)
    (folder / "meta.parquet").mkdir()
    (folder / "meta.parquet" / "_SUCCESS").touch()
    for i in range(2):
        part = {"path": PICTURES[2 * i : 2 * i + 2], "text": list(FOUR.values())[2 * i : 2 * i + 2]}
        pq.write_table(pa.table(part), folder / "meta.parquet" / f"part-{i}.parquet")
    return folder / "meta.parquet"


@CASES.add({**FOUR, "0.png": None, "1.png": None})
def parquet_folder_of_other_columns(folder: Path) -> Path:
    """Parts of a table, the first of which has no captions."""
    pictures(folder)
    (folder / "meta.parquet").mkdir()
    pq.write_table(pa.table({"path": PICTURES[:2]}), folder / "meta.parquet" / "part-0.parquet")
    pq.write_table(
        pa.table({"path": PICTURES[2:], "text": list(FOUR.values())[2:]}), folder / "meta.parquet" / "part-1.parquet"
    )
    return folder / "meta.parquet"


@CASES.add(None, says="no Parquet")
def empty_parquet_folder(folder: Path) -> Path:
    """A folder of that name without parts."""
    pictures(folder)
    (folder / "meta.parquet").mkdir()
    return folder / "meta.parquet"


@CASES.add(None, says="as the path|give .*parquet")
def folder_of_parquet_files(folder: Path) -> Path:
    """A folder of lists, which is given in place of one of them."""
    (folder / "lists").mkdir()
    pq.write_table(pa.table({"path": PICTURES, "text": list(FOUR.values())}), folder / "lists" / "train.parquet")
    return folder / "lists"
