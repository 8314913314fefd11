"""Summaries of BART's and T5's folders: settings of generation in both directions, and outputs equal to transformers'.

`golden/summaries` has the outputs of transformers 5.23; see tests/summaries_support.py.
"""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from published_support import config_of
from summaries_support import sources, stored, texts, write_summary_folder

from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.cli.main import main
from transformer_jax.config import DecodeConfig, TaskConfig
from transformer_jax.convert import folder_config
from transformer_jax.convert.folder import describe_folder, from_pretrained, open_folder, save_pretrained, write_workdir
from transformer_jax.convert.generation import EARLY_STOPPING
from transformer_jax.convert.generation_reading import read_generation
from transformer_jax.decoding.generate import generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.task import param_shapes
from transformer_jax.tasks.trained.decode_requests import source_request
from transformer_jax.training.init_from import _other_prefix, open_other_run

SUMMARY = {
    "beam_size": 4,
    "length_penalty": "average",
    "length_penalty_alpha": 2.0,
    "early_stop": "first",
    "no_repeat_ngram": 3,
}
OF_T5 = SUMMARY | {"max_new_tokens": 199, "min_length": 29, "cut_hypotheses": "compete"}
OF_BART = SUMMARY | {"max_new_tokens": 141, "min_length": 55}
OF_BART |= {"prefix_ids": "0", "at_limit": "end", "forced_tokens": "free"}


