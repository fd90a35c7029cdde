"""Ask a server that speaks the OpenAI chat API: vLLM, llama.cpp, LM Studio, or one on the internet."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, final

import httpx2

from reelworks.annexes.captions import frames
from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.captioner import Answer, CaptionQuestion, OneByOne
from reelworks.annexes.captions.request import DEFAULT_KEY, CaptionRequest
from reelworks.core import retry
from reelworks.core.errors import UserError

_WAITS_SECONDS = (1.0, 4.0, 15.0)  # before each further try
_MOST_WAIT_SECONDS = 60.0  # that a server may ask for
_OF_QUESTION = frozenset({400, 403, 413, 422})  # that the server may give for one question, such as a flagged picture
_MOST_ALIKE = 20  # such answers in a row with the same words, after which they are no more about single questions
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MOST_BYTES = 4 << 20  # of a reply
_TOKENS = 1024
_FIRST_CONTACT_SECONDS = 10.0
_LOCAL = ("localhost", "127.0.0.1", "::1")


class _Reply(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def text(self) -> str:
        """Its beginning, in one line."""
        return " ".join(self.body[:400].decode(errors="replace").split())[:160]


class _Lost(Exception):  # noqa: N818
    """No reply came; the message is the reason."""


@final
class ServerCaptioner(OneByOne):
    """Captions by a server; each question is a request of its own, with frames as JPEG in data URIs."""

    def __init__(self, request: CaptionRequest) -> None:
        """Reach the server, and find out the model's name if none is given.

        Raises:
            UserError: It does not answer, does not take the key, or has several models.
        """
        super().__init__()
        assert request.server is not None
        self._given, self._address = request.server, _address(request.server)
        self._key, self._timeout = _key(request, self._address), request.timeout
        self._certificates = ssl.create_default_context()
        self._changed = threading.Lock()
        self._waiting = set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]]()
        # Names and values that some models refuse, which is learned from their first answer.
        self._limit: dict[str, Any] = {"max_tokens": _TOKENS}
        self._sampling: dict[str, Any] = {"temperature": 0}
        self._has_answered = False
        self._refusal, self._alike = "", 0
        self._model = self._reach(request.model)

    @property
    def about(self) -> dict[str, Any]:
        """Address and model."""
        return {"server": self._given, "model": self._model}

    def stop(self) -> None:
        """Cancel all requests, so that waiting answers fail at once."""
        with self._changed:
            self._stopped.set()
            for loop, task in self._waiting:
                loop.call_soon_threadsafe(task.cancel)

    def _reach(self, named: str | None) -> str:
        try:
            reply = self._send("GET", "/models", None, _FIRST_CONTACT_SECONDS)
        except _Lost as error:
            raise UserError(
                f"the server does not answer ({error})",
                code="server-unreachable",
                field="server",
                value=self._given,
                remedy="start it, and check host, port and the path, which mostly ends in /v1",
            ) from error
        self._refuse_key(reply)
        if named is not None:
            return named
        found = _json(reply)
        listed = found.get("data") if isinstance(found, dict) else None
        ids = [one.get("id") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        models = [name for name in ids if isinstance(name, str)]
        if len(models) != 1:
            known = f"it has {', '.join(models[:5])}" if models else "it names none"
            raise UserError(
                f"the server does not have one model ({known})",
                code="server-model-unknown",
                field="model",
                remedy="name the model that is to be asked with --model",
            )
        return models[0]

    def _refuse_key(self, reply: _Reply) -> None:
        """End the run where the key is refused; once it was taken, 403 tells of a question that is not answered."""
        if reply.status != 401 and (reply.status != 403 or self._has_answered):
            return
        what = "does not take the key" if self._key else "asks for a key"
        remedy = f"put a key into the environment variable {DEFAULT_KEY}, or name another one with --key-env"
        if self._key is None and os.environ.get(DEFAULT_KEY, "").strip():
            what += f", and that of {DEFAULT_KEY} is not sent without encryption"
            remedy = f"give an address of https, or --key-env {DEFAULT_KEY}, which sends it all the same"
        raise UserError(
            f"the server {what} (HTTP {reply.status}{f': {reply.text}' if reply.text else ''})",
            code="server-refuses-key",
            field="server",
            value=self._given,
            remedy=remedy,
        )

    def ask(self, question: CaptionQuestion) -> Answer:
        """Send one question; transient errors are tried again after a pause."""
        as_text = (base64.b64encode(frames.as_jpeg(frame)).decode() for frame in question.frames)
        pictures = [{"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{text}"}} for text in as_text]
        content = [*pictures, {"type": "text", "text": question.prompt}]
        body = {"model": self._model, "messages": [{"role": "user", "content": content}], "stream": False}
        problem = ""
        for wait in (*_WAITS_SECONDS, None):
            try:
                reply = self._send_adapted(body)
                if reply.status == 200:
                    self._has_answered, self._alike = True, 0
                    return _answer(reply)
                problem = f"the server answers HTTP {reply.status}: {reply.text}"
                pause = retry.asked_seconds({name.lower(): text for name, text in reply.headers.items()})
                self._refuse_key(reply)
                if reply.status == 404:
                    raise UserError(
                        f"the server has no such model, or no chat API at this address ({reply.text})",
                        code="server-model-unknown",
                        field="model",
                        value=self._model,
                        remedy="check --model, and that the address mostly ends in /v1",
                    )
                if reply.status not in _RETRIED:
                    raise CaptionFailed(problem, of_clip=self._is_of_question(reply.status, problem))
            except _Lost as error:
                problem, pause = f"the server does not answer: {error}", None
            if wait is None or self._stopped.wait(min(max(wait, pause or 0.0), _MOST_WAIT_SECONDS)):
                break
        raise CaptionFailed("stopped" if self._stopped.is_set() else f"{problem} ({len(_WAITS_SECONDS) + 1} tries)")

    def _is_of_question(self, status: int, problem: str) -> bool:
        """Tell whether a refusal is about one question, of a server that has answered others."""
        self._alike = self._alike + 1 if problem == self._refusal else 1
        self._refusal = problem
        return self._has_answered and status in _OF_QUESTION and self._alike < _MOST_ALIKE

    def _send_adapted(self, body: dict[str, Any]) -> _Reply:
        """Send a question; where a model refuses the limit's name or the temperature, leave these as it wants them."""
        for _ in range(3):
            data = json.dumps(body | self._limit | self._sampling).encode()
            reply = self._send("POST", "/chat/completions", data, self._timeout)
            text = reply.body[:2000].decode(errors="replace") if reply.status in (400, 422) else ""
            if "max_completion_tokens" in text and "max_tokens" in self._limit:
                self._limit = {"max_completion_tokens": _TOKENS}
            elif "temperature" in text and self._sampling:
                self._sampling = {}
            else:
                break
        return reply

    def _send(self, method: str, path: str, data: bytes | None, timeout: float) -> _Reply:
        """Send a request and read the whole reply; raise `_Lost` if there is none within the time."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "reelworks"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        at = self._address
        request = httpx2.Request(method, at._replace(path=at.path + path).geturl(), headers=headers, content=data)
        try:
            reply = _ended(self._exchange(request, timeout))
        except TimeoutError as error:
            raise _Lost(f"no reply within {timeout:g} s") from error
        except asyncio.CancelledError as error:
            raise _Lost("stopped") from error
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            raise _Lost(_first_cause(error)) from error
        if self._key is not None:  # which a server may repeat in an error
            return reply._replace(body=reply.body.replace(self._key.encode(), b"..."))
        return reply

    async def _exchange(self, request: httpx2.Request, timeout: float) -> _Reply:
        """Send a request; the time counts for the whole, since a reply that drips would never time out otherwise."""
        task = asyncio.current_task()
        assert task is not None
        waiting = (asyncio.get_running_loop(), task)
        with self._changed:
            if self._stopped.is_set():
                raise _Lost("stopped")
            self._waiting.add(waiting)
        try:
            async with asyncio.timeout(timeout), self._client() as client:
                response = await client.send(request, stream=True)
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise _Lost("its reply does not end")
                return _Reply(response.status_code, response.headers, body)
        finally:
            with self._changed:
                self._waiting.discard(waiting)

    def _client(self) -> httpx2.AsyncClient:
        """Return a client that trusts this machine's certificates and goes through its proxy, as other programs do."""
        host, scheme = self._address.hostname or "", self._address.scheme
        proxy = urllib.request.getproxies().get(scheme)
        if proxy is not None:
            is_direct = host in _LOCAL or urllib.request.proxy_bypass(host)
            proxy = None if is_direct else f"http://{proxy.rpartition('://')[2]}"
        return httpx2.AsyncClient(proxy=proxy, trust_env=False, verify=self._certificates, timeout=None)


