"""A small Pre-LN Transformer on the embedded English-German corpus.

    transformer-jax quickstart
    transformer-jax train --config=configs/quickstart.py --workdir=runs/quickstart

Hardware: 2 CPU cores.
"""

from transformer_jax.config import (
    DataConfig,
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
            vocab_size=1500,
            emb_dim=128,
            num_heads=4,
            mlp_dim=512,
            num_encoder_layers=2,
            num_decoder_layers=2,
            max_length=128,
            norm_position="pre",
            dropout_rate=0.1,
        ),
        data=DataConfig(source="embedded", num_train_pairs=200_000, max_length=64, tokens_per_batch=4096),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=3e-3, warmup_steps=300),
        training=TrainingConfig(
            num_train_steps=3000, log_every_steps=50, eval_every_steps=500, checkpoint_every_steps=500
        ),
    ).to_config_dict()
