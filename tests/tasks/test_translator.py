"""Translation of lines of text in any number, order and length."""

import dataclasses
import itertools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_support import trained_config, trained_folder
from support import as_batch, forward, random_params

from transformer_jax.config import ModelConfig
from transformer_jax.data.tokenizers import read_tokenizer
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation import loading
from transformer_jax.evaluation.fingerprint import fingerprint
from transformer_jax.evaluation.loading import load_translator
from transformer_jax.tasks.trained import text_generator
from transformer_jax.tasks.trained.lines import Line, on_one_line
from transformer_jax.tasks.trained.text_generator import Member, stacks_text
from transformer_jax.tasks.trained.translator import Translator

EOS_ID = 1

# Of 1 to 25 tokens, the longest in the middle.
LINES = ["1", "12 7", "3 44 5", "9 8 7 6 5 4 3 2 1 0 11 22 33", "50", "5 0", "12 7", "31 41 59 26"]


@pytest.fixture(scope="module")
def config():
    return trained_config()


@pytest.fixture(scope="module")
def translator(config):
    """Return a translator with random parameters: those of a run of 8 steps translate every line alike."""
    tokenizer = read_tokenizer(trained_folder() / "run" / "tokenizer.model")
    return Translator(config, random_params(config.model, 3), tokenizer)


@pytest.fixture(scope="module")
def alone(translator):
    """Return the translation of every line by itself."""
    return {line: translator.translate_all([line])[0] for line in set(LINES)}


def with_(translator, **decode):
    """Return the same model with other decode settings."""
    config = dataclasses.replace(translator.config, decode=dataclasses.replace(translator.config.decode, **decode))
    return dataclasses.replace(translator, config=config)


def texts(translations):
    return [translation.text for translation in translations]


def test_translations_differ_between_lines(alone):
    assert len(set(alone.values())) >= 5


def test_lines_keep_their_order(translator, alone):
    assert translator.translate_all(LINES) == [alone[line] for line in LINES]
    shuffled = list(np.random.default_rng(0).permutation(LINES * 3))
    assert translator.translate_all(shuffled) == [alone[line] for line in shuffled]


def test_empty_lines_stay_empty(translator, alone):
    lines = ["", "1", "   ", "\t", "50", ""]
    assert translator.translate_all(lines) == ["", alone["1"], "", "", alone["50"], ""]
    assert [t.outputs for t in translator.generate_chunk([Line(""), Line(" ")])] == [[], []]
    assert translator.translate_all([]) == []
    assert list(translator.generate([])) == []


def test_a_chunk_at_a_time(translator, alone, monkeypatch):
    """Output starts before the input has ended."""
    monkeypatch.setattr(text_generator, "CHUNK", 3)
    read = []

    def lines():
        for line in [*LINES, ""]:
            read.append(line)
            yield Line(line)

    translations = translator.generate(lines(), first_number=5)
    assert read == []
    chunk = next(translations)
    assert texts(chunk) == [alone[line] for line in LINES[:3]]
    assert [translation.number for translation in chunk] == [5, 6, 7]
    assert len(read) == 3
    assert texts(next(translations)) == [alone[line] for line in LINES[3:6]]
    assert len(read) == 6
    (rest,) = translations
    assert texts(rest) == [*(alone[line] for line in LINES[6:]), ""]
    assert len(read) == 9


