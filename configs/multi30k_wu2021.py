"""Multi30k, English to German, as Wu et al. 2021 (arXiv 2105.14462) train their text-only Transformer-tiny.

    transformer-jax prepare --dataset=multi30k_wu2021 --data_dir=data
    transformer-jax train --config=multi30k_wu2021 --workdir=runs/wu2021 --config.data.dir=data/multi30k_wu2021
    transformer-jax evaluate --checkpoint=runs/wu2021 --splits=test

The folder holds train, valid and test.2016, each as .en and .de, plain or .gz: lower-cased Moses words, split into the
10k joint BPE tokens that their code distributes; `@@` ends every token that is not the last of its word.

Their recipe: 4 + 4 layers of width 128, feed-forward 256, 4 heads, Post-LN, ReLU, sinusoids, one table for all
embeddings (9,708 tokens and 4 reserved ids: 2,568,192 parameters); dropout 0.3, none on attention or activations;
label smoothing 0.1; Adam (0.9, 0.98), epsilon 1e-8, 5e-3 after 2,000 steps of warm-up, then inverse square root;
gradients clipped at norm 25; 2 x 4,096 tokens an update; at most 8,000 updates, or until 10 epochs bring no better
validation loss; the last 10 epochs' checkpoints averaged; beam 5, scores divided by the length.

Known differences: their k-th update has the learning rate that the (k-1)-th has here, and their first one 1e-7; they
draw the projections of queries, keys and values from a range 1/sqrt(2) times as wide; their decoder starts with eos;
pairs are batched differently.

They report 41.02 BLEU on test2016, on lower-cased Moses tokens: `tokenized_bleu` here.

Hardware: 2 shared cores of an AMD EPYC; 4 hours of training, resumed several times.
Result: on test2016, with one seed (0), tokenized_bleu 40.91, sacreBLEU 40.91 and chrF 65.20. Patience ended training
after 7,381 updates (121 epochs). Validation loss in nats per token: 4.08 after 549 updates, 3.26 after 1,037, 2.41
after 1,525, 2.07 after 2,013, 1.78 after 3,050, 1.67 after 5,002; the best is 1.643, after 6,771.
On one NVIDIA H200 in 4:50 minutes (with model.scan_layers=True; benchmarks/README.md has the commands), again with seed
0: patience ended training after 6,039 updates (99 epochs); tokenized_bleu 41.34, sacreBLEU 41.33, chrF 65.19.

For three seeds run `train` and `evaluate` with --config.seed=0, 1 and 2, each in its own work directory:

    transformer-jax train --config=multi30k_wu2021 --workdir=w1 --config.seed=1 --config.data.dir=data/multi30k_wu2021
    transformer-jax evaluate --checkpoint=w1 --splits=test
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

STEPS_PER_EPOCH = 61


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        model=ModelConfig(
            vocab_size=9712,
            emb_dim=128,
            num_heads=4,
            mlp_dim=256,
            num_encoder_layers=4,
            num_decoder_layers=4,
            max_length=256,
            norm_position="post",
            norm_epsilon=1e-5,
            activation="relu",
            position_encoding="sinusoidal",
            dropout_rate=0.3,
        ),
        data=DataConfig(
            source="text",
            source_locale="en",
            target_locale="de",
            train_split="train",
            valid_split="valid",
            test_split="test.2016",
            text_form="moses_bpe",
            tokenizer="words",
            max_length=128,
            tokens_per_batch=8192,
            num_buckets=12,
        ),
        optimizer=OptimizerConfig(
            schedule="inverse_sqrt", learning_rate=5e-3, warmup_steps=2000, epsilon=1e-8, clip_norm=25.0
        ),
        training=TrainingConfig(
            num_train_steps=8000,
            label_smoothing=0.1,
            eval_every_steps=STEPS_PER_EPOCH,
            checkpoint_every_steps=STEPS_PER_EPOCH,
            patience=10,
            keep_last=10,
        ),
        evaluation=EvaluationConfig(average_checkpoints=10),
        decode=DecodeConfig(beam_size=5, length_penalty="average", length_penalty_alpha=1.0, early_stop="first"),
    ).to_config_dict()
