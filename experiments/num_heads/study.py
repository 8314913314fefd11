"""Heads of width emb_dim / num_heads at equal computation, narrower keys, and multi-query attention.

Vaswani et al. 2017, table 3 (A) and (B); Shazeer 2019 for keys and values that all heads share.
"""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Axis, Contrast, Metric, Study

_HEADS = {f"{heads}_heads": {"model.num_heads": heads} for heads in (4, 1, 2, 8, 16)}
_KEYS = {
    f"4_heads_d_k_{width}": {"model.num_heads": 4, "model.head_dim": width, "model.value_head_dim": 32}
    for width in (4, 8, 16)
}

VALUES = {**_HEADS, **_KEYS, "4_heads_1_kv": {"model.num_heads": 4, "model.num_kv_heads": 1}}

STUDY = Study(
    question="How many attention heads, at equal computation, and how wide must their keys be?",
    baseline="configs/quickstart.py",
    not_shown=(
        "the width of keys apart from the number of parameters: narrower and shared keys have fewer. Nor longer "
        "training, or a learning rate searched for each variant."
    ),
    axes=(Axis("attention", VALUES),),
    settings={
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 800,
        "training.eval_every_steps": 400,
        "training.checkpoint_every_steps": 400,
    },
    contrasts=tuple(
        Contrast("attention", other, "4_heads", says="{a} is ahead of {b}") for other in VALUES if other != "4_heads"
    ),
    metrics=(Metric("test/sacrebleu", "max"), Metric("test/exact_match", "max"), Metric("test/loss", "min")),
    figures=(MetricByVariant("test/exact_match"), MetricByVariant("test/loss"), Curves("valid/loss")),
)
