"""The training of the study without its model and its split, on SCAN.

    transformer-jax prepare --dataset=scan --data_dir=data

2,200 updates are about 100,000 examples, as many as Lake and Baroni 2018 train on.
"""

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        model=ModelConfig(
            vocab_size=23,
            emb_dim=64,
            num_encoder_layers=2,
            num_decoder_layers=2,
            max_length=64,
            dropout_rate=0.0,
        ),
        data=DataConfig(
            source="text",
            dir="data/scan",
            source_locale="in",
            target_locale="out",
            train_split="train_simple",
            valid_split="train_simple[95%:]",  # a part of the training file: it selects nothing
            test_split="test_simple",
            tokenizer="words",
            max_length=64,
            tokens_per_batch=1024,
            num_buckets=4,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=2e-3, warmup_steps=100, clip_norm=1.0),
        training=TrainingConfig(
            num_train_steps=2200,
            label_smoothing=0.0,
            log_every_steps=100,
            eval_every_steps=2200,
            checkpoint_every_steps=550,
            keep_last=1,
        ),
        # The longest output has 48 actions.
        decode=DecodeConfig(max_new_tokens=49),
    ).to_config_dict()
