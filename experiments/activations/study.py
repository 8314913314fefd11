"""The activations of Narang et al. 2021 and three since, at equal parameters, each at its own learning rate."""

from experiments.activations import narang
from transformer_jax.sweeps.figures import Curves, CustomFigure, MetricByVariant
from transformer_jax.sweeps.study import Metric, Study, over
from transformer_jax.sweeps.tuning import Tuned

STUDY = Study(
    question="Which activation of the feed-forward network has the lowest loss, at equal parameters?",
    baseline="configs/language_model.py",
    not_shown=(
        "longer training, larger models or other texts. The rank correlation with Narang et al. 2021 has no interval "
        "for the choice of activations."
    ),
    axes=(over("model.activation", *narang.FINAL_LOSS, "relu2", "leaky_relu2", "swiglu_clamped", name="activation"),),
    contrasts=("activation",),
    equal_parameters="model.mlp_dim",
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    seeds=(0, 1, 2, 3, 4),
    precision={narang.LOSS: 0.015},
    metrics=(Metric(narang.LOSS), Metric("valid/loss")),
    figures=(
        MetricByVariant(narang.LOSS),
        CustomFigure(narang.draw, "Test loss here against the loss in Narang et al. 2021", narang.described),
        Curves("valid/loss"),
    ),
    settings={
        "data.tokens_per_batch": 2048,
        "training.eval_every_steps": 50,
        "training.checkpoint_every_steps": 150,
        "training.keep_last": 1,
    },
)
