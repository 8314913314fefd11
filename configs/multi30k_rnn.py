"""Multi30k, German to English, with the models of bentrevett/pytorch-seq2seq (notebooks of 2024).

    transformer-jax train --config=multi30k_rnn:lstm --workdir=runs/rnn --config.data.dir=data/multi30k_spacy
    transformer-jax evaluate --checkpoint=runs/rnn --splits=test

The argument is `lstm` (13,898,501 parameters), `gru` (14,219,781), `attention` (20,518,405) or, to compare with them,
`transformer` (9,038,341); see `models.presets.seq2seq_bentrevett`. The folder holds train, val and test_2016_flickr,
each as .de and .en, plain or .gz: lower-cased tokens of spaCy (de_core_news_sm, en_core_web_sm) with spaces between,
one sentence per line. spaCy 3.8 without a model has the same tokens, and vocabularies of the same size. With this
program as tokens.py, `python tokens.py de < train.de > data/multi30k_spacy/train.de` writes a file:

    import sys, spacy
    split = spacy.blank(sys.argv[1]).tokenizer
    for line in sys.stdin:
        print(*(token.text.lower() for token in split(line.strip())))

`transformer-jax prepare --dataset=multi30k --data_dir=data` downloads the sentences.

Their recipe: words that occur twice or more, 7,849 German and 5,889 English ones and 4 special ids; batches of 128
pairs; 10 epochs; Adam with 1e-3; gradients clipped at norm 1; dropout 0.5; teacher forcing with probability 0.5; greedy
outputs of at most 25 tokens. The Transformer has Adam with 5e-4, dropout 0.1 and all targets. They report on test2016
13.76 BLEU with `lstm`, 20.61 with `gru`, 28.30 with `attention` and 36.52 with `transformer`, on lower-cased spaCy
tokens: `tokenized_bleu` here. Their perplexities are of a pass without teacher
forcing and cannot be compared.

Known differences: their source begins with `<sos>`; they choose own output or target for a whole batch at each step,
here every row does; their batches have 128 pairs, padded to the longest one, and ours as many pairs of about the same
length as 2,048 tokens hold.

Hardware: an AMD EPYC, beside other programs; one core, but two for `transformer` and the first third of `lstm`; 2,390
steps.
Result: on test_2016_flickr, one seed each, `lstm` 18.18 BLEU, `gru` 23.04, `attention` 31.93 and `transformer` 33.74,
after 66, 92, 117 and 89 minutes.
"""

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument
from transformer_jax.models.presets import seq2seq_bentrevett

NAMES = ["lstm", "gru", "attention", "transformer"]
STEPS_PER_EPOCH = 239


def get_config(arg=""):
    check_argument(arg, NAMES)
    return ExperimentConfig(
        model=seq2seq_bentrevett(arg or "attention"),
        data=DataConfig(
            source="text",
            source_locale="de",
            target_locale="en",
            train_split="train",
            valid_split="val",
            test_split="test_2016_flickr",
            text_form="moses_bpe",
            tokenizer="words",
            separate_tokenizers=True,
            max_length=48,
            tokens_per_batch=128 * 16,
            num_buckets=6,
        ),
        optimizer=OptimizerConfig(
            schedule="none",
            learning_rate=5e-4 if arg == "transformer" else 1e-3,
            warmup_steps=0,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-8,
            clip_norm=1.0,
        ),
        training=TrainingConfig(
            num_train_steps=10 * STEPS_PER_EPOCH,
            label_smoothing=0.0,
            log_every_steps=50,
            eval_every_steps=STEPS_PER_EPOCH,
            checkpoint_every_steps=STEPS_PER_EPOCH,
        ),
        decode=DecodeConfig(max_new_tokens=25),
    ).to_config_dict()
