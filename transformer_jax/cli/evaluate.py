"""Score a checkpoint: loss, perplexity, accuracy, exact match, sacreBLEU and chrF.

    transformer-jax evaluate --checkpoint=runs/first --splits=test --evaluation.average_checkpoints=2
    transformer-jax evaluate --checkpoint=runs/first --input=flickr2017.en --reference=flickr2017.de

Prints a table and writes WORKDIR/evaluation/SPLIT.json and SPLIT.txt. For a checkpoint that is named by its step or as
`best`, the folder is WORKDIR/evaluation/step_STEP.

The corpus, the tokenizer and the config are those of the checkpoint. The embedded corpus is generated from its
settings. Text files or a TFDS dataset must be there, with all splits as they were in training; --data.dir=FOLDER gives
their place if they have moved. --data.test_sets=NAME=SPLIT,NAME=SPLIT adds test sets from the same place.

--input and --reference score any other files, and the corpus need not be there. --input also takes FILE.tsv and
FILE.jsonl, which have both sides, and tfds:DATASET:SPLIT; --columns names the columns, keys or features. For a language
model, and other tasks without targets, --input is a file of documents, and there is no --reference.

--baselines adds the scores of cheap baselines: models of words for labels, tags and text, the most frequent label for
images. They learn from the training split.

A training with training.ema_decay scores the average of its weights, and so do all commands. --weights=raw scores the
weights that the optimizer updates, into WORKDIR/evaluation/raw_weights, and --weights=both scores the two of them.

--evaluation.FIELD=VALUE overrides how the checkpoint is scored, and
--decode.FIELD=VALUE how it decodes: --decode.beam_size=5 selects beam search. The files of scores record both.
"""

from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import (
    Arguments,
    checkpoint_flag,
    choice_flag,
    comma_separated,
    switch,
    test_file_flags,
    test_files_of,
    text,
)
from transformer_jax.config import WEIGHTS
from transformer_jax.config.task import RULES_OF_SCORES
from transformer_jax.host import exit_codes

OVERRIDES = ("evaluation", "decode", "data.dir", "data.cache_dir", "data.test_sets", "data.resize", *RULES_OF_SCORES)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "splits", "splits to score, separated by commas; default all but train")
    test_file_flags(values)
    switch(values, "generate", "decode too; sacreBLEU, chrF, ROUGE and exact match need it", default=True)
    choice_flag(values, "weights", "weights to score, where training.ema_decay averages them", WEIGHTS[0], WEIGHTS)
    switch(values, "baselines", "also score cheap baselines of labels, tags and text, such as naive Bayes or 5-grams")


def run(arguments: Arguments) -> int:
    checkpoint = Path(arguments.required("checkpoint"))
    given = arguments.flags.splits
    splits = None if given is None else comma_separated("splits", given)
    files = test_files_of(arguments.flags)

    from transformer_jax.evaluation.scoring import evaluate
    from transformer_jax.host.compilation_cache import use_compilation_cache

    use_compilation_cache()
    evaluate(
        checkpoint,
        splits,
        arguments.overrides,
        generate=arguments.flags.generate,
        baselines=arguments.flags.baselines,
        files=files,
        weights=arguments.flags.weights,
    )
    return exit_codes.OK
