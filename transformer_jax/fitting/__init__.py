"""Values of a config that follow from a user's files: their format, columns and splits, and all sizes.

The generic configs (`classify`, `tag`, `answer`, `translate`, `text`, `pictures`) have the function `fit_to_data` as
their `fit`, which `config_file` calls after the flags are set. A field that a flag sets keeps its value.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ml_collections

_CHOICES = ("source", "format", "encoding", "documents", "tokenizer", "colours", "batching")


def fit_to_data(config: ml_collections.ConfigDict, given: Set[str]) -> dict[str, Any]:
    """Return the values that follow from the files in `data.dir`, by dotted name; none if no flag names it.

    Args:
      config: with the values of flags.
      given: dotted names of the fields that flags have set. They keep their values, apart from a `data.dir` that is a
        file: it becomes the file's folder.
    Raises: DataError if the folder has no files for the task, or if it is not clear which ones; ConfigError for a
      format that the task does not read; CheckpointError for a bad `training.init_from`.
    """
    from transformer_jax.config import DataConfig
    from transformer_jax.fitting.kinds import KINDS

    data, kind = config.data, KINDS.get(config.task.name)
    choices = {name: DataConfig.__dataclass_fields__[name].metadata["choices"] for name in _CHOICES}
    if kind is None or not data.dir or data.source not in kind.sources:
        return {}
    if any(data[name] not in choices[name] for name in _CHOICES):
        return {}  # validation reports it
    from transformer_jax.fitting.columns import find_columns, lacks_labels
    from transformer_jax.fitting.files import find_files
    from transformer_jax.fitting.pretrained import read_pretrained
    from transformer_jax.fitting.sizes import choose_sizes
    from transformer_jax.host.terminal import say

    say(f"reading {data.dir}; sizes that no flag sets follow from it")
    fields: dict[str, Any] = {}
    values = config.to_dict()
    flat = {
        f"{section}.{name}": value
        for section, of in values.items()
        if isinstance(of, dict)
        for name, value in of.items()
    }

    def add(found: dict[str, Any]) -> None:
        fields.update({name: value for name, value in found.items() if name not in given or name == "data.dir"})

    def data_config() -> DataConfig:
        known = (flat | fields).items()
        return DataConfig(**{name[5:]: value for name, value in known if name.startswith("data.")})

    add(find_files(kind, values["data"], given))
    add(find_columns(kind, data_config(), given))
    if "data.test_split" not in given and lacks_labels(data_config()):
        say(f"{fields['data.test_split']} has no labels, and is not data.test_split; `predict --input` reads it")
        add({"data.test_split": ""})
    pretrained = None
    if config.training.init_from:
        pretrained = read_pretrained(config.training.init_from, config.model.architecture)
        add(pretrained.fields | _FINE_TUNING)
    add(choose_sizes(config.task.name, data_config(), given, flat | fields, pretrained))
    return fields


_FINE_TUNING = {
    "optimizer.schedule": "linear",
    "optimizer.learning_rate": 1e-4,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-8,
    "optimizer.weight_decay": 0.01,
    "optimizer.decay_mask": "all_but_norms_and_biases",
    "training.label_smoothing": 0.0,
}
"""A usual recipe for the fine-tuning of a small BERT; see docs/fine_tuning.md."""