@pytest.fixture(scope="module", params=["bart", "t5"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    path = tmp_path_factory.mktemp("summaries") / family
    write_summary_folder(path, family)
    return path


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    path = tmp_path_factory.mktemp("summaries") / "t5"
    write_summary_folder(path, "t5")
    return path


def fields_of(decode):
    """Return the fields that are not at their defaults."""
    fields = {field.name: getattr(decode, field.name) for field in dataclasses.fields(decode)}
    return {name: value for name, value in fields.items() if value != getattr(DecodeConfig(), name)}


def outputs(model, **fields):
    """Return the ids of the best output for every source."""
    decoder = ARCHITECTURES[model.config.architecture].decoder(model.config)
    eos, decode = model.special_ids.eos, dataclasses.replace(model.decode, **fields)
    rows = [[*row, eos] for row in sources()]
    lengths = np.array([*map(len, rows)])
    ids = np.zeros((len(rows), lengths.max()), np.int32)
    for row, given in zip(ids, rows, strict=True):
        row[: len(given)] = given
    request = source_request((decoder,), decode, model.config.decoder_start_id, ids, lengths)
    found = generate((decoder,), [decoder.prepare(model.params)], decode, Ends(eos, ()), request)
    return [np.asarray(row[0, :length]).tolist() for row, (length, *_) in zip(found.ids, found.lengths, strict=True)]


@pytest.mark.parametrize("stop", ["first", *(pytest.param(x, marks=pytest.mark.slow) for x in ("current", "bound"))])
def test_the_ids_of_summaries_are_those_of_transformers(family, folder, stop):
    model, theirs = from_pretrained(folder, "text_to_text"), EARLY_STOPPING[stop]
    expected = stored()[family][str(theirs).lower()]
    assert model.decode.early_stop == "first"
    assert outputs(model, early_stop=stop) == expected
    if stop == "first":
        assert len({len(row) for row in expected}) > 3
        ends = {row[-1] == model.special_ids.eos for row in expected}
        assert ends == ({True} if family == "bart" else {True, False})


@pytest.mark.slow
def test_forced_tokens_that_cost_something_give_other_summaries(tmp_path):
    write_summary_folder(tmp_path / "bart", "bart")
    model = from_pretrained(tmp_path / "bart", "text_to_text")
    assert outputs(model, forced_tokens="scored") != stored()["bart"]["true"]


@pytest.mark.slow
def test_texts_of_the_commands_are_those_of_transformers(t5, tmp_path, capsys):
    """From the folder to the summaries: the prefix and all settings come from config.json."""
    run, given, written = (tmp_path / name for name in ("run", "in.txt", "out.txt"))
    given.write_text("\n".join(texts()) + "\n")
    assert main(["convert", f"--from={t5}", f"--workdir={run}", "--task=text_to_text"]) == 0
    assert main(["generate", f"--checkpoint={run}", f"--input={given}", f"--output_file={written}"]) == 0
    assert written.read_text().splitlines() == stored()["t5"]["summaries"]
    assert json.loads((run / "config.json").read_text())["task"]["source_prefix"] == "summarize: "


def read(name, task="text_to_text", **given):
    config = config_of(name) if isinstance(name, str) else name
    family = folder_config.possible_classes(config, "x")[0]
    model, _ = folder_config.read_model_config(family, config, "x")
    settings = {"generation": None, "params": None} | given
    return read_generation(
        model, config.get("eos_token_id"), config, settings["generation"], "x", task, settings["params"]
    )


@pytest.mark.parametrize(
    ("name", "task", "expected", "prefix"),
    [
        ("t5-small", "text_to_text", OF_T5, "summarize: "),
        ("t5-small", "translation", {}, None),
        ("bart-large-cnn", "text_to_text", OF_BART, ""),
        ("bart-large-cnn", "translation", OF_BART, None),
        ("opus-mt-en-zh--resaved-4.49", "translation", {"at_limit": "end"}, None),
    ],
)
def test_published_settings(name, task, expected, prefix):
    found = read(name, task)
    assert (fields_of(found.decode), found.prefix) == (expected, prefix)


def test_an_entry_by_its_name():
    found = read("t5-small", "translation", params="translation_en_to_de")
    assert found.prefix == "translate English to German: "
    assert found.decode.max_new_tokens == 299
    assert found.ignored == {
        "task_specific_params": "entries that are not used: summarization, translation_en_to_fr, translation_en_to_ro"
    }
    assert read("bart-large").decode.min_length == 11  # of `summarization`, beside `summarization_cnn`
    with pytest.raises(CheckpointError, match=r"no entry 'translation_en_to_da'; it has .*did you mean"):
        read("t5-small", params="translation_en_to_da")


def test_generation_config_json_comes_before_config_json():
    config = config_of("bart-large-cnn")
    generation = {"num_beams": 2, "max_length": 9, "use_cache": True, "early_stopping": "never", "pad_token_id": 1}
    found = read(config, "translation", generation=generation)
    assert fields_of(found.decode) == {
        **{"beam_size": 2, "length_penalty": "average", "length_penalty_alpha": 1.0, "max_new_tokens": 8},
        "cut_hypotheses": "compete",
    }
    assert found.ignored["min_length"] == "generation_config.json takes its place, as in transformers"
    assert found.ignored["generation_config.json use_cache"] == "a way to compute the same numbers"
    summaries = read(config, generation=generation | {"max_new_tokens": 7})
    assert summaries.decode == dataclasses.replace(found.decode, **SUMMARY, max_new_tokens=141, min_length=55)


SMALL = {"model_type": "t5", "vocab_size": 100, "n_positions": 64, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("given", "fields", "ignored"),
    [
        ({"num_beams": 3, "length_penalty": 0.0}, {"beam_size": 3, "length_penalty": "none"}, {}),
        ({"num_beams": 3, "length_penalty": -1.0}, {"length_penalty": "none"}, {"length_penalty": "-1.0: here"}),
        ({"num_beams": 3, "early_stopping": False}, {"early_stop": "current", "length_penalty_alpha": 1.0}, {}),
        ({"num_beams": 3, "num_return_sequences": 2}, {"num_best": 2}, {}),
        ({"num_beams": 1, "early_stopping": True}, {"beam_size": 1}, {"early_stopping": "of a beam search"}),
        ({"max_length": 20}, {"max_new_tokens": 19}, {}),
        ({"max_length": 1}, {"max_new_tokens": 1}, {}),
        ({"max_length": 20, "max_new_tokens": 5}, {"max_new_tokens": 5}, {"max_length": "max_new_tokens takes"}),
        ({"max_length": 200}, {"max_new_tokens": None}, {"max_length": "the model has 64 positions"}),
        ({"min_length": 1}, {"min_length": 0}, {}),
        ({"min_new_tokens": 4}, {"min_length": 4}, {}),
        ({"forced_bos_token_id": 7}, {"prefix_ids": "7", "forced_tokens": "scored"}, {}),
        ({"forced_bos_token_id": 7, "num_beams": 2}, {"prefix_ids": "7", "forced_tokens": "free"}, {}),
        ({"forced_eos_token_id": [1]}, {"at_limit": "end"}, {}),
        ({"forced_eos_token_id": 5}, {"at_limit": "cut"}, {"forced_eos_token_id": "no field of `decode`"}),
        ({"suppress_tokens": [9, 4], "bad_words_ids": [[4], [1]]}, {"forbidden_ids": "4,9"}, {}),
        ({"bad_words_ids": [[4, 5]]}, {"forbidden_ids": ""}, {"bad_words_ids": "no field of `decode`"}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.0}, {"repetition_penalty": "no field of `decode`"}),
        ({"repetition_penalty": 1}, {"repetition_penalty": 1.0}, {"repetition_penalty": "the value of transf"}),
        (
            {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "num_return_sequences": 3, "length_penalty": 2.0},
            {"method": "sample", "temperature": 0.5, "top_k": 50, "top_p": 0.9, "num_samples": 3},
            {"length_penalty": "of a beam search"},
        ),
        ({"do_sample": True, "top_k": 0, "min_p": 0.1}, {"method": "sample", "top_k": None, "min_p": 0.1}, {}),
        ({"do_sample": True, "num_beams": 2}, {"method": "search"}, {"do_sample": "a beam search here draws nothing"}),
        ({"do_sample": False, "top_k": 5}, {"method": "search", "top_k": None}, {"top_k": "of sampling"}),
    ],
)  # fmt: skip
def test_every_key(given, fields, ignored):
    found = read(SMALL | given, "translation")
    assert {name: getattr(found.decode, name) for name in fields} == fields
    assert set(found.ignored) == set(ignored)
    assert all(found.ignored[name].startswith(reason) for name, reason in ignored.items())


def test_lengths_that_count_a_prompt_are_left_out():
    gpt2 = {"model_type": "gpt2", "max_length": 50, "min_length": 5, "no_repeat_ngram_size": 2}
    found = read(gpt2, "language_model")
    assert fields_of(found.decode) == {"no_repeat_ngram": 2}
    assert found.ignored == dict.fromkeys(("max_length", "min_length"), "counts the prompt too")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": "four"}, "num_beams='four': expected an integer, at least 1"),
        ({"early_stopping": "soon"}, "early_stopping='soon': expected true, false or 'never'"),
        ({"early_stopping": 1}, "early_stopping=1: expected true, false or 'never'"),
        ({"length_penalty": "long"}, "length_penalty='long': expected a number"),
        ({"max_length": -1}, "max_length=-1: expected an integer, at least 0"),
        ({"max_length": 5, "min_length": 9}, "read as decode.min_length=8 exceeds max_new_tokens"),
        ({"task_specific_params": {"summarization": {"prefix": 3}}}, "summarization.prefix=3: expected a text"),
        ({"task_specific_params": {"summarization": {"num_beams": None, "max_length": 0.5}}}, "zation.max_length=0.5"),
        ({"task_specific_params": ["summarization"]}, "expected an object of objects"),
        ({"do_sample": True, "num_beams": 1, "temperature": 0.0}, "decode.temperature=0.0: "),
    ],
)  # fmt: skip
def test_values_without_meaning_are_refused(given, message):
    with pytest.raises(CheckpointError, match=message):
        read(SMALL | {"num_beams": 4} | given)


