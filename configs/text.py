"""Your own plain text: a language model that continues it; sizes follow from your files.

    transformer-jax train --config=text --workdir=runs/stories --config.data.dir=stories
    transformer-jax evaluate --checkpoint=runs/stories --splits=valid --baselines
    echo "Once upon" | transformer-jax generate --checkpoint=runs/stories

The folder holds train.txt, and valid.txt and test.txt if you have them (docs/your_data.md). Every line is a text of its
own; with --config.data.documents=file, each file is one.

Hardware: 2 cores of an Intel Xeon, beside other programs.
Result: the first 90 % of tiny Shakespeare as one file: trained in about 8 minutes; a perplexity of 83.2 per token, 937
per word and 2.17 bits per byte on its last tenth, where 5-gram Kneser-Ney of the same tokens has 1,311 and 2.27.
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
        model=ModelConfig(
            architecture="decoder_only",
            vocab_size=8000,
            emb_dim=128,
            num_heads=4,
            mlp_dim=512,
            num_decoder_layers=3,
            norm_position="pre",
            position_encoding="rotary",
            dropout_rate=0.1,
        ),
        task=TaskConfig(name="language_model"),
        data=DataConfig(source="text", format="documents", tokenizer="unigram", batching="windows", max_length=128),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=2e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=1000, label_smoothing=0.0, eval_every_steps=100, checkpoint_every_steps=100
        ),
    ).to_config_dict()
