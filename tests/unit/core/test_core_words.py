from __future__ import annotations

import pytest
from pydantic import ValidationError

from reelworks.core import words
from reelworks.core.config import Config
from reelworks.core.errors import UserError, nearest
from reelworks.core.shape import Geometry, Shape


def test_an_error_names_field_value_and_remedy() -> None:
    error = UserError("must be positive", code="too-small", field="train.max_steps", value=0, remedy="give 1 or more")
    assert str(error) == "train.max_steps = 0: must be positive\n  remedy: give 1 or more"
    assert str(UserError("is needed", code="key-missing", field="train", remedy="add it")).startswith(
        "train: is needed"
    )
    assert str(UserError("no space", code="disk-full", remedy="free some")) == "no space\n  remedy: free some"


def test_the_nearest_word_or_all_of_them() -> None:
    known = ["keep_prob", "batch_size", "resolution"]
    assert nearest("kep_prob", known) == 'did you mean "keep_prob"?'
    assert nearest("xyz", known) == "known: batch_size, keep_prob, resolution"
    assert nearest("stdit3_TINY", ["STDiT3-tiny", "other"]) == 'did you mean "STDiT3-tiny"?', "as it is spelt"


@words.named(output="target")
def _refuse(field: str | None) -> None:
    raise UserError("is there already", code="file-exists", field=field, remedy="name another one")


@pytest.mark.parametrize(("field", "argument"), [("output", "target"), ("dtype", "dtype"), (None, None)])
def test_an_argument_of_another_name_is_told_by_it_and_of_a_recipe_by_its_key(
    field: str | None, argument: str | None
) -> None:
    with pytest.raises(UserError) as told:
        _refuse(field)
    assert told.value.field == argument
    with words.of_recipe(), pytest.raises(UserError) as told:
        _refuse(field)
    assert told.value.field == field


@pytest.mark.parametrize(
    ("rule", "taken", "refused"),
    [
        ((1, 0), [1, 2, 3, 17], []),
        ((4, 1), [1, 5, 9, 49], [2, 4, 8]),
        ((8, 1), [1, 9, 17], [8, 16]),
        ((8, 0), [1, 8, 16], [2, 7, 9]),
        ((0, 1), [1], [2, 5, 17]),
    ],
)
def test_frame_rules(rule: tuple[int, int], taken: list[int], refused: list[int]) -> None:
    geometry = Geometry((1, 8, 8), (1, 2, 2), rule)
    assert all(geometry.accepts_frames(n) for n in taken)
    assert not any(geometry.accepts_frames(n) for n in refused)


@pytest.mark.parametrize(
    ("shape", "field", "remedy"),
    [
        (Shape(17, 65, 96), "h", "use 64"),
        (Shape(17, 3, 96), "h", "use 8"),
        (Shape(17, 64, 101), "w", "use 104"),
        (Shape(18, 64, 96), "t", "use 17"),
        (Shape(23, 64, 96), "t", "use 25"),
        (Shape(2, 64, 96), "t", "use 1"),
        (Shape(18, 65, 101), "h", "use 64"),
    ],
)
def test_a_shape_without_a_latent_is_refused_with_the_nearest_that_has_one(
    shape: Shape, field: str, remedy: str
) -> None:
    with pytest.raises(UserError) as caught:
        Geometry((4, 8, 8), (1, 2, 2), (8, 1)).require(shape, ("t", "h", "w"))
    assert (caught.value.field, caught.value.remedy) == (field, remedy)


@pytest.mark.parametrize(("height", "width", "taken"), [(8, 24, True), (72, 104, True), (72, 100, False)])
def test_sizes_fill_strides_and_need_not_fill_patches(height: int, width: int, taken: bool) -> None:
    try:
        Geometry((4, 8, 8), (1, 2, 2), (8, 1)).require(Shape(17, height, width), ("t", "h", "w"))
        refused = False
    except UserError:
        refused = True
    assert refused != taken


@pytest.mark.parametrize("rule", [(1, 0), (4, 1), (8, 1), (8, 0), (4, 3), (0, 1)])
def test_the_nearest_frame_count_is_taken_and_none_is_nearer(rule: tuple[int, int]) -> None:
    geometry = Geometry((1, 8, 8), (1, 2, 2), rule)
    taken = [n for n in range(1, 60) if geometry.accepts_frames(n)]
    for frames in range(1, 40):
        near = geometry.nearest_frames(frames)
        assert near in taken
        assert abs(near - frames) == min(abs(n - frames) for n in taken)


def test_latents_and_tokens_round_up() -> None:
    geometry = Geometry(stride=(4, 8, 8), patch=(1, 2, 2))
    assert geometry.multiple == (16, 16)
    assert geometry.latent(Shape(17, 48, 64)) == (5, 6, 8)
    assert geometry.tokens(Shape(17, 48, 64)) == 5 * 3 * 4
    assert geometry.tokens(Shape(1, 40, 64)) == 1 * 3 * 4
    assert str(Shape(17, 48, 64)) == "64×48, 17 frames"
    assert str(Shape(1, 48, 64)) == "64×48"


class Example(Config):
    steps: int = 1
    rate: float = 0.5


def test_configs_are_strict_and_frozen() -> None:
    assert Example(rate=1).rate == 1.0
    for wrong in ({"steps": "3"}, {"steps": True}, {"rate": float("nan")}, {"step": 1}):
        with pytest.raises(ValidationError):
            Example.model_validate(wrong)
    with pytest.raises(ValidationError, match="frozen"):
        Example().steps = 2
