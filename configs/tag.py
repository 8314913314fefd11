"""Your own sentences with a tag per word, such as names or parts of speech; sizes follow from your files.

    transformer-jax train --config=tag --workdir=runs/names --config.data.dir=names
    transformer-jax evaluate --checkpoint=runs/names --splits=valid --baselines
    echo "Ana vive en Madrid ." | transformer-jax predict --checkpoint=runs/names

The folder holds train.conll or train.conllu, and valid and test if you have them (docs/your_data.md).

Hardware: 2 cores of an Intel Xeon, beside other programs.
Result: WNUT 2017, names in tweets: trained in 5:20 minutes; F1 of names 12.32 on dev (most frequent tag of each word:
9.70), and 9.13 on a second file, test. One seed, from scratch.
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
from transformer_jax.fitting import fit_to_data

fit = fit_to_data


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        task=TaskConfig(name="tagging"),
        model=ModelConfig(
            architecture="encoder_only",
            vocab_size=8000,
            emb_dim=128,
            num_heads=4,
            mlp_dim=256,
            num_encoder_layers=2,
            norm_position="pre",
            position_encoding="relative",
            dropout_rate=0.3,
            head_dropout_rate=0.0,
        ),
        data=DataConfig(source="text", format="conll", tokenizer="wordpiece_cased", num_buckets=4),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=1000, label_smoothing=0.1, eval_every_steps=100, checkpoint_every_steps=100
        ),
    ).to_config_dict()
