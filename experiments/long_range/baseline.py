"""The training of the study without its model and its gap; needs no files.

All models are decoders alone: one reads symbols, blanks and the end of the source, and then writes the symbols. Only
what it writes is in the loss.
"""

from experiments.long_range.copying import VOCABULARY, row_length
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
            architecture="decoder_only", vocab_size=VOCABULARY, emb_dim=32, num_decoder_layers=1, dropout_rate=0.0
        ),
        data=DataConfig(
            source="experiments.long_range.copying:Copying",
            num_train_pairs=30_000,
            num_eval_pairs=400,
            tokenizer="words",
            max_length=row_length(10),
            tokens_per_batch=32 * row_length(10),
            num_buckets=1,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-2, warmup_steps=50, beta2=0.98, clip_norm=1.0),
        training=TrainingConfig(
            num_train_steps=2000,
            label_smoothing=0.0,
            log_every_steps=100,
            eval_every_steps=2000,
            checkpoint_every_steps=500,
            keep_last=1,
        ),
        decode=DecodeConfig(max_new_tokens=6),
    ).to_config_dict()
