"""Encodings of the positions of patches.

None, a learned table, sinusoids of rows and columns; and of the number of a patch, sinusoids and rotations.
"""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study(
    question="How should the model be told where a patch is?",
    baseline="configs/images.py",
    not_shown="longer training, deeper models or photographs: the images are drawn shapes of 28 x 28 pixels.",
    axes=(over("model.position_encoding", "learned", "sinusoidal_2d", "sinusoidal", "rotary", "none"),),
    settings={
        "model.num_encoder_layers": 2,
        "optimizer.warmup_steps": 50,
        "training.num_train_steps": 300,
        "training.eval_every_steps": 100,
        "training.checkpoint_every_steps": 300,
    },
    metrics=(Metric("test/accuracy"), Metric("test/loss"), Metric("train/loss")),
    figures=(MetricByVariant("test/accuracy"), MetricByVariant("test/loss"), Curves("valid/accuracy")),
    tasks=("images",),
)
