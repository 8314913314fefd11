"""Small, very different configs on a small part of the embedded corpus; `config.py:NAME` selects one."""

from pathlib import Path
from typing import Any

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)

CORPUS = Path(__file__).resolve().parent / "corpus"
STEPS = 20
"""Steps of each of `RUNS`."""
SHORT = 8
"""Steps of each of `WITNESSES`."""
SAVED, TOTAL = 3000, 3060
"""`workdir`: the step of its checkpoint, and the last step."""


_SIZES = {"vocab_size": 384, "emb_dim": 32, "num_heads": 4, "mlp_dim": 48, "max_length": 64}


def _model(**fields: Any) -> ModelConfig:
    return ModelConfig(**{**_SIZES, "num_encoder_layers": 1, "num_decoder_layers": 2, **fields})


_EMBEDDED = {"num_train_pairs": 1000, "num_eval_pairs": 10, "tokenizer_pairs": 500}
_PACKED = {"batching": "packed", "packed_length": 64, "drop_long": True}
_WINDOWS = {"batching": "windows"}
_ONE_BUCKET = {"num_buckets": 1, "drop_long": True}


def _data(**fields: Any) -> DataConfig:
    return DataConfig(**{**_EMBEDDED, "drop_long": True, "max_length": 48, "tokens_per_batch": 512, **fields})


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


def _witness(
    task: str = "translation",
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    labels: dict[str, Any] | None = None,
) -> ExperimentConfig:
    """A short run with dropout; arguments: fields that differ."""
    rates = {"schedule": "constant", "learning_rate": 3e-3, "warmup_steps": 2}
    return ExperimentConfig(
        task=TaskConfig(**{"name": task, **(labels or {})}),
        model=ModelConfig(**{**_SIZES, "norm_position": "pre", "activation": "gelu", **(model or _BOTH)}),
        data=DataConfig(**{"max_length": 48, "tokens_per_batch": 512, **(data or _EMBEDDED | _ONE_BUCKET)}),
        optimizer=OptimizerConfig(**{**rates, **(optimizer or {})}),
        training=_training(**{"num_train_steps": SHORT, "label_smoothing": 0.0, **(training or {})}),
    )


_ENCODER = {"architecture": "encoder_only", "num_encoder_layers": 2}
_DECODER = {"architecture": "decoder_only", "num_decoder_layers": 2}
_BOTH = {"num_encoder_layers": 1, "num_decoder_layers": 1}
_FILES = {"source": "text", "dir": str(CORPUS), "tokenizer": "bpe", **_ONE_BUCKET}
_TABLE = {"format": "tsv", "input_feature": "text", "target_feature": "label"}


def _images() -> ExperimentConfig:
    sizes = {"image_size": 28, "image_channels": 1, "patch_size": 7, "emb_dim": 32, "num_heads": 2, "mlp_dim": 48}
    return ExperimentConfig(
        task=TaskConfig(name="images", num_labels=16, crop_padding=2),
        model=ModelConfig(
            architecture="encoder_only",
            inputs="patches",
            num_encoder_layers=1,
            norm_position="pre",
            position_encoding="learned",
            activation="gelu",
            **sizes,
        ),
        data=DataConfig(source="shapes", num_train_pairs=128, num_eval_pairs=16, batching="rows", rows_per_batch=16),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-3, warmup_steps=2),
        training=_training(num_train_steps=SHORT, label_smoothing=0.0),
    )


WITNESSES = {
    "windows_lion": lambda: _witness(
        "language_model",
        {**_DECODER, "position_encoding": "rotary", "norm": "rmsnorm", "activation": "swiglu"},
        _EMBEDDED | _WINDOWS,
        {"name": "lion", "learning_rate": 3e-4},
    ),
    "packed_language_model": lambda: _witness(
        "language_model", {**_DECODER, "norm_position": "post"}, _EMBEDDED | _PACKED
    ),
    "adafactor": lambda: _witness(optimizer={"name": "adafactor", "learning_rate": 1e-3}),
    "accumulated_with_dropout": lambda: _witness(
        model=_BOTH | {"attention_dropout_rate": 0.1, "activation_dropout_rate": 0.1},
        training={"accumulation_steps": 2, "label_smoothing": 0.1},
    ),
    "masked_lm_frozen": lambda: _witness(
        "masked_lm",
        {**_ENCODER, "position_encoding": "learned", "embedding_norm": True, "norm_position": "post"},
        _EMBEDDED | _PACKED,
        {"freeze": "embedding,encoder/layers:1", "layer_decay": 0.8},
    ),
    "denoising": lambda: _witness("denoising", data=_EMBEDDED | _WINDOWS),
    "span_corruption": lambda: _witness(
        "span_corruption",
        {**_BOTH, "position_encoding": "relative", "norm": "rmsnorm", "use_bias": False},
        _EMBEDDED | _WINDOWS,
    ),
    "classification_batch_norm": lambda: _witness(
        "classification", {**_ENCODER, "norm": "batchnorm"}, _FILES | _TABLE, labels={"num_labels": 2}
    ),
    "tagging": lambda: _witness(
        "tagging", _ENCODER, {**_FILES, "format": "conll"}, labels={"num_labels": 3, "chunks": True}
    ),
    "span_qa": lambda: _witness(
        "span_qa",
        {**_ENCODER, "token_types": 2},
        {**_FILES, "format": "squad"},
        labels={"question_length": 12, "stride": 8},
    ),
    "vision": _images,
    "recurrent": lambda: ExperimentConfig(
        model=ModelConfig(
            architecture="recurrent",
            vocab_size=384,
            emb_dim=32,
            num_encoder_layers=1,
            num_decoder_layers=1,
            bidirectional=True,
            attention="additive",
            bridge="tanh",
            dropout_rate=0.1,
        ),
        data=_data(num_buckets=1),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=3e-3, warmup_steps=2),
        training=_training(num_train_steps=SHORT),
    ),
    "devices": lambda: _witness(),
}
"""A run for every task, optimizer, kind of batch and architecture that `RUNS` lack; `devices` runs on eight."""


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
        data=_data(num_train_pairs=10_000, num_eval_pairs=40, num_buckets=2, tokens_per_batch=1024),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-2, warmup_steps=100),
        training=_training(num_train_steps=TOTAL, log_every_steps=20, checkpoint_every_steps=SAVED, keep_last=2),
        decode=DecodeConfig(max_extra_length=20),
    )


def _study() -> ExperimentConfig:
    """The baseline of experiments/norms."""
    return ExperimentConfig(
        model=_model(emb_dim=16, num_heads=2, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1),
        data=_data(num_buckets=1),
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
    return {**RUNS, **WITNESSES, "workdir": _workdir, "study": _study}[arg]().to_config_dict()
