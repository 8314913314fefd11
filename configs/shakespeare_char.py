"""Characters of tiny Shakespeare: nanoGPT's recipes for a CPU and for an accelerator, and a better one for a CPU.

    transformer-jax prepare --dataset=shakespeare_char --data_dir=data
    transformer-jax train --config=shakespeare_char --workdir=runs/nano --config.data.dir=data/shakespeare_char
    transformer-jax train --config=shakespeare_char:tuned --workdir=runs/tuned --config.data.dir=data/shakespeare_char
    transformer-jax train --config=shakespeare_char:gpu --workdir=runs/big --config.data.dir=data/shakespeare_char
    transformer-jax evaluate --checkpoint=runs/tuned --splits=valid

The folder has `input.txt`, tiny Shakespeare, 1,115,394 characters; the first 90 % train, the rest is `valid`. nanoGPT's
figures are of random windows of the validation text, these are of the whole text.

`tuned` has rotary positions, RMSNorm, SwiGLU and windows of 128 characters. Its rates are near the best of five random
variants (validation losses 1.79 to 2.01), with data.tokens_per_batch=1536 and 600 steps:

    transformer-jax sweep --study=tuning --config=shakespeare_char:tuned --workdir=W --search=random --num_trials=5

Hardware: 2 cores of an AMD EPYC without AVX-512; `gpu`: one NVIDIA H100, beside another program.
Result: validation loss in nats per character, in windows side by side, and with context:
nanoGPT's recipe: 1.895, and 1.870 with --evaluation.context=32; nanoGPT reports 1.88. Training took 2:53 minutes.
`tuned`: 1.500, and 1.476 with --evaluation.context=64. Training took 14 minutes.
`gpu`: 1.477 after 1,500 steps, in windows side by side; nanoGPT reports 1.4697. It learns the text by heart after
that: 1.507 after 2,500 steps and 1.629 after 4,000, where the run was ended. 4,000 steps took 2:21 minutes with start
and compilation, at 0.9 million tokens/s, in float32 with products in TF32.
"""

from typing import Any

from transformer_jax.config import (
    DataConfig,
    EvaluationConfig,
    ExperimentConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument
from transformer_jax.models.presets import nanogpt_character

CHARACTERS = 65
RESERVED_IDS = 4
LINE_FEED = RESERVED_IDS  # the character with the lowest code point


NANO_CPU: dict[str, Any] = {"num_decoder_layers": 4, "num_heads": 4, "emb_dim": 128, "max_length": 64}
TUNED: dict[str, Any] = {
    **{"num_decoder_layers": 4, "num_heads": 4, "emb_dim": 128, "mlp_dim": 336, "max_length": 128},
    **{"position_encoding": "rotary", "norm": "rmsnorm", "norm_epsilon": 1e-6, "activation": "swiglu"},
}
NO_DROPOUT = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
RECIPES: dict[str, tuple[dict[str, Any], int, int, dict[str, Any]]] = {
    "": (NANO_CPU | NO_DROPOUT, 12, 2000, {}),
    "tuned": (
        TUNED | NO_DROPOUT,
        12,
        5000,
        {"learning_rate": 5e-3, "end_fraction": 0.0, "warmup_steps": 350, "clip_norm": 1.6},
    ),
    "gpu": ({"max_length": 256}, 64, 5000, {}),
}
"""By argument: fields of the model, rows of a batch, steps, and fields of the optimizer."""


def get_config(arg=""):
    check_argument(arg, ["tuned", "gpu"])
    fields, rows, steps, rates = RECIPES[arg]
    length = fields["max_length"]
    optimizer: dict[str, Any] = {"learning_rate": 1e-3, "end_fraction": 0.1, "warmup_steps": 100, "clip_norm": 1.0}
    return ExperimentConfig(
        model=nanogpt_character(vocab_size=CHARACTERS + RESERVED_IDS, decoder_start_id=LINE_FEED, **fields),
        task=TaskConfig(name="language_model"),
        data=DataConfig(
            source="text",
            format="documents",
            documents="file",
            train_split="input[:90%]",
            valid_split="input[90%:]",
            test_split="",
            tokenizer="char",
            batching="windows",
            max_length=length,
            tokens_per_batch=rows * length,
            row_multiple=4,
        ),
        optimizer=OptimizerConfig(
            schedule="cosine",
            beta2=0.99,
            epsilon=1e-8,
            weight_decay=0.1,
            decay_mask="all_but_norms_and_biases",
            **optimizer | rates,
        ),
        training=TrainingConfig(
            num_train_steps=steps,
            label_smoothing=0.0,
            eval_every_steps=250 if arg != "tuned" else 1000,
            checkpoint_every_steps=250 if arg != "tuned" else 1000,
        ),
        evaluation=EvaluationConfig(tokens_per_batch=8192),
    ).to_config_dict()