@pytest.mark.parametrize("chunk", [2, 3, 100])
def test_a_line_too_long_for_the_learned_table_is_named_and_the_others_translated(
    translator, config, monkeypatch, chunk
):
    monkeypatch.setattr(text_generator, "CHUNK", chunk)
    model = dataclasses.replace(config.model, position_encoding="learned", max_length=12)
    other = Translator(
        dataclasses.replace(config, model=model), random_params(model.resolved(), 3), translator.tokenizer
    )
    lines = ["1", "", " ", LINES[3], "50", LINES[3]]
    translations = [translation for part in other.generate(map(Line, lines)) for translation in part]
    assert [bool(translation.problem) for translation in translations] == [False] * 3 + [True, False, True]
    assert re.fullmatch(r"\d+ tokens .* model\.max_length=12 rows", translations[3].problem)
    assert [bool(translation.outputs) for translation in translations] == [True, False, False, False, True, False]
    assert translations[4].text == other.translate_all(["50"])[0]
    with pytest.raises(DataError, match=r"^line 4: \d+ tokens .* model\.max_length=12 rows"):
        other.translate_all(lines)


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned"])
def test_a_line_of_a_million_characters_is_named(translator, config, encoding):
    model = dataclasses.replace(config.model, position_encoding=encoding)
    params = random_params(model.resolved(), 3)
    other = Translator(dataclasses.replace(config, model=model), params, translator.tokenizer)
    with pytest.raises(DataError, match=r"^line 2: \d{6,} tokens with end-of-sequence are too many: "):
        other.translate_all(["1", "x" * 1_000_000])


def test_characters_that_training_has_not_seen(translator):
    """They are bytes to the tokenizer, so the input keeps them."""
    assert len(translator.translate_all(["ß ☃ 漢字", "\x00\x01", "a\u2028b\x85c"])) == 3


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_text_on_one_line(translator, monkeypatch, end):
    assert on_one_line(f"a{end}b  c\td{end}") == "a b  c\td"
    assert on_one_line(end) == on_one_line("") == ""
    monkeypatch.setattr(type(translator.tokenizer), "decode_batch", lambda self, rows: [f"x{end}y" for _ in rows])
    # Scores are computed on the model's own output.
    assert translator.translate_all(["1", "", "2"]) == [f"x{end}y", "", f"x{end}y"]


def test_tokens_become_text(translator, monkeypatch):
    monkeypatch.setattr(type(translator.tokenizer), "decode_batch", lambda self, rows: ["Hun@@ de , ja" for _ in rows])
    data = dataclasses.replace(translator.config.data, text_form="moses_bpe")
    of_tokens = dataclasses.replace(translator, config=dataclasses.replace(translator.config, data=data))
    assert of_tokens.translate_all(["1", ""]) == ["Hunde, ja", ""]
    assert texts(of_tokens.generate_chunk([Line("1")])) == ["Hun@@ de , ja"]


def test_unfinished_translations_are_named(translator):
    shorter = with_(translator, max_extra_length=0)
    each = [shorter.generate_chunk([Line(line)])[0].unfinished for line in LINES]
    assert any(each)
    translations = shorter.generate_chunk([Line(line) for line in [*LINES, "", " "]], first_number=7)
    assert [translation.unfinished for translation in translations] == [*each, False, False]


@pytest.mark.parametrize("prompts", [None, [[2], [3, 3]]])
def test_ids_after_an_output_s_length_are_not_decoded(translator, monkeypatch, prompts):
    """The tokenizer's id 0 is a word, its padding has another id, and one of the outputs is unfinished."""
    tokenizer = type(translator.tokenizer)
    monkeypatch.setattr(tokenizer, "decode_batch", lambda self, rows: [" ".join(map(str, row)) for row in rows])
    ids, lengths = jnp.array([[[5, 1, 0, 0]], [[0, 6, 0, 0]]]), jnp.array([[2], [3]])
    log_probs, scores = jnp.zeros(ids.shape), jnp.zeros(lengths.shape)
    generated = jax.device_get(Generated(ids, lengths, log_probs, scores, finished=jnp.array([[True], [False]])))
    expected = ["5 1", "0 6 0"] if prompts is None else ["2 5 1", "3 3 0 6 0"]
    assert [found[0].text for found in translator._outputs(generated, prompts or [[], []])] == expected


