"""A small BART: whole texts from corrupted ones, of the embedded corpus's English sentences; needs no files.

    transformer-jax train --config=denoising --workdir=runs/denoising
    transformer-jax evaluate --checkpoint=runs/denoising --splits=test
    transformer-jax generate --checkpoint=runs/denoising --text="<mask>, March 7, 2031"

A text is a row of 62 tokens of sentences, between `<s>` and `</s>`. The encoder sees the sentences in another order,
with 30 % of the words masked. WikiText-2:

    transformer-jax prepare --dataset=wikitext2 --data_dir=data
    transformer-jax train --config=denoising:wikitext2 --workdir=runs/bart_wiki --config.data.dir=data/wikitext2

Hardware: 2 cores of an AMD EPYC without AVX-512.
Result: not run here; 300 steps, and with wikitext2 3,000.
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
END = 1

BART = ModelConfig(
    vocab_size=1000,
    emb_dim=128,
    num_heads=4,
    mlp_dim=512,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_length=128,
    norm_position="post",
    position_encoding="learned",
    activation="gelu",
    scale_embeddings=False,
    embedding_norm=True,
    init="plain_normal",
    decoder_start_id=END,
    # Training takes about one epoch, so the model cannot overfit.
    dropout_rate=0.0,
)


def get_config(arg=""):
    check_argument(arg, ["wikitext2"])
    return (wikitext2() if arg == "wikitext2" else embedded()).to_config_dict()


def embedded():
    return ExperimentConfig(
        model=BART,
        task=TaskConfig(name="denoising"),
        data=DataConfig(
            source="embedded",
            num_train_pairs=50_000,
            num_eval_pairs=1000,
            batching="windows",
            max_length=64,
            tokens_per_batch=4096,
            tokenizer_pairs=20_000,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=2e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=300,
            label_smoothing=0.0,
            log_every_steps=50,
            eval_every_steps=150,
            checkpoint_every_steps=150,
        ),
    )


def wikitext2():
    config = embedded()
    return dataclasses.replace(
        config,
        model=dataclasses.replace(BART, vocab_size=WORDS + RESERVED_IDS + MASKS, dropout_rate=0.1),
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
