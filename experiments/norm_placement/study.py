"""Post-LN and Pre-LN, each with and without warm-up, at two depths, at one peak learning rate (Xiong et al. 2020)."""

from transformer_jax.sweeps.figures import Curves, MetricByAxis, MetricByBin
from transformer_jax.sweeps.study import Axis, Contrast, Interaction, Metric, Study, over


def measure(scorer):
    """Return the gradient norms of this model's feed-forward networks at initialisation, with the trial's seed.

    They are those of the decoder, or of the encoder if there is no decoder.
    """
    from experiments.first_batch import first_batch
    from experiments.norm_placement.gradient_norms import gradient_norms

    config = scorer.loaded.config
    by_side = gradient_norms(
        config.model, first_batch(scorer), config.seed, config.training.label_smoothing, config.task
    )
    norms = by_side["decoder" if "decoder" in by_side else "encoder"]
    by_layer = {f"start[{layer}]/gradient_norm": float(norm) for layer, norm in enumerate(norms, start=1)}
    return by_layer | {"start/last_layer_gradient_norm": float(norms[-1])}


STUDY = Study(
    question="Is Pre-LN easier to train than Post-LN, and does either need a warm-up?",
    baseline="configs/quickstart.py",
    not_shown="longer training, or a learning rate tuned for each variant.",
    axes=(
        over("model.norm_position", "post", "pre", name="norm"),
        Axis("warmup", {"yes": {}, "no": {"optimizer.warmup_steps": 0}}),
        Axis("depth", {n: {"model.num_encoder_layers": n, "model.num_decoder_layers": n} for n in ("2", "6")}),
    ),
    # A linear decay has the same peak with and without warm-up.
    settings={
        "optimizer.schedule": "linear",
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup_steps": 200,
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 700,
        "training.log_every_steps": 20,
        "training.eval_every_steps": 175,
        "training.checkpoint_every_steps": 350,
    },
    metrics=(
        Metric("test/sacrebleu", "max"),
        Metric("test/exact_match", "max"),
        Metric("test/loss", "min"),
        Metric("start/last_layer_gradient_norm"),
    ),
    contrasts=(
        Contrast("norm", "pre", "post", says="{a}-LN is ahead of {b}-LN"),
        "warmup",
        Interaction("norm", "depth"),
    ),
    figures=(
        Curves("train/loss", title="Training loss"),
        MetricByAxis("test/exact_match", x="depth"),
        MetricByBin("start[*]/gradient_norm", label="layer", title="Gradient at initialisation by layer"),
    ),
    measure=measure,
)
