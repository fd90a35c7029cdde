"""A server on this machine with the shape of the OpenAI chat API: what it answers, and all the ways in which it fails."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import media_makers as media
import pytest
from caption_server import Reply, Served, body, drip, hang_up, said, serving, slow
from captioned import clips, run, texts
from PIL import Image
from refused import refused

from reelworks.annexes.captions import record, server
from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.captioner import Answer, CaptionQuestion
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.annexes.captions.server import ServerCaptioner

QUESTION = CaptionQuestion("/data/a.mp4", "video", "What?", media.numbered(3, (48, 64)))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_WAITS_SECONDS", (0.01, 0.01))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def ask(served: Served, **options: Any) -> Answer | CaptionFailed:
    with serving(served) as url:
        (found,) = ServerCaptioner(CaptionRequest(data=("x",), server=url, **options)).answer([QUESTION])
    return found


def test_a_question_has_the_frames_as_data_uris_and_the_prompt() -> None:
    served = Served(said("a cat"))
    assert ask(served) == Answer("a cat")
    (asked,) = served.asked
    assert (asked["at"], asked["model"], asked["temperature"]) == ("/v1/chat/completions", "tiny", 0)
    *pictures, text = asked["messages"][0]["content"]
    assert text == {"type": "text", "text": "What?"}
    assert len(pictures) == 3
    url = pictures[1]["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as picture:
        assert picture.size == (64, 48)


def test_a_notebook_whose_thread_runs_an_event_loop_gets_an_answer() -> None:
    async def cell() -> Answer | CaptionFailed:
        return ask(Served(said("a cat")))

    with ThreadPoolExecutor(1) as notebook:  # this thread may have a loop already, of a browser of another test
        assert notebook.submit(lambda: asyncio.run(cell())).result() == Answer("a cat")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (body(b""), "empty"),
        (body(b"<html><body>Bad gateway</body></html>", kind="text/html"), "HTML"),
        (body(b"{not json"), "no JSON"),
        (body([]), "has no choices"),
        (body({"choices": []}), "has no choices"),
        (body({"choices": [{"message": {"content": 5}}]}), "no text"),
        (body({"choices": [{"message": {"content": None, "refusal": "No."}}]}), "refused: No."),
        (body({"error": "x"}, 400), "HTTP 400"),
        (body({}, 302, Location="http://127.0.0.1:9/"), "HTTP 302"),
        (body({"error": "busy"}, 503), r"HTTP 503.*3 tries"),
        (hang_up, r"does not answer.*3 tries"),
        (body({"choices": [{"message": {"content": ""}, "finish_reason": "length"}]}), "thought"),
    ],
)
def test_a_reply_that_is_none_is_a_reason(reply: Reply, reason: str) -> None:
    found = ask(Served(reply))
    assert isinstance(found, CaptionFailed)
    assert re.search(reason, str(found)), found


def test_transient_errors_are_tried_again() -> None:
    served = Served(body({}, 429, Retry_After="0"), hang_up, said("a cat"))
    assert ask(served) == Answer("a cat")
    assert len(served.asked) == 3


def test_a_server_is_waited_for_as_long_as_it_asks_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_WAIT_SECONDS", 0.2)
    for asked, least in (("0.1", 0.1), ("30", 0.2)):
        began = time.monotonic()
        assert ask(Served(body({}, 429, Retry_After=asked), said("a cat")), timeout=60.0) == Answer("a cat")
        assert least <= time.monotonic() - began < 25


def test_contents_in_parts_and_cut_answers_are_read() -> None:
    assert ask(Served(said([{"type": "text", "text": "a "}, {"type": "text", "text": "cat"}]))) == Answer("a cat")  # type: ignore[arg-type]
    assert ask(Served(said("a ca", finish_reason="length"))) == Answer("a ca", is_cut=True)


def test_parts_that_are_no_text_are_left_out() -> None:
    parts = [
        {"type": "reasoning", "text": "Hm."},
        {"type": "text", "text": None},
        "x",
        {"type": "output_text", "text": "a cat"},
    ]
    assert ask(Served(said(parts))) == Answer("a cat")  # type: ignore[arg-type]


def test_names_that_a_model_refuses_are_changed_once() -> None:
    refuses = body({"error": "use 'max_completion_tokens' instead"}, 400)
    served = Served(refuses, body({"error": "temperature is not supported"}, 400), said("a cat"))
    with serving(served) as url:
        asked = ServerCaptioner(CaptionRequest(data=("x",), server=url))
        assert asked.answer([QUESTION] * 2) == [Answer("a cat")] * 2
    assert "max_completion_tokens" in served.asked[-1]
    assert not {"max_tokens", "temperature"} & served.asked[-1].keys()
    assert len(served.asked) == 4


@pytest.mark.parametrize("late", [slow(20, said("a cat")), drip], ids=["silent", "dripping"])
def test_an_answer_has_a_limit_of_time(late: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_WAITS_SECONDS", ())
    began = time.monotonic()
    found = ask(Served(late), timeout=1.0)
    assert time.monotonic() - began < 15
    assert isinstance(found, CaptionFailed)
    assert "no reply within 1 s" in str(found)


def test_stop_ends_answers_that_are_waited_for() -> None:
    with serving(Served(slow(20, said("a cat")))) as url:
        asked = ServerCaptioner(CaptionRequest(data=("x",), server=url))
        threading.Timer(0.2, asked.stop).start()
        began = time.monotonic()
        (found,) = asked.answer([QUESTION])
        assert time.monotonic() - began < 10
    assert isinstance(found, CaptionFailed)
    assert str(found) == "stopped"


def test_a_wrong_server_is_told_before_anything_is_asked() -> None:
    def reach(**options: Any) -> None:
        ServerCaptioner(CaptionRequest(data=("x",), **options))

    with refused("server-unreachable", "server"):
        reach(server="http://127.0.0.1:9")
    for address in (
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://a..b/v1",
        f"http://{'a' * 64}/v1",
    ):
        with refused("server-address-invalid", "server"):
            reach(server=address)
    with refused("server-address-invalid", "server") as caught:
        reach(server="https://me:hidden@host/v1?key=hidden")
    assert "hidden" not in str(caught.value)
    with serving(Served(said("x"), models=("a", "b"))) as url:
        with refused("server-model-unknown", "model", says="a, b"):
            reach(server=url)
        reach(server=url, model="b")
        reach(server=f"{url}/übung/v1", model="b")


def test_keys_are_sent_and_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = clips(tmp_path / "data", 2)
    monkeypatch.setenv("MY_KEY", "key-4711")
    served = Served(body({"error": "Bearer key-4711 is unusual"}, 400), said("A cat."))
    with serving(served) as url:
        done = run(data, server=url, key_env="MY_KEY")
        assert [failed.reason.count("Bearer ...") for failed in done.failed] == [1]
        with refused("key-missing", "key_env"):
            run(data, server=url, key_env="NO_KEY", overwrite=True)
    assert {headers["Authorization"] for headers in served.headers} == {"Bearer key-4711"}
    assert "4711" not in (data / record.NAME).read_text(encoding="utf-8") + repr(done)


def test_the_usual_key_travels_only_encrypted_or_within_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-4711")

    def key(url: str, **options: Any) -> str | None:
        request = CaptionRequest(data=("x",), server=url, **options)
        return server._key(request, server._address(url))

    assert key("http://example.org/v1") is None
    assert key("https://example.org/v1") == key("http://127.0.0.1:1/v1") == "key-4711"
    assert key("http://example.org/v1", key_env="OPENAI_API_KEY") == "key-4711"


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("", "/v1"),
        ("/", "/v1"),
        ("/v1", "/v1"),
        ("/api/v2/", "/api/v2"),
        ("/v1/chat/completions", "/v1"),
        ("/v3/models", "/v3"),
        ("/übung", "/%C3%BCbung"),
        ("/a%20b", "/a%20b"),
    ],
)
def test_the_api_lies_below_the_given_address(path: str, below: str) -> None:
    assert server._address(f"http://h:8000{path}").path == below


def test_several_questions_are_asked_at_once(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 2)
    all_there = threading.Barrier(3, timeout=20)

    def when_all_are_there(handler: Any, asked: dict[str, Any]) -> None:
        all_there.wait()
        said("A cat.")(handler, asked)

    with serving(Served(when_all_are_there)) as url:
        assert run(data, server=url, workers=3).captioned == 3


def test_a_refused_key_ends_the_run(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 3)
    with serving(Served(said("A cat."), body({}, 401))) as url, refused("server-refuses-key", "server"):
        run(data, server=url)
    assert len(texts(data)) == 1  # what was answered stays


def test_a_flagged_clip_costs_itself_alone_once_the_key_was_taken(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 3)
    with serving(Served(said("A cat."), body({"error": "input was flagged"}, 403), said("A dog."))) as url:
        done = run(data, server=url)
    assert (done.captioned, len(done.failed)) == (3, 1)
    assert "HTTP 403" in done.failed[0].reason
    assert "flagged" in done.failed[0].reason
    with serving(Served(body({"error": "no credit"}, 403))) as url, refused("server-refuses-key", says="no credit"):
        run(data, server=url)


@pytest.mark.parametrize("status", [402, 403])
def test_a_server_that_refuses_all_further_clips_is_given_up(tmp_path: Path, status: int) -> None:
    data = clips(tmp_path / "data", 45)
    answers = Served(said("A cat."), body({"error": "no credit"}, status))
    with serving(answers) as url, refused("captioner-fails", says="no credit"):
        run(data, server=url, workers=1)
    assert len(list(data.glob("*.txt"))) == 1


def test_a_key_that_is_not_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-4711")
    monkeypatch.setattr(server, "_LOCAL", ())
    served = Served(body({}, 401))
    with serving(served) as url:
        asked = ServerCaptioner(CaptionRequest(data=("x",), server=url))
        with refused(
            "server-refuses-key", says="OPENAI_API_KEY is not sent without encryption.*--key-env OPENAI_API_KEY"
        ):
            asked.answer([QUESTION])
    assert [headers["Authorization"] for headers in served.headers] == [None, None]


def test_bad_answers_cost_their_clips_alone_and_the_same_command_asks_for_them_again(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", 6)
    bad = [
        body(b"<html>"),
        said(""),
        said("cat " * 30),
        said("I'm sorry, I can't help with that."),
        hang_up,
        hang_up,
        hang_up,
    ]
    served = Served(said("A cat."), *bad, said("A dog."))
    with serving(served) as url:
        first = run(data, server=url)
        assert sorted(failed.reason.partition(":")[0] for failed in first.failed) == [
            "the answer is empty",
            "the answer repeats itself",
            "the model refused",
            "the server does not answer",
            "the server's reply is HTML",
        ]
        assert sorted(texts(data).values()) == ["A cat.\n", "A dog.\n"]
        asked = len(served.asked)
        second = run(data, server=url, workers=4)
    assert (second.captioned, second.kept, second.failed) == (5, 2, ())
    assert len(served.asked) == asked + 5
