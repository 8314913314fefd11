"""CIFAR-10 (Krizhevsky 2009) from scratch: a ViT of 6.3 million parameters on 32 x 32 pixels, in patches of 4 x 4.

    transformer-jax prepare --dataset=cifar10 --data_dir=data
    transformer-jax train --config=cifar10 --workdir=runs/cifar10 --config.data.dir=data
    transformer-jax evaluate --checkpoint=runs/cifar10 --splits=test

`prepare` downloads CIFAR-10 with TensorFlow Datasets, which needs the extra `prepare`. The last 1,000 training images
are the validation split. After https://github.com/omihub777/ViT-CIFAR, which reports 90.92 %: 7 layers, 200 epochs in
batches of 128, Adam from 1e-3 to 1e-5 by a cosine, label smoothing of 0.1. It differs in two points: RandAugment stands
in for AutoAugment's policy, and the weight decay is decoupled from Adam.

Hardware: one accelerator.
Result: not run here. The reference reports 90.92 % on test.
"""

from transformer_jax.config import (
    DataConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.config_file import check_argument

_STEPS_PER_EPOCH = 383  # of 49,000 images in batches of 128


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        task=TaskConfig(
            name="images", num_labels=10, crop_padding=4, flip=True, rand_augment=2, rand_augment_magnitude=9.0
        ),
        model=ModelConfig(
            architecture="encoder_only",
            inputs="patches",
            image_size=32,
            image_channels=3,
            patch_size=4,
            pixel_mean="0.4914,0.4822,0.4465",
            pixel_std="0.2470,0.2435,0.2616",
            emb_dim=384,
            num_heads=12,
            mlp_dim=384,
            num_encoder_layers=7,
            norm_position="pre",
            position_encoding="learned",
            activation="gelu",
            dropout_rate=0.0,
        ),
        data=DataConfig(
            source="tfds_images",
            dataset="cifar10",
            train_split="train[:49000]",
            valid_split="train[49000:]",
            batching="rows",
            rows_per_batch=128,
        ),
        optimizer=OptimizerConfig(
            schedule="cosine",
            learning_rate=1e-3,
            end_fraction=0.01,
            warmup_steps=5 * _STEPS_PER_EPOCH,
            weight_decay=5e-5,
        ),
        training=TrainingConfig(
            num_train_steps=200 * _STEPS_PER_EPOCH,
            label_smoothing=0.1,
            eval_every_steps=2 * _STEPS_PER_EPOCH,
            checkpoint_every_steps=2 * _STEPS_PER_EPOCH,
            best_metric="accuracy",
        ),
        evaluation=EvaluationConfig(tokens_per_batch=65_536),
    ).to_config_dict()
