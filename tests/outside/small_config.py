"""The recurrent architecture with the counting task, on a small part of the embedded corpus."""

from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)


def get_config(arg=""):
    return ExperimentConfig(
        model=ModelConfig(architecture="outside.pulse:PulseArchitecture", vocab_size=384, emb_dim=32),
        data=DataConfig(num_train_pairs=500, num_eval_pairs=20, tokenizer_pairs=500, max_length=64),
        task=TaskConfig(name="outside.counting:Counting"),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=3e-3, warmup_steps=5),
        training=TrainingConfig(num_train_steps=20, log_every_steps=10, best_metric="error"),
    ).to_config_dict()
