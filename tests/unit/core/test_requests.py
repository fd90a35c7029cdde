"""Requests check their fields in one place, and the command line has an option for each of them."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from refused import refused

from reelworks.annexes.hub.request import PublishRequest
from reelworks.annexes.lora.request import (
    ApplyLorasRequest,
    AverageRunRequest,
    ConvertLoraRequest,
    ExtractLoraRequest,
    LoraInfoRequest,
    MergeLorasRequest,
    ResizeLoraRequest,
)
from reelworks.commands import main
from reelworks.core import requests
from reelworks.core.words import of_recipe
from reelworks.inference.evaluate.request import EvalRequest
from reelworks.inference.generate.request import GenerateRequest
from reelworks.quickstart.request import NewLoraRequest
from reelworks.training.loop.request import TrainRequest
from reelworks.training.memory.tune_request import TuneRequest
from reelworks.training.plan.plan_request import PlanRequest

# Each class of requests with its command, and the fields that it cannot do without.
REQUESTS: dict[type[Any], tuple[str, dict[str, Any]]] = {
    EvalRequest: ("eval", {"source": "runs/a"}),
    TrainRequest: ("train", {}),
    TuneRequest: ("tune", {"recipe": "a.toml"}),
    PlanRequest: ("plan", {"recipes": "a.toml"}),
    NewLoraRequest: ("new lora", {"model": "wan"}),
    PublishRequest: ("publish", {"source": "runs/a", "to": "anna/mug"}),
    GenerateRequest: ("generate", {"source": "runs/a", "output": "a.png", "prompts": ["a wave"]}),
    LoraInfoRequest: ("lora info", {"file": "a"}),
    ConvertLoraRequest: ("lora convert", {"file": "a", "to": "kohya", "output": "b"}),
    MergeLorasRequest: ("lora merge", {"files": ["a=0.7"], "output": "b"}),
    ResizeLoraRequest: ("lora resize", {"file": "a", "output": "b", "rank": 2}),
    ExtractLoraRequest: ("lora extract", {"base": "a", "tuned": "b", "output": "c", "rank": 2}),
    ApplyLorasRequest: ("lora apply", {"base": "a", "files": ["b"], "output": "c"}),
    AverageRunRequest: ("lora average", {"run": "runs/a", "output": "b"}),
}
FIELDS = [(kind, arg) for kind in REQUESTS for arg in requests.args_of(kind)]


@pytest.mark.parametrize("request_type", REQUESTS)
def test_a_command_has_an_option_for_each_field(request_type: type[Any]) -> None:
    """With its help, its bounds and its default, so that nothing is declared twice."""
    found = typer.main.get_command(main.app)
    for word in REQUESTS[request_type][0].split():
        found = found.get_command(typer.Context(found), word)  # type: ignore[attr-defined]
    options = {parameter.name: parameter for parameter in found.params}
    for arg in requests.args_of(request_type):
        option: Any = options[arg.name]
        assert option.help == arg.help
        assert not arg.is_option or arg.shown in option.opts
        assert getattr(option, "min", None) == arg.least
        assert getattr(option, "max", None) == arg.most
        assert option.default == (None if arg.default in ((), ...) else arg.default)


@pytest.mark.parametrize(("request_type", "arg"), FIELDS, ids=lambda value: getattr(value, "name", None))
def test_a_field_of_the_wrong_type_is_told_by_its_name(request_type: type[Any], arg: requests.Arg) -> None:
    """The library's words are the fields, and those of a command its options."""
    given = REQUESTS[request_type][1] | {arg.name: object()}
    with refused("argument-invalid", arg.name):
        request_type(**given)
    with of_recipe(), refused("argument-invalid", arg.shown):
        request_type(**given)


@pytest.mark.parametrize(("request_type", "arg"), FIELDS, ids=lambda value: getattr(value, "name", None))
def test_a_number_out_of_bounds_is_refused(request_type: type[Any], arg: requests.Arg) -> None:
    outside = [*([arg.least - 1] if arg.least is not None else []), *([arg.most + 1] if arg.most is not None else [])]
    for number in outside:
        with refused("argument-invalid", arg.name):
            request_type(**REQUESTS[request_type][1] | {arg.name: number})


@pytest.mark.parametrize("request_type", REQUESTS)
def test_what_means_the_same_is_read_alike(request_type: type[Any]) -> None:
    """A list is read as a tuple, one value as a tuple of one, and a text as a path."""
    made = request_type(**REQUESTS[request_type][1])
    assert made == request_type(**{arg.name: getattr(made, arg.name) for arg in requests.args_of(request_type)})
    assert hash(made) is not None
    assert GenerateRequest(source="a", output="b.png", prompts="a wave").prompts == ("a wave",)


def test_fields_that_do_not_go_together_are_told_in_the_caller_s_words() -> None:
    with refused("prompts-not-given", "prompts") as error:
        GenerateRequest(source="a", output="b.png")
    assert error.value.problem == "prompts come from prompts or from prompt_file"
    with of_recipe(), refused("prompts-not-given", "--prompt") as error:
        GenerateRequest(source="a", output="b.png", prompts=["a"], prompt_file="c.txt")
    assert error.value.problem == "prompts come from --prompt or from --prompt-file"


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({}, "what-to-evaluate", "source"),
        ({"source": "a", "generated": "b"}, "what-to-evaluate", "source"),
        ({"source": "a", "reference": "b"}, "key-without-effect", "reference"),
        ({"vbench": "a", "reference": "b"}, "key-without-effect", "reference"),
        ({"source": "a", "seed": 1}, "key-without-effect", "seed"),
        ({"source": "a", "prompts": "b"}, "key-without-effect", "prompts"),
        ({"source": "a", "checkpoints": "all", "step": 0}, "key-without-effect", "step"),
        ({"source": "a", "checkpoints": "all", "best": True}, "key-without-effect", "best"),
        ({"source": "a", "checkpoints": "all", "data_path": "b"}, "key-without-effect", "data_path"),
        ({"source": "a", "checkpoints": "all", "record": "b"}, "key-without-effect", "record"),
        ({"source": "a.toml", "checkpoints": "all"}, "what-to-evaluate", "checkpoints"),
        ({"source": "a.toml", "step": 0}, "recipe-without-checkpoints", "step"),
        ({"source": "a.toml", "best": True}, "recipe-without-checkpoints", "best"),
        ({"source": "a.toml", "raw_weights": True}, "recipe-without-checkpoints", "raw_weights"),
        ({"source": "a", "overrides": ["data.fps=8", "model.depth=2"]}, "setting-of-a-checkpoint", "overrides"),
    ],
)
def test_requests_to_evaluate_that_contradict_themselves(given: dict[str, Any], code: str, field: str) -> None:
    with refused(code, field):
        EvalRequest(**given)


def test_a_checkpoint_is_measured_as_one_of_its_own_stage() -> None:
    with refused(
        "setting-of-a-checkpoint", "overrides", says="of the stage that trained it.*choose a checkpoint of that stage"
    ):
        EvalRequest(source="a", overrides=["stage=first"])


def test_a_recipe_that_is_evaluated_takes_each_setting() -> None:
    assert EvalRequest(source="a.toml", overrides=["model.depth=2"]).is_recipe
