"""A small BERT: masked tokens of the embedded corpus's English sentences, or of WikiText-2; needs no files.

    transformer-jax train --config=masked_lm --workdir=runs/masked_lm
    transformer-jax evaluate --checkpoint=runs/masked_lm --splits=test
    python -m transformer_jax.evaluation.trigram_baseline --checkpoint=runs/masked_lm --splits=test

The last command scores trigrams on both sides on the same tokens. WikiText-2, whose words are the vocabulary, and whose
rows cross the ends of its lines:

    transformer-jax prepare --dataset=wikitext2 --data_dir=data
    transformer-jax train --config=masked_lm:wikitext2 --workdir=runs/bert_wiki --config.data.dir=data/wikitext2

Hardware: 2 cores of an AMD EPYC, beside other work.
Result: 1.25 nats per masked token and 62.2 % of them right on test, after 3,500 steps; trigrams on both sides have 1.48
nats. The first 2,000 steps took 2:48 minutes of CPU time, of both cores together; the training was not timed alone.
wikitext2 (3,000 steps): not run here.
"""

import dataclasses

from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument

WORDS = 33_276  # different words of WikiText-2's training split, without <unk>
RESERVED_IDS = 4
MASKS = 1

BERT = ModelConfig(
    architecture="encoder_only",
    vocab_size=1000,
    emb_dim=128,
    num_heads=4,
    mlp_dim=512,
    num_encoder_layers=2,
    max_length=128,
    norm_position="pre",  # BERT: post
    position_encoding="rotary",  # BERT: learned; such positions take more steps
    activation="gelu",
    scale_embeddings=False,
    embedding_norm=True,
    output_bias=True,
    init="plain_normal",
    dropout_rate=0.0,
)


def get_config(arg=""):
    check_argument(arg, ["wikitext2"])
    return (wikitext2() if arg == "wikitext2" else embedded()).to_config_dict()


def embedded():
    return ExperimentConfig(
        model=BERT,
        task=TaskConfig(name="masked_lm"),
        data=DataConfig(
            source="embedded",
            num_train_pairs=50_000,
            num_eval_pairs=1000,
            batching="packed",
            max_length=128,
            packed_length=128,
            tokens_per_batch=1024,
            tokenizer_pairs=20_000,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=3e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=3500,
            label_smoothing=0.0,
            log_every_steps=100,
            eval_every_steps=500,
            checkpoint_every_steps=500,
        ),
    )


def wikitext2():
    return ExperimentConfig(
        model=dataclasses.replace(BERT, vocab_size=WORDS + RESERVED_IDS + MASKS, dropout_rate=0.1),
        task=TaskConfig(name="masked_lm"),
        data=DataConfig(
            source="text",
            format="documents",
            tokenizer="words",
            batching="windows",
            max_length=64,
            tokens_per_batch=4096,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-3, warmup_steps=300, weight_decay=0.1),
        training=TrainingConfig(
            num_train_steps=3000,
            label_smoothing=0.0,
            eval_every_steps=1000,
            checkpoint_every_steps=1000,
        ),
    )
