"""Characters of tiny Shakespeare: nanoGPT's small recipe for a CPU, or its recipe for an accelerator.

    transformer-jax prepare --dataset=shakespeare_char --data_dir=data
    transformer-jax train --config=shakespeare_char --workdir=runs/shakespeare --config.data.dir=data/shakespeare_char
    transformer-jax train --config=shakespeare_char:gpu --workdir=runs/big --config.data.dir=data/shakespeare_char
    transformer-jax evaluate --checkpoint=runs/shakespeare --splits=valid

The folder has `input.txt`, tiny Shakespeare, 1,115,394 characters; the first 90 % train, the rest is `valid`. The
recipes are those of nanoGPT, whose figures are of random windows of the validation text; these are of the whole text.

Hardware: 2 cores of an AMD EPYC without AVX-512; `gpu`: an accelerator.
Result: validation loss 1.895 nats per character in windows side by side, and 1.870 with --evaluation.context=32;
nanoGPT reports 1.88. Training took 3.5 minutes beside other programs. `gpu`: not run; nanoGPT reports 1.4697.
"""

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


def get_config(arg=""):
    check_argument(arg, ["gpu"])
    gpu = arg == "gpu"
    length = 256 if gpu else 64
    sizes = {} if gpu else {"num_decoder_layers": 4, "num_heads": 4, "emb_dim": 128, "max_length": length}
    rates = {} if gpu else {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    return ExperimentConfig(
        model=nanogpt_character(vocab_size=CHARACTERS + RESERVED_IDS, decoder_start_id=LINE_FEED, **sizes | rates),
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
            tokens_per_batch=64 * 256 if gpu else 12 * 64,
            row_multiple=8 if gpu else 4,
        ),
        optimizer=OptimizerConfig(
            schedule="cosine",
            learning_rate=1e-3,
            end_fraction=0.1,
            warmup_steps=100,
            beta2=0.99,
            epsilon=1e-8,
            weight_decay=0.1,
            decay_mask="all_but_norms_and_biases",
            clip_norm=1.0,
        ),
        training=TrainingConfig(
            num_train_steps=5000 if gpu else 2000,
            label_smoothing=0.0,
            eval_every_steps=250,
            checkpoint_every_steps=250,
        ),
        evaluation=EvaluationConfig(tokens_per_batch=8192),
    ).to_config_dict()
