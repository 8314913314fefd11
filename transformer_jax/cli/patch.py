"""Show where two texts differ inside a language model: activation patching.

    transformer-jax patch --checkpoint=runs/language_model --text="She is a good" --other="He is a good"

The model reads both texts, which have equal numbers of tokens. Then it reads --text again, with one value of the run on
--other: the residual stream at one position; with --of=parts the output of a part of a layer there, with --of=heads
that of one head. The number that is compared is the log probability of the next token --token, less that of --against.
By default these are the most probable next tokens of the two texts; if they are the same, its log probability. A cell
is the share of the difference between the texts that one value makes: 0 none, 1 all. --output writes
OUTPUT/patching.png. Layers and heads are counted from 0, as in the names of places (inspect --places).
"""

from __future__ import annotations

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, choice_flag, path_flag, switch, text
from transformer_jax.cli.text_passes import (
    batch_of,
    check_finite,
    ids_of,
    loaded_model,
    one_token,
    table_of,
    write_figure,
)
from transformer_jax.errors import DataError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

OVERRIDES = ("evaluation",)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the text to read")
    text(values, "other", "the text whose values are put in")
    text(values, "token", "next token whose log probability counts; default: the most probable one of --text")
    text(values, "against", "next token whose log probability is subtracted; default: the most probable one of --other")
    choice_flag(values, "of", "what is put in, one at a time", "streams", ("streams", "parts", "heads"))
    switch(values, "json", "print JSON in place of the table")
    path_flag(values, "output", "folder for the figure; default: no figure")


def run(arguments: Arguments) -> int:
    values, given, other_text = arguments.flags, arguments.required("text"), arguments.required("other")
    model = loaded_model(arguments)

    import functools

    import numpy as np

    from transformer_jax.inspection.ablation import log_prob
    from transformer_jax.inspection.patching import patch_effects
    from transformer_jax.inspection.places import run_with

    config = model.config.model
    ids, other_ids = ids_of(model, "text", given), ids_of(model, "other", other_text)
    if len(ids) != len(other_ids):
        raise DataError(f"--text has {len(ids)} tokens, --other {len(other_ids)}; patching needs equal numbers")
    batch, other = batch_of(model, ids), batch_of(model, other_ids)

    def chosen(flag: str, text: str | None, read: object) -> int:
        if text is not None:
            return one_token(model, flag, text)
        return int(run_with(config, model.params, read).outputs[0, -1].argmax())  # ty: ignore[invalid-argument-type]

    token, against = chosen("token", values.token, batch), chosen("against", values.against, other)
    measure = functools.partial(log_prob, position=-1, token=token, other=None if token == against else against)
    effects = patch_effects(config, model.params, batch, other, measure, values.of)
    check_finite({"the run": np.asarray([effects.value, effects.other]), **effects.patched})
    if effects.value == effects.other:
        raise DataError("both texts give the number the same value; no value of one changes it in the other")
    tokens = [
        own if own == theirs else f"{own} | {theirs}"
        for own, theirs in zip(
            model.tokenizer.tokens([config.decoder_start_id, *ids]),
            model.tokenizer.tokens([config.decoder_start_id, *other_ids]),
            strict=True,
        )
    ]
    names = model.tokenizer.tokens([token, against])
    what = f"log p({names[0]})" + ("" if token == against else f" - log p({names[1]})")
    shares = effects.shares
    if values.of == "heads":
        shares = {f"{name}/{head}": row for name, of in shares.items() for head, row in enumerate(of.T)}
    if values.json:
        about = {"tokens": tokens, "token": names[0], "against": names[1], "value": effects.value}
        by_place = {name: row.tolist() for name, row in shares.items()}
        print(json_text({**about, "other": effects.other, "shares": by_place}, ascii=True))
    else:
        print(f"{what}: {effects.value:.4f}; of --other: {effects.other:.4f}")
        print(table_of("share", tokens, {name: [f"{x:.2f}" for x in row] for name, row in shares.items()}))
    if values.output:
        words = [[f"{x:.2f}" for x in row] for row in shares.values()]
        title = f"Share of the difference in {what} that one value of the other text makes"
        write_figure(values.output, "patching", shares, tokens, True, title, words)
    return exit_codes.OK
