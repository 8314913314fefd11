"""Show what a model would predict after each layer: the logit lens.

    transformer-jax lens --checkpoint=runs/language_model --text="To be, or not to"
    transformer-jax lens --checkpoint=runs/language_model --text="To be" --without=decoder/0/self_attention/heads/1
    transformer-jax lens --checkpoint=runs/language_model --data=texts.txt
    transformer-jax lens --checkpoint=runs/first --text="two liters" --target="zwei Liter"
    transformer-jax lens --checkpoint=runs/masked_lm --text="To be, or not to <mask>"

A row of the table is a position of the text, from its start; a column is the residual stream after a layer, with the
most probable next token and its probability. Of an encoder-decoder these are the positions and layers of the decoder,
which reads --target, or else the model's own greedy output. Of a masked language model they are the masks.

--without sets heads to zero first. --json prints the --top most probable tokens of every position. --output writes
OUTPUT/lens.png, the probability of the best token by layer and position.

With --data, the table has means over the lines of the file, each with the half width of its 95 % interval, of all
positions whose next token is known: the loss of that token, the probability of the best one, and the share of positions
at which the best one is that of the last layer. The figure has the loss. A line is a text, or a source, a tab and its
target; of a masked language model the text with masks, a tab and the text without. Layers and heads are counted from 0,
as in the names of places (inspect --places).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, comma_separated, integer, path_flag, switch, text
from transformer_jax.cli.text_passes import (
    about_targets,
    cell,
    check_finite,
    given_texts,
    half_width,
    heads_of,
    layer_names,
    loaded_model,
    rows_of,
    table_of,
    target_values,
    write_figure,
)
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

if TYPE_CHECKING:
    from transformer_jax.inspection.text_models import Row, TextModel
    from transformer_jax.sweeps.statistics import Estimate

OVERRIDES = ("evaluation",)
COLUMNS = {"loss": "loss", "probability": "best token's probability", "as_last": "same as last layer"}
"""Headings of the numbers of a layer over a file."""


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the text to read, or the source")
    text(values, "target", "what the decoder reads beside a source, or a text without masks; default: the model's own")
    path_flag(values, "data", "file with a text per line, in place of --text")
    text(values, "without", "heads to set to zero, such as decoder/0/self_attention/heads/1, separated by commas")
    integer(values, "top", "number of predictions of a position in the JSON", 5, 1)
    switch(values, "json", "print JSON in place of the table")
    path_flag(values, "output", "folder for the figure; default: no figure")


def run(arguments: Arguments) -> int:
    values = arguments.flags
    if values.data is not None and values["top"].present:
        raise ConfigError("--top and --data: means over lines are of the best token alone; leave --top out")
    given = given_texts(arguments)
    heads = heads_of("without", comma_separated("without", values.without) if values.without else [])
    model = loaded_model(arguments)
    shows_masks = values.data is None and model.last == "encoder"
    if shows_masks and values.target is not None:
        raise ConfigError("--target: lens shows the likeliest tokens of the masks of one text; leave it out")
    rows = rows_of(model, given)
    if not values.json and not shows_masks and (line := about_targets(rows)):
        print(line)
    return _of_text(model, rows[0], heads, values) if values.data is None else _of_file(model, rows, heads, values)


def _of_text(model: TextModel, row: Row, heads: Mapping[str, Sequence[int]], values: flags.FlagValues) -> int:
    import numpy as np

    from transformer_jax.inspection.lens import lens_layers, top_predictions
    from transformer_jax.inspection.streams import without_heads

    shown, all_tokens = row.shown, model.tokenizer.tokens
    replace = without_heads(model.config, row.batch, heads, model.head) if heads else {}
    tops = {}
    for name, logits in lens_layers(model.config, model.params, row.batch, replace, model.head):
        tops[name] = top_predictions(logits[0, np.asarray(shown)], values.top)
    check_finite({name: top.log_probs for name, top in tops.items()})
    tokens = row.tokens[model.last]
    if values.json:
        layers = {
            name: [
                [{"token": token, "log_prob": float(p)} for token, p in zip(all_tokens(ids), of, strict=True)]
                for ids, of in zip(top.ids, top.log_probs, strict=True)
            ]
            for name, top in tops.items()
        }
        about = {"tokens": tokens, "positions": shown, **target_values([row])}
        print(json_text({**about, "predictions": layers}, ascii=True))
    else:
        best = [all_tokens(top.ids[:, 0]) for top in tops.values()]
        shares = [np.exp(top.log_probs[:, 0]) for top in tops.values()]
        table = {
            f"{position} {tokens[position]}": [f"{of[n]} {p[n]:.2f}" for of, p in zip(best, shares, strict=True)]
            for n, position in enumerate(shown)
        }
        print(table_of("after", layer_names(len(tops)), table))
    if values.output:
        best_shares = {name: np.exp(top.log_probs[:, 0]) for name, top in tops.items()}
        words = [all_tokens(top.ids[:, 0]) for top in tops.values()]
        columns = [tokens[position] for position in shown]
        what = "next token" if model.last == "decoder" else "token"
        title = f"Logit lens: the most probable {what} after each layer; colour: its probability"
        write_figure(values.output, "lens", best_shares, columns, False, title, words)
    return exit_codes.OK


def _of_file(
    model: TextModel, rows: Sequence[Row], heads: Mapping[str, Sequence[int]], values: flags.FlagValues
) -> int:
    import numpy as np

    from transformer_jax.inspection.lens import lens_scores
    from transformer_jax.inspection.streams import without_heads
    from transformer_jax.sweeps.statistics import estimate

    found: dict[str, list[Any]] = {}
    for row in rows:
        replace = without_heads(model.config, row.batch, heads, model.head) if heads else {}
        scores = lens_scores(model.config, model.params, row.batch, row.places, row.targets, replace, model.head)
        for name, of in scores.items():
            found.setdefault(name, []).append(of)
    check_finite({name: np.array(of) for name, of in found.items()})
    means = {
        name: {field: estimate([getattr(one, field) for one in of]) for field in COLUMNS} for name, of in found.items()
    }
    if values.json:
        layers = {
            name: {field: {"mean": of.mean, "half_width": half_width(of)} for field, of in by_field.items()}
            for name, by_field in means.items()
        }
        print(json_text({"lines": len(rows), **target_values(rows), "layers": layers}, ascii=True))
    else:
        print(f"means over {len(rows)} lines")
        by_layer = zip(layer_names(len(means)), means.values(), strict=True)
        print(table_of("after", [*COLUMNS.values()], {name: [*map(cell, of.values())] for name, of in by_layer}))
    if values.output:
        _draw([of["loss"] for of in means.values()], values.output)
    return exit_codes.OK


def _draw(losses: Sequence[Estimate], output: str) -> None:
    from pathlib import Path

    from transformer_jax.inspection.layer_curves import Bounded, layer_figure
    from transformer_jax.inspection.pictures import output_folder, save

    curve = [Bounded(of.mean, of.mean - of.half_width, of.mean + of.half_width) for of in losses]
    figure = layer_figure({"loss": curve}, layer_names(len(curve)), "loss in nats per token")
    print(save(figure, output_folder(Path(output)) / "lens.png"))
