"""Your own pairs of texts, such as two languages; sizes follow from your files.

    transformer-jax train --config=translate --workdir=runs/mine --config.data.dir=pairs
    transformer-jax evaluate --checkpoint=runs/mine --splits=valid
    echo "A man is cooking." | transformer-jax generate --checkpoint=runs/mine

The folder holds train.en and train.fr (any two endings), or train.tsv, and valid and test if you have them
(docs/your_data.md).

Hardware: 1 core of an AMD EPYC, beside other programs.
Result: 20,000 pairs of Tatoeba, English to German, as train.en and train.de: trained in 13:09 minutes (2,500 updates);
32.8 sacreBLEU on the last tenth, and 29.8 on a second file, 500 pairs of Tatoeba's test. "A man is cooking." becomes
"Ein Mann kocht." One seed.
"""

from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument
from transformer_jax.fitting import fit_to_data

fit = fit_to_data


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        model=ModelConfig(
            vocab_size=8000,
            emb_dim=128,
            num_heads=4,
            mlp_dim=512,
            num_encoder_layers=3,
            num_decoder_layers=3,
            norm_position="pre",
            dropout_rate=0.2,
        ),
        data=DataConfig(source="text", tokenizer="unigram"),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=2e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=1000, label_smoothing=0.1, eval_every_steps=100, checkpoint_every_steps=100
        ),
    ).to_config_dict()
