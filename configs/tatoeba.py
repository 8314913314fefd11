"""Tatoeba, English to German: 164,032 pairs of everyday sentences (www.manythings.org/anki, 2018-04-07, CC BY 2.0).

    transformer-jax prepare --dataset=tatoeba --data_dir=data
    transformer-jax train --config=tatoeba --workdir=runs/tatoeba --config.data.dir=data/tatoeba
    transformer-jax evaluate --checkpoint=runs/tatoeba --splits=test

The folder holds train, valid and test, each as .en and .de, plain or .gz. The sha256 of the English side decides the
split of a pair: 1,655 are in valid and 1,687 in test. No English sentence is in two splits, but 11 % of the German test
sentences are in the training split too. The publisher replaces the file from time to time; `prepare` gets today's,
which has more pairs, so that its scores are not comparable with those below.

Hardware: 2 shared cores of an AMD EPYC: 93 minutes of training, about 2,400 target tokens/s without other work.
Result: sacreBLEU 38.80 and chrF 58.04 on test, loss 1.432 nats per token, with one seed. Averaging two checkpoints
instead of one, three or five was chosen on the validation split (39.74 sacreBLEU).
"""

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        model=ModelConfig(
            vocab_size=8000,
            emb_dim=256,
            num_heads=4,
            mlp_dim=1024,
            num_encoder_layers=3,
            num_decoder_layers=3,
            max_length=128,
            norm_position="pre",
            dropout_rate=0.1,
        ),
        data=DataConfig(
            source="text",
            source_locale="en",
            target_locale="de",
            tokenizer="unigram",
            max_length=64,
            tokens_per_batch=4096,
        ),
        optimizer=OptimizerConfig(schedule="inverse_sqrt", warmup_steps=1000),
        training=TrainingConfig(
            num_train_steps=3000,
            label_smoothing=0.1,
            eval_every_steps=1000,
            checkpoint_every_steps=500,
            keep_last=2,
        ),
        evaluation=EvaluationConfig(average_checkpoints=2),
        decode=DecodeConfig(beam_size=4),
    ).to_config_dict()
