"""The kinds of model that the study compares, and its size."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Size:
    """Width of the embeddings and training of the encoder-decoder; parameters and steps of the others follow.

    tokens_per_batch: of the encoder-decoder and the LSTMs. num_train_steps, warmup_steps: of the encoder-decoder; the
      warm-up of the others has as many steps. eval_every_steps: steps between two points of a learning curve.
    learning_rate: the rate of all kinds from which tuning starts.
    """

    emb_dim: int
    num_heads: int
    tokens_per_batch: int
    num_train_steps: int
    warmup_steps: int
    eval_every_steps: int
    learning_rate: float


SMALL = Size(
    emb_dim=64,
    num_heads=4,
    tokens_per_batch=1024,
    num_train_steps=600,
    warmup_steps=50,
    eval_every_steps=50,
    learning_rate=6e-3,
)


def kinds(size: Size) -> dict[str, dict[str, object]]:
    """Return the overrides of every kind.

    Every kind sets its batches: a sweep that replaced them for some would give these more pairs, and is refused.
    """
    pairs: dict[str, object] = {"data.max_length": 64, "data.tokens_per_batch": size.tokens_per_batch}
    transformer: dict[str, object] = {"model.num_heads": size.num_heads}
    recurrent: dict[str, object] = {
        "model.architecture": "recurrent",
        # Not read; these are the defaults.
        "model.num_heads": 8,
        "model.norm_position": "post",
        "model.cell": "lstm",
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.deep_output": "maxout",
    }
    attention: dict[str, object] = {"model.attention": "additive", "model.bidirectional": True, "model.bridge": "zero"}
    return {
        "encoder_decoder": transformer | pairs,
        "decoder": transformer
        | {
            "model.architecture": "decoder_only",
            "model.num_encoder_layers": 6,  # not read; the default
            "model.num_decoder_layers": 4,
            "task.source_mask": "prefix",
            # A row holds source and target, so a batch of about as many pairs has twice the tokens.
            "data.max_length": 128,
            "data.tokens_per_batch": 2 * size.tokens_per_batch,
        },
        "lstm": recurrent | pairs,
        "lstm_attention": recurrent | attention | pairs,
    }
