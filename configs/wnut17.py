"""WNUT 2017, names of emerging entities in tweets and comments (Derczynski et al. 2017): six types in BIO.

    transformer-jax prepare --dataset=wnut17 --data_dir=data
    transformer-jax train --config=wnut17 --workdir=runs/wnut17 --config.data.dir=data/wnut17
    transformer-jax evaluate --checkpoint=runs/wnut17 --splits=test

The folder holds train.conll, dev.conll and test.conll, plain or .gz, a word and a tag per line.

Hardware: 2 cores of an AMD EPYC, shared.
Result: F1 of entities 4.72 on test (most frequent tag of each word: 6.1) and 10.82 on dev, after 34 seconds; one seed,
from scratch. The longer training of `--config=tag` has 9.13 on test. The entities of test are new ones by design, and
3,394 sentences teach a model without pretraining few of them.
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
        task=TaskConfig(name="tagging", num_labels=13, chunks=True),
        model=ModelConfig(
            architecture="encoder_only",
            vocab_size=6000,
            emb_dim=128,
            num_heads=4,
            mlp_dim=256,
            num_encoder_layers=2,
            max_length=256,
            norm_position="pre",
            position_encoding="relative",
            dropout_rate=0.4,
            head_dropout_rate=0.0,
        ),
        data=DataConfig(
            source="text",
            format="conll",
            valid_split="dev",
            tokenizer="wordpiece_cased",
            max_length=256,
            tokens_per_batch=2048,
            num_buckets=3,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=600,
            label_smoothing=0.1,
            eval_every_steps=200,
            checkpoint_every_steps=200,
        ),
    ).to_config_dict()
