"""Parts of the commands `lens`, `ablate`, `patch` and `probe`: the model, the ids of a text, files, tables, figures."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.cli.arguments import Arguments
from transformer_jax.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.tasks.trained.language_model import LanguageModel
    from transformer_jax.typing import Batch


def loaded_model(arguments: Arguments) -> LanguageModel:
    """Return the language model of --checkpoint; raise ConfigError for another task or a recurrent model."""
    checkpoint = Path(arguments.required("checkpoint"))

    from transformer_jax.evaluation.loading import load_language_model
    from transformer_jax.host.compilation_cache import use_compilation_cache

    use_compilation_cache()
    model = load_language_model(checkpoint, arguments.overrides)
    config = model.config.model
    if not config.is_transformer:
        raise ConfigError(
            f"{checkpoint}: model.architecture={config.architecture} has no residual stream; expected a Transformer"
        )
    return model


def texts_of(flag: str, path: str) -> dict[str, str]:
    """Return the texts of a file, one per line, by `FLAG=FILE, line N`; DataError for a bad line, or none."""
    from transformer_jax.cli.input_lines import decoded_lines, open_lines

    texts = {}
    with contextlib.ExitStack() as files:
        lines, _ = open_lines(flag, path, files)
        for number, line in enumerate(decoded_lines(lines, None), 1):
            name = f"{flag}={path}, line {number}"
            if line.problem:
                raise DataError(f"--{name}: {line.problem}")
            texts[name] = line.text
    if not texts:
        raise DataError(f"--{flag}={path} has no lines")
    return texts


class Labelled(NamedTuple):
    """Texts with labels, and the name of each in an error."""

    names: list[str]
    texts: list[str]
    labels: list[str]


def labelled_texts_of(flag: str, path: str) -> Labelled:
    """Return the texts and labels of a file with `text<TAB>label` lines; DataError for a bad line, or none."""
    names, texts, labels = [], [], []
    for name, line in texts_of(flag, path).items():
        text, tab, label = line.rpartition("\t")
        if not tab:
            raise DataError(f"--{name}: has no tab; expected a text, a tab and its label")
        for what, part in (("text", text), ("label", label)):
            if not part.strip():
                raise DataError(f"--{name}: has no {what}")
        names.append(name)
        texts.append(text)
        labels.append(label.strip())
    return Labelled(names, texts, labels)


def layer_names(count: int) -> list[str]:
    """Return the names of so many residual streams: `embedding`, `layer 0`, ..."""
    return ["embedding", *(f"layer {layer}" for layer in range(count - 1))]


def ids_of(model: LanguageModel, flag: str, text: str) -> list[int]:
    """Return the ids of a text; raise DataError if it is empty, or longer than the positions of the model."""
    from transformer_jax.models.architecture import ARCHITECTURES

    (ids,) = model.encode([text])
    if not ids:
        raise DataError(f"--{flag} is empty; give a text")
    decoder = ARCHITECTURES[model.config.model.architecture].decoder(model.config.model)
    capacity = None if decoder is None else decoder.max_length
    if capacity is not None and len(ids) >= capacity:
        raise DataError(
            f"--{flag}: its {len(ids)} tokens and the start exceed the positions of the model, "
            f"model.max_length={capacity}; shorten it"
        )
    return ids


def one_token(model: LanguageModel, flag: str, text: str) -> int:
    """Return the id of a text of one token; raise DataError for another."""
    (ids,) = model.encode([text])
    if len(ids) != 1:
        raise DataError(f"--{flag}='{text}' has {len(ids)} tokens: {model.tokenizer.tokens(ids)}; expected one")
    return ids[0]


def batch_of(model: LanguageModel, ids: Sequence[int]) -> Batch:
    """Return the batch of one row that reads the start id and these ids."""
    import jax.numpy as jnp

    return {"decoder_inputs": jnp.asarray([[model.config.model.decoder_start_id, *ids]], jnp.int32)}


def heads_of(flag: str, names: Sequence[str]) -> dict[str, list[int]]:
    """Return numbers of heads by part, of names such as `decoder/0/self_attention/heads/1`; else raise ConfigError."""
    heads: dict[str, list[int]] = {}
    for name in names:
        part, found, number = name.rpartition("/heads/")
        if not found or not number.isdecimal():
            raise ConfigError(f"--{flag}={name}: expected names such as decoder/0/self_attention/heads/1")
        heads.setdefault(part, []).append(int(number))
    return heads


def check_finite(values: Mapping[str, np.ndarray]) -> None:
    """Raise DataError if a value is NaN or infinite."""
    import numpy as np

    from transformer_jax.tasks.trained.lines import NOT_FINITE

    for name, value in values.items():
        if not np.isfinite(value).all():
            raise DataError(f"{name}: a value is NaN or infinite; {NOT_FINITE}")


def table_of(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table with the names of rows at the left."""
    from rich.table import Column, Table
    from rich.text import Text

    from transformer_jax.host.terminal import render_table

    table = Table(corner, *(Column(Text(name), justify="right") for name in columns))
    for name, cells in rows.items():
        table.add_row(Text(name), *map(Text, cells))
    return render_table(table)


def write_figure(
    output: str,
    name: str,
    values: Mapping[str, Any],
    columns: Sequence[str],
    signed: bool,
    title: str = "",
    words: Sequence[Sequence[str]] | None = None,
) -> None:
    """Write the heat map of rows by name to OUTPUT/NAME.png and print its path; words: in its cells."""
    from transformer_jax.inspection.effect_maps import effect_map
    from transformer_jax.inspection.pictures import output_folder, save

    print(save(effect_map(values, columns, signed, title, words), output_folder(Path(output)) / f"{name}.png"))
