"""An RNN, an LSTM, a GRU and a Transformer, each a decoder alone, on copying over gaps of 10 to 200 blanks."""

from experiments.long_range import gradients
from experiments.long_range.copying import row_length
from transformer_jax.sweeps.figures import CustomFigure, MetricByAxis
from transformer_jax.sweeps.study import Axis, Metric, Study

_RECURRENT = {"model.architecture": "recurrent", "model.num_encoder_layers": 0}
_ROWS = 32


def measure(scorer):
    """Return the share of symbols that are recalled, and the gradients by distance."""
    from experiments.long_range.copying import recalled

    accuracy = recalled(scorer.outputs("test"), scorer.references("test"))
    return {"recall/accuracy": accuracy} | gradients.measure(scorer)


STUDY = Study(
    question="How far back does a model remember, and how far back does its gradient reach?",
    baseline="baseline.py",
    not_shown=(
        "what longer training, other widths or a learning rate searched for each model reach, nor gradients with other "
        "initial values."
    ),
    axes=(
        Axis(
            "model",
            {
                **{cell: _RECURRENT | {"model.cell": cell} for cell in ("rnn", "lstm", "gru")},
                "transformer": {
                    "model.architecture": "decoder_only",
                    "model.num_heads": 2,
                    "model.mlp_dim": 128,
                    "model.norm_position": "pre",
                },
            },
        ),
        Axis(
            "gap",
            {
                str(gap): {"data.max_length": row_length(gap), "data.tokens_per_batch": _ROWS * row_length(gap)}
                for gap in (10, 25, 50, 100, 200)
            },
        ),
    ),
    metrics=(
        Metric("recall/accuracy", "max"),
        Metric("test/exact_match", "max"),
        Metric("start/log10_gradient"),
        Metric("trained/log10_gradient"),
    ),
    reference={"model": "transformer"},
    contrasts=("model",),
    figures=(
        MetricByAxis("recall/accuracy", x="gap", by="model", log_x=True, title="Symbols recalled, by gap"),
        CustomFigure(
            lambda axes, results: gradients.draw(axes, results, "start"),
            "Gradient by distance at initialisation",
            lambda results: gradients.described(results, "start"),
        ),
        CustomFigure(
            lambda axes, results: gradients.draw(axes, results, "trained"),
            "Gradient by distance after training",
            lambda results: gradients.described(results, "trained"),
        ),
    ),
    measure=measure,
    tasks=("translation",),
)
