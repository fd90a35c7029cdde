"""Lives through a few histories of `benchmarks.histories`: what people reported, each with other changes around it."""

import random

import pytest
from benchmarks._histories import draw, play, truth
from benchmarks._histories import start as starts
from benchmarks._histories.truth import Begin, End, Step

from reelworks.buckets.assign import Reason


def start(*changes, steps=2, **orders):
    named = [{"do": name, "seed": 1, **values} for name, values in changes]
    return {"changes": named, "end": {"by": "steps", "steps": steps}, **orders}


STORIES = {
    "exclude list, filter and split changed, run and data moved": [
        start(steps=3),
        start(
            ("exclude_list", {"files": ["f001", "f015"]}),
            ("filter", {"text": "height >= 24", "dataset": "a"}),
        ),
        start(("split", {"share": 0.25}), ("run_moved", {}), ("data_moved", {}), ("exclude_list", {"files": []})),
    ],
    "plans deleted, repeats changed": [
        start(("repeats", {"repeats": 2, "dataset": "a"}), steps=4),
        start(("plans_deleted", {}), ("repeats", {"repeats": 1, "dataset": "a"}), steps=3),
        start(("plans_deleted", {}), ("repeats", {"repeats": 3, "dataset": "b"}), steps=5),
    ],
    "added and damaged, with another seed and table": [
        start(steps=3),
        start(("add", {"number": 3}), ("damage", {"files": ["f002", "f004"]}), ("seed", {})),
        start(("buckets", {"table": "pictures"}), ("remove", {"files": ["f003", "f005"]}), ("heal", {})),
    ],
    "renamed, split, swapped": [
        start(steps=3),
        start(("rename", {"dataset": "a"}), ("edit", {"files": ["f001"]}), ("damage", {"files": ["f004"]})),
        start(("part", {"dataset": "b"}), steps=2),
        start(("swap", {}), ("catalog_deleted", {}), steps=9),
    ],
    "went back behind the end of an epoch": [
        start(steps=9),
        start(("seed", {}), resume=0),
        start(("catalog_deleted", {}), scratch=True),
    ],
    "killed inside saves": [
        {"changes": [], "end": {"by": "kill", "scope": "save", "call": 60, "half": 50}},
        {
            **start(("captions", {}), ("keep_prob", {})),
            "end": {"by": "kill", "scope": "any", "call": 70, "half": 1},
        },
        start(("remove", {"files": ["f006"]}), steps=4),
    ],
}


@pytest.fixture(scope="module", autouse=True)
def server():
    starts.serve()


def lived(history, tmp_path, **options):
    said = []
    verdict = play.play(history, tmp_path / "history", say=said.append, **options)
    return verdict, "\n".join(said)


# What they do to the clips of a run is done without trainings too, by test_schedule_histories and test_data_identity.
SLOW = (
    "added and damaged, with another seed and table",
    "exclude list, filter and split changed, run and data moved",
    "plans deleted, repeats changed",
    "renamed, split, swapped",
    "went back behind the end of an epoch",
)


@pytest.mark.parametrize(
    "story", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in STORIES]
)
def test_each_clip_has_the_account_that_it_should_have(tmp_path, story):
    verdict, said = lived({"seed": 13, "starts": STORIES[story], "after": []}, tmp_path)
    assert verdict.starts == len(STORIES[story])
    assert not verdict.problems, said


@pytest.mark.parametrize("number", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_random_histories_have_the_account_that_they_should_have(tmp_path, number):
    history = draw.draw(random.Random(f"quick-{number}"), worlds=False)
    verdict, said = lived(history, tmp_path)
    assert not verdict.problems, said


def another_fate(told):
    told["clips"][3]["epochs"][0]["became"] = "removed"
    return told


def one_clip_less(told):
    del told["clips"][5]
    return told


def another_step(told):
    clip = next(clip for clip in told["clips"] if clip["epochs"][0]["became"] == "trained")
    clip["epochs"][0]["step"] += 1
    return told


@pytest.mark.parametrize("lie", [another_fate, one_clip_less, another_step])
def test_a_wrong_account_is_seen(tmp_path, lie):
    history = {"seed": 13, "starts": [start(steps=2)], "after": []}
    verdict, said = lived(history, tmp_path, alter=lie)
    assert [problem.part for problem in verdict.problems] == [play.ACCOUNT], said


def test_wrong_training_is_seen():
    clips = [("f000", 0), ("f001", 0)]
    begin = Begin(0, (0, 0), 0, 0, dict.fromkeys(clips, Reason.NONE), frozenset(clips), frozenset())
    twice = [Step(n, (0, 0), 0, n - 1, {clips[0]: "trained"}) for n in (1, 2)]
    wrong = truth.wrong_training(truth.hold([begin, *twice, End(2, (0, 0))]))
    assert [line.partition(":")[0] for line in wrong] == ["trained twice", "never trained"]
    right = [Step(n, (0, 0), 0, n - 1, {clips[n - 1]: "trained"}) for n in (1, 2)]
    assert truth.wrong_training(truth.hold([begin, *right, End(2, (0, 0))])) == []
