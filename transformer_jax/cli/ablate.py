"""Show what the loss of a text becomes without each head, or without each part of a layer.

    transformer-jax ablate --checkpoint=runs/language_model --text="To be, or not to be"
    transformer-jax ablate --checkpoint=runs/language_model --text="To be, or not to be" --of=parts --mean_of="the rest"
    transformer-jax ablate --checkpoint=runs/language_model --data=texts.txt

The table has the change of the loss, in nats per token of the text, if a value is set to zero; with --mean_of, to its
mean over the tokens of that text. A positive number says that the model predicts worse without it. --output writes
OUTPUT/ablation.png. With --data, numbers are means over the lines of the file, each with the half width of its 95 %
interval; every line counts alike. Layers and heads are counted from 0, as in the names of places (inspect --places).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, choice_flag, path_flag, switch, text
from transformer_jax.cli.text_passes import (
    batch_of,
    check_finite,
    ids_of,
    loaded_model,
    table_of,
    texts_of,
    write_figure,
)
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

if TYPE_CHECKING:
    from transformer_jax.sweeps.statistics import Estimate

OVERRIDES = ("evaluation",)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the text to read")
    path_flag(values, "data", "file with a text per line, in place of --text")
    choice_flag(values, "of", "what is taken away, one at a time", "heads", ("heads", "parts"))
    text(values, "mean_of", "text over whose tokens a value is averaged; default: a value becomes zero")
    switch(values, "json", "print JSON in place of the table")
    path_flag(values, "output", "folder for the figure; default: no figure")


def run(arguments: Arguments) -> int:
    values = arguments.flags
    if values.data is None:
        texts = {"text": arguments.required("text")}
    elif values.text is None:
        texts = texts_of("data", values.data)
    else:
        raise ConfigError("--text and --data: give one of them")
    model = loaded_model(arguments)

    import functools

    import jax.numpy as jnp
    import numpy as np

    from transformer_jax.inspection.ablation import ablation_effects, mean_loss
    from transformer_jax.sweeps.statistics import estimate

    rows = [ids_of(model, name, given) for name, given in texts.items()]
    reference = None if values.mean_of is None else batch_of(model, ids_of(model, "mean_of", values.mean_of))
    losses, changes = [], []
    for ids in rows:
        measure = functools.partial(mean_loss, targets=jnp.asarray([ids], jnp.int32))
        batch = batch_of(model, ids[:-1])
        effects = ablation_effects(model.config.model, model.params, batch, measure, values.of, reference)
        check_finite({"the loss": np.asarray(effects.value), **effects.changes})
        losses.append(effects.value)
        changes.append({name: np.atleast_1d(change) for name, change in effects.changes.items()})
    by_place = {name: np.stack([of[name] for of in changes]) for name in changes[0]}  # [lines, heads]
    found = {name: [estimate(column.tolist()) for column in of.T] for name, of in by_place.items()}
    means = {name: np.array([x.mean for x in of]) for name, of in found.items()}
    loss, is_one = estimate(losses), values.data is None

    def cell(x: Estimate, sign: str) -> str:
        return f"{x.mean:{sign}.4f}" + ("" if math.isnan(x.half_width) else f" ± {x.half_width:.4f}")

    most = max(map(len, means.values()))
    columns = ["change"] if values.of == "parts" else [f"head {head}" for head in range(most)]
    if values.json:
        shown = {"loss": loss.mean, "changes": {name: row.tolist() for name, row in means.items()}}
        if not is_one:
            widths = {n: [None if math.isnan(x.half_width) else x.half_width for x in of] for n, of in found.items()}
            shown |= {"lines": len(rows), "half_widths": widths}
        print(json_text(shown, ascii=True))
    else:
        print(f"loss: {cell(loss, '')}" + ("" if is_one else f" over {len(rows)} lines"))
        print(table_of("change of the loss", columns, {n: [cell(x, "+") for x in of] for n, of in found.items()}))
    if values.output:
        padded = {name: np.pad(row, (0, most - len(row))) for name, row in means.items()}
        words = [[f"{x:+.2f}" for x in row] + [""] * (most - len(row)) for row in means.values()]
        title = f"Change of the loss of {loss.mean:.2f} nats per token without each of the {values.of}"
        write_figure(values.output, "ablation", padded, columns, True, title, words)
    return exit_codes.OK
