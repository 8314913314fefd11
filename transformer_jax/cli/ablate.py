"""Show what the loss of a text becomes without each head, or without each part of a layer.

    transformer-jax ablate --checkpoint=runs/language_model --text="To be, or not to be"
    transformer-jax ablate --checkpoint=runs/language_model --text="To be, or not to be" --of=parts --mean_of="the rest"

The table has the change of the loss, in nats per token of the text, if a value is set to zero; with --mean_of, to its
mean over the tokens of that text. A positive number says that the model predicts worse without it. --output writes
OUTPUT/ablation.png. Layers and heads are counted from 0, as in the names of places (inspect --places).
"""

from __future__ import annotations

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, choice_flag, path_flag, switch, text
from transformer_jax.cli.text_passes import batch_of, check_finite, ids_of, loaded_model, table_of, write_figure
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

OVERRIDES = ("evaluation",)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the text to read")
    choice_flag(values, "of", "what is taken away, one at a time", "heads", ("heads", "parts"))
    text(values, "mean_of", "text over whose tokens a value is averaged; default: a value becomes zero")
    switch(values, "json", "print JSON in place of the table")
    path_flag(values, "output", "folder for the figure; default: no figure")


def run(arguments: Arguments) -> int:
    values, given = arguments.flags, arguments.required("text")
    model = loaded_model(arguments)

    import functools

    import jax.numpy as jnp
    import numpy as np

    from transformer_jax.inspection.ablation import ablation_effects, mean_loss

    ids = ids_of(model, "text", given)
    measure = functools.partial(mean_loss, targets=jnp.asarray([ids], jnp.int32))
    reference = None if values.mean_of is None else batch_of(model, ids_of(model, "mean_of", values.mean_of))
    batch = batch_of(model, ids[:-1])
    effects = ablation_effects(model.config.model, model.params, batch, measure, values.of, reference)
    check_finite({"the loss": np.asarray(effects.value), **effects.changes})
    rows = {name: np.atleast_1d(change) for name, change in effects.changes.items()}
    most = max(map(len, rows.values()))
    columns = ["change"] if values.of == "parts" else [f"head {head}" for head in range(most)]
    if values.json:
        print(json_text({"loss": effects.value, "changes": {n: row.tolist() for n, row in rows.items()}}, ascii=True))
    else:
        print(f"loss: {effects.value:.4f}")
        print(table_of("change of the loss", columns, {n: [f"{x:+.4f}" for x in row] for n, row in rows.items()}))
    if values.output:
        padded = {name: np.pad(row, (0, most - len(row))) for name, row in rows.items()}
        write_figure(values.output, "ablation", padded, columns, True)
    return exit_codes.OK
