"""Two variants with two seeds; tests/golden/study is what the sweep has left."""

from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study(
    question="Where does a sub-layer normalise?",
    baseline="config.py:study",
    axes=(over("model.norm_position", "post", "pre"),),
    metrics=(Metric("test/loss", "min"), Metric("test/chrf", "max")),
    seeds=(0, 1),
)
