"""Generation with a cache against the simplest possible loop: a full forward pass for every token."""

import functools

import numpy as np
import pytest
import scipy.special
from decoding_support import ENDS, EOS_ID, PAD_ID, decoders_of, ends_of_ngrams, from_sources
from support import OPTIONS, as_batch, forward, random_params, slow_but, tiny

from transformer_jax.config import SAMPLES_TOGETHER, DecodeConfig
from transformer_jax.decoding import generate
from transformer_jax.decoding.generate import capacities
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.errors import ConfigError, DataError

# Tokens of every source, eos included; 0 is a row of padding.
LENGTHS = (6, 3, 0, 1, 5, 2, 6, 4)
PROMPTS = ((5, 6), (4,), (7,), (8, 4, 9), (5,), (6, 6, 6), (4, 5), (18,))


def sources(lengths=LENGTHS, width=6, seed=0):
    ids = np.random.default_rng(seed).integers(4, 19, (len(lengths), width))
    column, length = np.arange(width), np.array(lengths)[:, None]
    ids = np.where(column == length - 1, EOS_ID, np.where(column < length, ids, PAD_ID))
    return ids.astype(np.int32)


def config_of(**fields):
    small = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_kv_heads": 2}
    return tiny(**{**small, "tie_output": False, "decoder_start_id": 7, **fields})


def run(config, params, inputs=None, prompts=None, row_ids=None, **fields):
    """Return outputs of one model as NumPy arrays; three extra tokens unless fields say otherwise."""
    return ensemble([config], [params], inputs, prompts, row_ids, **fields)


def ensemble(configs, params, inputs=None, prompts=None, row_ids=None, **fields):
    decode = DecodeConfig(**{"max_extra_length": 3, **fields})
    inputs = sources() if inputs is None else inputs
    return from_sources(configs, params, decode, inputs, row_ids, prompts)


def check_same(actual, expected, rows=slice(None)):
    """Check that ids, lengths and ends are equal, and log probabilities and scores up to rounding."""
    for name in ("ids", "lengths", "finished"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name)[rows])
    for name in ("log_probs", "scores"):
        np.testing.assert_allclose(getattr(actual, name), getattr(expected, name)[rows], atol=1e-4)


def naive(configs, params, max_lengths, width, prompts=None, forbidden=(), min_length=0, penalty=1.0, ngram=0):
    """Greedy search in Python without a cache; return ids and log probabilities [B, width]."""
    inputs = sources()
    rows, prompts = len(inputs), prompts or [()] * len(inputs)
    targets = np.zeros((rows, min(max(map(len, prompts)) + width, configs[0].max_length)), np.int32)
    for row, prompt in enumerate(prompts):
        targets[row, : len(prompt)] = prompt
    ids, log_probs = np.zeros((rows, width), np.int32), np.zeros((rows, width))
    for t in range(width):
        # Targets after a row's last token cannot matter: a decoder input is the previous target.
        results = [
            np.asarray(forward(c, p, as_batch(c.decoder_start_id, inputs=inputs, targets=targets)))
            for c, p in zip(configs, params, strict=True)
        ]
        if len(results) > 1:
            results = [scipy.special.log_softmax(logits.astype(np.float64), axis=-1) for logits in results]
        for row, prompt in enumerate(prompts):
            if t >= max_lengths[row] or EOS_ID in ids[row]:
                continue
            logits = np.mean([logits[row, len(prompt) + t] for logits in results], axis=0, dtype=np.float64)
            for token in {*prompt, *ids[row, :t]}:
                logits[token] *= penalty if logits[token] < 0 else 1 / penalty
            possible = logits.copy()
            possible[[PAD_ID, *forbidden, *([EOS_ID] if t < min_length else [])]] = -np.inf
            if ngram:
                text = (configs[0].decoder_start_id, *prompt, *ids[row, :t].tolist())
                possible[[*ends_of_ngrams(text, ngram)]] = -np.inf
            token = possible.argmax()
            targets[row, len(prompt) + t] = ids[row, t] = token
            log_probs[row, t] = scipy.special.log_softmax(logits)[token]
    return ids, log_probs


def rows_of(result, rows):
    return Generated(*(x[rows] for x in result))


