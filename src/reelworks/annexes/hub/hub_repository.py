"""A repository of the hub: what it holds, what its owner's token may do, and one commit for all that is published.

The token is huggingface_hub's own: `HF_TOKEN`, or that of `hf auth login`; `HF_ENDPOINT` names another hub. Where the hub
refuses, its own words are told.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitOperationAdd, HfApi, constants, errors, get_token, hf_hub_download

from reelworks.annexes.hub import card
from reelworks.annexes.hub.card import Licence
from reelworks.core import log, units
from reelworks.core.errors import UserError, first_few

utils: Any = importlib.import_module("huggingface_hub.utils")  # which names for types only a part of what it has

_ADDRESS = re.compile(r"https?://\S+")  # may be signed
_LOG_IN = "log in with `hf auth login`, or set the environment variable HF_TOKEN"
_SECONDS = 10.0


class Committed(NamedTuple):
    """A commit that the hub has, and the address of its repository."""

    url: str
    commit: str


@dataclass(frozen=True)
class Repository:
    """A repository as it was before anything is published to it.

    Attributes:
        commit: Its newest one; None if there is no repository yet.
        files: Their paths in it.
        card: Text of its README.md; None if it has none.
    """

    name: str
    private: bool
    commit: str | None = None
    files: frozenset[str] = frozenset()
    card: str | None = None

    @classmethod
    def ask_hub(cls, name: str, private: bool | None) -> Repository:
        """Ask the hub for a repository, and whether the token may write there; `private` is what was asked for.

        Raises:
            UserError: There is no token, it may not write, the hub cannot be reached, or others see what should be private.
        """
        with telling(name):
            if get_token() is None:
                raise errors.LocalTokenNotFoundError
            account = HfApi().whoami()
            try:
                info = HfApi().model_info(name, timeout=_SECONDS)
            except errors.GatedRepoError:
                raise
            except errors.RepositoryNotFoundError:
                info = None
            _require_writing(account, name, exists=info is not None)
            if info is None:
                return cls(name, private is not False)
            files = frozenset(sibling.rfilename for sibling in info.siblings or ())
            text = None
            if "README.md" in files:
                text = Path(hf_hub_download(name, "README.md", revision=info.sha)).read_text("utf-8", "replace")
        if private is not None and private != bool(info.private):
            raise UserError(
                f"the repository is {'private' if info.private else 'public'} already",
                code="repository-visibility",
                field="--private" if private else "--public",
                value=name,
                remedy=f"change it at {page(name)}/settings, or leave the option out",
            )
        return cls(name, bool(info.private), info.sha, files, text)

    def require_own(self, run_id: str, names: Sequence[str]) -> None:
        """Refuse to replace files that the run did not publish, or whose card was edited since."""
        if self.card is not None and card.is_own(self.card, run_id):
            return
        if taken := sorted(self.files.intersection(names)):
            raise UserError(
                f"it holds {first_few(taken)} already, which this run did not publish, or which was edited since",
                code="repository-taken",
                field="to",
                value=self.name,
                remedy="name another repository, or replace these files in a new commit with --replace",
            )

    def upload(self, folder: Path, names: Sequence[str], message: str) -> Committed:
        """Create the repository if there is none, and commit all files at once; what the hub has is not sent again.

        Raises:
            UserError: The hub refuses, or cannot be reached; no file of the repository has changed then.
        """
        size = units.size(sum((folder / name).stat().st_size for name in names))
        files = [CommitOperationAdd(name, folder / name) for name in names]
        doing = log.stage(f"uploading {units.plural(len(names), 'file')}, {size}, to {page(self.name)}", at_once=True)
        with telling(self.name), _bars_on_terminals(), doing:
            if self.commit is None:
                HfApi().create_repo(self.name, private=self.private)
            done = HfApi().create_commit(self.name, files, commit_message=message, parent_commit=self.commit)
        return Committed(page(self.name), done.oid)


@contextmanager
def _bars_on_terminals() -> Iterator[None]:
    """Let the client draw no bars of progress into the file that stderr may be."""
    draws = sys.stderr is not None and sys.stderr.isatty()
    if draws or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def licence_of(base: str) -> Licence | None:
    """Return the licence that the page of a model on the hub names; None if it names none or cannot be read."""
    try:
        data = HfApi().model_info(base, timeout=_SECONDS).card_data
    except Exception:  # connections fail in many ways, and nothing depends on this one
        return None
    if data is None or not isinstance(data.license, str):
        return None
    link = data.license_link if isinstance(data.license_link, str) else None
    if link is not None and not link.startswith("http"):
        link = f"{page(base)}/blob/main/{link}"
    return Licence(data.license, data.license_name if isinstance(data.license_name, str) else None, link)


def require_name(name: str) -> None:
    """Refuse a name of a repository that no hub takes."""
    with telling(name):
        utils.validate_repo_id(name)


def page(name: str) -> str:
    """Return the address of a repository's page."""
    return f"{constants.ENDPOINT}/{name}"


