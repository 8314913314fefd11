"""The variants of the study at two sizes, each of equally many parameters."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Size:
    """Width of the embeddings, and updates of the encoder-decoder. `Study.equal_parameters` sizes the other models.

    tokens_per_batch: of the encoder-decoder. shares: updates of every other variant, as a fraction of the
      encoder-decoder's; they follow from the operations of a step (`tasks.flops`), and of `causal` and `prefix` from
      the pairs of a batch.
    """

    emb_dim: int
    num_heads: int
    tokens_per_batch: int
    num_train_steps: int
    warmup_steps: int
    learning_rates: dict[str, float]
    shares: dict[str, float]


SMALL = Size(
    emb_dim=64,
    num_heads=4,
    tokens_per_batch=1024,
    num_train_steps=600,
    warmup_steps=50,
    learning_rates={"encoder_decoder": 6e-3, "decoder": 1.2e-2, "recurrent": 1.2e-2},
    shares={"pairs": 0.9441, "flops": 0.4914, "lstm": 1.0791, "lstm_attention": 1.0471},
)
LARGE = Size(
    emb_dim=256,
    num_heads=8,
    tokens_per_batch=8192,
    num_train_steps=5000,
    warmup_steps=500,
    learning_rates={"encoder_decoder": 1e-3, "decoder": 1e-3, "recurrent": 3e-3},
    shares={"pairs": 0.9436, "flops": 0.4970, "lstm": 1.0236, "lstm_attention": 1.0167},
)


def models(size: Size) -> dict[str, dict[str, object]]:
    """Return the overrides of every variant.

    Every variant sets the width, the batches, the updates and the learning rate: a sweep that replaced them would make
    some variants larger than others, or train them for longer, and is refused.
    """

    def training(kind: str, share: float, tokens: int = size.tokens_per_batch) -> dict[str, object]:
        return {
            "model.emb_dim": size.emb_dim,
            "data.tokens_per_batch": tokens,
            "optimizer.learning_rate": size.learning_rates[kind],
            "training.num_train_steps": round(size.num_train_steps * share),
        }

    def decoder_training(share: str) -> dict[str, object]:
        # A row holds source and target, so a batch of about as many pairs has twice the tokens.
        return {"data.max_length": 128} | training("decoder", size.shares[share], 2 * size.tokens_per_batch)

    transformer = {"model.num_heads": size.num_heads}
    decoder = transformer | {
        "model.architecture": "decoder_only",
        "model.num_encoder_layers": 6,  # not read; the default
        "model.num_decoder_layers": 4,
    }
    recurrent = {
        "model.architecture": "recurrent",
        # Not read; these are the defaults.
        "model.num_heads": 8,
        "model.norm_position": "post",
        "model.cell": "lstm",
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.deep_output": "maxout",
    }
    attention = {"model.attention": "additive", "model.bidirectional": True, "model.bridge": "zero"}
    causal, prefix = {"task.source_mask": "causal"}, {"task.source_mask": "prefix"}
    return {
        "encoder_decoder": transformer | training("encoder_decoder", 1.0),
        "causal": decoder | causal | decoder_training("pairs"),
        "prefix": decoder | prefix | decoder_training("pairs"),
        "causal_equal_flops": decoder | causal | decoder_training("flops"),
        "prefix_equal_flops": decoder | prefix | decoder_training("flops"),
        "lstm": recurrent | training("recurrent", size.shares["lstm"]),
        "lstm_attention": recurrent | attention | training("recurrent", size.shares["lstm_attention"]),
    }
