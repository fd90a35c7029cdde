"""A recipe that is read, written and read again is the same; a mistake is told with its cure."""

from __future__ import annotations

import contextlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tiny_recipe
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.core.errors import UserError
from reelworks.training.loop.request import TrainRequest
from reelworks.training.recipe import errors, recipe_file
from reelworks.training.recipe.recipe import Recipe

ROOT = Path(__file__).parents[3]

SMALL = """
version = 1
[[dataset]]
path = "footage"
[[bucket]]
resolution = "64px"
num_frames = [1, 9]
batch_size = [4, 2]
[model]
name = "stdit3-tiny"
[train]
max_steps = 10
"""


STAGES = SMALL + "".join(f'[[stage]]\nname = "{name}"\nsteps = 1\n' for name in ("pictures", "clips"))


def write(tmp_path: Path, text: str = SMALL) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def mistake(tmp_path: Path, *overrides: str, text: str = SMALL) -> UserError:
    with pytest.raises(UserError) as caught:
        recipe_file.load(write(tmp_path, text), overrides)
    return caught.value


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_the_recipes_that_we_ship_are_complete(path: Path) -> None:
    recipe = recipe_file.load(path)
    assert recipe_file.parse(tomllib.loads(recipe_file.dump(recipe))) == recipe


def test_there_are_recipes() -> None:
    assert (ROOT / "recipes" / "demo.toml").is_file()


def test_the_run_folder_is_named_after_the_recipe(tmp_path: Path) -> None:
    recipe = recipe_file.load(write(tmp_path))
    assert (recipe.output, recipe.catalog_folder) == ("runs/small", "runs/small/catalog")
    moved = recipe_file.load(write(tmp_path), ["output=elsewhere", "catalog=shared"])
    assert (moved.output, moved.catalog_folder) == ("elsewhere", "shared")


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
numbers = st.floats(1e-12, 1e6)


@given(
    texts,
    st.integers(0, 2**40),
    numbers,
    st.lists(texts, max_size=3),
    st.none() | numbers,
    st.none() | st.integers(1, 99),
    st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
)
def test_what_is_written_reads_back_equal(
    path: str, seed: int, rate: float, prompts: list[str], clip: float | None, every: int | None, frames: list[int]
) -> None:
    recipe = Recipe.model_validate(
        tiny_recipe.least(
            seed=seed,
            dataset=[{"path": path}, {"path": "more", "name": "more", "repeats": 2}],
            bucket=[{"resolution": "64px", "num_frames": frames}],
            train={"max_epochs": 2, "learning_rate": rate, "max_grad_norm": clip},
            validation={"every_steps": every},
            samples={"prompts": prompts},
            checkpoints={"every_steps": every, "keep_best": None if every else {"metric": "loss"}},
            objective={"timestep_shift": "none", "mask_ratios": {"image_head": 0.25}},
        )
    )
    written = recipe_file.dump(recipe)
    again = recipe_file.parse(tomllib.loads(written))
    assert again == recipe
    assert recipe_file.dump(again) == written


def test_the_word_none_switches_off_what_may_be_absent(tmp_path: Path) -> None:
    recipe = recipe_file.load(
        write(tmp_path), ["train.max_grad_norm=none", "checkpoints.keep_best=none", "validation.every_steps=none"]
    )
    assert recipe.train.max_grad_norm is recipe.checkpoints.keep_best is recipe.validation.every_steps is None
    assert recipe.objective.timestep_shift == "auto"
    error = mistake(tmp_path, "train.learning_rate=none")
    assert (error.field, error.value) == ("train.learning_rate", "none")


