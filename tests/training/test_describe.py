"""What `train` says of a config before the first step."""

import pytest

from transformer_jax.config_file import read_config
from transformer_jax.training.describe import rate_notes, rule_notes


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (
            {"optimizer.schedule": "inverse_sqrt", "optimizer.warmup_steps": 100, "training.num_train_steps": 3},
            "the learning rate reaches 3 % of its peak",
        ),
        ({"optimizer.schedule": "inverse_sqrt", "optimizer.warmup_steps": 3, "training.num_train_steps": 3}, ""),
        (
            {"optimizer.schedule": "cosine", "optimizer.warmup_steps": 0, "training.num_train_steps": 1},
            "is 0 at every step",
        ),
        (
            {"optimizer.schedule": "linear", "optimizer.warmup_steps": 0, "training.num_train_steps": 1},
            "is 0 at every step",
        ),
        ({"optimizer.schedule": "linear", "optimizer.warmup_steps": 0, "training.num_train_steps": 2}, ""),
        (
            {
                "optimizer.schedule": "cosine",
                "optimizer.warmup_steps": 0,
                "training.num_train_steps": 1,
                "optimizer.end_fraction": 0.1,
            },
            "",
        ),
    ],
)
def test_a_rate_that_is_not_as_expected_is_said(fields, note):
    notes = rate_notes(read_config("quickstart", {"optimizer.learning_rate": 1e-3, **fields}))
    assert len(notes) == bool(note)
    assert note in "".join(notes)


WITHOUT_NORMS = {"model.norm": "none", "model.norm_position": "post"}


@pytest.mark.parametrize(
    ("fields", "warns"),
    [
        ({"optimizer.name": "muon", **WITHOUT_NORMS}, True),
        ({"optimizer.name": "adam", **WITHOUT_NORMS}, False),
        ({"optimizer.name": "muon"}, False),
        ({"optimizer.name": "muon", "model.norm": "dyt"}, False),
    ],
)
def test_muon_without_norms_is_a_warning_with_both_fields(fields, warns):
    said = "".join(rule_notes(read_config("quickstart", {"optimizer.learning_rate": 1e-3, **fields})))
    assert all((word in said) == warns for word in ("optimizer.name='muon'", "model.norm='none'", "0.001"))
