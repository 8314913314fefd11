"""Controlled comparisons of Transformer designs in JAX and Flax."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Imported when they are first asked for, so that `--help` and a wrong flag answer at once.
_HOMES = {
    "ExperimentConfig": "config",
    "read_config": "config_file",
    "EncoderDecoder": "models.encoder_decoder",
    "init_params": "models.encoder_decoder",
    "decoding_params": "models.encoder_decoder",
    "start_cache": "models.encoder_decoder",
    "prefill": "models.encoder_decoder",
    "decode_step": "models.encoder_decoder",
    "evaluate": "evaluation.run",
    "Translator": "evaluation.translate",
    "compare": "evaluation.comparison",
    "attention_maps": "inspection.attention",
    "heat_map": "inspection.heat_maps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'; public are {', '.join(_HOMES)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
