"""Show the learned token embeddings: principal components, nearest neighbours, analogies.

    transformer-jax embeddings --checkpoint=runs/first
    transformer-jax embeddings --checkpoint=runs/first --neighbours="Friday,two" --analogy="Friday:Freitag::Monday"

--neighbours lists words and shows the most similar tokens of each, by cosine similarity. --analogy=a:b::c asks: which
token is to c as b is to a (3CosAdd)? The words of the question are left out of the answers. Words are looked up as if
they followed a space. If the tokenizer splits a word into several tokens, their mean embedding is used, and the table
lists these tokens.

OUTPUT/embeddings.png shows the plane of the two largest principal components, OUTPUT/embeddings.csv holds its
coordinates, and OUTPUT/neighbours.csv and OUTPUT/analogies.csv hold the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax.cli.arguments import (
    Arguments,
    checkpoint_flag,
    choice_flag,
    comma_separated,
    integer,
    path_flag,
    text,
)
from transformer_jax.host import exit_codes

if TYPE_CHECKING:
    from transformer_jax.inspection.embeddings import Embeddings, Match

OVERRIDES = ("evaluation",)

_SIDES = ("source", "target")


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    path_flag(values, "output", "folder for the files; default WORKDIR/embeddings")
    text(values, "neighbours", "words, separated by commas; the most similar tokens of each are shown")
    text(values, "analogy", "questions a:b::c, separated by commas: which token is to c as b is to a?")
    integer(values, "count", "number of tokens shown per answer", 10, 1)
    choice_flag(
        values, "side", "which embedding table, if the model has two (model.share_embeddings=false)", "source", _SIDES
    )


def run(arguments: Arguments) -> int:
    checkpoint, values = Path(arguments.required("checkpoint")), arguments.flags
    words = [] if values.neighbours is None else comma_separated("neighbours", values.neighbours)

    from transformer_jax.evaluation.loading import load
    from transformer_jax.inspection import embeddings
    from transformer_jax.inspection.pictures import output_folder

    questions = [] if values.analogy is None else embeddings.parse_analogies(values.analogy)
    given = output_folder(Path(values.output)) if values.output else None
    loaded = load(checkpoint, arguments.overrides)
    found = embeddings.embeddings(loaded.params, loaded.tokenizer, values.side)
    near = [(word, embeddings.neighbours(found, word, values.count)) for word in words]
    answers = [(f"{a}:{b}::{c}", embeddings.analogy(found, a, b, c, values.count)) for a, b, c in questions]
    folder = given or output_folder(loaded.folder("embeddings"))
    files = _write(found, near, answers, folder)
    for word, matches in near:
        _print(f"nearest to {_spelled(found, word)}", found, matches)
    for (a, b, c), (_, matches) in zip(questions, answers, strict=True):
        said = ", ".join(_spelled(found, word) for word in (a, b, c))
        _print(f"{a} : {b} :: {c} : ? ({said})", found, matches)
    print(f"{folder}: {', '.join(files)}")
    return exit_codes.OK


def _write(
    found: Embeddings,
    near: Sequence[tuple[str, list[Match]]],
    answers: Sequence[tuple[str, list[Match]]],
    folder: Path,
) -> list[str]:
    """Write all files, print the variance that the projection explains, and return the names of the files."""
    from transformer_jax.inspection.embeddings import principal_components
    from transformer_jax.inspection.pictures import save
    from transformer_jax.inspection.projection import projection_figure

    ids = found.candidates
    projection = principal_components(found.table[ids])
    first, second = projection.explained
    asked = {f"near {word}": matches for word, matches in near} | dict(answers)
    figure = projection_figure(found, projection, asked)
    files = [save(figure, folder / "embeddings.png").name]
    rows = zip(ids.tolist(), found.tokenizer.tokens(ids), *projection.points.T.tolist(), strict=True)
    files.append(_write_csv(folder / "embeddings.csv", ("id", "token", "component_1", "component_2"), rows))
    for name, asked_as, answered in (("neighbours", "word", near), ("analogies", "question", answers)):
        (folder / f"{name}.csv").unlink(missing_ok=True)  # left over from an earlier question
        if answered:
            heading = (asked_as, "rank", "id", "token", "similarity")
            listed = [(question, rank, *row) for question, matches in answered for rank, row in _ranked(found, matches)]
            files.append(_write_csv(folder / f"{name}.csv", heading, listed))
    print(
        f"{len(ids):,} tokens in {found.table.shape[1]} dimensions; the first two principal components explain "
        f"{first:.1%} and {second:.1%} of the variance"
    )
    return files


def _write_csv(path: Path, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    import csv
    import io

    from transformer_jax.host.files import write_atomically

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    write_atomically(path, file.getvalue().encode())
    return path.name


def _ranked(found: Embeddings, matches: Sequence[Match]) -> list[tuple[int, tuple[int, str, float]]]:
    tokens = found.tokenizer.tokens([match.id for match in matches])
    rows = [(match.id, token, match.similarity) for match, token in zip(matches, tokens, strict=True)]
    return list(enumerate(rows, start=1))


def _spelled(found: Embeddings, word: str) -> str:
    """Return a word and the tokens that stand for it."""
    tokens = found.tokenizer.tokens(found.ids_of(word))
    return f"{word} = {' '.join(tokens)}" if len(tokens) == 1 else f"{word} = mean of {' '.join(tokens)}"


def _print(title: str, found: Embeddings, matches: Sequence[Match]) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    from transformer_jax.host.terminal import render_table

    table = Table(Column("", justify="right"), "token", Column("cosine", justify="right"))
    for rank, (_, token, similarity) in _ranked(found, matches):
        table.add_row(str(rank), Text(token), f"{similarity:.3f}")
    print(f"{title}\n{render_table(table)}")
