"""WikiText-2, words: a language model with the text's own vocabulary (Merity et al. 2017).

    transformer-jax prepare --dataset=wikitext2 --data_dir=data
    transformer-jax train --config=wikitext2 --workdir=runs/wikitext2 --config.data.dir=data/wikitext2
    transformer-jax evaluate --checkpoint=runs/wikitext2 --splits=test

The text consists of words between spaces; rare ones are `<unk>` already. A line is a document, and its end counts as a
word: 245,569 of them are in the test split.

Hardware: 2 cores of an AMD EPYC with AVX-512.
Result: test perplexity 170.4, validation 184.7, after 30 minutes beside another training. On the same 245,569 tokens of
test, word frequencies of the training split have perplexity 911.7, and a 5-gram model with modified Kneser-Ney
smoothing (KenLM, `lmplz -o 5`) has 220.1. `evaluate --baselines` computes both.
"""

from transformer_jax.config import (
    DataConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument

WORDS = 33_276  # different words of the training split, without <unk>
RESERVED_IDS = 4
END = 1


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        model=ModelConfig(
            architecture="decoder_only",
            vocab_size=WORDS + RESERVED_IDS,
            emb_dim=128,
            num_heads=4,
            mlp_dim=512,
            num_decoder_layers=2,
            norm_position="pre",
            position_encoding="rotary",
            dropout_rate=0.2,
            decoder_start_id=END,
        ),
        task=TaskConfig(name="language_model"),
        data=DataConfig(
            source="text",
            format="documents",
            tokenizer="words",
            batching="windows",
            max_length=64,
            tokens_per_batch=2048,
        ),
        optimizer=OptimizerConfig(schedule="cosine", learning_rate=2e-3, warmup_steps=200, weight_decay=0.1),
        training=TrainingConfig(
            num_train_steps=3000,
            label_smoothing=0.0,
            eval_every_steps=1000,
            checkpoint_every_steps=1000,
        ),
        evaluation=EvaluationConfig(tokens_per_batch=4096, context=32),
    ).to_config_dict()
