"""One training per seed, decoded in several ways; benchmarks/decode_cost.py measures how much the cache saves."""

from transformer_jax.sweeps.figures import MetricByBin, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study


def measure(scorer):
    """Return scores by source length, and the time per sentence."""
    from experiments.by_length import scores_by_length
    from experiments.decoding.cost import milliseconds_per_sentence

    return scores_by_length(scorer, "test", width=8) | milliseconds_per_sentence(scorer)


_SAMPLED = {"decode.method": "sample"}

STUDY = Study(
    question="What do beams and sampling change against greedy search, by length, and what do they cost?",
    baseline="configs/quickstart.py",
    axes=(
        Axis(
            "decoder",
            {
                "greedy": {},
                **{f"beam_{size}": {"decode.beam_size": size} for size in (2, 4, 8)},
                "beam_4_without_penalty": {"decode.beam_size": 4, "decode.length_penalty": "none"},
                "sample": _SAMPLED,
                "sample_temperature_0.5": {**_SAMPLED, "decode.temperature": 0.5},
                "sample_top_5": {**_SAMPLED, "decode.top_k": 5},
                "sample_nucleus_0.9": {**_SAMPLED, "decode.top_p": 0.9},
            },
        ),
    ),
    # A short training: decoders differ only where greedy search still makes errors.
    settings={
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 1000,
        "training.eval_every_steps": 500,
        "training.checkpoint_every_steps": 500,
    },
    metrics=(
        Metric("test/exact_match", "max"),
        Metric("test/sacrebleu", "max"),
        Metric("decode[64]/ms", "min"),
    ),
    figures=(
        MetricByVariant("test/exact_match"),
        MetricByBin("test[*]/exact_match", label="tokens of the source", counts="test[*]/pairs"),
        MetricByBin("decode[*]/ms", label="tokens of the output", title="Milliseconds per sentence, with the cache"),
        MetricByBin(
            "decode[*]/ms_without_cache",
            label="tokens of the output",
            title="Milliseconds per sentence, greedy, without a cache",
        ),
    ),
    measure=measure,
    tasks=("translation",),
)
