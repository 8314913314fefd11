"""Headlines of small documents of the embedded corpus, a first run of text to text; needs no files.

    transformer-jax train --config=headlines --workdir=runs/headlines
    transformer-jax evaluate --checkpoint=runs/headlines --splits=test

A document has three to five sentences, all but one of the same family, and its headline is this family and the first
phrase of the first of its sentences:

    May 16 – 17, 1952. two miles and ten bytes. ninety meters.    measures: two miles

The other reference is "two miles (measures)".

Hardware: 2 cores of an AMD EPYC: 3:04 minutes.
Result: exact match 69.94 % and ROUGE-L 88.82 on test, with one seed (first sentence 47.30, best sentence 65.07).
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


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        task=TaskConfig(name="text_to_text"),
        model=ModelConfig(
            vocab_size=1000,
            emb_dim=128,
            num_heads=4,
            mlp_dim=512,
            num_encoder_layers=2,
            num_decoder_layers=2,
            norm_position="pre",
            position_encoding="rotary",
            dropout_rate=0.0,
        ),
        data=DataConfig(
            source="embedded",
            target_feature="headlines",
            num_train_pairs=100_000,  # sentences: a document has four on average
            num_eval_pairs=4000,
            max_length=192,
            tokens_per_batch=4096,
            num_buckets=4,
            tokenizer_pairs=10_000,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=3e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=800,
            label_smoothing=0.0,
            log_every_steps=50,
            eval_every_steps=400,
            checkpoint_every_steps=400,
        ),
    ).to_config_dict()