def check_naive(result, expected):
    """Check a result with one output per input."""
    ids, log_probs = expected
    np.testing.assert_array_equal(result.ids[:, 0], ids)
    np.testing.assert_array_equal(result.lengths[:, 0], (ids > 0).sum(1))
    np.testing.assert_array_equal(result.finished[:, 0], (ids == EOS_ID).any(1))
    np.testing.assert_allclose(result.log_probs[:, 0], log_probs, atol=1e-4)
    exists = (ids > 0).any(1)
    np.testing.assert_allclose(result.scores[exists, 0], log_probs[exists].sum(1), atol=1e-4)


def limits(extra=3, capacity=12):
    lengths = np.array(LENGTHS)
    return np.where(lengths, np.minimum(lengths + extra, capacity), 0)


@functools.cache
def lively_params(config, max_extra_length=3):
    """Return random parameters with which some rows end and rows differ; most seeds only repeat one token."""
    for seed in range(100):
        params = random_params(config, seed)
        result = run(config, params, max_extra_length=max_extra_length)
        pairs = zip(result.finished[:, 0], result.lengths[:, 0], strict=True)
        kinds = {(bool(ended), length > 1) for ended, length in pairs if length}
        if len(kinds) > 1 and len(np.unique(result.ids)) > 5 and len(set(map(tuple, result.ids[:, 0]))) > 5:
            return params
    raise AssertionError("no seed does")


LEARNED = config_of(position_encoding="learned")
MODEL = config_of()  # for tests that do not depend on the model


@pytest.mark.parametrize("position_encoding", slow_but("learned", OPTIONS["position_encoding"]))
def test_equals_the_naive_loop(position_encoding):
    config = config_of(position_encoding=position_encoding)
    params = lively_params(config)
    check_naive(run(config, params), naive([config], [params], limits(), 9))


def test_rows_end_with_eos_or_unfinished_at_their_own_limit():
    result = run(MODEL, lively_params(MODEL))
    check_naive(result, naive([MODEL], [lively_params(MODEL)], limits(), 9))
    cut = ~result.finished[:, 0] & (np.array(LENGTHS) > 0)
    np.testing.assert_array_equal(result.lengths[cut, 0], limits()[cut])
    assert len(set(result.lengths[cut, 0])) > 1
    assert isinstance(result, Generated)
    assert result.ids.shape == result.log_probs.shape == (8, 1, 9)
    assert result.scores.shape == result.lengths.shape == result.finished.shape == (8, 1)


BEAM = {"beam_size": 3, "num_best": 2}
SAMPLES = {"method": "sample", "num_samples": 3, "temperature": 1.5, "top_k": 9, "top_p": 0.95, "min_p": 0.01}
by_any_search = pytest.mark.parametrize("fields", [{}, BEAM, SAMPLES])


@by_any_search
def test_a_row_of_padding_has_no_output(fields):
    result = run(MODEL, lively_params(MODEL), **fields)
    exists = np.isfinite(result.scores).all(1)
    np.testing.assert_array_equal(exists, np.array(LENGTHS) > 0)
    for values in (result.ids, result.lengths, result.log_probs, result.finished):
        assert not values[~exists].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"norm_position": "pre"},
        {"scan_layers": True},
        {"share_embeddings": False},
        {"num_decoder_layers": 2},
        {"num_kv_heads": 4},
    ],
)
def test_other_models(fields):
    config = config_of(**fields)
    check_naive(run(config, lively_params(config)), naive([config], [lively_params(config)], limits(), 9))


@pytest.mark.slow
def test_low_precision_models_report_float32():
    config = config_of(dtype="bfloat16", num_decoder_layers=1)
    result = run(config, random_params(config, 5))
    assert result.log_probs.dtype == result.scores.dtype == np.float32
    assert (result.log_probs[result.ids > 0] < 0).all()


@pytest.mark.slow
def test_the_capacity_of_the_model_is_a_limit_too():
    config = config_of(max_length=5)
    params = lively_params(config, 50)
    result = run(config, params, max_extra_length=50)
    assert result.ids.shape[2] == 5
    assert result.lengths.max() == 5
    check_naive(result, naive([config], [params], limits(50, 5), 5))


@pytest.mark.slow
def test_no_extra_length():
    check_naive(
        run(MODEL, lively_params(MODEL), max_extra_length=0),
        naive([MODEL], [lively_params(MODEL)], limits(0), 6),
    )


@pytest.mark.slow
def test_a_length_for_all_inputs():
    result = run(MODEL, lively_params(MODEL), max_new_tokens=4)
    assert result.ids.shape == (8, 1, 4)
    check_naive(result, naive([MODEL], [lively_params(MODEL)], np.where(limits(), 4, 0), 4))


