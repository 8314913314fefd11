"""Width, depth and feed-forward width (Vaswani et al. 2017, table 3 C), and how the loss falls with size."""

from experiments.model_size import power_law
from transformer_jax.sweeps.figures import CustomFigure
from transformer_jax.sweeps.study import Axis, Metric, Study


def _size(width, layers, mlp):
    return {
        "model.emb_dim": width,
        "model.num_heads": max(1, width // 32),
        "model.mlp_dim": mlp,
        "model.num_encoder_layers": layers,
        "model.num_decoder_layers": layers,
    }


STUDY = Study(
    question="How does the loss fall with the number of parameters and of operations, and where are they best spent?",
    baseline="configs/quickstart.py",
    axes=(
        Axis(
            "size",
            {
                "base": _size(128, 2, 512),
                "width_32": _size(32, 2, 128),
                "width_64": _size(64, 2, 256),
                "width_256": _size(256, 2, 1024),
                "depth_1": _size(128, 1, 512),
                "depth_4": _size(128, 4, 512),
                "mlp_128": _size(128, 2, 128),
                "mlp_2048": _size(128, 2, 2048),
            },
        ),
    ),
    settings={
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 1000,
        "training.eval_every_steps": 500,
        "training.checkpoint_every_steps": 500,
    },
    metrics=(
        Metric("test/loss", "min"),
        Metric("test/exact_match", "max"),
        Metric("size/parameters_without_embeddings"),
        Metric("size/train_flops"),
    ),
    figures=(
        CustomFigure(
            lambda axes, results: power_law.draw(axes, results, "size/parameters_without_embeddings", "parameters"),
            "Loss on test against parameters, without embeddings",
            lambda results: power_law.described(results, "size/parameters_without_embeddings", "parameters"),
        ),
        CustomFigure(
            lambda axes, results: power_law.draw(axes, results, "size/train_flops", "floating-point operations"),
            "Loss on test against the operations of the training",
            lambda results: power_law.described(results, "size/train_flops", "operations"),
        ),
    ),
    measure=power_law.measure,
)