def test_outputs_have_ids_and_log_probabilities(translator, config):
    (translation,) = with_(translator, beam_size=3, num_best=3).generate_chunk([Line("3 44 5")])
    assert len(translation.outputs) == 3
    scores = [output.score for output in translation.outputs]
    finished = [output.finished for output in translation.outputs]
    assert sorted(finished, reverse=True) == finished
    for end in (True, False):
        of_one_kind = [score for score, ended in zip(scores, finished, strict=True) if ended == end]
        assert of_one_kind == sorted(of_one_kind, reverse=True)
    source = [*translator.tokenizer.encode_batch(["3 44 5"]).ids.tolist(), EOS_ID]
    for output in translation.outputs:
        assert output.text == translator.tokenizer.decode(output.ids)
        assert output.finished == (output.ids[-1] == EOS_ID)
        batch = as_batch(inputs=jnp.array([source]), targets=jnp.array([output.ids]))
        log_probs = jax.nn.log_softmax(forward(config.model, translator.params, batch)[0])
        expected = [float(log_probs[t, i]) for t, i in enumerate(output.ids)]
        np.testing.assert_allclose(output.log_probs, expected, atol=1e-4)
        np.testing.assert_allclose(output.score, sum(expected) / ((5 + len(expected)) / 6) ** 0.6, rtol=1e-4)


def test_samples_depend_only_on_the_number_of_a_line(translator, monkeypatch):
    drawing = with_(translator, method="sample", num_samples=2, seed=1)
    lines = [Line(line) for line in LINES]
    together = drawing.generate_chunk(lines)
    assert len({tuple(output.ids) for translation in together for output in translation.outputs}) > len(LINES)
    for number, line in enumerate(lines, start=1):
        alone = drawing.generate_chunk([line], number)[0]
        assert [output.ids for output in alone.outputs] == [output.ids for output in together[number - 1].outputs]
    monkeypatch.setattr(text_generator, "CHUNK", 3)
    assert texts(itertools.chain.from_iterable(drawing.generate(lines))) == texts(together)
    assert texts(drawing.generate_chunk(lines, 2)) != texts(together)


def test_prompts_begin_translations(translator):
    first = translator.translate_all(["3 44 5", "50"])
    prompts = ["44", "1"]
    continued = translator.translate_all(["3 44 5", "50"], prompts)
    assert continued != first
    assert all(text.startswith(prompt) for text, prompt in zip(continued, prompts, strict=True))
    # The continuation is that of greedy search after forced tokens, which count towards the limit.
    ids = translator.tokenizer.encode_batch(["44"]).ids.tolist()
    forced = with_(translator, prefix_ids=",".join(map(str, ids)), max_extra_length=8 + len(ids))
    assert forced.translate_all(["3 44 5"])[0] == continued[0]


def test_with_an_empty_prompt_the_model_begins_the_translation(translator, alone):
    """Also beside lines with a prompt, in one batch; an empty line stays empty."""
    found = translator.translate_all(["12 7", "3 44 5", "50", ""], ["", "44", "", ""])
    with_prompt = translator.translate_all(["3 44 5"], ["44"])
    assert found == [alone["12 7"], *with_prompt, alone["50"], ""]


def test_prompts_that_are_refused(translator):
    lines = [Line("1", "2"), Line("3", "4"), Line("", ""), Line("5", "7 " * 60), Line("6", "1", "is no text")]
    translations = translator.generate_chunk(lines)
    assert [translation.problem for translation in translations[:3]] == [None] * 3
    assert re.fullmatch(
        r"its prompt has \d+ tokens; model\.max_length=48 leaves no room for an output", translations[3].problem
    )
    assert translations[4].problem == "is no text"
    assert translations[0].text == translator.translate_all(["1"], ["2"])[0]
    with pytest.raises(DataError, match="prompts: 1 for 2 lines"):
        translator.translate_all(["1", "2"], ["3"])


def test_a_decoder_without_a_limit_takes_any_prompt(translator, monkeypatch):
    monkeypatch.setattr(type(translator._decoders[0]), "max_length", None)
    assert translator._read([Line("1", "7 " * 60)]).problems == {}


def test_an_ensemble_of_one_model_is_the_model(translator, alone):
    twice = dataclasses.replace(translator, others=(Member(translator.config.model, translator.params),))
    assert twice.translate_all(LINES) == [alone[line] for line in LINES]
    other = dataclasses.replace(translator, params=random_params(translator.config.model, 4))
    pair = dataclasses.replace(translator, others=(Member(other.config.model, other.params),))
    assert pair.translate_all(LINES) not in ([alone[line] for line in LINES], other.translate_all(LINES))


