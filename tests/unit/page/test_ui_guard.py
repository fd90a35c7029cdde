"""Only this machine's own page may ask, and only the token changes something."""

import os
import re
import string
from pathlib import Path

import places
import pytest
from page_client import page, small_recipe
from refused import refused
from starlette.responses import Response
from starlette.testclient import TestClient

from reelworks.annexes.page import app, guard, serve
from reelworks.annexes.page.workspace import Workspace, key_of
from reelworks.data.run.folder import RunFolder


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with page(tmp_path_factory.mktemp("root")) as client:
        yield client


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8384", "[::1]:9", "LOCALHOST"])
def test_local_names_are_answered(client, host):
    answer = client.get("/api/about", headers={"host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8384",
        "",
        "[::2]",
        "0.0.0.0",
        "127.0.0.1:8384, evil.example",
        "127.0.0.1:8384@evil.example",
        "localhost:",
    ],
)
def test_a_foreign_name_is_refused_even_if_it_resolves_here(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:8384", "http://127.0.0.1:8385", "file://", "http://["]
)
def test_a_foreign_page_is_refused_with_or_without_the_token(client, origin):
    for ask in (
        client.get("/api/about", headers={"origin": origin}),
        client.post("/api/jobs/1/stop", headers={"origin": origin}),
    ):
        assert ask.status_code == 403


def test_a_link_on_a_foreign_page_gets_nothing(client):
    for where in ("cross-site", "same-site"):  # another port of this machine is of the same site
        assert client.get("/api/runs", headers={"sec-fetch-site": where}).status_code == 403


def test_the_own_page_is_answered(client):
    headers = {"origin": "http://127.0.0.1:8384", "sec-fetch-site": "same-origin"}
    assert client.get("/api/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", "of-the-tes", "of-the-test ä".encode()])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_is_changed_without_the_token(client, method, token):
    answer = client.request(method, "/api/jobs/1/stop", headers={guard.TOKEN_HEADER: token})
    assert answer.status_code == 401
    assert "reelworks ui" in answer.json()["problem"]


def test_answers_forbid_what_the_page_does_not_need(client):
    for path in ("/", "/api/runs", "/static/js/main.js", "/no-such-page"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"]
)
def test_files_beside_those_of_the_page_are_not_served(client, path):
    assert client.get(path).status_code == 404


