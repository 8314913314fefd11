"""The server of the page: Starlette on this machine, one computation at a time.

It serves a fixed list of files of this package and JSON of `Explored`, and nothing else. It answers to its own host
names only, so that no other site can read from it through the visitor's browser; with a token, to whoever has the
address.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from transformer_jax.errors import UserError
from transformer_jax.explorer.encoders import ExploredEncoder
from transformer_jax.explorer.explored import Explored
from transformer_jax.explorer.images import MAX_IMAGE_BYTES, ExploredImages
from transformer_jax.explorer.passes import Head
from transformer_jax.explorer.views import ExploredGenerator, ExploredLanguageModel
from transformer_jax.readers import parse_json, read_bytes

MAX_BODY = 64 * 1024
"""Bytes of a request without a picture."""
MAX_BODY_WITH_PICTURE = MAX_BODY + -(-MAX_IMAGE_BYTES // 3) * 4
"""Bytes of a request with a picture in base64."""
MAX_SECONDS = 10.0
"""Time in which the body of a request must arrive."""
WATCHED_EVERY = 0.2
"""Seconds between two looks at whether the client is still there."""
CLIENT_HAS_GONE = 499
"""Status of an answer that nobody reads."""
HTTP_PORT = 80
"""The port that browsers leave out of a host name."""
PAGE_MODULES = (
    "app",
    "state",
    "drawing",
    "comparison",
    "patching",
    "generation",
    "encoders",
    "images",
    "panels",
    "export",
)
LOCAL = ("127.0.0.1", "localhost", "[::1]")
FILES = {
    "": ("index.html", "text/html"),
    "app.css": ("app.css", "text/css"),
    **{f"{name}.js": (f"{name}.js", "text/javascript") for name in PAGE_MODULES},
}
"""Files of the page by their path, with their types."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Refused(HTTPException):
    """A request that is not from the page itself."""


