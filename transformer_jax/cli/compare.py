"""Compare the translations of two checkpoints: paired-bootstrap significance.

    transformer-jax compare runs/post_ln runs/pre_ln
    transformer-jax compare runs/a runs/b/checkpoints/best runs/c --splits=valid,test --decode.beam_size=5
    transformer-jax compare runs/a runs/b --input=flickr2017.en --reference=flickr2017.de

Prints sacreBLEU and chrF of each checkpoint; their mean and 95 % interval over resamples of the sentences; the
difference from the first checkpoint, and its p-value. The p-value is that of sacreBLEU's paired bootstrap (Koehn 2004):
roughly the probability of a difference this large or larger, in either direction, if both checkpoints were equally good
and only the choice of sentences made the difference. Below 0.05 a difference is commonly called significant. The test
does not say whether another training seed would give the same difference; that takes more runs. With more than two
checkpoints, each is compared with the first, without a correction for their number.

If the task has no outputs to compare, the checkpoints are compared in every metric that follows from the losses of
examples.

The references of a split must be the same for all checkpoints. Each checkpoint is evaluated as by `evaluate`, into the
same files. Files from the same parameters and settings are reused, so that after `evaluate` this takes seconds.
--evaluation.FIELD=VALUE and --decode.FIELD=VALUE apply to all checkpoints. --input, --reference, --name and --columns
name a test set that is not part of the corpus, as for `evaluate`.
"""

from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import (
    CHECKPOINT,
    Arguments,
    Positionals,
    comma_separated,
    integer,
    test_file_flags,
    test_files_of,
    text,
)
from transformer_jax.config.task import RULES_OF_SCORES
from transformer_jax.host import exit_codes

OVERRIDES = ("evaluation", "decode", "data.dir", "data.cache_dir", "data.test_sets", "data.resize", *RULES_OF_SCORES)
POSITIONALS = Positionals(("A", "B"), more="C", help=f"checkpoints, the first is the baseline; each is {CHECKPOINT}")


def define(values: flags.FlagValues) -> None:
    text(values, "splits", "splits to compare, separated by commas", "test")
    test_file_flags(values)
    integer(values, "samples", "number of bootstrap resamples", default=1000, minimum=1)
    # The default is that of sacreBLEU, which takes 0 to mean no seed at all.
    integer(values, "seed", "seed of the resamples, in place of SACREBLEU_SEED", default=12345, minimum=1)


def run(arguments: Arguments) -> int:
    values = arguments.flags
    files = test_files_of(values)
    splits = comma_separated("splits", values.splits) if files is None else [files.name]

    from transformer_jax.evaluation.comparison import compare
    from transformer_jax.host.compilation_cache import use_compilation_cache

    use_compilation_cache()
    paths = [Path(path) for path in arguments.positionals]
    compare(paths, splits, arguments.overrides, samples=values.samples, seed=values.seed, files=files)
    return exit_codes.OK
