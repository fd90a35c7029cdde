import base64
import errno
import json
import re
import subprocess
import sys
from pathlib import Path

import fabricate
import places
import pytest
from parsed import Page
from refused import refused

from reelworks.core import files, storage
from reelworks.data.run.folder import RunFolder
from reelworks.reports import html


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fabricate.make(tmp_path_factory.mktemp("runs") / places.name("demo & <run>"))


@pytest.fixture(scope="module")
def text(run):
    return html.write(run).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_is_well_formed_and_whole(run, page):
    assert run.report_file.is_file()
    assert page.open == []
    for heading in ("Curves", "Previews", "Buckets", "Coverage", "Checkpoints", "Timeline"):
        assert heading in page.words


def test_a_run_that_may_only_be_read_has_its_report_elsewhere(run, text, tmp_path):
    def refuse(call, path):
        if run.path in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied")

    with storage.guarded(refuse):
        with refused("file-unwritable", "--output", says="a place that is writable"):
            html.write(run)
        elsewhere = html.write(run, tmp_path / "new" / "report.html")
    assert elsewhere == tmp_path / "new" / "report.html"
    assert elsewhere.read_text(encoding="utf-8").count("<section") == text.count("<section")


def test_nothing_is_loaded_from_outside(page):
    assert page.loads_nothing()
    css = (Path(html.__file__).parent / "style.css").read_text(encoding="utf-8")
    assert "url(" not in css
    assert "@import" not in css


def test_what_files_say_is_shown_and_never_run(text, page):
    assert "<script>alert" not in text
    assert fabricate.HOSTILE in page.words
    assert "raw/<b>broken</b>.mp4" in page.words
    assert places.name("demo & <run>") in page.words
    assert 'name = "<i>demo</i>"' in page.words
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert not any(tag in ("b", "i") and "broken" in str(attributes) for tag, attributes in page.tags)


def test_plotly_is_embedded_once(text):
    assert text.count("plotly.js v") == 1


def test_previews_are_embedded_newest_first_and_decode_to_their_files(run, page):
    shown = [attributes for tag, attributes in page.tags if tag in ("video", "img")]
    assert len(shown) == 5 * len(fabricate.PROMPTS)
    newest = run.samples_folder / "step-000000300" / "00.mp4"
    assert base64.b64decode(shown[0]["src"].removeprefix("data:video/mp4;base64,")) == newest.read_bytes()
    assert {"autoplay", "loop", "muted"} <= set(shown[0])
    assert shown[3]["alt"] == fabricate.PROMPTS[3]
    assert page.words.index("step 300 ") < page.words.index("step 240 ")


def test_every_number_of_the_headline_is_there(page):
    for words in (
        "Clips scanned 73 51 videos, 22 images", "Planned 64 13 steps an epoch", "Held out 4",
        "Rejected 5 1 unreadable", "Steps 300 50 repeated after resumes", "Epochs 23", "2 resumes",
        "Waiting for clips 10.0 %", "Decoding of a clip 12 ms 99th percentile 340 ms; 123 MB decoded ahead",
        "Validation loss 0.3000 from 0.6920 (−57 %) over 5 validations", "Best checkpoint step 300",
        "reached max_steps", "every scanned clip is accounted for 73 = 64 + 4 + 3 + 1 + 1",
    ):  # fmt: skip
        assert words in page.words, words


def test_rejected_and_failed_clips_are_named(page):
    for words in (
        "shots/002.mp4 no text beside it", "moov atom not found", "shots/v3.mp4",
        "9 frames, the nearest bucket takes 17", "shots/012.mp4 packet is corrupt",
    ):  # fmt: skip
        assert words in page.words, words


def test_checkpoints_say_why_they_stayed_or_went(page):
    kept, deleted = page.words.split(" Deleted step ")
    assert "the newest, the best by validation/loss (0.3)" in kept
    assert deleted.count("not among the last 2") == 4
    assert "not in the folder" not in page.words