def _require_writing(account: dict[str, Any], name: str, *, exists: bool) -> None:
    """Refuse a token that only reads, and a new repository in the name of somebody else."""
    token = (account.get("auth") or {}).get("accessToken") or {}
    if token.get("role") == "read":
        raise UserError(
            "the token may only read",
            code="hub-write-refused",
            remedy=f"make one that may write at {constants.ENDPOINT}/settings/tokens, and {_LOG_IN}",
        )
    owners = [account.get("name"), *(org.get("name") for org in account.get("orgs") or ())]
    known = [owner for owner in owners if isinstance(owner, str)]
    owner, _, own_name = name.partition("/")
    if not exists and known and owner.casefold() not in map(str.casefold, known):
        raise UserError(
            f"the token is that of {known[0]}, who can create no repositories there",
            code="hub-write-refused",
            remedy=f"name it {' or '.join(f'{one}/{own_name}' for one in known)}, or {_LOG_IN}",
        )


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Turn what the hub answers, or that it does not, into a `UserError`, and let all errors name the repository."""
    try:
        yield
    except UserError as error:
        error.reword(field="to", value=name)
        raise
    except Exception as error:  # the hub's own errors have no common class, and connections fail in many ways
        refusal = _refused(error)
        refusal.reword(field="to", value=name)
        raise refusal from error


def _refused(error: Exception) -> UserError:
    if isinstance(error, errors.HFValidationError):
        return UserError(
            f"the hub takes no such name ({_first_line(str(error))})",
            code="repository-name-invalid",
            remedy="choose another name",
        )
    if isinstance(error, errors.LocalTokenNotFoundError):
        return UserError(
            "there is no token of an account on the hub",
            code="hub-token-missing",
            remedy="log in with `hf auth login`, or set the environment variable HF_TOKEN",
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return UserError(
            "HF_HUB_OFFLINE forbids connections", code="hub-unreachable", remedy="unset it, or give --dry-run"
        )
    if (answer := _answer(error)) is not None:
        return _answered(*answer)
    why: BaseException = error
    while why.__cause__ is not None:  # however far back
        why = why.__cause__
    text = _first_line(" ".join(str(why).split())) or type(why).__name__
    if isinstance(why, OSError) or type(why).__module__.startswith(("httpx", "httpcore", "requests")):
        return UserError(
            f"{constants.ENDPOINT} does not answer ({text})",
            code="hub-unreachable",
            remedy="see to the connection, and give the same command again: what has arrived is not sent twice",
        )
    return UserError(f"the hub refuses it ({text})", code="hub-failed", remedy="correct what it names")


def _answered(status: int, said: str) -> UserError:
    answer = f" (the hub says: {said})" if said else ""
    if status == 401:
        return UserError(
            f"the hub does not take the token{answer}",
            code="hub-token-refused",
            remedy="log in with `hf auth login`, or set the environment variable HF_TOKEN",
        )
    if status in (402, 413) or re.search("storage|quota", said, re.IGNORECASE):
        return UserError(
            f"the hub has no room for it{answer}",
            code="hub-full",
            remedy=f"see {constants.ENDPOINT}/settings/billing; fewer formats and a narrower dtype take less",
        )
    if status == 403:
        return UserError(
            f"the token may not write there{answer}",
            code="hub-write-refused",
            remedy=f"make one that may at {constants.ENDPOINT}/settings/tokens, and {_LOG_IN}",
        )
    if status in (409, 412):
        return UserError(
            f"the repository changed meanwhile{answer}", code="repository-changed", remedy="give the same command again"
        )
    remedy = "correct what it names"
    if status >= 500 or status in (408, 429):
        remedy = "give the same command again later: what has arrived is not sent twice"
    return UserError(f"the hub answers with error {status}{answer}", code="hub-failed", remedy=remedy)


def _answer(error: BaseException | None) -> tuple[int, str] | None:
    """Return status and words of the answer that an error, or its cause, is about; None if there was no answer."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is not None:
            said = str(getattr(error, "server_message", None) or "") or str(error)
            # The client adds no words of the hub to a status alone.
            return int(status), "" if said.startswith(("Client error", "Server error")) else _first_line(said)
        error = error.__cause__
    return None


def _first_line(text: str) -> str:
    """Return a line without addresses, which may hold signatures."""
    return _ADDRESS.sub("…", text).partition("\n")[0].strip().rstrip(".")
