"""Show what the loss of a text becomes without each head, or without each part of a layer.

    transformer-jax ablate --checkpoint=runs/language_model --text="To be, or not to be"
    transformer-jax ablate --checkpoint=runs/language_model --text="To be, or not to be" --of=parts --mean_of="the rest"
    transformer-jax ablate --checkpoint=runs/language_model --data=texts.txt
    transformer-jax ablate --checkpoint=runs/first --text="two liters" --target="zwei Liter"
    transformer-jax ablate --checkpoint=runs/masked_lm --text="To be, or <mask> to be" --target="To be, or not to be"

The table has the change of the loss, in nats per token of the text, if a value is set to zero; with --mean_of, to its
mean over the tokens of that text. A positive number says that the model predicts worse without it. The loss of an
encoder-decoder is that of --target, with its end; that of a masked language model counts the masks, whose tokens are
those of --target. Without it the loss is that of the model's own greedy output.

--output writes OUTPUT/ablation.png. With --data, numbers are means over the lines of the file, each with the half width
of its 95 % interval; every line counts alike. A line may have a tab and the target after the text.
Layers and heads are counted from 0, as in the names of places (inspect --places).
"""

from __future__ import annotations

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, choice_flag, path_flag, switch, text
from transformer_jax.cli.text_passes import (
    about_targets,
    cell,
    check_finite,
    given_texts,
    half_width,
    loaded_model,
    rows_of,
    table_of,
    target_values,
    write_figure,
)
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

OVERRIDES = ("evaluation",)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the text to read, or the source")
    text(values, "target", "what is predicted of a source, or of a text with masks; default: the model's own output")
    path_flag(values, "data", "file with a text per line, in place of --text")
    choice_flag(values, "of", "what is taken away, one at a time", "heads", ("heads", "parts"))
    text(values, "mean_of", "text over whose tokens a value is averaged; default: a value becomes zero")
    switch(values, "json", "print JSON in place of the table")
    path_flag(values, "output", "folder for the figure; default: no figure")


def run(arguments: Arguments) -> int:
    values, given = arguments.flags, given_texts(arguments)
    model = loaded_model(arguments)

    import numpy as np

    from transformer_jax.inspection.ablation import ablation_effects
    from transformer_jax.sweeps.statistics import estimate

    rows = rows_of(model, given)
    reference = None if values.mean_of is None else model.row("mean_of", values.mean_of, predicts=False).batch
    losses, changes = [], []
    for row in rows:
        effects = ablation_effects(model.config, model.params, row.batch, row.loss, values.of, reference, model.head)
        check_finite({"the loss": np.asarray(effects.value), **effects.changes})
        losses.append(effects.value)
        changes.append({name: np.atleast_1d(change) for name, change in effects.changes.items()})
    by_place = {name: np.stack([of[name] for of in changes]) for name in changes[0]}  # [lines, heads]
    found = {name: [estimate(column.tolist()) for column in of.T] for name, of in by_place.items()}
    means = {name: np.array([x.mean for x in of]) for name, of in found.items()}
    loss, is_one = estimate(losses), values.data is None

    most = max(map(len, means.values()))
    columns = ["change"] if values.of == "parts" else [f"head {head}" for head in range(most)]
    if values.json:
        shown = {
            **target_values(rows),
            "loss": loss.mean,
            "changes": {name: row.tolist() for name, row in means.items()},
        }
        if not is_one:
            widths = {name: [half_width(x) for x in of] for name, of in found.items()}
            shown |= {"lines": len(rows), "half_widths": widths}
        print(json_text(shown, ascii=True))
    else:
        if line := about_targets(rows):
            print(line)
        print(f"loss: {cell(loss)}" + ("" if is_one else f" over {len(rows)} lines"))
        print(table_of("change of the loss", columns, {n: [cell(x, "+") for x in of] for n, of in found.items()}))
    if values.output:
        padded = {name: np.pad(row, (0, most - len(row))) for name, row in means.items()}
        words = [[f"{x:+.2f}" for x in row] + [""] * (most - len(row)) for row in means.values()]
        title = f"Change of the loss of {loss.mean:.2f} nats per token without each of the {values.of}"
        write_figure(values.output, "ablation", padded, columns, True, title, words)
    return exit_codes.OK
