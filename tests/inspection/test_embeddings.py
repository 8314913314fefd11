"""Principal components, neighbours and analogies against their definitions, on tables with known answers."""

import itertools

import numpy as np
import pytest
from support import assert_close, random_params, tiny
from tokenizer_support import trained

from transformer_jax.data.tokenizers.words import MAGIC, WordTokenizer
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.embeddings import (
    Embeddings,
    Match,
    analogy,
    embeddings,
    neighbours,
    parse_analogies,
    principal_components,
    spread_out,
)
from transformer_jax.inspection.projection import projection_figure

WORDS = ["man", "woman", "king", "queen", "a$b$", "far"]


@pytest.fixture
def found():
    """king = man + royal, queen = woman + royal, with other lengths; `far` is the opposite of man."""
    man, woman, royal = np.eye(3)
    table = np.array([*(np.full(3, 9.0),) * 4, man, woman, (man + royal) * 3, woman + royal, royal, -man])
    return Embeddings(table.astype(np.float32), WordTokenizer(MAGIC + "".join(f"{w}\n" for w in WORDS).encode()))


def test_neighbours_by_cosine_do_not_depend_on_lengths(found):
    matches = neighbours(found, "man", 3)
    assert found.tokenizer.tokens([match.id for match in matches]) == ["king", "woman", "queen"]
    assert_close([match.similarity for match in matches], [0.5**0.5, 0.0, 0.0])
    everything = neighbours(found, "man", 100)
    assert found.tokenizer.tokens([everything[-1].id]) == ["far"]
    assert len(everything) == 5  # without the word itself and the reserved ids, whose rows are the longest


def test_neighbours_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    tokenizer = WordTokenizer(MAGIC + "".join(f"w{i}\n" for i in range(30)).encode())
    found = Embeddings(rng.standard_normal((34, 8)).astype(np.float32), tokenizer)
    rows = found.table.astype(np.float64)
    for word in (0, 17):
        v = rows[4 + word]
        others = [i for i in range(4, 34) if i != 4 + word]
        cosines = {i: rows[i] @ v / np.sqrt(rows[i] @ rows[i]) / np.sqrt(v @ v) for i in others}
        best = sorted(others, key=lambda i: -cosines[i])[:7]
        matches = neighbours(found, f"w{word}", 7)
        assert [match.id for match in matches] == best
        assert_close([match.similarity for match in matches], [cosines[i] for i in best])


def test_an_analogy_excludes_the_words_of_the_question(found):
    matches = analogy(found, "man", "king", "woman", 100)
    assert found.tokenizer.tokens([match.id for match in matches])[0] == "queen"
    assert not {"man", "king", "woman"} & set(found.tokenizer.tokens([match.id for match in matches]))


def test_an_analogy_ranks_by_the_sum_of_three_cosines():
    rng = np.random.default_rng(1)
    tokenizer = WordTokenizer(MAGIC + "".join(f"w{i}\n" for i in range(30)).encode())
    found = Embeddings(rng.standard_normal((34, 8)).astype(np.float32), tokenizer)
    unit = found.table / np.linalg.norm(found.table.astype(np.float64), axis=1, keepdims=True)
    sums = {d: unit[d] @ unit[5] - unit[d] @ unit[4] + unit[d] @ unit[6] for d in range(7, 34)}
    best = sorted(sums, key=lambda d: -sums[d])[:5]
    matches = analogy(found, "w0", "w1", "w2", 5)
    assert [match.id for match in matches] == best
    length = np.linalg.norm(unit[5] - unit[4] + unit[6])
    assert_close([match.similarity for match in matches], [sums[d] / length for d in best])


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "words"])
def test_a_word_is_looked_up_with_a_space_before_it(kind):
    tokenizer = trained(kind)
    table = np.random.default_rng(0).standard_normal((tokenizer.vocab_size, 6)).astype(np.float32)
    found = Embeddings(table, tokenizer)
    known = next(p for p in tokenizer.tokens(found.candidates)[::-1] if len(p.strip("▁")) > 3)
    word = known.strip("▁") if kind == "words" else "ingship"
    if kind == "words":
        assert tokenizer.tokens(found.ids_of(word)) == [word]
    else:
        tokens = tokenizer.tokens(found.ids_of(word))
        assert "".join(tokens) == "▁ingship"
    assert_close(found.vector(word), table[found.ids_of(word)].mean(0))
    assert not set(found.ids_of(word)) & {match.id for match in neighbours(found, word, 1000)}


def test_bytes_and_reserved_ids_are_not_answers():
    tokenizer = trained("unigram")
    found = Embeddings(np.ones((tokenizer.vocab_size, 4), np.float32), tokenizer)
    tokens = tokenizer.tokens(found.candidates)
    assert len(tokens) == tokenizer.vocab_size - 4 - 256
    assert not any(token.startswith("<") for token in tokens)


