"""Five architectures of about 1.18 million parameters, at equal numbers of pairs and at equal operations.

The encoder-decoder trains for 800 updates. A decoder alone reads source and target in one stack, which costs about
twice the operations for a pair. So it is trained twice: on as many pairs (`causal`, `prefix`), and with as many
operations (`causal_equal_flops`, `prefix_equal_flops`). The LSTMs train with as many operations; for this they read 2
and 9 % more pairs. `sweep --dry_run` shows parameters and operations.
"""

import functools

from transformer_jax.sweeps.figures import Curves, CustomFigure, MetricByBin, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study

STEPS = 800
"""Updates of the encoder-decoder."""
DECODER = {
    "model.architecture": "decoder_only",
    "model.num_encoder_layers": 6,  # the default: not read
    "model.num_decoder_layers": 4,
    "model.mlp_dim": 640,
    # A row holds source and target, so a batch of as many pairs has twice the tokens.
    "data.max_length": 128,
    "data.tokens_per_batch": 2048,
    "training.num_train_steps": 690,
}
EQUAL_FLOPS = {"training.num_train_steps": 374}
RECURRENT = {
    "model.architecture": "recurrent",
    "model.num_heads": 8,  # the defaults: not read
    "model.norm_position": "post",
    "model.cell": "lstm",
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.deep_output": "maxout",
    "optimizer.learning_rate": 5e-3,
}
MODELS = {
    "encoder_decoder": {},
    "causal": DECODER | {"task.source_mask": "causal"},
    "prefix": DECODER | {"task.source_mask": "prefix"},
    "causal_equal_flops": DECODER | {"task.source_mask": "causal"} | EQUAL_FLOPS,
    "prefix_equal_flops": DECODER | {"task.source_mask": "prefix"} | EQUAL_FLOPS,
    "lstm": RECURRENT | {"model.hidden_dim": 264, "training.num_train_steps": 819},
    "lstm_attention": RECURRENT
    | {"model.hidden_dim": 144, "model.attention": "additive", "model.bidirectional": True, "model.bridge": "tanh"}
    | {"training.num_train_steps": 873},
}


def measure(scorer):
    """Return scores by source length, and the operations of the training with padding."""
    from experiments.architectures.curves import FLOPS
    from experiments.by_length import scores_by_length
    from transformer_jax.tasks.batches import training_batches
    from transformer_jax.tasks.flops import training_flops

    config = scorer.loaded.config
    numbers = {FLOPS: float(training_flops(config, training_batches(config, scorer.evaluator.data.splits["train"])))}
    for split in ("test", "test_longer"):
        numbers |= scores_by_length(scorer, split, width=8)
    return numbers


def by_cost(name):
    """Return the figure of the learning curves against a cost of `curves.COSTS`."""
    from experiments.architectures import curves

    return CustomFigure(
        functools.partial(curves.draw, name=name),
        f"Loss on valid by {curves.COSTS[name].label}",
        functools.partial(curves.described, name=name),
    )


STUDY = Study(
    question="Which architecture translates best, at equal parameters and at equal operations?",
    baseline="configs/quickstart.py",
    axes=(Axis("model", MODELS),),
    settings={
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": STEPS,
        "training.eval_every_steps": 100,
        "training.checkpoint_every_steps": 400,
    },
    metrics=(
        Metric("test/sacrebleu"),
        Metric("test/exact_match"),
        Metric("test/loss"),
        Metric("test_longer/sacrebleu"),
        Metric("training/flops"),
    ),
    figures=(
        MetricByVariant("test/sacrebleu"),
        Curves("valid/loss", log_y=True),
        by_cost("flops"),
        by_cost("seconds"),
        MetricByBin("test[*]/sacrebleu", label="tokens of the source", title="test, by length"),
        MetricByBin("test_longer[*]/sacrebleu", label="tokens of the source", title="test_longer, by length"),
    ),
    measure=measure,
    tasks=("translation",),
)
