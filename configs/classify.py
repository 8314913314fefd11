"""Your own texts with labels: a classifier whose sizes follow from your files.

    transformer-jax train --config=classify --workdir=runs/reviews --config.data.dir=reviews
    transformer-jax evaluate --checkpoint=runs/reviews --splits=valid --baselines
    echo "a charming journey" | transformer-jax predict --checkpoint=runs/reviews

The folder holds train.tsv, and valid.tsv and test.tsv if you have them (docs/your_data.md).

Hardware: 2 cores of an Intel Xeon, beside other programs.
Result: 8,000 sentences of SST-2 as one file: trained in 2:32 minutes; accuracy 81.75 % on the last tenth (logistic
regression over words: 80.50), and 75.92 % on a second file, the 872 sentences of SST-2's dev. One seed.
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
        task=TaskConfig(name="classification", pooling="mean"),
        model=ModelConfig(
            architecture="encoder_only",
            vocab_size=8000,
            emb_dim=128,
            num_heads=4,
            mlp_dim=256,
            num_encoder_layers=2,
            norm_position="pre",
            position_encoding="rotary",
            dropout_rate=0.3,
            head_dropout_rate=0.0,
        ),
        data=DataConfig(source="text", format="tsv", tokenizer="wordpiece", cut_texts=True, num_buckets=4),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=1000,
            label_smoothing=0.1,
            eval_every_steps=100,
            checkpoint_every_steps=100,
            best_metric="accuracy",
        ),
    ).to_config_dict()
