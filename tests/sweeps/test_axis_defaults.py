import pytest
from sweep_support import RATE, study

from transformer_jax.builtin import study_folder
from transformer_jax.cli import sweep
from transformer_jax.cli.arguments import parse
from transformer_jax.cli.sweep_stages import stages_of
from transformer_jax.sweeps.axis_defaults import notes_on_axes
from transformer_jax.sweeps.study import Axis, Range, over

PAPERS = {"optimizer.schedule": "inverse_sqrt", "optimizer.learning_rate": None}
WARM_UP = over("optimizer.warmup_steps", 100, 1000, name="warmup")
RATES = "optimizer.learning_rate follows from optimizer.warmup_steps: 0.00884 with 100, 0.0028 with 1000"


@pytest.mark.parametrize(
    ("axes", "settings", "notes"),
    [
        ((WARM_UP,), {}, []),  # the baseline sets the rate
        ((WARM_UP,), PAPERS, [f"axis 'warmup': {RATES}"]),
        ((Range("optimizer.warmup_steps", 100, 1000),), PAPERS, [f"axis 'warmup_steps': {RATES}"]),
        # The first value of the other axis decides.
        ((Axis("rate", {"paper": PAPERS, "own": {}}), WARM_UP), {}, [f"axis 'warmup': {RATES}"]),
        ((Axis("rate", {"own": {}, "paper": PAPERS}), WARM_UP), {}, []),
        (
            (RATE, over("model.num_heads", 1, 2)),
            {"model.num_kv_heads": 1},
            [
                "axis 'num_heads': model.head_dim and model.value_head_dim follow from model.num_heads: 128 with 1, "
                "64 with 2"
            ],
        ),
        ((over("model.norm", "layernorm", "rmsnorm"),), {}, []),
        ((over("model.num_heads", 1, 3),), {}, []),  # 3 heads are an error, which the grid reports
    ],
)
def test_notes_on_axes(axes, settings, notes):
    assert notes_on_axes(study(*axes), settings) == notes


def test_a_sweep_has_the_notes_with_those_of_its_baseline():
    arguments = parse(sweep, "sweep", ["--study=num_heads", "--config.model.head_dim=32"])
    (stage,) = stages_of(arguments, study_folder("num_heads"), {})
    assert [note for note in stage.notes if note.startswith("axis ")] == notes_on_axes(stage.study, stage.overrides)
    assert "model.head_dim" not in "".join(stage.notes)
