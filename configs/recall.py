"""Associative recall: rows of keys and values, drawn, and questions for the values; needs no files.

    transformer-jax train --config=recall --workdir=runs/recall
    transformer-jax evaluate --checkpoint=runs/recall --data.test_sets=near=0,far=20 --splits=test,near,far

Accuracy counts the answers alone. A guess is right in 6 % of the cases, a guess among the values of the row in about
29 %. Rows are much like those of Arora et al. 2023 ("Zoology"); data/sources/recall.py says how they differ.

Hardware: 2 cores of an AMD EPYC; 28 seconds with compilation, beside other programs.
Result: 99.5 % of the answers on test, 99.2 % without a gap and 99.35 % with a gap of 20, where training has 8. Two more
seeds: 100 and 99.95 % on test.
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
    data = DataConfig(
        source="recall",
        num_train_pairs=50_000,
        num_eval_pairs=1_000,
        recall_pairs=4,
        recall_questions=2,
        recall_keys=16,
        recall_gap=8,
        recall_length=32,
        tokenizer="words",
        max_length=33,
        tokens_per_batch=33 * 64,
    )
    return ExperimentConfig(
        model=ModelConfig(
            architecture="decoder_only",
            vocab_size=data.recall_vocab_size(),
            emb_dim=64,
            num_heads=2,
            mlp_dim=128,
            num_decoder_layers=2,
            norm_position="pre",
            # A bias for every distance finds the word before, and untied outputs the values, in few steps.
            position_encoding="relative",
            tie_output=False,
            dropout_rate=0.0,
        ),
        task=TaskConfig(name="language_model"),
        data=data,
        optimizer=OptimizerConfig(schedule="constant", learning_rate=4e-3, warmup_steps=100),
        training=TrainingConfig(
            num_train_steps=750,
            label_smoothing=0.0,
            log_every_steps=50,
            eval_every_steps=250,
            checkpoint_every_steps=250,
            best_metric="accuracy",
        ),
    ).to_config_dict()
