"""The scores of the study generalisation."""

from types import SimpleNamespace

import pytest

from experiments.generalisation import outputs as scores
from transformer_jax.config import DecodeConfig, ExperimentConfig

REFERENCES = ["a b c", "a", "b b", "a b c d"]


def test_exact_match_by_the_length_of_the_reference():
    found = scores.exact_by_length(["a b c", "a", "b", "a b c d"], REFERENCES, "test", width=2)
    assert found == {"test[1-2]/exact_match": 50.0, "test[3-4]/exact_match": 100.0}


@pytest.mark.parametrize(
    ("outputs", "percent"),
    [(REFERENCES, 0.0), (["a b", "", "b b b", "a bc"], 50.0), (["a c", "b", "b a", "b"], 0.0)],
)
def test_outputs_that_end_early(outputs, percent):
    assert scores.ended_early(outputs, REFERENCES) == percent


def test_with_the_right_length_only_the_actions_count(monkeypatch):
    """Outputs are decoded to the longest reference without an end, and cut at the length of theirs."""
    seen = []

    def generator(config, params, tokenizer):
        seen.append(config.decode)
        outputs = ["a b c d", "a a a a", "b a a a", "a b c c"]
        return SimpleNamespace(generate_chunk=lambda lines: [SimpleNamespace(text=text) for text in outputs])

    monkeypatch.setattr(scores, "TASKS", {"translation": SimpleNamespace(generator=generator)})
    config = ExperimentConfig(decode=DecodeConfig(max_new_tokens=9))
    data = SimpleNamespace(tokenizer=None, text=lambda split: SimpleNamespace(features={"inputs": ["x"] * 4}))
    scorer = SimpleNamespace(
        loaded=SimpleNamespace(config=config, params=None),
        evaluator=SimpleNamespace(data=data),
        references=lambda split: REFERENCES,
    )
    assert scores.exact_at_right_length(scorer, "test") == 50.0
    (decode,) = seen
    assert (decode.min_length, decode.max_new_tokens) == (4, 4)
