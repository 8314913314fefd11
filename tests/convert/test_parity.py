"""Converted models against values of transformers 5.23, which tests/golden/hugging_face/make.py has stored."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import assert_close

from transformer_jax.checkpoints.checksums import by_path
from transformer_jax.config import DecodeConfig
from transformer_jax.convert import folder_tensors
from transformer_jax.convert.folder import from_pretrained, open_folder, save_pretrained
from transformer_jax.convert.tensor_files import Outgoing, TensorFiles, write_tensors
from transformer_jax.decoding.generate import Request, generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.task import TASKS

STORED = Path(__file__).parent.parent / "golden" / "hugging_face"
NAMES = sorted(path.stem for path in STORED.glob("*.npz"))


@functools.cache
def stored(name):
    with np.load(STORED / f"{name}.npz") as values:
        return dict(values)


def part(name, kind):
    return {key.removeprefix(f"{kind}/"): x for key, x in stored(name).items() if key.startswith(f"{kind}/")}


# Their tables are those of others, with few keys of their own.
SLOW = (
    *("mistral", "qwen3", "smollm3", "roberta", "roberta_classification"),
    *("olmo2", "gpt_neox", "gpt_neox_serial"),
)


def marked(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.fixture(params=marked(NAMES))
def name(request):
    return request.param


@pytest.fixture
def folder(name, tmp_path):
    path = tmp_path / "theirs"
    path.mkdir()
    write_tensors(path, [Outgoing(n, x.shape, lambda x=x: x) for n, x in part(name, "tensor").items()])
    (path / "config.json").write_text(str(stored(name)["config"]))
    return path


def batch_of(name, config):
    values = stored(name)
    batch = {"decoder_inputs": "ids", "inputs": "inputs", "inputs_mask": "mask", "types": "types"}
    if config.inputs == "patches":
        return {"inputs": jnp.asarray(values["inputs"])}
    read = {"decoder_only": ("decoder_inputs",), "encoder_decoder": ("decoder_inputs", "inputs", "inputs_mask")}
    return {key: jnp.asarray(values[batch[key]]) for key in read.get(config.architecture, [*batch][1:])}


def test_logits_loss_and_gradients(name, folder):
    values, model = stored(name), from_pretrained(folder)
    config, params, task = model.config, model.params, model.task
    if open_folder(folder).family.lacks:  # compare the output of the pooler
        task = dataclasses.replace(task, num_labels=config.emb_dim)
        assert not any(leaf.any() for leaf in jax.tree.leaves(params["head"]["output"]))
        identity = {"kernel": jnp.eye(config.emb_dim), "bias": jnp.zeros(config.emb_dim)}
        params = {**params, "head": {**params["head"], "output": identity}}
    module = ARCHITECTURES[config.architecture].module(config, TASKS[task.name].head(task, config))

    @jax.jit
    def loss(params):
        logits = module.apply({"params": params}, batch_of(name, config))
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(values["targets"], 0))
        return nll.mean(where=values["targets"] >= 0), logits

    (value, logits), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    expected = values["logits"]
    if name == "roberta":  # their padding has the position of its id, and nothing reads it
        logits, expected = (np.where(values["mask"][..., None], of, 0) for of in (logits, expected))
    assert_close(logits, expected, 1e-5 * np.abs(expected).max())
    assert float(value) == pytest.approx(float(values["loss"]), rel=1e-6)
    expected = part(name, "gradient")
    largest = max(np.abs(x).max() for x in expected.values())
    # A table maps gradients as it maps parameters, since it only moves numbers.
    ours = {
        t.name: t.numbers() for t in folder_tensors.outgoing(open_folder(folder).family, config, by_path(gradients))
    }
    assert set(expected) <= set(ours)
    for key, gradient in expected.items():
        np.testing.assert_allclose(ours[key], gradient, rtol=0, atol=1e-4 * largest, err_msg=key)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("name", marked(name for name in NAMES if "beam_4" in stored(name)), indirect=True)
def test_generated_tokens(name, folder, beam_size):
    values, model = stored(name), from_pretrained(folder)
    config, params = model.config, model.params
    decoder = ARCHITECTURES[config.architecture].decoder(config)
    batch, prompt = {}, values["ids"][0, :5].tolist()
    if config.architecture == "encoder_decoder":
        batch, prompt = {"inputs": values["inputs"][:1], "inputs_mask": values["mask"][:1]}, [config.decoder_start_id]
    decode = DecodeConfig(beam_size=beam_size, length_penalty="none", max_new_tokens=30)
    request = Request(batch, [prompt], np.array([30]), 30)
    found = generate((decoder,), [decoder.prepare(params)], decode, Ends(1, ()), request)
    expected = values[f"beam_{beam_size}"].tolist()
    expected = expected[: expected.index(1) + 1] if 1 in expected else expected
    assert np.asarray(found.ids)[0, 0, : int(found.lengths[0, 0])].tolist() == expected
    assert len(set(expected)) > 3


def test_the_way_back_has_the_same_tensors_and_config(name, folder, tmp_path):
    model, family = from_pretrained(folder), open_folder(folder).family.name
    saved = {"family": family, "task": model.task, "labels": model.labels}
    assert save_pretrained(tmp_path / "ours", model.config, model.params, **saved) == [
        *open_folder(folder).family.lacks
    ]
    before, after = TensorFiles(folder), TensorFiles(tmp_path / "ours")
    assert set(before.tensors) == set(after.tensors)
    for tensor in before.tensors:
        # Rows that no position reads.
        unread = 2 if name.startswith(("bart", "roberta")) and "position" in tensor else 0
        assert before.read(tensor)[unread:].tobytes() == after.read(tensor)[unread:].tobytes(), tensor
    theirs, ours = (json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "ours"))
    ours |= {"activation_function": "swish"} if ours.get("activation_function") == "silu" else {}
    ids = {"bos_token_id", "eos_token_id", "pad_token_id"}  # of the tokenizer, which this folder lacks
    # transformers 5 writes true for T5 v1.1 too, which has an output projection of its own.
    others = {"tie_word_embeddings"} if name == "t5_v1_1" else set()
    for key in (theirs.keys() & ours.keys()) - ids - others - {"use_cache"}:
        assert ours[key] == theirs[key], key
    again = from_pretrained(tmp_path / "ours")
    assert (again.config, again.task, again.labels) == (model.config, model.task, model.labels)
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