def _ended(exchange: Coroutine[Any, Any, _Reply]) -> _Reply:
    """Return what an exchange ends with, also in a notebook, whose thread runs an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(exchange)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, exchange).result()


def _first_cause(error: BaseException) -> str:
    """Return why a connection failed as the system says it, which libraries hide under words of their own."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    return str(error) or type(error).__name__


def _address(given: str) -> urllib.parse.SplitResult:
    """Return the address below which the API lies; refuse what is none, or holds a password or a key."""
    try:
        at = urllib.parse.urlsplit(given.strip())
        _ = at.port  # which is only looked at now
        (at.hostname or "").encode("idna")  # as a connection does
    except ValueError as error:
        raise _wrong(given, f"this is no address ({error})") from error
    if at.username is not None or at.query or at.fragment:
        raise _wrong(
            given,
            "names, passwords and keys do not belong into the address, which is kept in the record",
            "put the key into an environment variable, and name that with --key-env",
        )
    if at.scheme not in ("http", "https") or not at.hostname:
        raise _wrong(given, "this is no address of http or https")
    path = re.sub(r"/(chat/completions|models)?$", "", at.path.rstrip("/")).rstrip("/")
    return at._replace(path=urllib.parse.quote(path, safe="/%:@!$&'()*+,;=") or "/v1")