def test_prefixes_that_are_not_used_are_said(t5):
    [warning] = [text for text in open_folder(t5, "translation").warnings if "source_prefix" in text]
    assert "'translate English to German: ' (translation_en_to_de)" in warning
    assert "--task_params=NAME chooses one" in warning
    assert not any("source_prefix" in text for text in open_folder(t5, "text_to_text").warnings)
    assert not any("source_prefix" in text for text in open_folder(t5, "span_corruption").warnings)


def test_a_converted_model_has_summaries_as_its_data(t5, tmp_path):
    config = write_workdir(open_folder(t5, "text_to_text"), tmp_path / "t5")
    assert (config.data.source, config.data.target_feature) == ("embedded", "headlines")


def test_texts_of_bart_begin_with_their_token(tmp_path):
    write_summary_folder(tmp_path / "bart", "bart")
    assert open_folder(tmp_path / "bart", "text_to_text").task.text_start
    assert not open_folder(tmp_path / "bart", "translation").task.text_start
    run = TaskConfig(name="text_to_text")
    record = {"config": {"task": dataclasses.asdict(dataclasses.replace(run, text_start=True))}}
    assert _other_prefix(record, run) == "this run has task.text_start=false; the checkpoint was trained with true"
    assert _other_prefix(record, dataclasses.replace(run, text_start=True)) is None


