"""What verbs print with --json is one value, in the shape that docs/reference/json.md gives, and nothing else on stdout."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import json_page
import jsonschema
import places
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_recipe
import tomli_w
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from reelworks import testing
from reelworks.annexes.doctor import examine
from reelworks.commands import show
from reelworks.commands.main import app
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.checkpoint import listing
from reelworks.models.adapters import files
from reelworks.testing import contract
from reelworks.training.coverage import clip_history

# Verbs that print no numbers, and why.
WITHOUT_NUMBERS = {
    "ui": "serves a page until it is stopped, and prints its address",
    "trust": "prints the names of the files that it was given",
    "encode show": "draws a picture, and prints its name",
}
# Keys whose values are those of recipes, configs of other programs, or the history of a checkpoint: of any kind.
OF_ANY_KIND = {
    *("CheckpointHistory.history", "ComparedKey.values", "ImportedKey.value", "ChangedKey.a", "ChangedKey.b"),
    "QuickstartResult.settings",
}


def verbs(group: Any = None, path: str = "") -> dict[str, Any]:
    """Each command by its words."""
    found = {}
    for name, command in (group or typer.main.get_command(app)).commands.items():
        below = hasattr(command, "commands")
        found |= verbs(command, f"{path}{name} ") if below else {f"{path}{name}": command}
    return found


def test_each_verb_that_prints_numbers_has_a_documented_shape() -> None:
    with_json = {verb for verb, command in verbs().items() if any("--json" in p.opts for p in command.params)}
    assert with_json == json_page.shapes().keys()
    assert verbs().keys() - with_json == WITHOUT_NUMBERS.keys()


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_page.schema()


@pytest.mark.slow
def test_the_schema_is_one_and_leaves_nothing_open(schema: dict[str, Any]) -> None:
    """Every object has exactly its keys, and every value a type but those that recipes and others decide."""
    jsonschema.Draft202012Validator.check_schema(schema)
    open_keys = set()
    for name, definition in schema["$defs"].items():
        for kind in definition.get("anyOf", [definition]):
            if kind.get("type") != "object":
                continue
            assert "additionalProperties" in kind
            texts = {key: json.dumps(value) for key, value in kind["properties"].items()}
            open_keys |= {f"{name}.{key}" for key, text in texts.items() if "{}" in text or text.startswith('{"desc')}
    assert open_keys == OF_ANY_KIND


# The command line, whose quick demo is quicker: it needs to show nothing here.
PROGRAM = """
from reelworks.commands.main import main
from reelworks.demo import walkthrough
walkthrough.QUICK_STEPS = 3
main()
"""


class Call(NamedTuple):
    """A verb with its arguments, and which of its shapes it prints."""

    verb: str
    arguments: str
    shape: int = 0
    slow: bool = False

    @property
    def words(self) -> list[str]:
        return [*self.verb.split(), *self.arguments.split(), "--json"]


# In this order, in one folder: `clips` is footage, `r.toml` trains on it, and `run` is what it trained.
CALLS = [
    Call("scan", "clips -o catalog"),
    Call("measure", "catalog --only exposure"),
    Call("caption", "clips --command pwd --list captioned.jsonl --overwrite"),
    Call("inspect", "catalog"),
    Call("catalog compact", "catalog"),
    Call("plan", "r.toml --epochs 2"),
    Call("plan", "r.toml other.toml --diff", 1),
    Call("plan", "staged.toml", 3),
    Call("plan", "staged.toml staged-2.toml --diff", 4),
    Call("unpack", "held.parquet -o unpacked"),
    Call("contact-sheet", "r.toml -o sheets --clips 1"),
    Call("check", "r.toml"),
    Call("doctor", ""),
    Call("tune", "r.toml --estimate --memory 8 --max-batch 1 -o tuned.json"),
    Call("encode run", "stored.toml"),
    Call("encode ls", "encoded"),
    Call("encode verify", "encoded"),
    Call("encode prune", "stored.toml"),
    Call("train", "r.toml"),
    Call("plan", "run --rejected left.csv", 2),
    Call("tune", "r.toml --from-run run -o costs.json", 1),
    Call("coverage", "run"),
    Call("learning", "run --sort path"),
    Call("replay", "run 1"),
    Call("report", "run --costs measured.json"),
    Call("compare", "run again"),
    Call("eval", "run --timesteps 2 --max-clips 2"),
    Call("generate", "run --prompt waves -o a.png --num-inference-steps 1"),
    Call("eval", "--generated clips --metric motion", 1),
    Call("eval", "run --checkpoints all --timesteps 1 --metric closeness-pixels", 2),
    Call("publish", "run --to anna/waves --dry-run --license apache-2.0"),
    Call("checkpoints ls", "run"),
    Call("checkpoints show", "run"),
    Call("checkpoints verify", "run --full"),
    Call("checkpoints pin", "run 2"),
    Call("checkpoints unpin", "run 2"),
    Call("checkpoints best", "run"),
    Call("checkpoints export", "run -o run.safetensors"),
    Call("lora average", "run -o averaged.safetensors"),
    Call("checkpoints prune", "run --set checkpoints.keep_last=1"),
    Call("checkpoints explain", "run 2"),
    Call("checkpoints explain", "run 4"),
    Call("import", "config.py -o imported.toml"),
    Call("lora info", "mine.safetensors"),
    Call("lora convert", "mine.safetensors --to comfyui -o comfyui.safetensors"),
    Call("lora merge", "mine.safetensors=0.7 mine.safetensors=0.5 -o merged.safetensors"),
    Call("lora resize", "mine.safetensors --rank 1 -o resized.safetensors"),
    Call("lora extract", "base.safetensors tuned.safetensors --model wan-tiny --rank 1 -o extracted.safetensors"),
    Call("lora apply", "base.safetensors mine.safetensors -o applied"),
    Call("new lora", "--model wan-tiny --data clips -o lora.toml", slow=True),
    Call("demo-data", "footage", slow=True),
    Call("demo-autoencoder", "seen pca.safetensors --seed 1", slow=True),
    Call("demo", "--quick", slow=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Footage and recipes."""
    place = tmp_path_factory.mktemp("json")
    places.link(place / "clips", testing.sample_folder())
    places.link(place / "again", "run")
    Catalog.scan(place / "clips", to=place / "seen")
    own = {
        "train": {"max_steps": 4, "threads": 1, "clip_losses": 4, "clip_losses_every": 2},
        "validation": {"split": 0.3, "every_steps": 2, "timesteps": [500.0], "max_clips": 2},
        "checkpoints": {"every_steps": 2, "keep_best": {"metric": "validation/loss"}},
        "samples": {"prompts": ["waves"], "num_frames": 1, "height": 32, "width": 48, "num_inference_steps": 1},
        "bucket": [
            {
                "resolution": "32px",
                "num_frames": [1, 5],
                "batch_size": [1, 1],
            }
        ],
    }
    values = tiny_recipe.changed(tiny_recipe.values("clips", "run"), own)
    (place / "r.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    (place / "other.toml").write_text(tomli_w.dumps(values | {"output": "other", "seed": 8}), encoding="utf-8")
    staged = [{"name": "one", "steps": 2}, {"name": "two", "clips": 5, "train": {"learning_rate": 1e-5}}]
    without_end = {key: value for key, value in values["train"].items() if key != "max_steps"}
    one_shape = [{"resolution": "32x32", "num_frames": 1, "batch_size": 1}]  # memory is estimated of each
    staged_values = values | {"output": "staged", "train": without_end, "stage": staged, "bucket": one_shape}
    (place / "staged.toml").write_text(tomli_w.dumps(staged_values), encoding="utf-8")
    (place / "staged-2.toml").write_text(tomli_w.dumps(staged_values | {"stage": staged[:1]}), encoding="utf-8")
    stored = values | {"output": "stored", "encode": {"store": True, "folder": "encoded"}}
    (place / "stored.toml").write_text(tomli_w.dumps(stored), encoding="utf-8")
    (place / "config.py").write_text(
        'bucket_config = {"144p": {1: (1.0, 4)}}\nmodel = dict(type="STDiT3-XL/2")\nlr = 1e999\n', encoding="utf-8"
    )
    pq.write_table(pa.table({"image": [next((place / "clips").rglob("*.mp4")).read_bytes()]}), place / "held.parquet")
    write_lora_files(place)
    return place


def write_lora_files(place: Path) -> None:
    """Write a LoRA of one layer of wan-tiny, and weights before and after a change of it."""
    generator = torch.Generator().manual_seed(0)
    base = {key: value.contiguous() for key, value in contract.build("wan-tiny").module.state_dict().items()}
    save_file(base, place / "base.safetensors")
    layer = next(key for key in base if key.endswith("attn1.to_q.weight"))
    rows, columns = base[layer].shape
    A, B = torch.randn(2, columns, generator=generator), torch.randn(rows, 2, generator=generator)
    name = f"transformer.{layer.removesuffix('.weight')}"
    header = {files.BASE: json.dumps({"model": "wan-tiny"})}  # else all networks there are would be built, to compare
    save_file({f"{name}.lora_A.weight": A, f"{name}.lora_B.weight": B}, place / "mine.safetensors", header)
    save_file(base | {layer: base[layer] + B @ A}, place / "tuned.safetensors")


@pytest.fixture(scope="module")
def answers() -> list[Result]:
    """Results of the quick calls so far, in their order."""
    return []


def called(call: Call, folder: Path, answers: list[Result], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a verb behind those that it builds upon, and return its value as JSON is meant to be read."""
    quick = [each for each in CALLS[: CALLS.index(call) + 1] if not each.slow]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(examine, "_TOKENS", 16)
    for each in quick[len(answers) :]:  # those before may have been left to another process
        answers.append(CliRunner().invoke(app, each.words))
    if call.slow:
        return strictly(typed(call.words, folder).stdout)
    result = answers[len(quick) - 1]
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return strictly(result.stdout)


def typed(words: list[str], folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, whose stdout is a file of the system."""
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=500, check=False, encoding="utf-8"
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def strictly(text: str) -> Any:
    """Read JSON without the words that Python alone takes."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "call",
    [pytest.param(c, id=f"{c.verb} {c.arguments}", marks=[pytest.mark.slow] if c.slow else []) for c in CALLS],
)
def test_a_verb_prints_its_shape(
    call: Call, folder: Path, answers: list[Result], schema: dict[str, Any], monkeypatch: Any
) -> None:
    value = called(call, folder, answers, monkeypatch)
    of_verb = schema["$defs"][call.verb]
    shape = of_verb["anyOf"][call.shape] if len(json_page.shapes()[call.verb]) > 1 else of_verb
    jsonschema.Draft202012Validator(shape | {"$defs": schema["$defs"]}).validate(value)
    assert value, "an empty list would fit anything"


def test_all_shapes_are_seen() -> None:
    every = {(verb, i) for verb, of_verb in json_page.shapes().items() for i in range(len(of_verb))}
    assert {(call.verb, call.shape) for call in CALLS} == every


def test_a_number_that_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    show.json({"a": [math.nan, {"b": -math.inf}], "c": json_page.Shape(1.5, "x")})
    assert strictly(capsys.readouterr().out) == {"a": [None, {"b": None}], "c": [1.5, "x"]}


ERROR = {"problem", "code", "field", "value", "remedy"}


@pytest.mark.parametrize("verb", sorted(verbs().keys() - WITHOUT_NUMBERS.keys()))
def test_what_is_not_understood_is_json_too(verb: str) -> None:
    done = CliRunner().invoke(app, [*verb.split(), "--no-such-option", "--json"])
    told = strictly(done.stdout)
    assert (done.exit_code, told.keys(), told["error"].keys()) == (2, {"error"}, ERROR)
    assert told["error"]["code"] == "command-line-invalid"
    assert "no-such-option" in told["error"]["problem"]
    assert "no-such-option" in done.stderr


@pytest.mark.parametrize("words", [["nonsense"], ["checkpoints", "nonsense"], []], ids=" ".join)
def test_a_verb_that_does_not_exist_is_told_in_json(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert (done.exit_code, strictly(done.stdout)["error"]["code"]) == (2, "command-line-invalid")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["checkpoints", "ls", "nowhere"], "no-run"),
        (["plan", "nowhere.toml"], "file-unreadable"),
        (["train"], "nothing-to-train"),
        (["publish", "nowhere", "--to", "name"], "repository-name-invalid"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_mistake_is_told_once_and_keeps_its_exit_code(
    words: list[str], code: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*words, "--json"])
    assert strictly(done.stdout)["error"]["code"] == code
    assert done.exception.code == code, "which `main` prints, and ends with code 2"  # type: ignore[union-attr]
    assert CliRunner().invoke(app, words).stdout == "", "without --json stdout is empty"


def test_a_defect_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(listing, "rows", broken)
    monkeypatch.setattr("reelworks.commands.checkpoints._open", lambda run: (None, None))
    done = CliRunner().invoke(app, ["checkpoints", "ls", "run", "--json"])
    assert strictly(done.stdout)["error"]["code"] == "defect"
    assert isinstance(done.exception, RuntimeError), "whose traceback is on stderr"


def test_of_several_processes_the_first_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "1")
    assert CliRunner().invoke(app, ["checkpoints", "ls", str(tmp_path), "--json"]).stdout == ""


def test_coverage_that_contradicts_itself_prints_one_value(
    folder: Path, answers: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    called(next(call for call in CALLS if call.verb == "coverage"), folder, answers, monkeypatch)
    cover = clip_history.cover
    wrong = ["segment 1: of the wrong plan"]
    monkeypatch.setattr(
        clip_history,
        "cover",
        lambda *of: replace(found := cover(*of), epochs=[replace(epoch, problems=wrong) for epoch in found.epochs]),
    )
    done = CliRunner().invoke(app, ["coverage", "run", "--json"])
    assert done.exit_code == 2
    assert strictly(done.stdout)["epochs"][0]["problems"] == wrong
    assert "segment 1: of the wrong plan" in done.stderr


@pytest.mark.slow
def test_training_prints_its_end_alone_and_its_steps_beside_it(folder: Path) -> None:
    """Of a mistake too, and of two processes; a command of a shell would read it."""
    done = typed(["train", "r.toml", "--output", "two", "--nproc-per-node", "2", "--json"], folder)
    told = strictly(done.stdout)
    assert (told["reason"], told["step"], told["checkpoint"]) == ("finished", 4, "two/checkpoints/step-000000004")
    assert told["metrics"].keys() == {"validation/loss"}
    assert "step 4/4" in done.stderr
    again = typed(["train", "r.toml", "--output", "two", "--resume", "never", "--json"], folder, code=2)
    assert strictly(again.stdout).keys() == {"error"}
    assert again.stderr.count("error:") == 1
