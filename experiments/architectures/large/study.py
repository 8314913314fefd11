"""Four kinds of model with about 3.9 million parameters: the study in the folder above, for an accelerator."""

from experiments.architectures.models import Size
from experiments.architectures.study import study

STUDY = study(
    Size(
        emb_dim=256,
        num_heads=8,
        tokens_per_batch=8192,
        num_train_steps=5000,
        warmup_steps=500,
        eval_every_steps=250,
        learning_rate=2e-3,
    )
)