def test_a_prefix_needs_a_source(t5):
    with pytest.raises(
        CheckpointError, match=r"puts 'summarize: ' before every source; task.name='span_corruption' has no"
    ):
        open_folder(t5, "span_corruption", "summarization")
    with pytest.raises(ConfigError, match=r"task\.name='language_model': T5 needs 'translation' or 'text_to_text' or"):
        open_folder(t5, "language_model")


@pytest.mark.parametrize(
    ("before", "prefix", "note"),
    [
        ("text_to_text", "summarize: ", None),
        ("text_to_text", "translate English to German: ", None),
        ("text_to_text", "tl;dr: ", r"'tl;dr: '; the checkpoint was trained with 'summarize: ' \(its config\), 'sum"),
        (
            "translation",
            "",
            r"=''; the checkpoint was trained with 'summarize: ' \(summarization\), 'translate",
        ),
    ],
)
def test_a_run_with_a_prefix_that_the_model_does_not_know(before, prefix, note, t5, tmp_path, capsys):
    config = write_workdir(open_folder(t5, before), tmp_path / "t5")
    own = dataclasses.replace(
        config,
        task=TaskConfig(name="text_to_text", source_prefix=prefix),
        training=dataclasses.replace(config.training, init_from=str(tmp_path / "t5")),
    )
    with open_workdir(tmp_path / "run", own.to_dict()) as directory:
        open_other_run(own, directory, param_shapes(own))
    said = capsys.readouterr().err
    assert ("warning: this run has task.source_prefix" in said) == (note is not None)
    assert note is None or re.search(note, said)


def test_what_a_folder_says_is_shown(folder, family):
    report = describe_folder(folder, "text_to_text")
    assert report["task"] == "text_to_text"
    assert report["decode"]["no_repeat_ngram"] == 3
    assert report.get("prefix") == ("summarize: " if family == "t5" else None)


def test_the_way_back_keeps_settings_and_prefix(folder, family, tmp_path):
    model = from_pretrained(folder, "text_to_text")
    left_out = save_pretrained(
        tmp_path / "ours", model.config, model.params, model.tokenizer,
        special_ids=model.special_ids, task=model.task, decode=model.decode, family=family,
    )  # fmt: skip
    assert left_out == []
    again = from_pretrained(tmp_path / "ours", "text_to_text")
    assert (again.config, again.task, again.decode) == (model.config, model.task, model.decode)
    for entry in (None, {}):  # either source of settings suffices
        config = json.loads((tmp_path / "ours" / "config.json").read_text())
        shutil.copytree(tmp_path / "ours", tmp_path / str(entry))
        if entry is None:
            (tmp_path / str(entry) / "generation_config.json").unlink()
        else:
            (tmp_path / str(entry) / "config.json").write_text(json.dumps(config | {"task_specific_params": entry}))
        assert from_pretrained(tmp_path / str(entry), "text_to_text").decode == model.decode
