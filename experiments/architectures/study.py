"""Four kinds of model with equally many parameters, trained with equally many operations, each at its own rate.

The decoder alone reads the source in both directions, as the encoders of the two kinds with attention do. So it differs
from the encoder-decoder in its stacks and not in what a token of the source sees.
"""

from experiments.architectures import by_length
from experiments.architectures.models import SMALL, kinds
from transformer_jax.sweeps.figures import Curves, CustomFigure, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study
from transformer_jax.sweeps.tuning import Tuned


def measure(scorer):
    """Return scores by source length, and the operations and pairs of the training."""
    from experiments.by_length import scores_by_length
    from transformer_jax.tasks.batches.of_split import training_batches
    from transformer_jax.tasks.flops import training_operations

    config = scorer.loaded.config
    plan = training_batches(config, scorer.evaluator.data.splits["train"])
    numbers = {
        "training/operations": float(training_operations(config, plan)),
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
            "which architecture is best after longer training, or at other sizes. Nor the effect of length alone: "
            "sentences of test_longer also have more phrases than any of the same template in training."
        ),
        axes=(Axis("model", kinds(size)),),
        equal_parameters=("model.mlp_dim", "model.hidden_dim"),
        equal_flops=True,
        tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
        settings={
            "model.emb_dim": size.emb_dim,
            "model.mlp_dim": 4 * size.emb_dim,  # of the encoder-decoder, and the default, since LSTMs do not read it
            "model.vocab_size": 1000,
            "data.num_eval_pairs": 500,
            "data.num_buckets": 4,
            "optimizer.learning_rate": size.learning_rate,
            "optimizer.warmup_steps": size.warmup_steps,
            "training.num_train_steps": size.num_train_steps,
            "training.log_every_steps": size.eval_every_steps,
            "training.eval_every_steps": size.eval_every_steps,
            "training.checkpoint_every_steps": size.num_train_steps // 2,
            "training.keep_last": 1,
        },
        contrasts=("model",),
        seeds=(0, 1, 2, 3, 4),
        precision={"test/sacrebleu": 3},
        metrics=(
            Metric("test/sacrebleu"),
            Metric("test/exact_match"),
            Metric("test/loss"),
            Metric("test_longer/sacrebleu"),
            Metric("test_longer/exact_match"),
            Metric("training/pairs"),
            Metric("training/operations"),
        ),
        figures=(
            MetricByVariant("test/sacrebleu"),
            CustomFigure(by_length.draw, by_length.TITLE, by_length.described),
            Curves("valid/loss", log_y=True, x="flops"),
            Curves("valid/loss", log_y=True),
            Curves("valid/loss", log_y=True, x="seconds"),
        ),
        measure=measure,
        tasks=("translation",),
    )


STUDY = study(SMALL)
