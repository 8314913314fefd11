"""Show what a language model would predict after each layer: the logit lens.

    transformer-jax lens --checkpoint=runs/language_model --text="To be, or not to"
    transformer-jax lens --checkpoint=runs/language_model --text="To be" --without=decoder/0/self_attention/heads/1

A row of the table is a position of the text, from its start; a column is the residual stream after a layer, with the
most probable next token and its probability. --without sets heads to zero first. --json prints the --top most probable
tokens of every position. --output writes OUTPUT/lens.png, the probability of the best token by layer and position.
Layers and heads are counted from 0, as in the names of places (inspect --places).
"""

from __future__ import annotations

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, comma_separated, integer, path_flag, switch, text
from transformer_jax.cli.text_passes import (
    batch_of,
    check_finite,
    heads_of,
    ids_of,
    loaded_model,
    table_of,
    write_figure,
)
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

OVERRIDES = ("evaluation",)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the text to read")
    text(values, "without", "heads to set to zero, such as decoder/0/self_attention/heads/1, separated by commas")
    integer(values, "top", "number of predictions of a position in the JSON", 5, 1)
    switch(values, "json", "print JSON in place of the table")
    path_flag(values, "output", "folder for the figure; default: no figure")


def run(arguments: Arguments) -> int:
    values, given = arguments.flags, arguments.required("text")
    heads = heads_of("without", comma_separated("without", values.without) if values.without else [])
    model = loaded_model(arguments)

    import numpy as np

    from transformer_jax.inspection.lens import lens_layers, top_predictions
    from transformer_jax.inspection.streams import without_heads

    ids, config = ids_of(model, "text", given), model.config.model
    batch = batch_of(model, ids)
    replace = without_heads(config, batch, heads) if heads else {}
    tops = {}
    for name, logits in lens_layers(config, model.params, batch, replace):
        tops[name] = top_predictions(logits[0], values.top)
    check_finite({name: top.log_probs for name, top in tops.items()})
    tokens = model.tokenizer.tokens([config.decoder_start_id, *ids])
    if values.json:
        layers = {
            name: [
                [
                    {"token": token, "log_prob": float(p)}
                    for token, p in zip(model.tokenizer.tokens(row), of, strict=True)
                ]
                for row, of in zip(top.ids, top.log_probs, strict=True)
            ]
            for name, top in tops.items()
        }
        print(json_text({"tokens": tokens, "predictions": layers}, ascii=True))
    else:
        best = [model.tokenizer.tokens(top.ids[:, 0]) for top in tops.values()]
        shares = [np.exp(top.log_probs[:, 0]) for top in tops.values()]
        rows = {
            f"{position} {token}": [f"{of[position]} {p[position]:.2f}" for of, p in zip(best, shares, strict=True)]
            for position, token in enumerate(tokens)
        }
        columns = ["embedding", *(f"layer {layer}" for layer in range(len(tops) - 1))]
        print(table_of("after", columns, rows))
    if values.output:
        shares = {name: np.exp(top.log_probs[:, 0]) for name, top in tops.items()}
        words = [model.tokenizer.tokens(top.ids[:, 0]) for top in tops.values()]
        title = "Logit lens: the most probable next token after each layer; colour: its probability"
        write_figure(values.output, "lens", shares, tokens, False, title, words)
    return exit_codes.OK
