"""The baseline of the study: an encoder that tags the phrases of the embedded corpus's sentences; it needs no files.

Tags mark chunks of words, such as `B-money` and `I-money`; all follow from the grammar of the corpus.
"""

from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument

UPDATES = 600


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        model=ModelConfig(
            architecture="encoder_only",
            vocab_size=1000,
            emb_dim=64,
            num_heads=4,
            mlp_dim=256,
            num_encoder_layers=2,
            norm_position="pre",
            position_encoding="rotary",
            activation="gelu",
            dropout_rate=0.0,
        ),
        task=TaskConfig(name="tagging", num_labels=73, chunks=True),
        data=DataConfig(
            source="embedded",
            target_feature="phrases",
            num_train_pairs=20_000,
            num_eval_pairs=500,
            # One sentence per row; a batch of 128 tokens has two rows of the greatest length.
            max_length=64,
            num_buckets=2,
            row_multiple=2,
            tokens_per_batch=512,
            tokenizer_pairs=10_000,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=3e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=UPDATES,
            label_smoothing=0.0,
            log_every_steps=50,
            eval_every_steps=UPDATES,
            checkpoint_every_steps=UPDATES,
        ),
    ).to_config_dict()
