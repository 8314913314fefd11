"""Five architectures of equally many parameters, at equal numbers of pairs and at equal operations.

A decoder alone reads source and target in one stack, which costs about twice the operations for a pair. So it is
trained twice: on as many pairs as the encoder-decoder (`causal`, `prefix`), and with as many operations
(`causal_equal_flops`, `prefix_equal_flops`). The LSTMs train with as many operations, for which they read a few per
cent more pairs.
"""

from experiments.architectures import by_length
from experiments.architectures.models import SMALL, models
from transformer_jax.sweeps.figures import Curves, CustomFigure, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study


def measure(scorer):
    """Return scores by source length, and the operations and examples of the training."""
    from experiments.by_length import scores_by_length
    from transformer_jax.tasks.batches.of_split import training_batches
    from transformer_jax.tasks.flops import training_flops

    config = scorer.loaded.config
    plan = training_batches(config, scorer.evaluator.data.splits["train"])
    numbers = {
        "training/flops": float(training_flops(config, plan)),
        "training/pairs": config.training.num_train_steps * plan.num_examples / plan.batches_per_epoch,
    }
    for split in ("test", "test_longer"):
        numbers |= scores_by_length(scorer, split, width=8)
    return numbers


def study(size):
    """Return the study at a size."""
    return Study(
        question="Which architecture translates best, at equal parameters and at equal operations?",
        baseline="configs/quickstart.py",
        not_shown=(
            "which architecture is best after longer training, or with learning rates from a wider search. Nor the "
            "effect of length alone: sentences of test_longer also have more phrases than any of the same "
            "template in training."
        ),
        axes=(Axis("model", models(size)),),
        equal_parameters=("model.mlp_dim", "model.hidden_dim"),
        settings={
            "model.mlp_dim": 4 * size.emb_dim,  # of the encoder-decoder, and the default, since LSTMs do not read it
            "model.vocab_size": 1000,
            "data.num_eval_pairs": 500,
            "data.num_buckets": 4,
            "optimizer.warmup_steps": size.warmup_steps,
            "training.log_every_steps": size.num_train_steps // 12,
            "training.eval_every_steps": size.num_train_steps // 6,
            "training.checkpoint_every_steps": size.num_train_steps // 2,
            "training.keep_last": 1,
        },
        contrasts=("model",),
        metrics=(
            Metric("test/sacrebleu"),
            Metric("test/exact_match"),
            Metric("test/loss"),
            Metric("test_longer/sacrebleu"),
            Metric("test_longer/exact_match"),
            Metric("training/pairs"),
            Metric("training/flops"),
        ),
        figures=(
            MetricByVariant("test/sacrebleu"),
            CustomFigure(by_length.draw, by_length.TITLE, by_length.described),
            Curves("valid/loss", log_y=True),
            Curves("valid/loss", log_y=True, x="flops"),
            Curves("valid/loss", log_y=True, x="seconds"),
        ),
        measure=measure,
        tasks=("translation",),
    )


STUDY = study(SMALL)
