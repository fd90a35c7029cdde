"""VBench's names of files, and its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from refused import refused

from reelworks.core.errors import UserError
from reelworks.inference.evaluate import report
from reelworks.inference.generate import vbench_files, writers


def test_clips_have_the_names_that_vbench_looks_for(tmp_path: Path) -> None:
    listed = tmp_path / "VBench_full_info.json"
    entries = [
        {"prompt_en": "a cat, 4-5 times", "dimension": ["color"]},
        {"prompt_en": "a dog", "dimension": ["scene"]},
    ]
    listed.write_text(json.dumps([*entries, entries[0]]), encoding="utf-8")
    lines = tmp_path / "prompts.txt"
    lines.write_text("a cat, 4-5 times\n\n a dog \n", encoding="utf-8")
    prompts = vbench_files.prompts(listed, "--prompt-file")
    assert prompts == vbench_files.prompts(lines, "--prompt-file") == ["a cat, 4-5 times", "a dog"]
    files = vbench_files.files(tmp_path, prompts)
    assert {path.name for path in files} == {f"{prompt}-{i}.mp4" for prompt in prompts for i in range(5)}
    assert files[tmp_path / "a dog-3.mp4"] == ("a dog", 3)
    for prompt in ("a/b", "x" * 300, ".hidden"):
        with pytest.raises(UserError) as refused:
            vbench_files.files(tmp_path, [prompt])
        assert refused.value.code == "prompt-is-no-file-name"
    lines.write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="no prompt"):
        vbench_files.prompts(lines, "--prompt-file")


def test_prompts_of_a_windows_machine_are_the_same(tmp_path: Path) -> None:
    """A byte order mark and capitals in the suffix would make another picture of the first prompt, or of all."""
    (tmp_path / "a.txt").write_text("a cat\r\na dog", encoding="utf-8-sig")
    (tmp_path / "A.JSON").write_text('[{"prompt_en": "a cat"}, {"prompt_en": "a dog"}]', encoding="utf-8-sig")
    for name in ("a.txt", "A.JSON"):
        assert vbench_files.prompts(tmp_path / name, "--prompt-file") == ["a cat", "a dog"]
    (tmp_path / "A.JSON").write_text('[{"prompt_en": 5}]', encoding="utf-8")
    with refused("prompts-unreadable", "--prompt-file"):
        vbench_files.prompts(tmp_path / "A.JSON", "--prompt-file")


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (lambda path: vbench_files.prompts(path, "--prompt-file"), "prompts-unreadable"),
        (report.vbench_results, "vbench-unreadable"),
    ],
)
def test_a_file_that_is_not_there_is_told_in_the_words_of_the_system(
    read: Callable[[Path], object], code: str, tmp_path: Path
) -> None:
    with refused(code, says=r"\(No such file or directory\)"):
        read(tmp_path / "a.json")


@pytest.mark.parametrize("letter", ["x", "é"])
def test_the_longest_prompt_that_is_taken_can_be_written(letter: str, tmp_path: Path) -> None:
    most = next(n for n in range(255, 0, -1) if taken(tmp_path, letter * n))
    (file, *_) = vbench_files.files(tmp_path, [letter * most])
    writers.write(file, np.zeros((1, 16, 16, 3), np.uint8), 8.0)
    assert len(file.name.encode()) > 230


def taken(folder: Path, prompt: str) -> bool:
    try:
        return bool(vbench_files.files(folder, [prompt]))
    except UserError:
        return False


def test_results_of_vbench_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run_eval_results.json"
    by_clip = [{"video_path": f"videos/a dog-{i}.mp4", "video_results": i / 10} for i in range(3)]
    pairs = [{"video_path": "videos/a dog-0.mp4", "video_results": [0.1, 0.2]}]
    file.write_text(
        json.dumps({"subject_consistency": [0.93, by_clip], "human_action": [0.5, pairs]}), encoding="utf-8"
    )
    subject, action = report.vbench_results(file)
    assert (subject.name, subject.value, subject.clips) == ("vbench/subject_consistency", 0.93, 3)
    assert subject.by_clip["a dog-2"] == 0.2
    assert (action.value, action.by_clip) == (0.5, {})


@pytest.mark.parametrize(
    "text", ["[1, 2]", '{"color": []}', '{"color": ["high"]}', '{"color": 5}', '{"color": {}}', "{"]
)
def test_what_is_no_result_of_vbench_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run_eval_results.json").write_text(text, encoding="utf-8")
    with refused("vbench-unreadable", "--vbench"):
        report.vbench_results(tmp_path / "run_eval_results.json")