MISTAKES = [
    ("sead=1", "sead", 1, 'did you mean "seed"?'),
    ("train.max_step=5", "train.max_step", 5, 'did you mean "max_steps"?'),
    ("bucket.0.kep_prob=0.5", "bucket.0.kep_prob", 0.5, 'did you mean "keep_prob"?'),
    ("checkpoints.keep_best={metrik = 'x'}", "checkpoints.keep_best.metrik", "x", 'did you mean "metric"?'),
    ("buckets.zzz=1", "buckets.zzz", 1, "known: aspect_ratios, batch_size"),
    ('seed="42"', "seed", "42", "give a whole number"),
    ("seed=4.0", "seed", 4.0, "give a whole number"),
    ("seed=true", "seed", True, "give a whole number"),
    ("seed=-1", "seed", -1, "give a number greater than or equal to 0"),
    ("train.learning_rate='fast'", "train.learning_rate", "fast", "give a number"),
    ("train.learning_rate=nan", "train.learning_rate", float, "give a finite number"),
    ("train.learning_rate=0", "train.learning_rate", 0, "give a number greater than 0"),
    ("samples.prompts='one'", "samples.prompts", "one", "give a list"),
    ("data=3", "data", 3, "give a table"),
    ("data.crop='left'", "data.crop", "left", "give 'center', 'random' or 'top'"),
    ("train.optimizer='adamw_8bit'", "train.optimizer", "adamw_8bit", 'did you mean "adamw8bit"? Else give'),
    ("train.optimizer='AdamW'", "train.optimizer", "AdamW", 'did you mean "adamw"? Else give'),
    ("train.optimizer='lion'", "train.optimizer", "lion", "give 'adamw', 'adamw8bit'"),
    ("version=2", "version", 2, "give 1"),
    ("dataset=[]", "dataset", [], "give at least 1"),
    (
        "objective.timestep_range=[0.0, 500.0, 1000.0]",
        "objective.timestep_range",
        [0.0, 500.0, 1000.0],
        "give at most 2",
    ),
    ("bucket={resolution = '64px'}", "bucket", {"resolution": "64px"}, r"write it as \[\[bucket\]\]"),
    ("bucket.0.num_frames='9'", "bucket.0.num_frames", "9", "give a whole number"),
    ("bucket.0.resolution='64x'", "bucket.resolution", "64x", 'write "480p"'),
    ("model.name='stdit3-tinny'", "model.name", "stdit3-tinny", 'did you mean "stdit3-tiny"?'),
    ("autoencoder.name='pixels'", "autoencoder.name", "pixels", 'did you mean "pixel"?'),
    ("text_encoder.name='hash'", "text_encoder.name", "hash", 'did you mean "hashed"?'),
    ("objective.mask_ratios={headd = 0.1}", "objective.mask_ratios.headd", 0.1, "known: |did you mean"),
    ("objective.timestep_shift=-1.0", "objective.timestep_shift", -1.0, '"auto"'),
    ("output=''", "output", "", "give a text"),
    ("catalog=''", "catalog", "", "remove the key"),
    (f"seed={2**63}", "seed", 2**63, "give a number less than 9223372036854775808"),
    ("buckets.aspect_ratios=['nan:1']", "buckets.aspect_ratios", "nan:1", '"16:9"'),
    ("validation.timesteps=[]", "validation.timesteps", [], "leave it out"),
    ("validation.timesteps=[500, 0.0]", "validation.timesteps", 0.0, "give timesteps"),
    ("validation.timesteps=[1000.5]", "validation.timesteps", 1000.5, "give timesteps"),
    ("samples={prompts = ['a'], height = 60}", "samples.height", 60, "use 64"),
    ("samples={prompts = ['a'], width = 101}", "samples.width", 101, "use 104"),
    ("samples={prompts = ['a'], height = 0}", "samples.height", 0, "greater than or equal to 1"),
    ("samples.fps=241", "samples.fps", 241, "less than or equal to 240"),
    ("lora={base = 'int4'}", "lora.base", "int4", "give 'float32', 'bfloat16', 'float8', 'int8', 'nf4' or 'gguf'"),
    ("precision.base='nf4'", "precision.base", "nf4", "lora.base may be"),
    ("autoencoder.dtype='fp16'", "autoencoder.dtype", "fp16", 'use "bfloat16"'),
    ("autoencoder.dtype='bfloat16'", "autoencoder.dtype", "bfloat16", "leave it out"),
    ("checkpoints.keep_every=750", "checkpoints.keep_every", 750, "multiple of 500"),
]


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("dataset.repeats=2", "dataset.0.repeats=2"),
        ("bucket.1.num_frames=[1, 9]", "bucket.0.num_frames=[1, 9]"),
        ("stage[2].train.learning_rate=0.1", "stage.0.train.learning_rate=0.1"),
    ],
)
def test_the_entry_of_an_override_is_shown_with_its_number(tmp_path: Path, override: str, shown: str) -> None:
    """In the words that were typed, so that what is shown can be typed."""
    error = mistake(tmp_path, override, text=STAGES)
    assert shlex.split(error.remedy.partition("--set ")[2].partition(", or")[0]) == [shown]
    recipe_file.load(write(tmp_path, STAGES), [shown])


