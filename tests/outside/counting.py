"""A task from outside the package: predict the number of words of the translation from the source."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import TaskConfig
from transformer_jax.config.fields import number
from transformer_jax.data.columns import Column, TextColumn
from transformer_jax.tasks.batches.sequences import sequences, shift_right
from transformer_jax.tasks.task import MetricSpec, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingConfig(TaskConfig):
    outlier_slope: float = number(1.0, "slope of the loss for errors above one word", 0.0, hyper=True)


class WordCount(Column):
    def stored_dtype(self, tokenizer):
        return "<f4"

    def encode(self, values, tokenizer):
        return np.array([len(text.split()) for text in values], np.float32)


class CountHead(nn.Module):
    @nn.compact
    def __call__(self, x, batch, embedding, dropout=None):
        is_token = batch["inputs_mask"][..., None]
        mean = jnp.where(is_token, x, 0.0).sum(1) / jnp.maximum(is_token.sum(1), 1)
        return nn.Dense(1, name="count")(mean)[:, 0]


class Counting(Task):
    config_class = CountingConfig
    logged = (MetricSpec("loss", "min"), MetricSpec("error", "min", "words", "error"))
    metrics = logged

    def columns(self, config):
        return TextColumn("inputs", "inputs"), WordCount("count", "targets")

    def lengths(self, config, split):
        return {"inputs": split.lengths("inputs")}

    def arrays(self, config, split, rows, shape, step):
        text = sequences(split, "inputs", rows, shape.width("inputs"), 0)
        return {
            "inputs": text.ids,
            "inputs_mask": text.mask,
            "decoder_inputs": shift_right(text.ids, 3),
            "targets": split.values("count", rows.examples),
            "weights": (rows.examples >= 0).astype(np.float32),
            "row_ids": rows.row_ids,
        }

    def head(self, config, model):
        return CountHead()

    def loss(self, config, model, batch, dropout, hyper, chunks=1):
        x = model.features(batch, dropout, hyper.model)
        error = jnp.abs(model.outputs(x, batch) - batch["targets"])
        loss = jnp.where(error < 1, error**2 / 2, 0.5 + hyper.task["outlier_slope"] * (error - 1))
        weights = batch["weights"]
        return {"loss": (weights * loss).sum(), "error": (weights * error).sum(), "weight": weights.sum()}

    def means(self, sums):
        return {"loss": sums["loss"] / sums["weight"], "error": sums["error"] / sums["weight"]}
