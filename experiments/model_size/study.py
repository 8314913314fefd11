"""Six sizes, each trained for three lengths, and a law for the loss of both (Kaplan et al. 2020, equation 1.6)."""

from experiments.model_size import law
from transformer_jax.sweeps.figures import CustomFigure
from transformer_jax.sweeps.study import Axis, Metric, Study
from transformer_jax.sweeps.tuning import Tuned

WIDTHS = (32, 48, 64, 96, 128, 192)
LENGTHS = (250, 500, 1000)


def _size(width):
    return {"model.emb_dim": width, "model.mlp_dim": 4 * width, "model.num_heads": width // 16}


STUDY = Study(
    question="How does the loss fall with the number of parameters and of steps, and where are operations best spent?",
    baseline="configs/shakespeare_char.py",
    not_shown=(
        "depth apart from width, more text than a megabyte, and models that read it more than once: a fit over less "
        "than two decades summarises the data and does not establish a law."
    ),
    axes=(
        Axis("width", {str(width): _size(width) for width in WIDTHS}),
        Axis("length", {str(steps): {"training.num_train_steps": steps} for steps in LENGTHS}),
    ),
    settings={
        "optimizer.learning_rate": 4e-3,
        "optimizer.warmup_steps": 50,
        "training.eval_every_steps": 125,
        "training.checkpoint_every_steps": 500,
        "training.keep_last": 1,
    },
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    metrics=(Metric(law.LOSS), Metric(law.PARAMETERS), Metric(law.STEPS), Metric(law.FLOPS)),
    figures=(
        CustomFigure(
            law.draw_by_parameters,
            "Validation loss against parameters, without embeddings",
            law.described_by_parameters,
        ),
        CustomFigure(
            law.draw_by_operations,
            "Validation loss against the operations of the training",
            law.described_by_operations,
        ),
    ),
    measure=law.measure,
)
