"""Patches of four sizes with as many tokens, or as many operations, each with a class token and with the mean.

A batch has 6,272 patches whatever their size, so coarser patches see more images in an update. For images of another
size than 28 x 28, another baseline needs other patches. 18,816 training images are full batches of every size.
"""

from transformer_jax.sweeps.figures import Curves, MetricByAxis
from transformer_jax.sweeps.study import Axis, Metric, Study

PATCHES_PER_BATCH = 6_272  # 128 images in 49 patches
SIZE = 28

STUDY = Study(
    question="How large should patches be, and should a class token or the mean stand for the image?",
    baseline="configs/images.py",
    not_shown=(
        "sizes of patches at equally many images: coarser patches see more of them with either budget. Nor longer "
        "training, or a learning rate searched for each size."
    ),
    axes=(
        Axis(
            "patch_size",
            {
                str(size): {
                    "model.patch_size": size,
                    "data.rows_per_batch": PATCHES_PER_BATCH // (SIZE // size) ** 2,
                }
                for size in (2, 4, 7, 14)
            },
        ),
        Axis("budget", {"tokens": {}, "flops": {}}),
        Axis("image", {"class_token": {}, "mean": {"model.class_token": False, "task.pooling": "mean"}}),
    ),
    reference={"patch_size": "4"},
    contrasts=("patch_size", "image"),
    equal_flops={"budget": "flops"},
    settings={
        "model.num_encoder_layers": 2,
        "optimizer.warmup_steps": 50,
        "data.num_train_pairs": 18_816,
        "training.num_train_steps": 240,
        "training.eval_every_steps": 80,
        "training.checkpoint_every_steps": 240,
    },
    metrics=(Metric("test/accuracy"), Metric("test/loss"), Metric("train/loss")),
    figures=(
        MetricByAxis("test/accuracy", x="patch_size", log_x=True),
        MetricByAxis("test/loss", x="patch_size", log_x=True),
        Curves("valid/accuracy"),
    ),
    tasks=("images",),
)
