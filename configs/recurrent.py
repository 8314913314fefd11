"""A recurrent encoder-decoder with attention on the embedded English-German corpus; needs no files.

    transformer-jax train --config=recurrent --workdir=runs/recurrent
    transformer-jax evaluate --checkpoint=runs/recurrent --splits=test

An argument chooses another model: `none` has no attention, so that one state must hold the whole source (Sutskever et
al. 2014); `luong` has the attention of Luong et al. 2015 with input feeding.

    transformer-jax train --config=recurrent:none --workdir=runs/recurrent_none
    transformer-jax train --config=recurrent:luong --workdir=runs/recurrent_luong

Hardware: 2 cores of an AMD EPYC, idle; 2:06 minutes with compilation for 700 steps.
Result: 49.6 sacreBLEU and 9.1 % exact match on `test` (one seed). The study `architectures` trains such a model longer.
"""

from typing import Any

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, OptimizerConfig, TrainingConfig
from transformer_jax.config_file import check_argument

MODELS: dict[str, dict[str, Any]] = {
    "": {"attention": "additive", "bidirectional": True, "bridge": "tanh"},
    "none": {"attention": "none"},
    "luong": {"attention": "general", "input_feeding": True},
}


def get_config(arg=""):
    check_argument(arg, [name for name in MODELS if name])
    return ExperimentConfig(
        model=ModelConfig(
            architecture="recurrent",
            cell="lstm",
            vocab_size=2000,
            emb_dim=128,
            num_encoder_layers=1,
            num_decoder_layers=1,
            # Training takes less than one epoch, so the model cannot overfit.
            dropout_rate=0.0,
            **MODELS[arg],
        ),
        data=DataConfig(
            source="embedded",
            num_train_pairs=200_000,
            num_eval_pairs=1000,
            max_length=64,
            tokens_per_batch=2048,
            num_buckets=4,
            tokenizer_pairs=20_000,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=5e-3, warmup_steps=50),
        training=TrainingConfig(
            num_train_steps=700,
            label_smoothing=0.0,
            log_every_steps=100,
            eval_every_steps=350,
            checkpoint_every_steps=350,
        ),
    ).to_config_dict()