@by_any_search
def test_an_output_does_not_depend_on_its_batch(fields):
    params, inputs, numbers = lively_params(MODEL), sources(), np.arange(100, 108)
    together = run(MODEL, params, inputs, row_ids=numbers, **fields)
    order = np.random.default_rng(0).permutation(len(inputs))
    check_same(run(MODEL, params, inputs[order], row_ids=numbers[order], **fields), together, order)
    others = sources(LENGTHS[::-1], seed=5)
    others[2:5], numbers = inputs[3:6], np.array([7, 8, 103, 104, 105, 9, 10, 11])
    check_same(rows_of(run(MODEL, params, others, row_ids=numbers, **fields), slice(2, 5)), together, slice(3, 6))


@pytest.mark.parametrize("fields", [{}, *[pytest.param(fields, marks=pytest.mark.slow) for fields in (BEAM, SAMPLES)]])
def test_an_output_does_not_depend_on_the_width_of_its_batch(fields):
    params, inputs = lively_params(MODEL), sources()
    together = run(MODEL, params, inputs, **fields)
    wider = run(MODEL, params, np.pad(inputs, ((0, 0), (0, 3))), **fields)
    assert not wider.ids[..., 9:].any()
    check_same(wider._replace(ids=wider.ids[..., :9], log_probs=wider.log_probs[..., :9]), together)


@pytest.mark.parametrize(
    "position_encoding",
    slow_but("learned", OPTIONS["position_encoding"]),
)
def test_prompts_of_any_length_equal_the_naive_loop(position_encoding):
    """With the capacity as the limit, so that the last tokens have the last positions; one prompt has 11 tokens."""
    config, prompts = config_of(position_encoding=position_encoding), [*PROMPTS[:7], (4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8)]
    params = lively_params(config)
    max_lengths = np.where(np.array(LENGTHS), 12 - np.array([len(prompt) for prompt in prompts]), 0)
    result = run(config, params, prompts=prompts, max_new_tokens=12, min_length=7)
    check_naive(result, naive([config], [params], max_lengths, 12, prompts, min_length=7))
    assert (result.lengths[:, 0] > 7).sum() > 4
    assert result.lengths[7] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "others", "different"),
    [
        (
            {"beam_size": 2, "length_penalty_alpha": 0.6, "max_new_tokens": 5},
            [{"length_penalty_alpha": 0.9}, {"min_length": 2}, {"forbidden_ids": "7,9"}, {"at_limit": "end"}],
            {"beam_size": 3},
        ),
        (
            {"method": "sample", "top_p": 0.9, "temperature": 1.0, "max_new_tokens": 5},
            [{"top_p": 0.5}, {"temperature": 0.7}, {"seed": 3}],
            {"top_k": 4},
        ),
    ],
    ids=["beam", "sample"],
)
def test_another_value_does_not_recompile(fields, others, different):
    params = lively_params(MODEL)
    run(MODEL, params, **fields)
    compiled = generate._begin._cache_size(), generate._stage._cache_size(), generate._outputs._cache_size()
    for other in others:
        run(MODEL, params, **{**fields, **other})
        sizes = generate._begin._cache_size(), generate._stage._cache_size(), generate._outputs._cache_size()
        assert sizes == compiled, other
    run(MODEL, params, **{**fields, **different})
    assert generate._stage._cache_size() > compiled[1]


def test_prompts_have_few_shapes():
    """The start id and 0, 1, 2, 4, 8, ... tokens, so that few programs are compiled."""
    requests = [generate.Request({}, [(7, *(5,) * length)], np.array([1]), 1) for length in range(9)]
    searches = [generate.prepare(decoders_of([MODEL]), [], DecodeConfig(), ENDS, request) for request in requests]
    assert [search.inputs.prompts.shape[1] for search in searches] == [1, 2, 3, 5, 5, 9, 9, 9, 9]