def test_figures_are_json_that_a_browser_and_plotly_take(page):
    import plotly.graph_objects as go

    def refuse(name):
        raise AssertionError(name)

    figures = json.loads(page.scripts[0], parse_constant=refuse)
    css = (Path(html.__file__).parent / "style.css").read_text(encoding="utf-8")
    assert set(figures) == {
        "loss",
        "validation",
        "loss-by-bucket",
        "throughput",
        "data-wait",
        "learning-rate",
        "grad-norm",
        "loss-by-timestep",
        "grad-norm-by-block",
    }
    for name, figure in figures.items():
        tokens = set(re.findall(r'"@(\w+)"', json.dumps(figure)))
        assert tokens
        assert all(css.count(f"--{token}:") >= 2 for token in tokens), "each colour has a light and a dark value"
        go.Figure(json.loads(re.sub(r'"@\w+"', '"#123456"', json.dumps(figure))))
        assert f"plot-{name}" in {attributes.get("id") for _, attributes in page.tags}


def test_a_run_that_has_only_just_begun_has_a_report(tmp_path):
    run = RunFolder(tmp_path / "young")
    run.create()
    page = Page(html.write(run).read_text(encoding="utf-8"))
    assert "not started" in page.words
    assert "young" in page.words
    assert not any(tag == "video" for tag, _ in page.tags)


def test_torn_and_missing_files_do_not_stop_the_report(tmp_path):
    run = fabricate.make(tmp_path / "torn", steps=20, every=10, crash_at=15)
    (run.samples_folder / "step-000000020" / "00.mp4").unlink()
    (run.plan_folder / "summary.json").write_text('{"catalog": ', encoding="utf-8")
    with run.events_file.open("a", encoding="utf-8") as f:
        f.write('{"v": 1, "kind": "ste')
    page = Page(html.write(run).read_text(encoding="utf-8"))
    assert "file is missing" in page.words
    assert "Steps 20" in page.words
    assert "Buckets" not in page.words


@pytest.mark.slow
def test_gpus_that_share_a_clip_are_a_column_where_there_are_several(text, tmp_path):
    run = fabricate.make(tmp_path / "shared", steps=20, every=10)
    file = run.plan_folder / "summary.json"
    summary = json.loads(file.read_text(encoding="utf-8"))
    summary["buckets"][0]["sequence_degree"] = 2
    file.write_text(json.dumps(summary), encoding="utf-8")
    assert [">GPUs</th>" in one for one in (text, html.write(run).read_text(encoding="utf-8"))] == [False, True]


def test_a_preview_outside_its_folder_is_not_embedded(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create()
    (tmp_path / "secret.png").write_bytes(b"secret")
    event = {"v": 1, "time": 1.0, "kind": "samples", "step": 1, "files": ["../../secret.png"], "prompts": ["x"]}
    files.append_json_line(run.events_file, event)
    page = Page(html.write(run).read_text(encoding="utf-8"))
    assert "file is missing" in page.words
    assert base64.b64encode(b"secret").decode() not in run.report_file.read_text(encoding="utf-8")


def test_a_folder_without_a_run_is_an_error_with_a_remedy(tmp_path):
    with refused("no-run", "RUN"):
        html.write(RunFolder(tmp_path))


@pytest.mark.slow
def test_the_report_needs_no_torch(tmp_path):
    RunFolder(tmp_path / "r").create()
    code = (
        "import sys, pathlib; from reelworks.reports import html; from reelworks.data.run.folder import RunFolder;"
        f"html.write(RunFolder(pathlib.Path({str(tmp_path / 'r')!r}))); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_spikes_are_shown_with_clips_and_what_to_do(run, page):
    """The newest checkpoint on disk that is older than the spike is named; the page of a calm run has no such part."""
    assert "Spikes" in page.words
    for text in ("8.25", "<i>0</i>.mp4", "and 2 more in events.jsonl"):
        assert text in page.words
    assert "--output DIR --set 'train.skip_steps=[[140, 140]]'" in page.words, "both older checkpoints are deleted"
