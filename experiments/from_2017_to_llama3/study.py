"""From the Transformer of 2017 to Llama 3 in seven steps, and Llama 3 without one of them each.

A step changes what its paper changed, as far as this package has a field for it. All models have as many parameters as
the first, without embeddings: the feed-forward width makes up for the rest.
"""

from transformer_jax.sweeps.designs import LeaveOneOut, Step, Walk, joined
from transformer_jax.sweeps.equal_sizes import EqualParameters
from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Metric, StepsTo, Study
from transformer_jax.sweeps.tuning import Tuned

STEPS = (
    # Vaswani et al. 2017; as a language model, Liu et al. 2018.
    Step(
        "2017",
        {
            "model.norm_position": "post",
            "model.norm": "layernorm",
            "model.norm_epsilon": 1e-6,
            "model.position_encoding": "sinusoidal",
            "model.activation": "relu",
            "model.use_bias": True,
            "model.tie_output": True,
            "model.scale_embeddings": True,
            "model.init": "glorot",
            "model.dropout_rate": 0.1,
            "optimizer.beta2": 0.98,
            "optimizer.epsilon": 1e-9,
            "optimizer.schedule": "inverse_sqrt",
            "optimizer.weight_decay": 0.0,
            "optimizer.clip_norm": 0.0,
            "optimizer.end_fraction": 0.0,
            "training.label_smoothing": 0.1,
        },
    ),
    # Radford et al. 2018.
    Step(
        "GPT-1",
        {
            "model.norm_epsilon": 1e-5,
            "model.position_encoding": "learned",
            "model.activation": "gelu_tanh",
            "model.scale_embeddings": False,
            "model.init": "plain_normal",
            "optimizer.beta2": 0.999,
            "optimizer.epsilon": 1e-8,
            "optimizer.schedule": "cosine",
            "optimizer.weight_decay": 0.01,
            "training.label_smoothing": 0.0,
        },
    ),
    # Radford et al. 2019: the norm before each sub-layer, and output projections that start smaller in deeper models.
    Step("GPT-2", {"model.norm_position": "pre", "model.init": "normal"}),
    # Brown et al. 2020; the paper does not mention dropout.
    Step(
        "GPT-3",
        {
            "model.dropout_rate": 0.0,
            "optimizer.beta2": 0.95,
            "optimizer.weight_decay": 0.1,
            "optimizer.clip_norm": 1.0,
            "optimizer.end_fraction": 0.1,
        },
    ),
    # Wang and Komatsuzaki 2021, Black et al. 2022; without their parallel sub-layers, and all dimensions are rotated.
    Step("GPT-NeoX", {"model.position_encoding": "rotary", "model.tie_output": False}),
    # Chowdhery et al. 2022; without parallel sub-layers.
    Step(
        "PaLM",
        {"model.use_bias": False, "model.activation": "swiglu", "model.num_kv_heads": 1, "model.tie_output": True},
    ),
    # Touvron et al. 2023.
    Step(
        "LLaMA",
        {"model.norm": "rmsnorm", "model.norm_epsilon": 1e-6, "model.num_kv_heads": 4, "model.tie_output": False},
    ),
    # Grattafiori et al. 2024.
    Step("Llama-3", {"model.norm_epsilon": 1e-5, "model.num_kv_heads": 2, "model.rotary_base": 5e5}),
)

STUDY = Study(
    question="From the Transformer of 2017 to Llama 3: which of the seven steps carries weight?",
    baseline="configs/shakespeare_char.py",
    not_shown=(
        "the steps at the sizes, contexts and amounts of text that they were made for; and steps that this package has "
        "no field for, as parallel sub-layers."
    ),
    axes=(joined(Walk(STEPS), LeaveOneOut(STEPS)),),
    equal_parameters=EqualParameters(("model.mlp_dim",), embeddings=False),
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    seeds=(0, 1, 2, 3, 4),
    precision={"valid/loss": 0.015},
    metrics=(Metric("valid/loss"), StepsTo("valid/loss", 2.0)),
    figures=(MetricByVariant("valid/loss"), Curves("valid/loss")),
    settings={
        "optimizer.learning_rate": 2e-3,
        "training.num_train_steps": 1000,
        "training.eval_every_steps": 200,
        "training.checkpoint_every_steps": 500,
        "training.keep_last": 1,
    },
)