def _wrong(given: str, problem: str, remedy: str = "give an address such as http://localhost:8000/v1") -> UserError:
    shown = re.sub(r"//[^/]*@", "//…@", given).partition("?")[0].partition("#")[0]
    return UserError(problem, code="server-address-invalid", field="server", value=shown, remedy=remedy)


def _key(request: CaptionRequest, address: urllib.parse.SplitResult) -> str | None:
    """Return the key; that of the default variable never travels unencrypted to another machine."""
    name = request.key_env or DEFAULT_KEY
    key = os.environ.get(name, "").strip()
    if request.key_env is None and address.scheme == "http" and address.hostname not in _LOCAL:
        return None
    if not key and request.key_env is not None:
        raise UserError(
            "this environment variable is not set, or empty",
            code="key-missing",
            field="key_env",
            value=name,
            remedy="export it in this shell, or name the one that holds the key",
        )
    if not key.isascii() or any(letter <= " " for letter in key):
        raise UserError(
            f"the value of {name} cannot be a key: it has spaces or letters that keys do not have",
            code="key-missing",
            field="key_env",
            remedy="export the key alone",
        )
    return key or None


def _json(reply: _Reply) -> Any:
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        return None


def _answer(reply: _Reply) -> Answer:
    """Return the text of a reply; raise `CaptionFailed` for one of another shape."""
    found = _json(reply)
    if found is None:
        start = reply.body[:2000].lower()
        kind = "HTML" if b"<html" in start or b"<!doctype" in start else "no JSON"
        raise CaptionFailed(f"the server's reply is {kind if reply.body.strip() else 'empty'}: {reply.text}")
    match found:
        case {"choices": [{"message": {"content": content, **message}, **choice}, *_]}:
            if isinstance(content, list):
                content = "".join(_text(part) for part in content)
        case _:
            raise CaptionFailed(f"the server's reply has no choices[0].message.content: {reply.text}")
    if isinstance(refusal := message.get("refusal"), str) and not content:
        raise CaptionFailed(f"the model refused: {refusal[:80]}", of_clip=True)
    if content is not None and not isinstance(content, str):
        raise CaptionFailed(f"the server's reply has no text as content: {reply.text}")
    is_cut = choice.get("finish_reason") == "length"
    if is_cut and not content:
        raise CaptionFailed(f"the model thought for {_TOKENS} tokens and wrote no caption")
    return Answer(content or "", is_cut)


def _text(part: Any) -> str:
    """Return the text of a part of a message, "" for what is none, such as reasoning."""
    is_text = isinstance(part, dict) and part.get("type", "text") in ("text", "output_text")
    return part["text"] if is_text and isinstance(part.get("text"), str) else ""