def application(models: Sequence[Explored[Any]], port: int, token: str = "") -> Starlette:
    """Return the server of some models.

    Args:
      port: on which it listens; part of the names to which it answers. token: if not empty, every request needs it,
        and the server answers to any name of its machine.
    """
    one_at_a_time = asyncio.Semaphore(1)
    has_pictures = any(isinstance(model, ExploredImages) for model in models)
    most = MAX_BODY_WITH_PICTURE if has_pictures else MAX_BODY

    def check(request: Request) -> None:
        host = request.headers.get("host", "")
        own = {f"{name}:{port}" for name in LOCAL} | ({*LOCAL} if port == HTTP_PORT else set())
        if token:
            given = request.query_params.get("token", "") or request.headers.get("x-token", "")
            if not secrets.compare_digest(given.encode(), token.encode()):
                raise Refused(403, "the address needs its token")
        elif host not in own:
            raise Refused(403, f"this server does not answer to the name '{host}'")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise Refused(403, f"requests from '{origin}' are refused")

    def file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            # Scripts and styles are the same for everyone; modules cannot send a token.
            if kind == "text/html":
                check(request)
            return Response(page_file(name), media_type=kind, headers=HEADERS)

        return serve

    def answer(
        function: Callable[[Any, Callable[[], bool]], Any], most: int
    ) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            check(request)
            asked = await _body(request, most)
            gone = threading.Event()
            try:
                async with one_at_a_time, _watched(request, gone):
                    if gone.is_set():
                        raise CancelledError
                    found = await run_in_threadpool(function, asked, gone.is_set)
            except CancelledError:
                return Response(status_code=CLIENT_HAS_GONE, headers=HEADERS)
            except UserError as error:
                return JSONResponse({"error": str(error)}, 400, HEADERS)
            return JSONResponse(found, headers=HEADERS)

        return serve

    def look(asked: Any, cancelled: Callable[[], bool]) -> dict[str, Any]:
        fields = Fields(asked)
        model, by_mean = _model(models, fields), fields.get("by_mean", bool, False)
        text, second = fields.texts(model)
        return model.look(text, fields.heads("ablated"), by_mean, second)

    def effects(asked: Any, cancelled: Callable[[], bool]) -> dict[str, Any]:
        fields = Fields(asked)
        model, by_mean = _model(models, fields), fields.get("by_mean", bool, False)
        text, second = fields.texts(model)
        unit = fields.get("unit", int, 0)
        return {"numbers": model.effects(text, by_mean, second, cancelled, unit)}

    def attributions(asked: Any, cancelled: Callable[[], bool]) -> dict[str, Any]:
        fields = Fields(asked)
        model = _of_kind(ExploredEncoder, models, fields)
        text, second = fields.texts(model)
        return model.attributions(text, second, fields.get("unit", int, 0), cancelled)

    def induction(asked: Any, cancelled: Callable[[], bool]) -> dict[str, Any]:
        return {"numbers": _of_kind(ExploredLanguageModel, models, Fields(asked)).induction}

    def patch(asked: Any, cancelled: Callable[[], bool]) -> dict[str, Any]:
        fields = Fields(asked)
        model = _of_kind(ExploredLanguageModel, models, fields)
        return model.patch(fields.text("text"), fields.text("other"), cancelled)

    def generate(asked: Any, cancelled: Callable[[], bool]) -> dict[str, Any]:
        fields = Fields(asked)
        width, steps = fields.get("width", int, 4), fields.get("steps", int, 12)
        model = _of_kind(ExploredGenerator, models, fields)
        return model.generate(fields.text("text"), width, steps, cancelled)

    async def about(request: Request) -> Response:
        check(request)
        return JSONResponse({"models": [model.about() for model in models]}, headers=HEADERS)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, HEADERS)

    async def broken(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the server has failed; its terminal says why"}, 500, HEADERS)

    routes = [Route(f"/{path}", file(*of_file)) for path, of_file in FILES.items()]
    routes.append(Route("/api/about", about))
    of_texts, of_pictures = (induction, patch, generate), (look, effects, attributions)
    answers = [(asked, MAX_BODY) for asked in of_texts] + [(asked, most) for asked in of_pictures]
    routes += [Route(f"/api/{asked.__name__}", answer(asked, size), methods=["POST"]) for asked, size in answers]
    handlers: Mapping[Any, Any] = {HTTPException: refused, Exception: broken}
    return Starlette(routes=routes, exception_handlers=handlers)


def page_file(name: str) -> bytes:
    """Return a file of the page."""
    return read_bytes(Path(__file__).parent / "page" / name)


@contextlib.asynccontextmanager
async def _watched(request: Request, gone: threading.Event) -> AsyncGenerator[None]:
    """Set the event when the client disappears while the computation inside runs."""

    async def watch() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(WATCHED_EVERY)
        gone.set()

    if await request.is_disconnected():
        gone.set()
    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


async def _body(request: Request, most: int) -> Any:
    """Return the JSON of a request; raise HTTPException if it is too long, or is none."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise HTTPException(413, f"the request has more than {most:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client has gone") from None
    try:
        return parse_json(b"".join(parts), most)
    except ValueError as error:
        raise HTTPException(400, f"the request cannot be read: {error}") from None


class Fields:
    """The fields of a request, of the types that are expected; else HTTPException."""

    def __init__(self, asked: Any) -> None:
        if not isinstance(asked, Mapping):
            raise BadRequest("expected a JSON object")
        self._asked = asked

    def get(self, name: str, kind: type, default: Any) -> Any:
        """Return a field of a type; the default if it is absent."""
        value = self._asked.get(name, default)
        if type(value) is not kind:
            raise BadRequest(f"'{name}': expected {kind.__name__}")
        return value

    def text(self, name: str) -> str:
        """Return a text, or a picture in base64; empty if it is absent."""
        value = self.get(name, str, "")
        if name != "picture" and len(value) > MAX_BODY:
            raise BadRequest(f"'{name}' has {len(value):,} characters; expected at most {MAX_BODY:,}")
        return value

    def texts(self, model: Explored[Any]) -> tuple[str, str]:
        """Return the one or two texts that a model reads; empty if they are absent."""
        first, second = [*(self.text(name) for name in model.reads), ""][:2]
        return first, second

    def heads(self, name: str) -> list[Head]:
        """Return a list of heads, each a name of an attention and two integers."""
        value = self.get(name, list, [])
        if not all(isinstance(head, list) and [type(part) for part in head] == [str, int, int] for head in value):
            raise BadRequest(f"'{name}': expected lists of an attention's name, a layer and a head")
        return [Head(*head) for head in value]


class BadRequest(UserError):
    """A request with a field of another type."""


def _model(models: Sequence[Explored[Any]], fields: Fields) -> Explored[Any]:
    number = fields.get("model", int, 0)
    if not 0 <= number < len(models):
        raise BadRequest(f"there is no model {number}")
    return models[number]


E = TypeVar("E", bound=Explored[Any])


def _of_kind(kind: type[E], models: Sequence[Explored[Any]], fields: Fields) -> E:
    model = _model(models, fields)
    if not isinstance(model, kind):
        raise BadRequest(f"{model.label} {OTHERS[kind]}")
    return model


OTHERS: Mapping[type[Explored[Any]], str] = {
    ExploredGenerator: "generates no text",
    ExploredLanguageModel: "is no language model",
    ExploredEncoder: "predicts no labels and no masked tokens",
}
"""The end of an error about a model of another kind."""
