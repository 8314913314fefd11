"""A pretrained encoder and the same model from scratch, with the same tokens: labels of two corpora, names of one."""

from transformer_jax.sweeps.figures import MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study

TREC = {
    "task.num_labels": 6,
    "data.dir": "data/trec",
    "data.format": "labelled",
    "data.encoding": "latin-1",
    "data.coarse_labels": True,
    "data.input_feature": None,
    "data.target_feature": None,
    "data.train_split": "train[:90%]",
    "data.valid_split": "train[90%:]",
    "data.test_split": "test",
    "data.tokens_per_batch": 1024,
    "optimizer.warmup_steps": 40,
    "training.num_train_steps": 400,
    "training.eval_every_steps": 400,
}
WNUT17 = {
    "task.name": "tagging",
    "task.num_labels": 13,
    "task.chunks": True,
    "task.pooling": "first",
    "data.dir": "data/wnut17",
    "data.format": "conll",
    "data.input_feature": None,
    "data.target_feature": None,
    "data.test_split": "test",
    "optimizer.warmup_steps": 60,
    "training.num_train_steps": 600,
    "training.eval_every_steps": 600,
}


def measure(scorer):
    """Return the score of the trial's corpus in percent: accuracy of labels, or F1 of names."""
    config = scorer.loaded.config
    names = config.task.name == "tagging"
    split = "test" if config.data.test_split else "valid"
    return {"held_out/score": scorer.score(split)["f1" if names else "accuracy"]}


STUDY = Study(
    question="Is a pretrained encoder better than the same model from scratch?",
    baseline="baseline.py",
    not_shown="other encoders, settings tuned for either start, or longer training from scratch.",
    axes=(
        Axis("corpus", {"trec": TREC, "wnut17": WNUT17, "sst2": {}}),
        Axis("start", {"pretrained": {}, "scratch": {"training.new_parameters": True}}),
    ),
    metrics=(Metric("held_out/score", "max"),),
    contrasts=("start",),
    figures=(MetricByVariant("held_out/score", title="Accuracy of labels, F1 of names, in percent"),),
    measure=measure,
)