def test_a_link_out_of_the_folders_is_not_followed(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (outside / "run").mkdir(parents=True)
    (outside / "run" / "run.json").write_text("{}", encoding="utf-8")
    root.mkdir()
    places.link(root / "link", outside)
    workspace = Workspace([root])
    assert not workspace.index().runs
    for path in (root / "link" / "run", root / ".." / "outside", outside, root / "link"):
        with refused("outside-of-folders", says="reelworks ui"):
            workspace.require(path)
    assert workspace.require(root / "new") == (root / "new").resolve()
    with refused("not-found"):
        workspace.run(key_of(outside / "run"))


def test_names_that_are_not_text_are_found_all_the_same(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xfcn"))
    RunFolder(folder).create()
    (folder / "recipe.toml").write_text("", encoding="utf-8")
    folder.with_suffix(".toml").write_text(
        small_recipe(f"{tmp_path.as_posix()}/of", tmp_path.as_posix()), encoding="utf-8"
    )
    with page(tmp_path) as client:
        (recipe,) = client.get("/api/data").json()
        assert recipe["name"] == "r\N{REPLACEMENT CHARACTER}n"
        for address in (f"data/{recipe['key']}", "recipes", "plan"):
            assert client.get(f"/api/{address}").status_code == 200
        (run,) = client.get("/api/runs").json()
        assert client.get(f"/api/runs/{run['key']}").status_code == 200
        (folder / "run.json").write_text("{}", encoding="utf-8")
        refusal = client.get(f"/api/runs/{run['key']}").json()
        assert refusal["code"] == "no-run"


def test_a_folder_that_is_missing_is_an_error_with_its_name(tmp_path):
    with refused("no-such-folder", "FOLDER", says="gone"):
        Workspace([tmp_path / "gone"])


@pytest.fixture(scope="module")
def reached(tmp_path_factory):
    """The page as other machines reach it, by any name."""
    token = "secret-of-some-length"
    with TestClient(app.build([tmp_path_factory.mktemp("root")], token, is_remote=True)) as client:
        yield client, token


def test_other_machines_read_nothing_without_the_token(reached):
    client, token = reached
    client.cookies.clear()
    for path in ("/", "/api/about", "/api/runs", "/static/page.css"):
        assert client.get(path).status_code == 401
    for wrong in ("x", token[:-1]):
        assert client.get("/", params={"token": wrong}).status_code == 401
        assert client.get("/api/about", headers={"cookie": f"{guard.cookie_name(token)}={wrong}"}).status_code == 401
    assert client.get("/api/about", headers={guard.TOKEN_HEADER: token}).status_code == 401


def test_an_address_with_the_token_opens_the_page_under_any_name(reached):
    client, token = reached
    client.cookies.clear()
    opened = client.get("/", params={"token": token}, headers={"sec-fetch-site": "cross-site"})
    assert opened.headers["refresh"] == f"0; url=./#token={token}"
    assert "httponly" in opened.headers["set-cookie"].lower()
    assert "samesite=strict" in opened.headers["set-cookie"].lower()
    cookie = {"cookie": f"{guard.cookie_name(token)}={token}", "host": "pod-8384.proxy.example"}
    assert client.get("/api/about", headers=cookie).status_code == 200
    own = cookie | {"origin": "https://pod-8384.proxy.example"}
    assert client.post("/api/jobs/1/stop", headers=own).status_code == 401
    assert client.post("/api/jobs/1/stop", headers=own | {guard.TOKEN_HEADER: token}).status_code == 404
    foreign = own | {"origin": "https://evil.example", guard.TOKEN_HEADER: token}
    assert client.post("/api/jobs/1/stop", headers=foreign).status_code == 403


def test_a_proxy_may_name_the_server_as_it_likes_where_the_browser_says_that_the_page_asks(reached):
    """nginx and Apache send the name of the server that they ask, as long as nobody sets another."""
    client, token = reached
    proxied = {"cookie": f"{guard.cookie_name(token)}={token}", "host": "127.0.0.1:8384", guard.TOKEN_HEADER: token}
    proxied |= {"origin": "https://train.example.org"}
    for asks, status in (("same-origin", 404), ("same-site", 403), ("cross-site", 403), ("none", 403), ("", 403)):
        answer = client.post("/api/jobs/1/stop", headers=proxied | {"sec-fetch-site": asks})
        assert answer.status_code == status
    unknown = proxied | {"sec-fetch-site": "same-origin", "cookie": "a=b"}  # of a name that resolves here
    assert client.get("/api/runs", headers=unknown).status_code == 401


def test_at_the_machines_own_address_no_other_origin_is_the_pages(client):
    headers = {"origin": "https://train.example.org", "sec-fetch-site": "same-origin"}
    assert client.get("/api/runs", headers=headers).status_code == 403


def test_the_cookies_of_two_pages_of_one_machine_are_kept_apart():
    """Browsers send those of a machine to all its ports."""
    tokens = ["the-token-of-one-page", "the-token-of-another"]
    pages = [TestClient(guard.Guard(answer, token, is_remote=True)) for token in tokens]
    pages[1].cookies = pages[0].cookies
    for client, token in zip(pages, tokens, strict=True):
        assert client.get("/", params={"token": token}).status_code == 200
    assert [client.get("/api/about").status_code for client in pages] == [200, 200]


async def answer(scope, receive, send):
    await Response("the page")(scope, receive, send)


def test_what_a_browser_keeps_of_two_pages_below_one_proxy_is_kept_apart():
    scripts = (Path(guard.__file__).parent / "static" / "js").rglob("*.js")
    names = re.findall(r'["`]reelworks-[^"`]*["`]', "".join(script.read_text("utf-8") for script in scripts))
    assert names
    assert [name for name in names if "${location.pathname}" not in name] == []


@pytest.mark.parametrize("sign", "aZ9-_.~")
def test_a_token_that_is_taken_opens_the_address_as_it_is(monkeypatch, sign):
    """Also that of providers, which the start of a container makes; a browser keeps it, and the page's scripts read it."""
    monkeypatch.setenv(serve.TOKEN_VARIABLE, token := f"sixteen-signs-and{sign}one-more")
    client = TestClient(guard.Guard(answer, serve._token(), is_remote=True))
    assert client.get(f"/?token={token}").headers["refresh"].endswith(f"/#token={token}")
    assert client.get("/api/about").text == "the page"  # by the cookie


@pytest.mark.parametrize(
    "sign", sorted({*string.printable, "é", "😀"} - {*string.ascii_letters, *string.digits, *"-_.~"})
)
def test_a_token_that_an_address_would_change_is_refused(monkeypatch, sign):
    monkeypatch.setenv(serve.TOKEN_VARIABLE, f"sixteen-signs-and{sign}one-more")
    with refused("token-unfit", serve.TOKEN_VARIABLE):
        serve._token()


def test_a_token_that_could_be_guessed_is_refused_and_without_one_it_is_made(monkeypatch):
    for given in ("hunter2", "x" * 15):
        monkeypatch.setenv(serve.TOKEN_VARIABLE, given)
        with refused("token-unfit", serve.TOKEN_VARIABLE):
            serve._token()
    monkeypatch.setenv(serve.TOKEN_VARIABLE, "")
    assert len({serve._token() for _ in range(3)}) == 3