@pytest.mark.parametrize("fields", [{**BEAM, "length_penalty": "none"}, pytest.param({}, marks=pytest.mark.slow)])
def test_a_prompt_is_a_prefix_that_is_not_in_the_output(fields):
    """Also with a learned table, which has fewer positions than the beam has slots."""
    params, prompt = lively_params(LEARNED), (8, 4, 9)
    prompted = run(LEARNED, params, prompts=[prompt] * 8, max_new_tokens=6, **fields)
    prefixed = run(LEARNED, params, prefix_ids="8,4,9", max_new_tokens=9, **fields)
    exists = prompted.lengths > 0
    assert (prefixed.ids[exists][:, :3] == prompt).all()
    np.testing.assert_array_equal(prompted.ids[exists], prefixed.ids[exists][:, 3:])
    np.testing.assert_array_equal(prompted.lengths[exists] + 3, prefixed.lengths[exists])
    np.testing.assert_array_equal(prompted.finished, prefixed.finished)
    np.testing.assert_allclose(prompted.log_probs[exists], prefixed.log_probs[exists][:, 3:], atol=1e-4)
    before = prefixed.log_probs[exists][:, :3].sum(-1)
    np.testing.assert_allclose(prompted.scores[exists] + before, prefixed.scores[exists], atol=1e-4)


SAME_LENGTH = ((5, 6, 7), (4, 4, 8), (7, 5, 6), (8, 4, 9), (15, 5, 11), (6, 6, 6), (4, 5, 17), (18, 9, 7))


@pytest.mark.parametrize("prompts", [SAME_LENGTH, PROMPTS])
def test_constraints_equal_the_naive_loop(prompts):
    """Also with the repetition penalty, which counts the prompt, but not its padding."""
    params = lively_params(MODEL)
    free = run(MODEL, params)
    often = int(np.bincount(free.ids[free.ids > EOS_ID]).argmax())
    result = run(MODEL, params, prompts=prompts, forbidden_ids=f"{often},5", min_length=2, repetition_penalty=1.5)
    expected = naive([MODEL], [params], limits(), 9, prompts, forbidden=(often, 5), min_length=2, penalty=1.5)
    check_naive(result, expected)
    assert not np.isin(result.ids, (often, 5)).any()


def num_repeated(result, size):
    """Return the number of tokens of all outputs that end an n-gram of their start id, prompt or earlier output."""
    count = 0
    for row, number in np.ndindex(result.lengths.shape):
        before, own = (7, *PROMPTS[row]), result.ids[row, number, : result.lengths[row, number]].tolist()
        count += sum(token in ends_of_ngrams((*before, *own[:at]), size) for at, token in enumerate(own))
    return count


