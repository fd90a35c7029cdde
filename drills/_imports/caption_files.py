"""Caption files as people have them, with what each trainer makes of them, by hand after its source.

In what is expected, `=` is the whole text, `1` its first line, and `0` no caption; `!` says that the trainer stops at the clip or
leaves it out. `|` is between captions of which each use shows one, a backslash is a bar of the text, and `<a;b>` are tags whose order
changes from use to use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

# Of each file: its bytes, None for none; then ai-toolkit, diffusion-pipe, musubi-tuner, OneTrainer, sd-scripts, SimpleTuner.
# ai-toolkit has the trigger p3r, diffusion-pipe the prefix "pre, ", OneTrainer shuffles after 1 tag, sd-scripts after 2 with the
# prefix "pre,", and SimpleTuner puts "ins" before each line.
_LONG = "word " * 300
FILES: dict[str, tuple[Any, ...]] = {
    "plain": (b"a red cat", "p3r a red cat", "pre, a red cat", "=", "=", "pre, a red cat", "ins a red cat"),
    "missing": (None, "p3r", "!", "!", "0", "pre,", "!"),
    "empty": (b"", "p3r", "pre,", "0", "0", "!", "ins"),
    "blank": (b"  \n", "p3r", "pre,", "0", "0", "pre,", "ins"),
    "tags": (
        b"cat, dog, bird, fox",
        *("p3r cat, dog, bird, fox", "pre, cat, dog, bird, fox", "=", "cat, <dog;bird;fox>"),
        *("pre, cat, <dog;bird;fox>", "ins cat, dog, bird, fox"),
    ),
    "two_tags": (b"cat, dog", "p3r cat, dog", "pre, cat, dog", "=", "=", "pre, cat, dog", "ins cat, dog"),
    "lines": (
        b"first line\nsecond line",
        *("p3r first line second line", "pre, first line second line", "=", "first line|second line"),
        *("pre, first line", "ins first line|ins second line"),
    ),
    "blank_between": (
        b"first line\n\nsecond line\n",
        *("p3r first line second line", "pre, first line second line", "=", "first line|second line"),
        *("pre, first line", "ins first line|ins second line"),
    ),
    "blank_first": (b"\nsecond line", "p3r second line", "pre, second line", "=", "=", "pre,", "ins second line"),
    "crlf": (
        b"first line\r\nsecond line\r\n",
        *("p3r first line second line", "pre, first line second line", "=", "first line|second line"),
        *("pre, first line", "ins first line|ins second line"),
    ),
    "trigger": (
        b"[trigger] sits",
        "p3r sits",
        "pre, [trigger] sits",
        "=",
        "=",
        "pre, [trigger] sits",
        "ins [trigger] sits",
    ),
    "name": (b"I see [name]", "I see p3r", "pre, I see [name]", "=", "=", "pre, I see [name]", "ins I see [name]"),
    "both": (
        b"[name], [trigger]",
        "p3r, p3r",
        "pre, [name], [trigger]",
        "=",
        "=",
        "pre, [name], [trigger]",
        "ins [name], [trigger]",
    ),
    "has_word": (b"my p3r cat", "my p3r cat", "pre, my p3r cat", "=", "=", "pre, my p3r cat", "ins my p3r cat"),
    "in_word": (b"sup3p3rs", "sup3p3rs", "pre, sup3p3rs", "=", "=", "pre, sup3p3rs", "ins sup3p3rs"),
    "wildcard": (b"a {red|blue} cat", *(f"{x}a {{red\\blue}} cat" for x in ("p3r ", "pre, ", "", "", "pre, ", "ins "))),
    "braces": (b"a {{red}} cat", *(f"{x}a {{{{red}}}} cat" for x in ("p3r ", "pre, ", "", "", "pre, ", "ins "))),
    "open_brace": (b"a { cat", "p3r a { cat", "pre, a { cat", "=", "=", "pre, a { cat", "ins a { cat"),
    "utf8": ("Köln".encode(), "p3r Köln", "pre, Köln", "=", "=", "pre, Köln", "ins Köln"),
    "mark": ("\ufeffa cat".encode(), *(f"{x}\ufeffa cat" for x in ("p3r ", "pre, ", "", "", "pre, ", "ins "))),
    "utf16": ("a cat".encode("utf-16"), "!", "!", "!", "!", "!", "!"),
    "latin": ("über Köln, früh".encode("latin-1"), "!", "!", "!", "!", "!", "!"),
    "bars": (b"cat | dog", *(f"{x}cat \\ dog" for x in ("p3r ", "pre, ", "", "", "pre, ", "ins "))),
    "weights": (b"a (red:1.3) cat", *(f"{x}a (red:1.3) cat" for x in ("p3r ", "pre, ", "", "", "pre, ", "ins "))),
    "spaces": (
        b"  a   red cat ",
        "p3r a red cat",
        "pre, a red cat",
        "a red cat",
        "a red cat",
        "pre, a red cat",
        "ins a red cat",
    ),
    "comma_end": (
        b"cat, dog,",
        "p3r cat, dog,",
        "pre, cat, dog,",
        "=",
        "cat, dog",
        "pre, cat, <dog;>",
        "ins cat, dog,",
    ),
    "json": (b'{"caption": "x"}', *(f'{x}{{"caption": "x"}}' for x in ("p3r ", "pre, ", "", "", "pre, ", "ins "))),
    "long": (_LONG.encode(), *(x + _LONG for x in ("p3r ", "pre, ", "", "", "pre, ", "ins "))),
    "number": (
        b"1,000 cats",
        "p3r 1, 000 cats",
        "pre, 1, 000 cats",
        "=",
        "1, 000 cats",
        "pre, 1, 000 cats",
        "ins 1, 000 cats",
    ),
    "other_ending": (None, "p3r", "!", "!", "0", "pre,", "!"),  # with other_ending.caption beside it
}


class Case(NamedTuple):
    """A config of a trainer, and what it shows with each picture of a folder."""

    name: str
    trainer: str
    config: str
    suffix: str
    command: str | None
    expected: dict[str, str]


def write(folder: Path) -> None:
    """Write a picture for each file, and the files."""
    from PIL import Image

    folder.mkdir(parents=True)
    for number, (name, (data, *_)) in enumerate(FILES.items()):
        Image.new("RGB", (256, 256), (8 * number % 256, 90, 30)).save(folder / f"{name}.png")
        if data is not None:
            (folder / f"{name}.txt").write_bytes(data)
    (folder / "other_ending.caption").write_text("a caption of another ending", encoding="utf-8")


_SD = "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path x.safetensors --max_train_steps 9"
_MUSUBI = "python qwen_image_train_network.py --max_train_steps 9 --network_module networks.lora_qwen_image"


def cases(pictures: Path, folder: Path) -> list[Case]:
    """Return the configs of all trainers for a folder of pictures; what else they need is written into a folder."""
    own = {name: dict(zip(FILES, column, strict=True)) for name, column in _columns().items()}
    toml = f'[general]\nresolution = 256\ncaption_extension = ".txt"\n[[datasets]]\nbatch_size = 1\n[[datasets.subsets]]\nimage_dir = "{pictures}"\n'
    few = ("plain", "tags", "lines", "trigger", "wildcard", "missing")
    without_trigger = _some(own, few) | {"tags": "<cat;dog;bird;fox>", "trigger": "sits", "missing": "0"}
    names = {name: name.replace("_", " ") for name in FILES}
    return [
        _ai(pictures, "trigger", own["ai-toolkit"], {"trigger_word": "p3r"}, {}),
        _ai(pictures, "no trigger, tags shuffled", without_trigger, {}, {"shuffle_tokens": True}),
        _dp(pictures, folder, "prefix", own["diffusion-pipe"], 'caption_prefix = "pre, "'),
        _dp(
            *(pictures, folder, "tags shuffled"),
            *({**_some(own, few), "tags": "<cat;dog;bird;fox>", "missing": "!"}, "cache_shuffle_num = 4"),
        ),
        Case("text", "musubi-tuner", _musubi(pictures), ".toml", _MUSUBI, own["musubi-tuner"]),
        _one(pictures, "tags shuffled", own["onetrainer"], {"enable_tag_shuffling": True, "keep_tags_count": 1}),
        _one(pictures, "names", {name: name for name in FILES}, {"prompt_source": "filename"}),
        Case(
            "prefix and tags",
            "sd-scripts",
            f'{toml}caption_prefix = "pre,"\nshuffle_caption = true\nkeep_tokens = 2\n',
            ".toml",
            _SD,
            own["sd-scripts"],
        ),
        Case(
            *("prefix shuffled, suffix", "sd-scripts"),
            *(f'{toml}caption_prefix = "pre,"\ncaption_suffix = ", suf"\nshuffle_caption = true\n', ".toml", _SD),
            {"plain": "<pre;a red cat;suf>", "tags": "<pre;cat;dog;bird;fox;suf>", "lines": "<pre;first line;suf>"},
        ),
        Case(
            *("wildcards", "sd-scripts", f'{toml}caption_prefix = "pre"\nenable_wildcard = true\n', ".toml", _SD),
            {
                "plain": "pre a red cat",
                "lines": "pre first line|second line",
                "wildcard": "pre a red cat|pre a blue cat",
                "braces": "pre a {red} cat",
            },
        ),
        _st(pictures, folder, "lines", own["simpletuner"], {"prepend_instance_prompt": True, "instance_prompt": "ins"}),
        _st(pictures, folder, "names", names, {"caption_strategy": "filename"}),
        _st(
            *(pictures, folder, "tags shuffled"),
            *({**_some(own, few), "tags": "cat, <dog;bird;fox>", "lines": "first line|second line", "missing": "!"},),
            {"caption_shuffle": {"enable": True, "position_start": 1}},
        ),
    ]


def _columns() -> dict[str, list[str]]:
    trainers = ("ai-toolkit", "diffusion-pipe", "musubi-tuner", "onetrainer", "sd-scripts", "simpletuner")
    return {name: [columns[number + 1] for columns in FILES.values()] for number, name in enumerate(trainers)}


def _some(own: dict[str, dict[str, str]], names: tuple[str, ...]) -> dict[str, str]:
    """Return those captions of musubi-tuner, which shows a text as it is."""
    return {name: own["musubi-tuner"][name] for name in names}


def _ai(pictures: Path, name: str, expected: dict[str, str], process: dict[str, Any], dataset: dict[str, Any]) -> Case:
    values = {
        **{"type": "sd_trainer", "network": {"type": "lora", "linear": 4}, **process},
        "model": {"name_or_path": "black-forest-labs/FLUX.1-dev", "is_flux": True},
        "train": {"steps": 9, "batch_size": 1, "lr": 1e-4},
        "datasets": [{"folder_path": str(pictures), "resolution": 256, **dataset}],
    }
    return Case(
        name, "ai-toolkit", json.dumps({"job": "extension", "config": {"process": [values]}}), ".json", None, expected
    )


def _dp(pictures: Path, folder: Path, name: str, expected: dict[str, str], line: str) -> Case:
    dataset = folder / f"{name.replace(' ', '_')}-dataset.toml"
    dataset.write_text(
        f'resolutions = [256]\nframe_buckets = [1]\n{line}\n[[directory]]\npath = "{pictures}"\n', encoding="utf-8"
    )
    model = f'dataset = "{dataset}"\nepochs = 1\nmicro_batch_size_per_gpu = 1\n[model]\ntype = "flux"\ndiffusers_path = "x"\ndtype = "bfloat16"\n'
    return Case(
        name,
        "diffusion-pipe",
        f'{model}[adapter]\ntype = "lora"\nrank = 4\n[optimizer]\ntype = "adamw"\nlr = 1e-4\n',
        ".toml",
        None,
        expected,
    )


def _musubi(pictures: Path) -> str:
    return f'[general]\nresolution = 256\ncaption_extension = ".txt"\nbatch_size = 1\n[[datasets]]\nimage_directory = "{pictures}"\n'


def _one(pictures: Path, name: str, expected: dict[str, str], text: dict[str, Any]) -> Case:
    values = {
        **{"model_type": "FLUX_DEV_1", "training_method": "LORA", "base_model_name": "black-forest-labs/FLUX.1-dev"},
        **{"resolution": "256", "epochs": 1, "batch_size": 1, "learning_rate": 1e-4},
        "latent_caching": False,  # which keeps one line of several
        "concepts": [{"path": str(pictures), "name": "x", "image": {}, "text": {"prompt_source": "sample", **text}}],
    }
    return Case(name, "onetrainer", json.dumps(values), ".json", None, expected)


def _st(pictures: Path, folder: Path, name: str, expected: dict[str, str], more: dict[str, Any]) -> Case:
    backend = {"id": "x", "type": "local", "instance_data_dir": str(pictures), "caption_strategy": "textfile", **more}
    file = folder / f"{name.replace(' ', '_')}-data.json"
    file.write_text(json.dumps([{**backend, "resolution": 256, "resolution_type": "pixel_area"}]), encoding="utf-8")
    values = {
        **{"model_family": "flux", "model_type": "lora", "data_backend_config": str(file), "max_train_steps": 9},
        **{
            "train_batch_size": 1,
            "learning_rate": 1e-4,
            "pretrained_model_name_or_path": "black-forest-labs/FLUX.1-dev",
        },
    }
    return Case(name, "simpletuner", json.dumps(values), ".json", None, expected)
