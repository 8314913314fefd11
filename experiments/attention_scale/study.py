"""Attention logits divided by sqrt(d_k), or not, against d_k (Vaswani et al. 2017, section 3.2.1 and footnote 4)."""

from transformer_jax.sweeps.figures import Curves, Lines
from transformer_jax.sweeps.study import Axis, Metric, Study, over


def measure(scorer):
    """Entropy of the attention weights, as the model begins and as it is trained."""
    from experiments.attention_scale.entropy import attention_entropy
    from transformer_jax.models.encoder_decoder import init_params

    config = scorer.loaded.config
    start = attention_entropy(scorer, init_params(config.model, config.seed))
    return {"start/attention_entropy": start, "test/attention_entropy": attention_entropy(scorer, scorer.loaded.params)}


STUDY = Study(
    question="What does dividing attention logits by sqrt(d_k) do, and from which d_k on does it matter?",
    baseline="configs/quickstart.py",
    axes=(
        over("model.attention_scale", True, False, name="scaled"),
        # One width of values, so that keys alone differ.
        Axis("d_k", {str(n): {"model.head_dim": n, "model.value_head_dim": 32} for n in (8, 32, 128, 512)}),
    ),
    settings={
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 1000,
        "training.log_every_steps": 20,
        "training.eval_every_steps": 500,
        "training.checkpoint_every_steps": 500,
    },
    metrics=(
        Metric("test/loss", "min"),
        Metric("test/exact_match", "max"),
        Metric("start/attention_entropy", "max"),
        Metric("test/attention_entropy", "max"),
        Metric("train/gradient_norm", "min"),
    ),
    figures=(
        Lines("test/loss", x="d_k", by="scaled", log_x=True),
        Lines("start/attention_entropy", x="d_k", by="scaled", log_x=True),
        Curves("train/gradient_norm", log_y=True),
    ),
    measure=measure,
)