@pytest.mark.slow
def test_greedy_search_without_repeated_ngrams_equals_the_naive_loop():
    """The start id and the prompt count, but not the padding of shorter prompts."""
    params, fields = lively_params(MODEL), {"prompts": PROMPTS, "min_length": 6}
    result = run(MODEL, params, no_repeat_ngram=1, **fields)
    check_naive(result, naive([MODEL], [params], limits(), 9, PROMPTS, min_length=6, ngram=1))
    assert num_repeated(run(MODEL, params, **fields), 1) > num_repeated(result, 1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fields", [BEAM, SAMPLES])
def test_no_output_repeats_an_ngram(fields, stages, monkeypatch):
    """Also where the cache grows in the middle."""
    monkeypatch.setattr(generate, "FIRST_CAPACITY", 4)
    fields = {**fields, "prompts": PROMPTS, "forbidden_ids": ",".join(map(str, range(7, 19))), "min_length": 6}
    free, fresh = (run(MODEL, lively_params(MODEL), no_repeat_ngram=size, **fields) for size in (0, 2))
    assert num_repeated(free, 2) > num_repeated(fresh, 2) == 0


def test_a_feature_that_is_off_has_no_part_in_the_state():
    """So the programs of decoding are those without the feature."""
    request = generate.Request({}, [(7,)], np.array([1]), 1)
    for size in (0, 3):
        search = generate.prepare(decoders_of([MODEL]), [], DecodeConfig(no_repeat_ngram=size), ENDS, request)
        assert (search.values.constraints.no_repeat_ngram is None) == (size == 0)


def test_an_ensemble_of_two_copies_is_the_model():
    params = lively_params(MODEL)
    check_same(ensemble([MODEL] * 2, [params] * 2), run(MODEL, params))


def check_ensemble(models, params, penalty=1.0):
    result = ensemble(models, params, repetition_penalty=penalty)
    check_naive(result, naive(models, params, limits(), 9, penalty=penalty))
    alone = [run(config, p, repetition_penalty=penalty) for config, p in zip(models, params, strict=True)]
    assert all((result.ids != x.ids).any() for x in alone)


def test_an_ensemble_averages_log_probs():
    """Against the naive loop; the returned log probabilities are normalised again."""
    check_ensemble([MODEL] * 2, [lively_params(MODEL), random_params(MODEL, 77)])


@pytest.mark.slow
def test_an_ensemble_of_models_with_different_shapes():
    """With a repetition penalty, which reads the average of log probabilities."""
    other = config_of(position_encoding="rotary", emb_dim=8, max_length=20, num_decoder_layers=2)
    check_ensemble([MODEL, other], [lively_params(MODEL), lively_params(other)], penalty=1.5)


@pytest.mark.slow
def test_an_ensemble_with_beam_search_and_with_prompts():
    params = lively_params(MODEL)
    for fields in (BEAM, SAMPLES):
        check_same(
            ensemble([MODEL] * 2, [params] * 2, prompts=PROMPTS, **fields),
            run(MODEL, params, prompts=PROMPTS, **fields),
        )


def test_samples_of_an_input():
    """There are many, drawn by the input's number and the seed, with the log probabilities of the model."""
    params, numbers = lively_params(MODEL), np.arange(8)
    result = run(MODEL, params, **SAMPLES)
    check_same(run(MODEL, params, row_ids=numbers, **SAMPLES), result)
    assert result.ids.shape == (8, 3, 9)
    rows = np.array(LENGTHS) > 0
    np.testing.assert_allclose(result.scores[rows], result.log_probs[rows].sum(-1), atol=1e-5)
    for sample in range(3):
        ids = result.ids[:, sample]
        logits = forward(MODEL, params, as_batch(7, inputs=sources(), targets=ids))
        known = scipy.special.log_softmax(logits, axis=-1)
        own = np.take_along_axis(known, ids[..., None], axis=-1)[..., 0]
        np.testing.assert_allclose(result.log_probs[:, sample], np.where(ids > 0, own, 0), atol=1e-4)
    assert len({tuple(ids) for ids in result.ids[rows].reshape(-1, 9)}) > 15
    for other in (run(MODEL, params, seed=1, **SAMPLES), run(MODEL, params, row_ids=numbers + 8, **SAMPLES)):
        assert (other.ids[rows] != result.ids[rows]).any(-1).mean() > 0.7


def test_more_samples_begin_with_the_same_ones():
    """However many are drawn at once."""
    params = lively_params(MODEL)
    few = run(MODEL, params, **SAMPLES)
    many = run(MODEL, params, **{**SAMPLES, "num_samples": SAMPLES_TOGETHER + 3})
    assert many.ids.shape == (8, SAMPLES_TOGETHER + 3, 9)
    np.testing.assert_array_equal(many.ids[:, :3], few.ids)
    np.testing.assert_allclose(many.scores[:, :3], few.scores, atol=1e-4)
    assert len({tuple(ids) for ids in many.ids[0]}) > SAMPLES_TOGETHER / 2


@pytest.mark.parametrize(
    ("prefix", "limit", "expected"),
    [
        (0, 1, [1]),
        (0, 64, [64]),
        (0, 65, [64, 65]),
        (0, 300, [64, 128, 256, 300]),
        (3, 61, [64]),
        (3, 62, [64, 65]),
        (63, 200, [64, 128, 256, 263]),
        (64, 10, [74]),
        (64, 100, [128, 164]),
        (200, 56, [256]),
    ],
)
def test_stages_double_from_64_positions_on(prefix, limit, expected):
    assert capacities(prefix, limit) == expected


@pytest.fixture
def stages(monkeypatch):
    """Return the tokens up to which each stage decodes, with a first stage of 8 positions."""
    made, whole = [], generate._stage
    monkeypatch.setattr(generate, "_stage", lambda *args: made.append(args[2]) or whole(*args))
    monkeypatch.setattr(generate, "FIRST_CAPACITY", 8)
    return made


def test_no_stage_starts_that_no_output_reaches(stages):
    params = lively_params(MODEL)
    stages.clear()  # those of the search for parameters
    result = run(MODEL, params)
    assert stages == [8, 9]
    check_naive(result, naive([MODEL], [params], limits(), 9))
    stages.clear()
    row = next(row for row in range(8) if 0 < result.lengths[row, 0] <= 8 and result.finished[row, 0])
    check_same(run(MODEL, params, sources()[[row] * 8]), result, [row] * 8)
    assert stages == [8]


def test_a_beam_crosses_the_border_of_a_stage(stages, monkeypatch):
    several = run(MODEL, lively_params(MODEL), **BEAM)
    monkeypatch.setattr(generate, "FIRST_CAPACITY", 64)
    check_same(run(MODEL, lively_params(MODEL), **BEAM), several)
    assert stages == [8, 9, 9]


@pytest.mark.slow
@pytest.mark.parametrize("fields", [BEAM, SAMPLES])
def test_prompts_cross_the_border_of_a_stage(fields, stages, monkeypatch):
    params, fields = lively_params(MODEL), {**fields, "prompts": PROMPTS, "repetition_penalty": 1.3}
    monkeypatch.setattr(generate, "FIRST_CAPACITY", 4)
    several = run(MODEL, params, **fields)
    made = len(stages)
    assert made > 1
    monkeypatch.setattr(generate, "FIRST_CAPACITY", 64)
    check_same(run(MODEL, params, **fields), several)
    assert len(stages) == made + 1


LONG, LONG_SEED = config_of(max_length=200), 58  # with this seed one of three rows ends after position 150


@pytest.mark.slow
def test_a_long_output_equals_the_naive_one():
    """Across 64 and 128 positions every token is the most likely one by the full forward pass over the output."""
    params = random_params(LONG, LONG_SEED)
    result = run(LONG, params, sources((6, 3, 4)), max_new_tokens=190, min_length=150)
    assert (result.lengths > 150).all()
    ids = result.ids[:, 0]
    logits = np.array(forward(LONG, params, as_batch(7, inputs=sources((6, 3, 4)), targets=ids)), np.float64)
    log_probs = np.take_along_axis(scipy.special.log_softmax(logits, axis=-1), ids[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(result.log_probs[:, 0], np.where(ids > 0, log_probs, 0), atol=1e-3)
    logits[..., PAD_ID] = logits[:, :150, EOS_ID] = -np.inf
    chosen = np.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    assert (chosen >= logits.max(-1) - 1e-3)[ids > 0].all()
    assert len(np.unique(ids)) > 5
    assert 0 < result.finished.mean() < 1


@pytest.mark.slow
def test_a_long_beam_search_equals_that_of_one_stage(monkeypatch):
    fields = {"beam_size": 3, "num_best": 3, "max_new_tokens": 190, "min_length": 150}
    stages = run(LONG, random_params(LONG, LONG_SEED), sources((6, 3, 4)), **fields)
    monkeypatch.setattr(generate, "FIRST_CAPACITY", 256)
    assert capacities(0, 190) == [190]
    check_same(run(LONG, random_params(LONG, LONG_SEED), sources((6, 3, 4)), **fields), stages)
    assert (stages.lengths > 150).all()


@pytest.mark.parametrize(
    ("configs", "fields", "error", "message"),
    [
        ([MODEL, config_of(vocab_size=20)], {}, ConfigError, r"model\.vocab_size is 19 and 20$"),
        ([MODEL], {"inputs": np.full((2, 3), 19, np.int32)}, DataError, r"^inputs.*19.*model\.source_vocab_size=19"),
        ([MODEL], {"inputs": np.array([[4], [-1]], np.int32)}, DataError, r"^inputs.*-1.*model\.source_vocab_size=19"),
        ([LEARNED], {"inputs": np.ones((1, 13), np.int32)}, DataError, r"13 positions .*model\.max_length=12"),
        (
            [config_of(), LEARNED],
            {"inputs": np.ones((1, 13), np.int32)},
            DataError,
            r"13 positions .*model\.max_length=12",
        ),
        ([MODEL], {"prompts": PROMPTS[:7]}, DataError, r"^prompts: 7 for 8 inputs"),
        (
            [MODEL],
            {"prompts": [*PROMPTS[:7], (4,) * 12]},
            DataError,
            r"^prompts: row 7 has 12 tokens.*model\.max_length=12",
        ),
        ([MODEL], {"prompts": [*PROMPTS[:7], (4, 19)]}, DataError, r"^prompts, row 7: .*19.*model\.vocab_size=19"),
        ([MODEL], {"prompts": [(-2,), *PROMPTS[1:]]}, DataError, r"^prompts, row 0: .*-2.*model\.vocab_size=19"),
    ],
)
def test_inputs_that_the_models_cannot_take(configs, fields, error, message):
    with pytest.raises(error, match=message):
        ensemble(configs, [random_params(config) for config in configs], **fields)