def of(translator):
    return fingerprint(translator.tokenizer, *translator.members)


def test_a_fingerprint_tells_models_apart(translator, config):
    same = Translator(config, random_params(config.model, 3), translator.tokenizer)
    assert of(same) == of(translator)
    assert of(with_(translator, beam_size=2)) == of(translator)
    other = dataclasses.replace(translator, params=random_params(config.model, 4))
    both = dataclasses.replace(translator, others=(Member(config.model, other.params),))
    assert len({of(translator), of(other), of(both)}) == 3


def test_from_a_checkpoint():
    translator = load_translator(trained_folder() / "run")
    averaged = load_translator(trained_folder() / "run", {"evaluation.average_checkpoints": 2})
    assert averaged.config.evaluation.average_checkpoints == 2
    pairs = zip(jax.tree.leaves(translator.params), jax.tree.leaves(averaged.params), strict=True)
    assert all((a != b).any() for a, b in pairs)
    assert len(translator.translate_all(["1 2", "3"])) == 2


@pytest.mark.slow
def test_an_ensemble_from_checkpoints():
    run = trained_folder() / "run"
    ensemble = load_translator(run, {"decode.beam_size": 2}, [run / "checkpoints" / "5"])
    assert ensemble.config.decode.beam_size == 2
    (member,) = ensemble.others
    pairs = zip(jax.tree.leaves(ensemble.params), jax.tree.leaves(member.params), strict=True)
    assert any((a != b).any() for a, b in pairs)
    assert len(ensemble.translate_all(["1 2"])) == 1


@pytest.mark.slow
def test_an_ensemble_shares_its_tokenizer(monkeypatch):
    run, load = trained_folder() / "run", loading.load

    def with_other_tokenizer(path, overrides, **options):
        loaded = load(path, overrides, **options)
        if path.name != "5":
            return loaded
        return loaded._replace(tokenizer=types.SimpleNamespace(sha256="other"))

    monkeypatch.setattr(loading, "load", with_other_tokenizer)
    with pytest.raises(ConfigError, match=r"--ensemble: .*/5 has another tokenizer than .*/run"):
        load_translator(run, None, [run / "checkpoints" / "5"])


PAIRS = [("1 2 3", "3 2 1"), ("50", "5 0"), ("9 8 7 6 5 4 3 2 1 0 11 22 33", "1")]


def test_the_repr_is_three_lines_without_arrays(translator, config):
    head, tokenizer, decode = repr(with_(translator, beam_size=4)).splitlines()
    assert head.startswith("Translator: encoder_decoder of 1 + 1 layers, emb_dim 16, ")
    assert f"{sum(x.size for x in jax.tree.leaves(translator.params)):,} parameters" in head
    assert tokenizer.split() == [
        *("tokenizer:", f"{config.data.tokenizer},", f"{translator.tokenizer.vocab_size}", "ids,", "sha256"),
        translator.tokenizer.sha256[:12],
    ]
    assert "beam_size=4" in decode


@pytest.mark.parametrize(
    ("architecture", "layers", "text"),
    [
        ("encoder_decoder", (2, 3), "encoder_decoder of 2 + 3 layers"),
        ("decoder_only", (6, 3), "decoder_only of 3 layers"),
        ("encoder_only", (2, 6), "encoder_only of 2 layers"),
        ("encoder_only", (1, 6), "encoder_only of 1 layer"),
        ("recurrent", (2, 3), "recurrent of 2 + 3 layers"),
        ("recurrent", (0, 3), "recurrent of 3 layers"),
        ("recurrent", (2, 0), "recurrent of 2 layers"),
        ("counting:COUNTING", (6, 6), "counting:COUNTING"),
    ],
)
def test_layers_of_the_stacks_that_a_model_has(architecture, layers, text):
    model = ModelConfig(architecture=architecture, num_encoder_layers=layers[0], num_decoder_layers=layers[1])
    assert stacks_text(model) == text


