"""GPT-2 in NumPy, from the tensors of a folder, with heads and residual streams that a test replaces."""

import json
from pathlib import Path

import numpy as np

from transformer_jax.convert.folder import from_pretrained
from transformer_jax.convert.tensor_files import Outgoing, write_tensors

STORED = Path(__file__).parent / "golden" / "hugging_face" / "gpt2.npz"


class NumpyGpt2:
    """The published equations in float64.

    `logits(ids)` of ids [T] are [T, V]. `streams` are those of the last call, before and after each layer.
    """

    def __init__(self):
        with np.load(STORED) as stored:
            names = [name for name in stored if name.startswith("tensor/")]
            self.tensors = {name.removeprefix("tensor/"): stored[name] for name in names}
            self.config = json.loads(str(stored["config"]))
        self.prefix = "transformer." if "transformer.wte.weight" in self.tensors else ""
        self.depth, self.heads = self.config["n_layer"], self.config["n_head"]

    def get(self, name):
        return self.tensors[self.prefix + name].astype(np.float64)

    def linear(self, x, name):
        return x @ self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + self.config["layer_norm_epsilon"])
        return centred / scale * self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def end(self, x):
        return self.norm(x, "ln_f") @ self.get("wte.weight").T

    def logits(self, ids, without=(), patches=None):
        """Return logits; `without` is pairs of layer and head, `patches` streams [D] by (stream, position)."""
        self.streams, self.outputs = [], []
        x = self.get("wte.weight")[ids] + self.get("wpe.weight")[: len(ids)]
        for layer in range(self.depth):
            x = self.patched(x, patches)
            self.outputs.append(self.heads_of(self.norm(x, f"h.{layer}.ln_1"), layer))
            for _, head in [pair for pair in without if pair[0] == layer]:
                self.outputs[-1][:, head] = 0
            x = x + self.linear(self.outputs[-1].reshape(len(ids), -1), f"h.{layer}.attn.c_proj")
            hidden = self.linear(self.norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
            hidden = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
            x = x + self.linear(hidden, f"h.{layer}.mlp.c_proj")
        return self.end(self.patched(x, patches))

    def patched(self, x, patches):
        x = x.copy()
        for (stream, position), value in (patches or {}).items():
            if stream == len(self.streams):
                x[position] = value
        self.streams.append(x)
        return x

    def heads_of(self, x, layer):
        length = len(x)
        q, k, v = np.split(self.linear(x, f"h.{layer}.attn.c_attn"), 3, -1)
        q, k, v = (y.reshape(length, self.heads, -1) for y in (q, k, v))
        scores = np.einsum("tnd,snd->nts", q, k) / np.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("nts,snd->tnd", weights / weights.sum(-1, keepdims=True), v)

    def imported(self, folder):
        """Write the tensors as a folder and return the model that is imported from it."""
        write_tensors(folder, [Outgoing(n, x.shape, lambda x=x: x) for n, x in self.tensors.items()])
        (folder / "config.json").write_text(json.dumps(self.config))
        return from_pretrained(folder)


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
