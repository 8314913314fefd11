"""Show where two texts differ inside a model: activation patching.

    transformer-jax patch --checkpoint=runs/language_model --text="She is a good" --other="He is a good"
    transformer-jax patch --checkpoint=runs/first --text="two liters" --other="ten liters"
    transformer-jax patch --checkpoint=runs/masked_lm --text="She has <mask> book" --other="He has <mask> book"

The model reads both texts, which have equal numbers of tokens. Then it reads --text again, with one value of the run on
--other: the residual stream at one position; with --of=parts the output of a part of a layer there, with --of=heads
that of one head. The number that is compared is the log probability of the next token --token, less that of --against.
By default these are the most probable next tokens of the two texts; if they are the same, its log probability. A cell
is the share of the difference between the texts that one value makes: 0 none, 1 all.

The texts of an encoder-decoder are sources. Its decoder reads the same in both runs: --target, the beginning of an
output; or else what the model's own greedy outputs of both texts begin with, so that the next token is the first at
which they differ. The two texts of a masked language model have one mask, at the same place, whose token is compared.

--output writes OUTPUT/patching.png; of two stacks, one picture each. Layers and heads are counted from 0, as in
the names of places (inspect --places).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, choice_flag, path_flag, switch, text
from transformer_jax.cli.text_passes import (
    check_finite,
    loaded_model,
    table_of,
    target_values,
    write_figure,
)
from transformer_jax.errors import DataError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

if TYPE_CHECKING:
    from transformer_jax.inspection.text_models import Row

OVERRIDES = ("evaluation",)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the text to read")
    text(values, "other", "the text whose values are put in")
    text(values, "target", "beginning of the output of an encoder-decoder; default: what its own outputs begin with")
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

    row, other, position = model.pair(given, other_text, values.target)

    def chosen(flag: str, text: str | None, read: Row) -> int:
        return int(model.outputs(read.batch)[position].argmax()) if text is None else model.one_token(flag, text)

    token, against = chosen("token", values.token, row), chosen("against", values.against, other)
    measure = functools.partial(log_prob, position=position, token=token, other=None if token == against else against)
    effects = patch_effects(model.config, model.params, row.batch, other.batch, measure, values.of, model.head)
    check_finite({"the run": np.asarray([effects.value, effects.other]), **effects.patched})
    if effects.value == effects.other:
        raise DataError("both texts give the number the same value; no value of one changes it in the other")
    tokens = {
        stack: [
            own if own == theirs else f"{own} | {theirs}" for own, theirs in zip(of, other.tokens[stack], strict=True)
        ]
        for stack, of in row.tokens.items()
    }
    names = model.tokenizer.tokens([token, against])
    what = f"log p({names[0]})" + ("" if token == against else f" - log p({names[1]})")
    shares = effects.shares
    if values.of == "heads":
        shares = {f"{name}/{head}": row for name, of in shares.items() for head, row in enumerate(of.T)}
    by_stack = {stack: {name: of for name, of in shares.items() if name.startswith(f"{stack}/")} for stack in tokens}
    if values.json:
        about = {"tokens": tokens[model.last], **target_values([row]), "token": names[0], "against": names[1]}
        if len(tokens) > 1:
            about["source_tokens"] = tokens["encoder"]
        by_place = {name: of.tolist() for name, of in shares.items()}
        print(json_text({**about, "value": effects.value, "other": effects.other, "shares": by_place}, ascii=True))
    else:
        if row.target is not None:
            print(f"the decoder reads{' what the greedy outputs begin with' if row.own else ''}: '{row.target}'")
        print(f"{what}: {effects.value:.4f}; of --other: {effects.other:.4f}")
        for stack, of_stack in by_stack.items():
            table = {name: [f"{x:z.2f}" for x in of] for name, of in of_stack.items()}
            print(table_of("share", tokens[stack], table))
    if values.output:
        named = what.replace("log ", "log\N{NO-BREAK SPACE}")  # not broken by a line
        title = f"Share of the difference in {named} that one value of the other text makes"
        for stack, of_stack in by_stack.items():
            name = "patching" if len(tokens) == 1 else f"patching_{stack}"
            words = [[f"{x:z.2f}" for x in of] for of in of_stack.values()]
            write_figure(values.output, name, of_stack, tokens[stack], True, title, words)
    return exit_codes.OK
