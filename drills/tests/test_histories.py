"""Lives through a few histories of `drills.histories`: what people reported, each with other changes around it."""

import json
import random

import pytest

from drills._histories import account, draw, play, truth
from drills._histories import start as starts
from drills._histories.truth import Began, Begin, End, Reopened, Step
from reelworks.data.buckets.assign import Reason


def start(*changes, steps=2, **orders):
    named = [{"do": name, "seed": 1, **values} for name, values in changes]
    return {"changes": named, "end": {"by": "steps", "steps": steps}, **orders}


STORIES = {
    "exclude list, filter and split changed, run and data moved": [
        start(steps=3),
        start(("exclude_list", {"files": ["f001", "f015"]}), ("filter", {"text": "height >= 24", "dataset": "a"})),
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
    "data begun again while a segment had no step left, and its clips moved": [
        start(steps=3),
        {**start(("add", {"number": 3})), "end": {"by": "kill", "scope": "save", "call": 29, "half": 50}},
        start(("catalog_deleted", {}), ("part_below", {}), scratch=True),
    ],
    "near-duplicates count once, then in turn, with others added and other ranks": [
        start(("duplicates", {"how": "best"}), steps=3),
        start(("add", {"number": 3}), ("scores", {}), ("duplicates", {"how": "weight"}), steps=2),
        start(("remove", {"files": ["f002", "f005"]}), ("scores", {}), steps=6),
        start(("duplicates", {"how": "keep"}), ("seed", {})),
    ],
    "killed inside saves": [
        {"changes": [], "end": {"by": "kill", "scope": "save", "call": 60, "half": 50}},
        {**start(("captions", {}), ("keep_prob", {})), "end": {"by": "kill", "scope": "any", "call": 70, "half": 1}},
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
    "data begun again while a segment had no step left, and its clips moved",
    "plans deleted, repeats changed",
    "renamed, split, swapped",
    "went back behind the end of an epoch",
    "near-duplicates count once, then in turn, with others added and other ranks",
    "killed inside saves",
)


@pytest.mark.parametrize(
    "story", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in STORIES]
)
def test_each_clip_has_the_account_that_it_should_have(tmp_path, story):
    verdict, said = lived({"seed": 13, "starts": STORIES[story], "after": []}, tmp_path)
    assert verdict.starts == len(STORIES[story])
    assert not verdict.problems, said


@pytest.mark.parametrize("number", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
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
@pytest.mark.slow
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


def begun(clips, *, at=0, epoch=0, segment=0, names=None):
    due = dict.fromkeys([(clip, 0) for clip in clips], Reason.NONE)
    return Begin(at, (0, epoch), segment, 0, due, frozenset(due), frozenset(), names or {})


def taken(number, *clips, segment=0):
    return Step(number, (0, 0), segment, 0, {(clip, 0): "trained" for clip in clips})


ENDED = [Began(None), begun(["f0"]), taken(1, "f0"), End(1, (0, 0)), Began(1)]
EMPTY = [begun([], at=1, segment=1), End(1, (0, 0)), begun(["f0"], at=1, epoch=1), Began(1)]
MORE = begun(["f1"], at=1, segment=1)


@pytest.mark.parametrize(
    ("after", "has_ended"),
    [
        ([begun(["f0"], at=1)], True),
        ([MORE], False),
        ([*EMPTY, MORE], False),
        ([*EMPTY, MORE, taken(2, "f1", segment=1), End(2, (0, 0))], True),
        ([MORE, Began(1), begun(["f0"], at=1)], True),
    ],
)
def test_an_epoch_has_ended_if_the_plan_that_it_follows_came_to_its_end(after, has_ended):
    assert ((0, 0) in truth.hold([*ENDED, *after]).ended) == has_ended


@pytest.mark.parametrize(("segment", "left"), [(None, ["f0", "f1"]), (2, ["f0", "f1"]), (1, ["f0"])])
def test_a_segment_that_makes_place_for_another_is_void_unless_a_step_of_it_holds(segment, left):
    """A start that was killed before the other one was there has removed what no step holds of."""
    begins = [begun(["f0"]), taken(1, "f0"), begun(["f1"], at=1, segment=1), taken(2, "f1", segment=1), Began(1)]
    held = truth.hold([*begins, Reopened((0, 0), segment)])
    assert [clip for begin in held.begins for clip, _ in begin.live] == left
    assert len(truth.hold([*begins[:-1], Reopened((0, 0), segment)]).begins) == 2


def noted(folder, rank, *lines):
    at = {"data_restarts": 0, "epoch": 0, "segment": 0, "plan_step": 0}
    text = "".join(json.dumps({"what": what, **at, **fields}) + "\n" for what, fields in lines)
    (folder / f"rank-{rank}.jsonl").write_text(text, encoding="utf-8")


def share(step, path):
    return "share", {"step": step, "items": [[path, 0, 0, "counts"]]}


def step(number):
    return "step", {"step": number, "applied": True}


@pytest.mark.parametrize("killed", [0, 1])
def test_a_step_that_any_rank_took_has_the_clips_of_a_rank_that_was_killed_before_it_took_it(tmp_path, killed):
    """The clips of the step that no rank took any more are those of none."""
    noted(tmp_path, killed, share(1, "of the killed"), share(2, "lost"))
    noted(tmp_path, 1 - killed, share(1, "of the other"), step(1), share(2, "lost too"))
    (only,) = truth.read(tmp_path, {}, frozenset(), {})
    assert only.step == 1
    assert only.items == {("of the killed", 0): "trained", ("of the other", 0): "trained"}


def test_a_name_that_went_from_one_file_to_another_and_back_tells_them_apart():
    """The names of two datasets are swapped twice, and one of two files of the same name was removed in between."""
    before = begun(["f0", "f1"], names={"f0": "a/same", "f1": "b/same"})
    swapped = begun(["f1"], at=1, segment=1, names={"f1": "a/same"})
    back = begun(["f1"], at=2, segment=2, names={"f1": "b/same"})
    held = truth.hold([before, Began(1), swapped, Began(2), back])
    assert held.names == {"f0": "a/same", "f1": "b/same"}

    def told(*paths):
        epochs = [{"data_restarts": 0, "epoch": 0, "adds_up": True}]
        fates = {"a/same": "removed", "b/same": "not_yet"}
        clips = [
            {"path": path, "uid": uid, "copy": 0, "epochs": [{**epochs[0], "became": fates[path]}]}
            for uid, path in enumerate(paths)
        ]
        return {"epochs": epochs, "clips": clips}

    assert account.differences(told("a/same", "b/same"), held) == []
    (lacks,) = account.differences(told("b/same"), held)
    assert lacks.startswith("removed is not told")
    (strange,) = account.differences(told("a/same", "b/same", "b/same"), held)
    assert strange.startswith("a clip that no file is: b/same")
