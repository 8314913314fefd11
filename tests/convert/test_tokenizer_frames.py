"""Exported tokenizers put those tokens around texts that the batches of each task have."""

import itertools
import json

import numpy as np
import pytest
from tokenizer_support import TEXTS
from tokenizers import Tokenizer, processors

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.data.batching import Rows
from transformer_jax.data.tokenizers import Frame, train_tokenizer
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer
from transformer_jax.tasks import corrupted_text
from transformer_jax.tasks.batches import corruption, framing
from transformer_jax.tasks.task import TASKS

KINDS = {
    "unigram": 360, "bpe": 360, "byte_bpe": 360, "wordpiece": 300, "unigram with a mask": 360,
    "byte_bpe with a mask": 360, "bpe with sentinels": 370,
}  # fmt: skip
ADDED = {"mask": ("<mask>",), "sentinels": ("<extra_id_0>", "<extra_id_1>")}
PAIR = ("the king", "ship ist auf")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    kind, _, added = request.param.partition(" with ")
    return train_tokenizer(TEXTS, kind, KINDS[request.param], ADDED.get(added.removeprefix("a "), ()))


def ids_of(tokenizer, *texts):
    ids, offsets = tokenizer.encode_batch(texts)
    return [ids[a:b] for a, b in itertools.pairwise(offsets)]


def written(tokenizer, config):
    frame = TASKS[config.task.name].text_frame(config.model, tokenizer.source.special_ids)
    files = tokenizer_files(tokenizer, 40, frame, token_types=config.model.token_types)
    model = Tokenizer.from_str(files["tokenizer.json"].decode())
    model.encode_special_tokens = True
    return model, json.loads(files["tokenizer_config.json"])


def config_of(task, architecture="encoder_only", **fields):
    model = ModelConfig(architecture=architecture, decoder_start_id=7, **fields)
    return ExperimentConfig(task=TaskConfig(name=task), model=model)


@pytest.mark.parametrize(
    ("task", "architecture", "types"),
    [
        ("classification", "encoder_only", 2),
        ("classification", "encoder_only", 0),
        ("classification", "decoder_only", 0),
        ("tagging", "encoder_only", 2),
        ("span_qa", "encoder_only", 2),
        ("span_qa", "encoder_only", 0),
    ],
)
def test_labels_and_answers(tokenizer, task, architecture, types):
    """Single texts and pairs have the ids and types of `framing.framed`."""
    config = config_of(task, architecture, token_types=types)
    model, settings = written(tokenizer, config)
    texts = ids_of(tokenizer, *PAIR)
    rows = Rows(np.arange(2), np.ones(2, np.int64), np.arange(2), False)
    size = sum(map(len, texts)) + 3
    batch = framing.framed(config, framing.marks(config, tokenizer.special_ids), [texts[:1], texts], rows, size)
    inputs, mask = batch[framing.sequence_name(config).replace("targets", "decoder_inputs")], batch["inputs_mask"]
    for row, given in enumerate((PAIR[:1], PAIR)):
        if task == "tagging" and len(given) == 2:
            continue  # has no pairs
        found = model.encode(*given)
        assert found.ids == inputs[row][mask[row]].tolist()
        expected = batch["types"][row][mask[row]].tolist() if types else [0] * len(found.ids)
        assert found.type_ids == expected
    uses_types = "token_type_ids" in settings.get("model_input_names", ["token_type_ids"])
    assert uses_types == (types > 1)


@pytest.mark.parametrize("task", ["masked_lm", "denoising"])
def test_corrupted_texts(tokenizer, task):
    config = config_of(task, "encoder_only" if task == "masked_lm" else "encoder_decoder")
    (ids,) = ids_of(tokenizer, PAIR[0])
    framed = corrupted_text.with_marks(corruption.TextRows(ids[None], np.array([len(ids)])), tokenizer.special_ids)
    assert written(tokenizer, config)[0].encode(PAIR[0]).ids == framed.ids[0].tolist()


@pytest.mark.parametrize("task", ["translation", "span_corruption"])
def test_sources_end(tokenizer, task):
    model, _ = written(tokenizer, config_of(task, "encoder_decoder"))
    (ids,) = ids_of(tokenizer, PAIR[0])
    assert model.encode(PAIR[0]).ids == [*ids.tolist(), tokenizer.special_ids.required("eos")]


def test_language_models_have_no_frame(tokenizer):
    """Also with WordPiece, whose files elsewhere have `[CLS]` and `[SEP]`; users put the start token in front."""
    model, settings = written(tokenizer, config_of("language_model", "decoder_only"))
    assert model.encode(PAIR[0]).ids == ids_of(tokenizer, PAIR[0])[0].tolist()
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]


def byte_level(rule):
    model = Tokenizer.from_str(train_tokenizer(TEXTS, "byte_bpe", 360).model_bytes.decode())
    model.post_processor = rule
    return ByteBPETokenizer(model.to_str().encode())


def template(*tokens):
    return processors.TemplateProcessing(single=list(tokens), pair=None, special_tokens=[("<s>", 3), ("</s>", 1)])


@pytest.mark.parametrize(
    ("rule", "frame", "kept"),
    [
        (template("<s>", "$A"), Frame(optional_start=3), True),
        (template("<s>", "$A"), Frame(optional_start=1), False),
        (template("<s>", "$A", "</s>"), Frame(optional_start=3), False),
        (processors.RobertaProcessing(("</s>", 1), ("<s>", 3)), Frame(3, 1), True),
        (processors.RobertaProcessing(("</s>", 1), ("<s>", 3)), Frame(3, 1, pairs=True), False),
        (processors.ByteLevel(trim_offsets=False), Frame(), True),
    ],
)
def test_a_rule_that_does_the_same_stays(rule, frame, kept):
    tokenizer = byte_level(rule)
    written = tokenizer_files(tokenizer, 40, frame)["tokenizer.json"]
    assert (written == tokenizer.model_bytes) == kept
    model, (a, b) = Tokenizer.from_str(written.decode()), ids_of(tokenizer, *PAIR)
    start, end = ([] if id is None else [id] for id in (frame.start, frame.end))
    if not kept:
        assert model.encode(*PAIR).ids == [*start, *a, *end, *b, *end]
    assert model.encode(PAIR[0]).ids in ([*start, *a, *end], [frame.optional_start, *a])
