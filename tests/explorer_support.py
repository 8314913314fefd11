"""Models with random parameters for the tests of the explorer, and a running server of them."""

import contextlib
import http.client
import json
import socket
import threading
import time

import uvicorn
from support import random_params

from transformer_jax.config import DataConfig, DecodeConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers import train_tokenizer
from transformer_jax.explorer.server import application
from transformer_jax.explorer.views import explored
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
