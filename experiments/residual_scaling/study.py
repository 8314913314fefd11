"""Factors of the outputs of sub-layers, learned and constant, at two depths, each at its own learning rate."""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Axis, Contrast, Metric, Study
from transformer_jax.sweeps.tuning import Tuned

STUDY = Study(
    question="Does a factor before the residual sum help, and can it replace the norm?",
    baseline="configs/language_model.py",
    not_shown=(
        "models of hundreds of layers, which LayerScale and ReZero were made for; nor longer training, where a factor "
        "that starts at 0 has more time to grow."
    ),
    axes=(
        Axis(
            "scaling",
            {
                "none": {},
                # Bachlechner et al. 2021, without any norm in the layers.
                "rezero": {
                    "model.residual_scale": "scalar",
                    "model.norm": "none",
                    "model.norm_position": "post",  # the default, without effect
                },
                "rezero_and_norm": {"model.residual_scale": "scalar"},
                # Touvron et al. 2021: 0.1 up to 18 layers, smaller in deeper models.
                "layerscale_0.1": {"model.residual_scale": "vector", "model.residual_scale_init": 0.1},
                "layerscale_1e-5": {"model.residual_scale": "vector", "model.residual_scale_init": 1e-5},
                # Dey et al. 2025 (CompleteP): (L / L_base)^-1 with L_base = 2, at eight layers.
                "constant_0.25": {"model.residual_multiplier": 0.25},
            },
        ),
        Axis("depth", {str(layers): {"model.num_decoder_layers": layers} for layers in (2, 8)}),
    ),
    contrasts=tuple(
        Contrast("scaling", name, "none")
        for name in ("rezero", "rezero_and_norm", "layerscale_0.1", "layerscale_1e-5", "constant_0.25")
    ),
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/loss": 0.015},
    metrics=(Metric("test/loss"), Metric("valid/loss")),
    figures=(MetricByVariant("test/loss"), Curves("valid/loss")),
    settings={
        "model.emb_dim": 64,
        "model.mlp_dim": 256,
        "data.tokens_per_batch": 2048,
        "training.eval_every_steps": 50,
        "training.checkpoint_every_steps": 150,
        "training.keep_last": 1,
    },
)
