"""Attention logits with and without division by sqrt(d_k), by d_k (Vaswani et al. 2017, section 3.2.1, footnote 4)."""

from transformer_jax.sweeps.figures import Curves, MetricByAxis
from transformer_jax.sweeps.study import Axis, Metric, Study, over
from transformer_jax.sweeps.tuning import Tuned


def measure(scorer):
    """Return attention entropy before and after training, and the query and key gradient norm before training."""
    from experiments.attention_scale.softmax import attention_entropy, query_key_gradient_norm
    from experiments.first_batch import first_batch
    from transformer_jax.models.architecture import init_params

    config = scorer.loaded.config
    return {
        "start/query_key_gradient_norm": query_key_gradient_norm(config.model, first_batch(scorer), config.seed),
        "start/attention_entropy": attention_entropy(scorer, init_params(config.model, config.seed)),
        "trained/attention_entropy": attention_entropy(scorer, scorer.loaded.params),
    }


_WIDTH = 256

STUDY = Study(
    question="What does dividing attention logits by sqrt(d_k) do, and from which d_k on does it matter?",
    baseline="configs/quickstart.py",
    not_shown="longer training, or models without a warm-up.",
    axes=(
        over("model.attention_scale", True, False, name="scaled"),
        # d_k follows from num_heads, not from head_dim alone: Glorot's bound depends on a matrix's outputs, so queries
        # and keys start with variance 1 only where heads times d_k is emb_dim.
        Axis("d_k", {str(_WIDTH // heads): {"model.num_heads": heads} for heads in (32, 8, 2, 1)}),
    ),
    settings={
        "model.emb_dim": _WIDTH,
        "data.tokens_per_batch": 1024,
        "optimizer.warmup_steps": 67,
        "training.num_train_steps": 333,
        "training.log_every_steps": 20,
        "training.eval_every_steps": 500,
        "training.checkpoint_every_steps": 500,
    },
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    metrics=(
        Metric("test/sacrebleu"),
        Metric("test/loss"),
        Metric("start/attention_entropy"),
        Metric("trained/attention_entropy"),
        Metric("start/query_key_gradient_norm"),
    ),
    contrasts=("scaled",),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/sacrebleu": 3},
    figures=(
        MetricByAxis("test/sacrebleu", x="d_k", by="scaled", log_x=True),
        MetricByAxis("test/loss", x="d_k", by="scaled", log_x=True),
        MetricByAxis("start/attention_entropy", x="d_k", by="scaled", log_x=True),
        MetricByAxis("start/query_key_gradient_norm", x="d_k", by="scaled", log_x=True, log_y=True),
        Curves("train/gradient_norm", log_y=True),
    ),
    measure=measure,
)