def test_the_name_of_an_entry_that_was_meant_is_offered(tmp_path: Path) -> None:
    for override in ("stage.clip.train.learning_rate=0.1", "stage.clip.bucket.0.batch_size=2"):
        assert 'did you mean "clips"?' in mistake(tmp_path, override, text=STAGES).remedy


@pytest.mark.parametrize(("override", "field", "value", "remedy"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_names_field_value_and_remedy(
    tmp_path: Path, override: str, field: str, value: object, remedy: str
) -> None:
    error = mistake(tmp_path, override)
    assert error.field == field
    assert isinstance(error.value, float) if value is float else error.value == value
    assert re.search(remedy, error.remedy) or remedy in error.remedy
    assert error.problem


def test_the_ends_of_ranges_are_taken(tmp_path: Path) -> None:
    recipe = recipe_file.load(write(tmp_path), [f"seed={2**63 - 1}", "validation.timesteps=[1000, 0.001]"])
    assert (recipe.seed, recipe.validation.timesteps) == (2**63 - 1, [1000.0, 0.001])
    assert recipe_file.parse(tomllib.loads(recipe_file.dump(recipe))) == recipe


def test_a_preview_follows_the_stride_of_the_autoencoder_and_only_if_there_is_one(tmp_path: Path) -> None:
    sizes = ["samples.height=60", "samples.width=90", "samples.num_frames=18"]
    assert recipe_file.load(write(tmp_path), sizes).samples.height == 60
    few = ["samples.prompts=['a']", "autoencoder.stride=6"]
    assert recipe_file.load(write(tmp_path), [*sizes, *few]).samples.width == 90
    assert recipe_file.load(write(tmp_path), few).samples.height is None
    assert mistake(tmp_path, *few, "samples.height=64").field == "samples.height"


def test_clips_that_keep_the_bases_own_answers_teach_no_trigger_word() -> None:
    kept = {"path": "others", "trigger": "", "prior_prediction": True}
    values = tiny_recipe.least(dataset=[{"path": "mug", "trigger": "zxq"}, kept], lora={})
    recipe = recipe_file.parse(values | {"samples": {"prompts": ["a photo of [name]"]}})
    assert recipe.samples.prompts == ["a photo of zxq"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["zxq"], "a photo of zxq"),
        (["zxq", "zxq"], "a photo of zxq"),
        ([None, "zxq"], "a photo of zxq"),
        (["zxq", "other"], "a photo of [trigger]"),
        ([None], "a photo of [trigger]"),
    ],
)
def test_prompts_of_previews_get_the_trigger_word_as_captions_do(words: list[str | None], wanted: str) -> None:
    """If there is one word for all: with several, none is meant."""
    datasets = [
        {"path": str(n), "name": str(n), **({} if word is None else {"trigger": word})} for n, word in enumerate(words)
    ]
    recipe = recipe_file.parse(tiny_recipe.least(dataset=datasets, samples={"prompts": ["a photo of [trigger]"]}))
    assert recipe.samples.prompts == [wanted]


@pytest.mark.parametrize(
    "name", ["2026-11-20", "7", "1e3", "true", "[a]", "{}", 'a"b', "a\\b", "a b # c", "größe 🎬", "a\x7f\n\tb", "plain"]
)
def test_a_folder_given_as_an_option_is_a_text_whatever_it_looks_like(tmp_path: Path, name: str) -> None:
    assert TrainRequest(recipe=write(tmp_path), output=Path(name)).load_recipe().output == name


def test_a_folder_in_place_of_a_recipe_is_answered_with_the_way_to_train_on_it(tmp_path: Path) -> None:
    folder = tmp_path / "my clips"
    folder.mkdir()
    with refused("folder-for-a-recipe", "recipe", says="this is a folder") as caught:
        TrainRequest(recipe=folder)
    assert str(folder) in shlex.split(caught.value.remedy)
    (folder / "run.json").touch()
    with refused("folder-for-a-recipe", "recipe", says="run folder.*the recipe that it was started with"):
        TrainRequest(recipe=folder)


