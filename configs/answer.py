"""Your own questions on contexts, in the form of SQuAD 1.1; sizes follow from your files.

    transformer-jax train --config=answer --workdir=runs/answers --config.data.dir=questions
    transformer-jax evaluate --checkpoint=runs/answers --splits=valid

The folder holds train.json, and valid.json and test.json if you have them (docs/your_data.md). From scratch such a
model learns little; start from a pretrained one with --config.training.init_from (docs/fine_tuning.md).

Hardware: 1 core of an AMD EPYC, beside other programs.
Result: 8,981 questions of SQuAD's dev file as train.json: trained in 12:26 minutes (1,500 updates); F1 9.9 % on the
last tenth, exact match 3.2; on a second file, 833 questions on other articles, 10.4 and 3.2. One seed.
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
        task=TaskConfig(name="span_qa"),
        model=ModelConfig(
            architecture="encoder_only",
            vocab_size=8000,
            emb_dim=128,
            num_heads=4,
            mlp_dim=512,
            num_encoder_layers=3,
            norm_position="pre",
            position_encoding="rotary",
            dropout_rate=0.1,
            token_types=2,
        ),
        data=DataConfig(source="text", format="squad", tokenizer="wordpiece", num_buckets=4),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=1000, label_smoothing=0.0, eval_every_steps=100, checkpoint_every_steps=100
        ),
    ).to_config_dict()
