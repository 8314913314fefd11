"""Parts of the commands `lens`, `ablate`, `patch` and `probe`: the model, the ids of a text, files, tables, figures."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.cli.arguments import Arguments
from transformer_jax.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.inspection.text_models import Row, TextModel
    from transformer_jax.sweeps.statistics import Estimate


def loaded_model(arguments: Arguments) -> TextModel:
    """Return the model of --checkpoint; raise ConfigError for one that predicts no tokens, or a recurrent one."""
    checkpoint = Path(arguments.required("checkpoint"))

    from transformer_jax.host.compilation_cache import use_compilation_cache
    from transformer_jax.inspection.text_models import text_model

    use_compilation_cache()
    return text_model(checkpoint, arguments.overrides)


class Given(NamedTuple):
    """A text of a flag or of a line, and its target; None for the model's own."""

    text: str
    target: str | None


def given_texts(arguments: Arguments) -> dict[str, Given]:
    """Return the text and target of the flags, or those of the lines of --data by the name of each.

    A target of a line stands behind a tab; `rows_of` takes it off.
    """
    values = arguments.flags
    if values.data is None:
        return {"text": Given(arguments.required("text"), values.target)}
    if values.text is not None:
        raise ConfigError("--text and --data: give one of them")
    if values.target is not None:
        raise ConfigError("--target and --data: give a target behind a tab in each line of --data")
    return {name: Given(line, None) for name, line in texts_of("data", values.data).items()}


def rows_of(model: TextModel, given: Mapping[str, Given]) -> list[Row]:
    """Return what the model reads of every text, with the targets that stand behind a tab in lines."""
    rows = []
    for name, (line, target) in given.items():
        read, tab, behind = line.partition("\t") if model.takes_target and name != "text" else (line, "", "")
        rows.append(model.row(name, read, behind if tab else target))
    return rows


def about_targets(rows: Sequence[Row]) -> str:
    """Return the first line of a command's output, which says what the targets are; empty if there are none."""
    own = sum(row.own for row in rows)
    if all(row.target is None for row in rows) or (len(rows) > 1 and not own):
        return ""
    said = "the model's own greedy output" if "decoder" in rows[0].tokens else "the likeliest tokens of the masks"
    if len(rows) > 1:
        return f"targets: of {own} of {len(rows)} lines {said}"
    what = f"target, {said}" if own else "target"
    return f"{what}: {rows[0].target}"


def target_values(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the same for JSON."""
    if all(row.target is None for row in rows):
        return {}
    own = {"own_targets": sum(row.own for row in rows)}
    return own if len(rows) > 1 else {"target": rows[0].target, **own}


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


def cell(of: Estimate, sign: str = "") -> str:
    """Return a mean with the half width of its 95 % interval, if it has one."""
    return f"{of.mean:{sign}.4f}" + ("" if math.isnan(of.half_width) else f" ± {of.half_width:.4f}")


def half_width(of: Estimate) -> float | None:
    """Return the half width for JSON; None if there is none."""
    return None if math.isnan(of.half_width) else of.half_width


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