@pytest.mark.parametrize(
    ("removed", "field"),
    [("version = 1", "version"), ("max_steps = 10", "train.max_steps"), ('path = "footage"', "dataset.0.path")],
)
def test_what_is_missing_is_named(tmp_path: Path, removed: str, field: str) -> None:
    assert mistake(tmp_path, text=SMALL.replace(removed, "")).field == field


def test_other_footage_has_the_options_of_the_first_dataset_but_for_its_place(tmp_path: Path) -> None:
    """Paths of a list that are relative to a folder of the recipe are none of the other footage."""
    more = 'path = "clips.csv"\nroot = "clips"\nrepeats = 3\n[[dataset]]\npath = "second"\nname = "two"\n'
    path = write(tmp_path, SMALL.replace('path = "footage"\n', more))
    (dataset,) = recipe_file.load(path, data_path=tmp_path / "other").dataset
    assert (dataset.path, dataset.root, dataset.repeats) == (str(tmp_path / "other"), None, 3)


def test_what_contradicts_itself_is_told_in_words(tmp_path: Path) -> None:
    assert mistake(tmp_path, "data.fps=8.0", "data.frame_interval=2").field == "data.frame_interval"
    assert "batch_size = [4, 2]: 2 values for 1" in str(mistake(tmp_path, "bucket.0.num_frames=[9]"))


AUTO = SMALL.replace('[[bucket]]\nresolution = "64px"\nnum_frames = [1, 9]\nbatch_size = [4, 2]\n', "").replace(
    "version = 1", 'version = 1\nbuckets = "auto"'
)


@pytest.mark.parametrize("overrides", [[], ["buckets=auto"], ["buckets.entries=auto"]])
def test_auto_is_short_for_a_table_whose_keys_can_be_set(tmp_path: Path, overrides: list[str]) -> None:
    """Both ways to write it, on the command line too, leave the other keys of the table open."""
    recipe = recipe_file.load(write(tmp_path, AUTO), [*overrides, "buckets.max_tokens=500", "buckets.upscale=true"])
    assert (recipe.buckets.entries, recipe.buckets.max_tokens, recipe.buckets.upscale) == ("auto", 500, True)
    assert recipe_file.parse(tomllib.loads(recipe_file.dump(recipe))) == recipe


@pytest.mark.parametrize(
    ("overrides", "text", "field", "value", "said"),
    [
        (["buckets=auto"], SMALL, "buckets.entries", "auto", "remove [[bucket]]"),
        (["buckets.opensora={ 256 = { 1 = [1.0, 4] } }", "buckets.probability=opensora-1.2"], AUTO, "buckets.entries",
         "auto", "remove [buckets.opensora]"),
        (["buckets.entries=keep"], AUTO, "bucket", None, 'write buckets = "auto"'),
        (["buckets=automatic"], AUTO, "buckets", "automatic", "table"),
        (["buckets.max_tokens=0"], AUTO, "buckets.max_tokens", 0, "a number greater than or equal to 1"),
        (["buckets.batch_size=0"], SMALL, "buckets.batch_size", 0, "number from 1 to"),
        (["bucket.0.keep_prob=nan"], SMALL, "bucket.0.keep_prob", ..., "finite number"),
        (["bucket.0.keep_prob=[0.5, nan]"], SMALL, "bucket.0.keep_prob.1", ..., "finite number"),
        (["bucket.0.keep_prob=1.01"], SMALL, "bucket.keep_prob", 1.01, "from 0 to 1"),
        (["bucket.0.num_frames=[1, -9]"], SMALL, "bucket.num_frames", -9, "at least 1"),
        (["bucket.0.num_frames=[9, 9]"], SMALL, "bucket", "64px ×9 and 64px ×9", "remove one"),
        (["data.short_clips=freeze"], SMALL, "data.short_clips", "freeze", "'hold' or 'loop'"),
    ],
)  # fmt: skip
def test_bad_buckets_are_told_by_key_value_and_remedy(
    tmp_path: Path, overrides: list[str], text: str, field: str, value: object, said: str
) -> None:
    error = mistake(tmp_path, *overrides, text=text)
    assert error.field == field
    assert value in (..., error.value)
    assert said in error.remedy


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    error = mistake(tmp_path, "sead=1", "train.max_step=5", 'seed="x"')
    assert all(f"{field} = " in str(error) for field in ("sead", "train.max_step", "seed"))


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    with refused("file-unreadable", "RECIPE") as caught:
        recipe_file.load(tmp_path / "none.toml")
    assert caught.value.field == "RECIPE"
    with refused("file-unreadable", "RECIPE", says="but a folder"):
        recipe_file.load(tmp_path)
    assert "line 2" in str(mistake(tmp_path, text="version = 1\nseed = = 2\n"))
    (tmp_path / "latin.toml").write_bytes("# gr\xfcn\n".encode("latin-1"))
    with refused("not-utf-8", "RECIPE", says="not UTF-8 at byte 4"):
        recipe_file.load(tmp_path / "latin.toml")


