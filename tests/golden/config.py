"""Small, very different configs on a small part of the embedded corpus; `config.py:NAME` selects one."""

from typing import Any

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)

STEPS = 20
"""Steps of each of `RUNS`."""
SAVED, TOTAL = 3000, 3060
"""`workdir`: the step of its checkpoint, and the last step."""


def _model(**fields: Any) -> ModelConfig:
    sizes = {"vocab_size": 384, "emb_dim": 32, "num_heads": 4, "mlp_dim": 48, "max_length": 64}
    return ModelConfig(**{**sizes, "num_encoder_layers": 1, "num_decoder_layers": 2, **fields})


def _data(**fields: Any) -> DataConfig:
    sizes = {"num_train_pairs": 1000, "num_eval_pairs": 10, "tokenizer_pairs": 500, "drop_long": True}
    return DataConfig(**{**sizes, "max_length": 48, "tokens_per_batch": 512, **fields})


def _training(**fields: Any) -> TrainingConfig:
    return TrainingConfig(**{"num_train_steps": STEPS, "log_every_steps": 1, **fields})


def _quickstart() -> ExperimentConfig:
    """configs/quickstart.py with smaller numbers and no other change."""
    return ExperimentConfig(
        model=_model(norm_position="pre", dropout_rate=0.0, num_decoder_layers=1),
        data=_data(num_buckets=2),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=3e-3, warmup_steps=5),
        training=_training(label_smoothing=0.0),
    )


def _post_packed() -> ExperimentConfig:
    return ExperimentConfig(
        model=_model(
            norm_position="post",
            position_encoding="learned",
            tie_output=False,
            max_length=128,
            activation="gelu",  # at ReLU's kink, rounding changes a gradient by 1e-5
        ),
        data=_data(batching="packed", packed_length=64, tokenizer="bpe"),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=10),  # a larger rate amplifies rounding
        training=_training(),
    )


def _relative_scanned() -> ExperimentConfig:
    return ExperimentConfig(
        model=_model(
            position_encoding="relative",
            num_kv_heads=2,
            norm_position="pre",
            norm="rmsnorm",
            activation="swiglu",
            num_encoder_layers=2,
            scan_layers=True,
            use_bias=False,
            attention_dropout_rate=0.1,
        ),
        data=_data(num_buckets=1),
        optimizer=OptimizerConfig(schedule="linear", learning_rate=3e-3, warmup_steps=5, weight_decay=0.1),
        training=_training(),
    )


def _bfloat16_accumulated() -> ExperimentConfig:
    return ExperimentConfig(
        model=_model(dtype="bfloat16", position_encoding="rotary", norm_position="pre", activation="gelu"),
        data=_data(num_buckets=1, tokenizer="byte_bpe"),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=3e-3, warmup_steps=5),
        training=_training(accumulation_steps=2),
        seed=1,
    )


def _workdir() -> ExperimentConfig:
    """A model small enough to keep its checkpoint in the repository."""
    return ExperimentConfig(
        model=_model(
            emb_dim=20,
            num_heads=2,
            mlp_dim=40,
            num_encoder_layers=1,
            num_decoder_layers=1,
            norm_position="pre",
            use_bias=False,  # half as many arrays, each with a kilobyte of metadata
            dropout_rate=0.0,
        ),
        data=_data(num_train_pairs=10_000, num_eval_pairs=40, num_buckets=2, tokens_per_batch=1024, drop_long=False),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-2, warmup_steps=100),
        training=_training(num_train_steps=TOTAL, log_every_steps=20, checkpoint_every_steps=SAVED, keep_last=2),
        decode=DecodeConfig(max_extra_length=20),
    )


def _study() -> ExperimentConfig:
    """The baseline of experiments/norms."""
    return ExperimentConfig(
        model=_model(emb_dim=16, num_heads=2, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1),
        data=_data(num_buckets=1, drop_long=False),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-2, warmup_steps=5),
        training=_training(num_train_steps=60, log_every_steps=20, checkpoint_every_steps=60),
        decode=DecodeConfig(max_extra_length=8),
    )


RUNS = {
    "quickstart": _quickstart,
    "post_packed": _post_packed,
    "relative_scanned": _relative_scanned,
    "bfloat16_accumulated": _bfloat16_accumulated,
}


def get_config(arg: str = ""):
    return {**RUNS, "workdir": _workdir, "study": _study}[arg]().to_config_dict()
