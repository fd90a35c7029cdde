"""The page as a web application: JSON for its parts, and the files that draw them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import plotly
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from reelworks import reports
from reelworks.annexes.page import (
    checkpoints_api,
    data_api,
    import_api,
    jobs_api,
    limits_api,
    new_api,
    plan_api,
    runs_api,
    understood,
)
from reelworks.annexes.page.context import Context, PageContext
from reelworks.annexes.page.guard import Guard
from reelworks.annexes.page.workspace import Workspace
from reelworks.core import annexes, version
from reelworks.core.errors import UserError

_STATIC = Path(__file__).parent / "static"
_REPORT = Path(reports.__file__).parent  # the page looks like the reports
_PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_NO_CACHE = {"Cache-Control": "no-cache"}  # the browser asks each time whether a file has changed


def build(folders: list[Path], token: str, *, is_remote: bool = False) -> FastAPI:
    """Make the application for some folders.

    Args:
        folders: What the page may read; the first one is also where commands run and recipes are written.
        token: Without it nothing can be changed.
        is_remote: Whether other machines reach it; then nothing can be read without the token, either.
    """
    context = Context(Workspace(folders))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        context.start()
        yield
        context.close()

    app = FastAPI(title="Reelworks", lifespan=lifespan, openapi_url=None)
    app.state.context = context
    app.add_exception_handler(UserError, _explain)
    app.add_exception_handler(RequestValidationError, _explain_request)
    for fault in understood.FAULTS:
        app.add_exception_handler(fault, _explain_fault)
    for api in (runs_api, checkpoints_api, data_api, limits_api, jobs_api, plan_api, new_api, import_api):
        app.include_router(api.routes, prefix="/api")
    annexes.use_each("routes", lambda routes: app.include_router(routes, prefix="/api"), leaves_out=True)
    app.include_router(_routes)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.add_middleware(Guard, token=token, is_remote=is_remote)
    return app


_routes = APIRouter()


@_routes.get("/api/about")
def get_about(context: PageContext) -> dict[str, Any]:
    return {"version": version.__version__, "folders": [str(root) for root in context.workspace.roots]}


@_routes.get("/plotly.js")
def get_plotly() -> FileResponse:
    return FileResponse(_PLOTLY, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


@_routes.get("/report.css")
def get_style() -> FileResponse:
    return FileResponse(_REPORT / "style.css", headers=_NO_CACHE)


@_routes.get("/report.js")
def get_script() -> FileResponse:
    return FileResponse(_REPORT / "shared.js", headers=_NO_CACHE)


@_routes.get("/")
def get_index() -> FileResponse:
    return FileResponse(_STATIC / "index.html", headers=_NO_CACHE)


async def _explain(_: Request, error: Exception) -> JSONResponse:
    """Answer an error that the user can correct: what is wrong, where, and what to do."""
    assert isinstance(error, UserError)
    status = 404 if error.code == "not-found" else 400
    return JSONResponse(error.to_json(), status)


async def _explain_fault(request: Request, error: Exception) -> JSONResponse:
    """Answer what went wrong with the files that a request is about."""
    return await _explain(request, understood.explain(error, request.url.path))


async def _explain_request(_: Request, error: Exception) -> JSONResponse:
    """Answer a request with a value of the wrong kind or out of range, as `_explain` does."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    text = str(first.get("input", ""))[:100].encode(errors="replace").decode()
    body = {"problem": "the value is not allowed", "code": "value-not-allowed", "field": field, "value": text}
    problem = first["msg"]
    return JSONResponse(body | {"remedy": problem[:1].lower() + problem[1:]}, 422)
