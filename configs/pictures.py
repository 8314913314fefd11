"""Your own images with labels: a ViT whose sizes follow from your files.

    transformer-jax train --config=pictures --workdir=runs/pictures --config.data.dir=pictures
    transformer-jax evaluate --checkpoint=runs/pictures --splits=valid
    transformer-jax predict --checkpoint=runs/pictures --image=picture.png

The folder holds LABEL/FILE.png, or train/LABEL/FILE.png with valid and test beside train (docs/your_data.md).

Hardware: 2 cores of an Intel Xeon, beside other programs.
Result: 3,500 digits of MNIST as PNG files: trained in 5:35 minutes; 85.20 % of 500 others. One seed; 55,000 digits and
augmentation give 98 % (`mnist:short`).
"""

from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument
from transformer_jax.fitting import fit_to_data

fit = fit_to_data


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        model=ModelConfig(
            architecture="encoder_only",
            inputs="patches",
            image_size=32,
            image_channels=3,
            patch_size=4,
            emb_dim=64,
            num_heads=4,
            mlp_dim=128,
            num_encoder_layers=3,
            norm_position="pre",
            position_encoding="learned",
            activation="gelu",
            dropout_rate=0.0,
        ),
        task=TaskConfig(name="images", num_labels=2),
        data=DataConfig(source="image_folder", batching="rows", rows_per_batch=128),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=100, schedule="cosine", weight_decay=0.05),
        training=TrainingConfig(
            num_train_steps=1000,
            label_smoothing=0.0,
            eval_every_steps=100,
            checkpoint_every_steps=100,
            best_metric="accuracy",
        ),
    ).to_config_dict()
