"""SciTLDR, summaries of one sentence of scientific papers (Cachola et al. 2020): the input is the abstract.

    transformer-jax prepare --dataset=scitldr --data_dir=data
    transformer-jax train --config=scitldr --workdir=runs/scitldr --config.data.dir=data/scitldr
    transformer-jax evaluate --checkpoint=runs/scitldr --splits=test

The folder holds train.jsonl, dev.jsonl and test.jsonl, plain or .gz: a line has the sentences of an abstract under
`source` and its summaries under `target`. Training has 1,992 abstracts with one summary each. The 619 of dev have 2.3
on average, and the 618 of test 3.2. An abstract has 212 tokens on average and a summary 26, with a vocabulary of 8,000;
7 abstracts of training have more than 448 and are left out.

The argument `decoder` is a decoder alone, which reads the abstract before the summary, both ways:

    transformer-jax train --config=scitldr:decoder --workdir=runs/scitldr_decoder --config.data.dir=data/scitldr

Hardware: 2 cores of an AMD EPYC, shared with other programs: 68 minutes, and 47 minutes for the decoder alone.
Result: ROUGE-1, -2 and -L on test 28.46, 6.40 and 22.20 (decoder alone: 17.95, 3.59 and 17.19), with one seed. The
first sentence of the abstract has 31.29, 11.42 and 24.08, and its best sentence 49.34, 26.05 and 39.95. So a small
model from scratch does not reach the first sentence.
"""

import dataclasses

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument


def get_config(arg=""):
    check_argument(arg, ["decoder"])
    return (decoder() if arg == "decoder" else encoder_decoder()).to_config_dict()


def encoder_decoder():
    return ExperimentConfig(
        task=TaskConfig(name="text_to_text", best_reference="rouge1"),
        model=ModelConfig(
            vocab_size=8000,
            emb_dim=192,
            num_heads=4,
            mlp_dim=768,
            num_encoder_layers=3,
            num_decoder_layers=3,
            max_length=512,
            norm_position="pre",
            position_encoding="rotary",
            dropout_rate=0.3,
        ),
        data=DataConfig(
            source="text",
            format="jsonl",
            text_lists=True,
            input_feature="source",
            target_feature="target",
            valid_split="dev",
            tokenizer="unigram",
            max_length=448,
            tokens_per_batch=2048,
            row_multiple=4,
            num_buckets=4,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-3, warmup_steps=200),
        training=TrainingConfig(
            num_train_steps=2500,
            label_smoothing=0.1,
            eval_every_steps=250,
            checkpoint_every_steps=250,
        ),
        # 99 % of the references of dev have at most 54 tokens.
        decode=DecodeConfig(beam_size=4, length_penalty="average", no_repeat_ngram=3, max_new_tokens=64),
    )


def decoder():
    config = encoder_decoder()
    return dataclasses.replace(
        config,
        task=dataclasses.replace(config.task, source_mask="prefix"),
        model=dataclasses.replace(
            config.model,
            architecture="decoder_only",
            num_encoder_layers=ModelConfig.num_encoder_layers,
            num_decoder_layers=6,
            max_length=768,
        ),
        data=dataclasses.replace(config.data, max_length=512),
        training=dataclasses.replace(config.training, num_train_steps=1500),
        # The abstract is a part of the prompt: without repetition, three tokens of it could not stand in the summary.
        decode=dataclasses.replace(config.decode, no_repeat_ngram=0),
    )
