"""Open a local page on which a trained model can be looked into and changed.

    transformer-jax explore --checkpoint=runs/language_model
    transformer-jax explore --checkpoint=runs/language_model --checkpoint=runs/other --port=8000
    transformer-jax explore --checkpoint=runs/first

Type a text: the page shows the loss of every token, the predictions at every place and of every layer (logit lens), and
the attention of every head. Of a classifier, a tagger or a masked language model it shows labels, tags or tokens, and
what each token adds to them; of a model of images, labels, and attention over a picture. A head can be left out, and
the page shows what changes. Two checkpoints are shown side by side.

The server listens on 127.0.0.1, for this machine alone. With --host=0.0.0.0 others may connect; the address that it
prints then has a token, which every request needs. It needs the extra `explore`: pip install "transformer-jax[explore]"
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import Arguments, integer, text
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes

OVERRIDES = ()
DEFAULT_PORT, MAX_PORT = 8765, 65535
EVERYWHERE = ("0.0.0.0", "::")
"""Addresses that stand for all of this machine."""
MAX_CONNECTIONS = 64


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_multi_string("checkpoint", None, "work directory or checkpoint; at most two", flag_values=values)
    integer(values, "port", "port of the page", DEFAULT_PORT, 1)
    text(values, "host", "address to listen on", "127.0.0.1")


def run(arguments: Arguments) -> int:
    values = arguments.flags
    if not values.checkpoint or len(values.checkpoint) > 2:
        raise ConfigError("explore takes one or two --checkpoint=WORKDIR")
    try:
        import uvicorn

        from transformer_jax.explorer.server import application
    except ImportError as error:
        raise ConfigError(
            f'explore needs the Python package {error.name}; install it with: pip install "transformer-jax[explore]"'
        ) from error

    from transformer_jax.evaluation.loading import load
    from transformer_jax.explorer.kinds import explored
    from transformer_jax.host.compilation_cache import use_compilation_cache

    if values.port > MAX_PORT:
        raise ConfigError(f"--port={values.port}: expected at most {MAX_PORT}")
    use_compilation_cache()
    with _listener(values.host, values.port) as listener:
        models = [explored(load(path), _label(path, values.checkpoint)) for path in values.checkpoint]
        for model in models:
            model.warm_up()
        is_local = values.host in ("127.0.0.1", "localhost", "::1")
        token = "" if is_local else secrets.token_urlsafe(16)
        name = socket.gethostname() if values.host in EVERYWHERE else values.host
        name = f"[{name}]" if ":" in name else name
        print(f"http://{name}:{values.port}/{f'?token={token}' if token else ''}", flush=True)
        print("Stop with Ctrl-C.", flush=True)
        config = uvicorn.Config(
            application(models, values.port, token),
            log_level="warning",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(config).run(sockets=[listener])
    return exit_codes.OK


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ConfigError if the port is in use, or the address is not of this machine."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(f"--host={host} --port={port}: {error.strerror or error}; choose others") from error
    return listener


def _label(path: str, paths: list[str]) -> str:
    """Return the last part of a path, with the work directory of a step; the whole path if two have the same."""
    names = [_short(Path(of)) for of in paths]
    return _short(Path(path)) if len({*names}) == len(paths) else path


def _short(path: Path) -> str:
    from transformer_jax.checkpoints.workdir import CHECKPOINTS

    return f"{path.parent.parent.name}, step {path.name}" if path.parent.name == CHECKPOINTS else path.name
