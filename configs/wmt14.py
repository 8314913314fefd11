"""WMT 2014 English-German as in Vaswani et al. 2017: the base model, or the big one as `wmt14.py:big`.

    transformer-jax prepare --dataset=wmt14 --data_dir=data
    transformer-jax train --config=wmt14 --workdir=runs/wmt14 --config.data.dir=PATH
    transformer-jax train --config=wmt14:big --workdir=runs/wmt14_big --config.data.dir=PATH
    transformer-jax evaluate --checkpoint=runs/wmt14 --splits=test

`prepare` downloads WMT14 with TensorFlow Datasets, and prints the flags that replace --config.data.dir=PATH. PATH is a
folder of text files instead: train, newstest2013 (validation) and newstest2014 (test), each as .en and .de, plain or
.gz. As in the paper: 4.5 million training pairs, about 25,000 source and 25,000 target tokens per update, a shared
vocabulary of 37,000 tokens, and averages of the last 5 (base) or 20 (big) checkpoints, ten minutes apart.

Hardware: accelerators. The paper's eight P100 took 12 hours for base and 3.5 days for big.
Result: not run here. The paper reports 27.3 BLEU (base) and 28.4 (big), with beam search and its own tokenisation.
"""

from transformer_jax.config import (
    DataConfig,
    EvaluationConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument
from transformer_jax.models.presets import transformer_base, transformer_big


def get_config(arg=""):
    check_argument(arg, ["base", "big"])
    big = arg == "big"
    averaged = 20 if big else 5
    return ExperimentConfig(
        model=transformer_big() if big else transformer_base(),
        data=DataConfig(
            source="text",
            source_locale="en",
            target_locale="de",
            train_split="train",
            valid_split="newstest2013",
            test_split="newstest2014",
            tokenizer="bpe",
            tokenizer_pairs=1_000_000,
            max_length=256,
            tokens_per_batch=25_600,
            row_multiple=8,
            num_buckets=10,
        ),
        # No learning_rate: the default is the paper's peak, (emb_dim * warmup_steps)^-0.5.
        optimizer=OptimizerConfig(schedule="inverse_sqrt", warmup_steps=4000, clip_norm=0.0),
        training=TrainingConfig(
            num_train_steps=300_000 if big else 100_000,
            label_smoothing=0.1,
            eval_every_steps=6000,
            checkpoint_every_steps=600 if big else 1500,
            keep_last=averaged,
        ),
        evaluation=EvaluationConfig(average_checkpoints=averaged),
    ).to_config_dict()