def test_partial_characters_are_not_answers_of_byte_bpe():
    tokenizer = trained("byte_bpe")
    found = Embeddings(np.ones((tokenizer.vocab_size, 4), np.float32), tokenizer)
    texts = [tokenizer.decode([id]) for id in found.candidates.tolist()]
    assert not any("\ufffd" in text for text in texts)
    assert "a" in texts


def test_a_character_in_no_token_is_unknown():
    tokenizer = trained("unigram")
    found = Embeddings(np.ones((tokenizer.vocab_size, 4), np.float32), tokenizer)
    with pytest.raises(DataError, match="the vocabulary has no '☃☃'"):
        neighbours(found, "☃☃")


def test_unknown_words(found):
    with pytest.raises(DataError, match=r"the vocabulary has no 'quean' \(did you mean 'queen'\?\)"):
        neighbours(found, "quean")
    with pytest.raises(DataError, match="a word to look up is empty"):
        analogy(found, "man", " ", "king")


def test_principal_components_are_those_of_the_covariance():
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((200, 5)) * [5, 3, 1, 0.5, 0.1]) @ np.linalg.qr(rng.standard_normal((5, 5)))[0] + 7
    points, explained = principal_components(rows.astype(np.float32))
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    assert_close(explained, values[:2] / values.sum())
    for component in range(2):
        direction = vectors[:, component] * np.sign(vectors[np.abs(vectors[:, component]).argmax(), component])
        assert_close(points[:, component], (rows - rows.mean(0)) @ direction)


def test_principal_components_of_little():
    points, explained = principal_components(np.ones((3, 4), np.float32))
    np.testing.assert_array_equal(points, np.zeros((3, 2)))
    np.testing.assert_array_equal(explained, [0, 0])
    points, explained = principal_components(np.array([[0.0], [2.0]], np.float32))
    assert_close(np.sort(points[:, 0]), [-1, 1])
    assert_close(explained, [1, 0])
    np.testing.assert_array_equal(points[:, 1], [0, 0])


def test_the_table_of_a_side():
    tokenizer = trained("words")
    for shared in (True, False):
        params = random_params(tiny(share_embeddings=shared))
        target = params["embedding"]["embedding"]
        source = target if shared else params["source_embedding"]["embedding"]
        np.testing.assert_array_equal(embeddings(params, tokenizer, "source").table, source)
        np.testing.assert_array_equal(embeddings(params, tokenizer, "target").table, target)
    with pytest.raises(ConfigError, match="no token embeddings; its parts are encoder"):
        embeddings({"encoder": {}}, tokenizer)


def test_questions():
    assert parse_analogies("a:b::c") == [("a", "b", "c")]
    assert parse_analogies("a : b :: c, d:e::f") == [("a", "b", "c"), ("d", "e", "f")]
    for wrong in ("a:b", "a:b:c", "a:b::c:d", "a::b::c", "a:b::", "", "a:b::c,"):
        with pytest.raises(ConfigError, match=r"is not a:b::c; several are separated by commas"):
            parse_analogies(wrong)


# Pictures.


def test_names_do_not_overlap():
    points = np.random.default_rng(0).random((500, 2))
    chosen = spread_out(points, range(500), 40)
    assert chosen[0] == 0
    assert 20 < len(chosen) <= 40
    size = np.ptp(points, axis=0)
    for a, b in itertools.combinations(chosen, 2):
        x, y = np.abs(points[a] - points[b]) / size
        assert x >= 0.1 or y >= 0.05
    assert spread_out(np.zeros((5, 2)), range(5), 3) == [0]


def test_answers_are_marked_and_named(found):
    projection = principal_components(found.table[found.candidates])
    figure = projection_figure(found, projection, {"near $man$": [Match(6, 0.7)], "near queen": [Match(8, 0.7)]})
    (axes,) = figure.axes
    everything, *groups = axes.collections
    np.testing.assert_array_equal(everything.get_offsets(), projection.points)
    np.testing.assert_array_equal(groups[0].get_offsets(), projection.points[2:3])
    np.testing.assert_array_equal(groups[1].get_offsets(), projection.points[4:5])
    assert [text.get_text() for text in axes.texts] == ["king", "a$b$"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["near $man$", "near queen"]
    assert f"component 1, {projection.explained[0]:.1%}" in axes.get_xlabel()
    figure.canvas.draw()


def test_without_a_question_some_are_named(found):
    projection = principal_components(found.table[found.candidates])
    (axes,) = projection_figure(found, projection, {}).axes
    assert {text.get_text() for text in axes.texts} <= set(WORDS)
    assert len(axes.texts) >= 3
    assert axes.get_legend() is None
