"""Models with random parameters for the tests of the explorer, and a running server of them."""

import contextlib
import functools
import http.client
import json
import socket
import tempfile
import threading
import time
from pathlib import Path

import corruption_support
import image_support
import jax
import jax.numpy as jnp
import labelled_support
import numpy as np
import uvicorn
from support import random_params

from transformer_jax.config import DataConfig, DecodeConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers import train_tokenizer
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.evaluation.loading import Loaded
from transformer_jax.explorer.kinds import explored
from transformer_jax.explorer.server import application
from transformer_jax.models.architecture import init_params
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.translator import Translator

TEXT = "12 7 is a text"


def language_model(seed=0, size=290, **fields):
    """Return a language model of two Pre-LN layers with two heads, whose texts are of numbers and a few words."""
    tokenizer = train_tokenizer([f"{n} {n * 7 % 60} is a text" for n in range(60)], "bpe", size)
    usual = {
        **{"architecture": "decoder_only", "vocab_size": size, "emb_dim": 16, "num_heads": 2, "mlp_dim": 24},
        **{"num_decoder_layers": 2, "max_length": 64, "norm_position": "pre"},
    }
    model = ModelConfig(**usual | fields)
    data = DataConfig(max_length=model.max_length)
    config = ExperimentConfig(model=model, data=data, task=TaskConfig(name="language_model")).resolved()
    return LanguageModel(config, random_params(config.model, seed), tokenizer)


def translator(seed=0, **fields):
    """Return a translation model of one encoder and two decoder layers, for texts of numbers and a few words."""
    tokenizer = train_tokenizer([f"{n} {n * 7 % 60} is a text" for n in range(60)], "bpe", 290)
    usual = {
        **{"vocab_size": 290, "emb_dim": 16, "num_heads": 2, "mlp_dim": 24, "num_encoder_layers": 1},
        **{"num_decoder_layers": 2, "max_length": 64, "norm_position": "pre"},
    }
    decode = DecodeConfig(beam_size=2, max_extra_length=8)
    model = ModelConfig(**usual | fields)
    data = DataConfig(max_length=model.max_length)
    config = ExperimentConfig(model=model, data=data, decode=decode).resolved()
    return Translator(config, random_params(config.model, seed), tokenizer)


def _loaded(config, tokenizer, labels=()):
    """Return a checkpoint with random parameters of a model and of the head of its task; nothing is compiled."""
    head = TASKS[config.task.name].head(config.task, config.model)
    shapes = jax.eval_shape(lambda: init_params(config.model, 1, head))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), x.dtype), shapes)
    return Loaded(config, params, tokenizer, (1,), None, Path("run"), None, tuple(labels))


_SIZES = {"norm_position": "pre", "position_encoding": "learned", "max_length": 24}


def _labelled(name, data, model, **task):
    settings = labelled_support.config(name, data, {**_SIZES, **model}, **task)
    with tempfile.TemporaryDirectory() as folder:
        corpus = labelled_support.data_of(settings, Path(folder))
    return _loaded(settings, corpus.tokenizer, corpus.labels)


@functools.cache
def classifier():
    """Return a classifier of pairs of texts in three labels."""
    data = {"source": "text", "dir": "unused", "format": "tsv", "second_feature": "3"}
    return _labelled("classification", data, {"num_encoder_layers": 2, "token_types": 2})


@functools.cache
def decoder_classifier():
    """Return a classifier of texts in three labels, which reads them from left to right."""
    return _labelled("classification", {}, {"architecture": "decoder_only", "num_decoder_layers": 2}, pooling="mean")


@functools.cache
def tagger():
    """Return a tagger of words in five tags."""
    return _labelled("tagging", {}, {"num_encoder_layers": 2})


@functools.cache
def masked_model():
    """Return a masked language model of bytes, whose mask is `<mask>`."""
    with tempfile.TemporaryDirectory() as folder:
        settings = corruption_support.config_of(Path(folder) / "texts", "masked_lm", model={"num_encoder_layers": 2})
    return _loaded(settings, corruption_support.WithMarks())


@functools.cache
def image_classifier():
    """Return a classifier of grey pictures of 8 x 8 pixels in four patches."""
    settings = image_support.npz_config(Path("images.npz"), {"num_encoder_layers": 2})
    return _loaded(settings, ByteTokenizer(), image_support.LABELS)


class Client:
    """Requests to the server on a port of this machine."""

    def __init__(self, port):
        self.port = port

    def request(self, path, body=None, method=None, **headers):
        """Return the status, the headers and the body; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, data, names)
        response = connection.getresponse()
        with contextlib.closing(connection):
            return response.status, response.headers, response.read()

    def json(self, path, body=None, **headers):
        """Return the status and the JSON of the answer."""
        status, _, data = self.request(path, body, **headers)
        return status, json.loads(data)


@contextlib.contextmanager
def served(*models, token=""):
    """Run the server of some models, and yield a client of it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        app = application([explored(model, f"model {number}") for number, model in enumerate(models)], port, token)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield Client(port)
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def opening(browser):
    """Yield a function that opens the page of a client; afterwards no page has written an error."""
    pages, errors = [], []

    def opened(client, address="", **size):
        page = browser.new_page()
        page.set_viewport_size({"width": 1400, "height": 900, **size})
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{client.port}/{address}")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert errors == []


def idle(page):
    """Wait until a page has no question to the server."""
    page.locator("#status:empty").wait_for(state="attached")


def is_wider_than_the_screen(page):
    """Return whether a page must be moved sideways."""
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def saved(page, folder):
    """Save the picture, the data and the page by its buttons, and return the files by `svg`, `json` and `page`."""
    files = {}
    for button in ("svg", "json", "page"):
        with page.expect_download() as download:
            page.locator(f"#save-{button}").click()
        files[button] = folder / download.value.suggested_filename
        download.value.save_as(files[button])
    return files
