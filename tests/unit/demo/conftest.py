from __future__ import annotations

import pytest

from reelworks.demo import make, scenes
from reelworks.demo.make import DemoSummary
from reelworks.demo.scenes import Video


def one_of_each() -> list[Video]:
    """Return the first video, and the first of each format at whole and at other rates."""
    found: dict[object, Video] = {}
    for video in scenes.videos(0):
        found.setdefault((video.format, video.scene.fps.denominator > 1), video)
    return [*found.values()]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoSummary:
    """The demo's footage with one video of each kind, as all take long to make."""
    with pytest.MonkeyPatch.context() as patch:
        some = one_of_each()
        patch.setattr(scenes, "videos", lambda seed: some)
        return make.make(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def whole_demo(tmp_path_factory: pytest.TempPathFactory) -> DemoSummary:
    return make.make(tmp_path_factory.mktemp("whole"))
