"""Folders that a stranger prepared, and requests that no page of ours sends."""

import random

import pytest

from drills._borders import page


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow(reason="another folder"))])
def test_nothing_of_a_foreign_folder_runs_and_nobody_is_signalled(tmp_path, seed):
    assert page.foreign_folder(random.Random(seed), tmp_path) == []


@pytest.mark.slow
def test_no_request_is_answered_by_500(tmp_path):
    assert page.odd_requests(random.Random(0), tmp_path, count=300) == []
