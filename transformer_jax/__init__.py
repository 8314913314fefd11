"""Controlled comparisons of Transformer designs in JAX and Flax."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Public names are imported at their first use, so that `--help` and the refusal of a wrong flag are fast.
_HOMES = {
    "ExperimentConfig": "config",
    "read_config": "config_file",
    "ARCHITECTURES": "models.architecture",
    "Architecture": "models.architecture",
    "Decoder": "models.decoder",
    "init_params": "models.architecture",
    "TASKS": "tasks.task",
    "Task": "tasks.task",
    "MetricSpec": "tasks.task",
    "evaluate": "evaluation.scoring",
    "Translator": "tasks.trained.translator",
    "load_translator": "evaluation.loading",
    "LanguageModel": "tasks.trained.language_model",
    "load_language_model": "evaluation.loading",
    "Predictor": "tasks.trained.predictor",
    "load_predictor": "evaluation.loading",
    "from_pretrained": "convert.folder",
    "save_pretrained": "convert.folder",
    "compare": "evaluation.comparison",
    "read_study": "sweeps.report.measurements",
    "attention_maps": "inspection.attention",
    "places": "inspection.places",
    "run_with": "inspection.places",
    "logit_lens": "inspection.lens",
    "top_predictions": "inspection.lens",
    "without_heads": "inspection.streams",
    "ablation_effects": "inspection.ablation",
    "patch_effects": "inspection.patching",
    "induction_scores": "inspection.head_scores",
    "previous_token_scores": "inspection.head_scores",
    "probe": "inspection.probes",
    "text_states": "inspection.probes",
    "logit_attributions": "inspection.attribution",
    "input_gradients": "inspection.attribution",
    "integrated_gradients": "inspection.attribution",
    "heat_map": "inspection.heat_maps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'; public are {', '.join(_HOMES)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