def test_texts_become_ids_and_texts_again(translator):
    ids = translator.encode(LINES)
    assert all(isinstance(id, int) for row in ids for id in row)
    assert translator.decode(ids) == LINES
    assert translator.decode([[*ids[0], EOS_ID, 7]]) == LINES[:1]
    assert translator.encode([]) == translator.decode([]) == []


def test_the_loss_of_pairs_is_that_of_the_logits(translator):
    losses, of_tokens = translator.loss(PAIRS), translator.token_log_probs(PAIRS)
    for index, pair in enumerate(PAIRS):
        batch = translator.batch([pair])
        logits = np.asarray(forward(translator.config.model, translator.params, batch), np.float64)[0]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        targets = [*translator.encode([pair[1]])[0], EOS_ID]
        np.testing.assert_array_equal(batch["targets"][0], targets)
        expected = [log_probs[t, id] for t, id in enumerate(targets)]
        assert losses.nll[index] == pytest.approx(-sum(expected), rel=1e-5)
        found = of_tokens[index]
        assert (found.ids, found.tokens) == (targets, translator.tokenizer.tokens(targets))
        np.testing.assert_allclose(found.log_probs, expected, rtol=1e-4)
        assert losses.tokens[index] == len(targets)
    assert losses.mean == pytest.approx(losses.nll.sum() / losses.tokens.sum())


def test_a_batch_of_pairs_is_padded_and_masked(translator):
    batch = translator.batch(PAIRS)
    lengths = [len(ids) + 1 for ids in translator.encode([source for source, _ in PAIRS])]
    assert batch["inputs"].shape == (3, max(lengths))
    assert batch["inputs_mask"].sum(1).tolist() == lengths
    assert batch["weights"].sum(1).tolist() == translator.loss(PAIRS).tokens.tolist()


def test_pairs_without_a_loss(translator, config):
    for method in (translator.batch, translator.loss, translator.token_log_probs):
        with pytest.raises(DataError, match="pairs: there are none"):
            method([])
    model = dataclasses.replace(config.model, position_encoding="learned", max_length=12)
    short = Translator(
        dataclasses.replace(config, model=model), random_params(model.resolved(), 3), translator.tokenizer
    )
    with pytest.raises(DataError, match=r"^pair 3: \d+ tokens .* model\.max_length=12 rows"):
        short.loss(PAIRS)
    with pytest.raises(ConfigError, match="an ensemble has none"):
        dataclasses.replace(translator, others=(Member(config.model, translator.params),)).loss(PAIRS)


def test_one_text_in_place_of_several(translator):
    for method, name in ((translator.encode, "texts"), (translator.translate_all, "lines")):
        with pytest.raises(DataError, match=rf"^{name}: one text in place of a list"):
            method("a dog")
    with pytest.raises(DataError, match=r"^prompts: one text in place of a list"):
        translator.translate_all(["a dog"], "e")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["log_probs", "scores"])
def test_outputs_that_are_not_finite_are_a_problem_of_their_line(translator, monkeypatch, place, bad):
    def generated(decoders, params, decode, ends, request, numbers):
        rows = len(numbers)
        arrays = Generated(
            ids=np.full((rows, 1, 3), 5, np.int32),
            log_probs=np.full((rows, 1, 3), -0.5, np.float32),
            lengths=np.full((rows, 1), 2, np.int32),
            scores=np.full((rows, 1), -1.0, np.float32),
            finished=np.ones((rows, 1), bool),
        )
        getattr(arrays, place)[numbers == 2] = bad
        arrays.log_probs[..., 2] = np.nan  # beyond the length, where nothing is defined
        return arrays

    monkeypatch.setattr(text_generator, "generate", generated)
    found = translator.generate_chunk([Line("1"), Line("2"), Line("3")], 1)
    assert [bool(line.outputs) for line in found] == [True, False, True]
    assert [line.problem is None for line in found] == [True, False, True]
    with pytest.raises(DataError, match="line 2: the model's output is not finite"):
        translator.translate_all(["1", "2", "3"])