def test_values_are_toml_or_else_text(tmp_path: Path) -> None:
    recipe = recipe_file.load(
        write(tmp_path),
        [
            "seed=7",
            "train.learning_rate = 3e-4",
            "model.weights=/data/a b.safetensors",
            'samples.prompts=["one", "two"]',
            "bucket.0.batch_size=[8, 4]",
            "dataset[0].name=clips",
            'output="2024"',
            "precision.compute=float32",  # a table that the file does not name
        ],
    )
    assert (recipe.seed, recipe.train.learning_rate, recipe.output) == (7, 3e-4, "2024")
    assert recipe.model.weights == "/data/a b.safetensors"
    assert recipe.samples.prompts == ["one", "two"]
    assert recipe.bucket[0].batch_sizes() == [8, 4]
    assert (recipe.dataset[0].name, recipe.precision.compute) == ("clips", "float32")


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("seed", "--set train.max_steps=100"),
        ("=3", "--set train.max_steps=100"),
        ("train..max_steps=3", "--set train.max_steps=100"),
        ("train.=3", "--set train.max_steps=100"),
        (" .=3", "--set train.max_steps=100"),
        ("bucket.1.batch_size=4", "bucket.0.batch_size=4"),
        ("bucket.-1.batch_size=4", "count from 0"),
        ("bucket.²=4", "count from 0"),
        ("bucket.first.batch_size=4", "count from 0"),
        ("bucket[1].batch_size=4", "bucket.0.batch_size=4"),
        ("version.x=4", "see docs/reference"),
        ("version.x.y=4", "see docs/reference"),
    ],
)
def test_overrides_that_lead_nowhere(tmp_path: Path, override: str, remedy: str) -> None:
    error = mistake(tmp_path, override)
    assert (error.field, error.value) == ("--set", override)
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("overrides", "field", "remedy"),
    [
        (["lora.base=bfloat16", "precision.compute=float32"], "lora.base", 'set precision.compute = "bfloat16"'),
        (["lora.base=nf4", "parallel.offload=true"], "parallel.offload", "leave lora.base out, or leave offload out"),
    ],
)
def test_a_base_that_cannot_lie_so_is_refused_when_the_recipe_is_read(tmp_path, overrides, field, remedy):
    """Before anything is scanned or loaded; without the other key both are taken."""
    refused = mistake(tmp_path, *overrides)
    assert refused.field == field
    assert remedy in str(refused)
    for one in overrides:
        recipe_file.load(write(tmp_path), [one, "lora.rank=4"])


@pytest.mark.parametrize(("old", "new"), sorted(errors._RENAMED.items()))
def test_a_key_of_an_earlier_version_names_the_new_one(tmp_path, old, new):
    """And the new one is a key of the recipe."""
    override = old.replace("dataset.", "dataset.0.") if old.startswith("dataset.") else old
    value = "{}" if new.startswith("[") else "'x'"
    error = mistake(tmp_path, f"{override}={value}")
    assert error.remedy == f"write {new}"
    known = new.strip("[]").split(",")[0].replace("dataset.", "dataset.0.")
    with contextlib.suppress(UserError):
        recipe_file.load(write(tmp_path), [f"{known}={value}"])
        return
    assert mistake(tmp_path, f"{known}={value}").problem != "there is no such key"


def test_compiled_blocks_see_full_micro_batches_unless_the_recipe_says_otherwise(tmp_path):
    def loaded(*changes):
        return recipe_file.load(write(tmp_path), changes).buckets.incomplete_batch

    assert loaded() == "partial"
    assert loaded("train.compile=true") == "pad"
    assert loaded("train.compile=true", "buckets.incomplete_batch=partial") == "partial"
    resolved = recipe_file.load(write(tmp_path), ["train.compile=true"])
    again = recipe_file.parse(tomllib.loads(recipe_file.dump(resolved)))
    assert again == resolved
