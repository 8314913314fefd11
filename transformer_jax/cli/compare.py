"""Compare the translations of two checkpoints: paired-bootstrap significance.

    transformer-jax compare runs/post_ln runs/pre_ln
    transformer-jax compare runs/a runs/b/checkpoints/best runs/c --splits=valid,test --decode.beam_size=5

Prints sacreBLEU and chrF of each checkpoint; their mean and 95 % interval over resamples of the sentences; the
difference to the first, and its p-value. The p-value is that of sacreBLEU's paired bootstrap (Koehn 2004): roughly the
probability of a difference this large or larger, in either direction, if both checkpoints were equally good and the
choice of the sentences were all that made one. Below 0.05 a difference is commonly called significant. Whether another
seed of the training would give it again is another question, which takes more runs. More than two checkpoints are each
compared with the first, without a correction for their number.

Checkpoints of a task without outputs to compare are compared in every metric that follows from the losses of examples.

Splits need the same references. Each checkpoint is translated and scored as `evaluate` does it, into the same files;
those that the same parameters and settings have made already are used as they are, so that after `evaluate` this takes
seconds. --evaluation.FIELD=VALUE and --decode.FIELD=VALUE apply to all.
"""

from pathlib import Path

from absl import flags

from transformer_jax import exit_codes
from transformer_jax.cli.arguments import CHECKPOINT, Arguments, Positionals, comma_separated, integer, text

OVERRIDES = ("evaluation", "decode", "data.dir", "data.cache_dir")
POSITIONALS = Positionals(("A", "B"), more="C", help=f"checkpoints, the first is the baseline; each is {CHECKPOINT}")


def define(values: flags.FlagValues) -> None:
    text(values, "splits", "splits to translate, separated by commas", "test")
    integer(values, "samples", "resamples of the bootstrap", default=1000, minimum=1)
    # What sacreBLEU uses itself; it takes 0 for no seed at all.
    integer(values, "seed", "of the resamples, in place of SACREBLEU_SEED", default=12345, minimum=1)


def run(arguments: Arguments) -> int:
    values = arguments.flags
    splits = comma_separated("splits", values.splits)

    from transformer_jax.compilation_cache import use_compilation_cache
    from transformer_jax.evaluation.comparison import compare

    use_compilation_cache()
    paths = [Path(path) for path in arguments.positionals]
    compare(paths, splits, arguments.overrides, samples=values.samples, seed=values.seed)
    return exit_codes.OK
