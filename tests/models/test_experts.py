"""Experts in whole models: the tokens that their losses count, evaluation, and configs that make no sense."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import as_batch, random_params, shapes, tiny

from transformer_jax.config import ExperimentConfig, TaskConfig, TrainingConfig
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES, counted_targets, training_pass
from transformer_jax.nn.collected import by_block
from transformer_jax.nn.experts import BALANCE

EXPERTS = {"feed_forward": "experts", "num_experts": 3}


def batch_of(architecture, packed=False):
    """Return a batch of 5 tokens of sources and 6 of targets, in rows of 4; packed: the first row has two texts."""
    inputs, targets = np.array([[5, 6, 7, 0], [8, 9, 0, 0]], np.int32), np.array([[7, 5, 5, 0], [6, 8, 9, 0]], np.int32)
    arrays = {"inputs": inputs, "targets": targets}
    for name in ("inputs", "targets") if packed else ():
        arrays[f"{name}_segment_ids"] = np.where(arrays[name] > 0, [[1, 1, 2, 2], [1, 1, 1, 1]], 0).astype(np.int32)
        arrays[f"{name}_positions"] = np.array([[0, 1, 0, 0], [0, 1, 2, 0]], np.int32)
    batch = as_batch(**arrays)
    if architecture == "encoder_decoder":
        return batch
    of_encoder = architecture == "encoder_only"
    return {name: array for name, array in batch.items() if name.startswith("inputs") == of_encoder}


def counted(architecture, packed=False):
    """Return the tokens and the choices that every layer counts in training, by stack."""
    config = tiny(architecture=architecture, num_encoder_layers=1, scan_layers=True, **EXPERTS)
    module = ARCHITECTURES[architecture].module(config)

    @jax.jit
    def collected(params, batch):
        return training_pass(module, params, lambda model: model.features(batch)).collected

    found = by_block(collected(random_params(config), batch_of(architecture, packed)), BALANCE)
    assert {path[1:] for path in found} == {("layers_experts", "experts")}
    assert all(sums["count"].sum(-1).tolist() == (2 * sums["tokens"]).tolist() for sums in found.values())
    return {path[0]: sums["tokens"].tolist() for path, sums in found.items()}


def test_both_stacks_of_an_encoder_decoder_count_their_own_tokens():
    assert counted("encoder_decoder") == {"encoder": [5], "decoder": [6, 6]}


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_decoder_counts_its_tokens(packed):
    assert counted("decoder_only", packed) == {"decoder": [6, 6]}


@pytest.mark.slow
def test_an_encoder_counts_its_tokens():
    assert counted("encoder_only", packed=True) == {"encoder": [5]}


def test_tokens_of_the_decoder_by_what_a_batch_has():
    batch = as_batch(targets=np.array([[5, 6, 0], [7, 0, 0]], np.int32))
    real = [[True, True, False], [True, False, False]]
    assert counted_targets(batch).tolist() == real
    # Tokens of a prefix, and of a source in the same row, have no weight; labels have weights of another shape.
    batch |= {"weights": batch["weights"].at[0, 0].set(0.0)}
    assert counted_targets(batch).tolist() == [[False, True, False], [True, False, False]]
    prefix = jnp.zeros((2, 3), bool).at[0, 0].set(True)
    assert counted_targets(batch | {"prefix_mask": prefix}).tolist() == real
    assert counted_targets(batch | {"targets_mask": jnp.array(real)}).tolist() == real
    assert counted_targets(batch | {"targets_segment_ids": jnp.array([[1, 2, 0], [1, 0, 0]])}).tolist() == real
    of_label = {"decoder_inputs": batch["decoder_inputs"], "weights": jnp.ones(2)}
    assert counted_targets(of_label | {"inputs_mask": jnp.array(real)}).tolist() == real
    assert counted_targets(of_label) is None
    # Of a source, `inputs_mask` says nothing about the targets.
    assert counted_targets(of_label | {"inputs": jnp.ones((2, 4)), "inputs_mask": jnp.ones((2, 4), bool)}) is None


def test_parameters_of_kinds_are_in_folders_by_what_they_have():
    kinds = "A:; E: feed_forward=experts; X: mixer=gated_delta, feed_forward=experts"
    config = tiny(
        architecture="decoder_only", num_decoder_layers=3, layer_pattern="AEX", layer_kinds=kinds, num_experts=3
    )
    decoder = shapes(config)["decoder"]
    assert {name: sorted(tree) for name, tree in decoder.items() if name.startswith("layers")} == {
        "layers": ["feed_forward", "feed_forward_residual", "self_attention", "self_attention_residual"],
        "layers_experts": ["experts", "experts_residual", "self_attention", "self_attention_residual"],
        "layers_gated_delta_experts": ["experts", "experts_residual", "gated_delta", "gated_delta_residual"],
    }
    assert decoder["layers_experts"]["experts"]["hidden"]["kernel"].shape == (1, 3, 16, 24)


def test_evaluation_collects_nothing():
    config = tiny(architecture="decoder_only", num_decoder_layers=1, **EXPERTS)
    batch = batch_of("decoder_only")
    module = ARCHITECTURES["decoder_only"].module(config)
    _, variables = jax.eval_shape(lambda p: module.apply({"params": p}, batch, mutable=[]), shapes(config))
    assert variables == {}


def resolved(training=None, **model):
    model = {"architecture": "decoder_only", **model}
    config = ExperimentConfig(task=TaskConfig(name="language_model"), training=TrainingConfig(**training or {}))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **model)).resolved()


KINDS = {"layer_pattern": "AE", "layer_kinds": "A:; E: feed_forward=experts"}
NO_EXPERTS = {"layer_pattern": "A", "layer_kinds": "A: feed_forward=dense", "feed_forward": "experts"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (EXPERTS | {"experts_per_token": 4}, r"model\.experts_per_token=4 exceeds num_experts=3"),
        (KINDS | {"num_experts": 1}, r"kind E: experts_per_token=2 exceeds num_experts=1"),
        ({"num_experts": 4}, r"model\.num_experts=4 has no effect with feed_forward='dense', only with 'experts'"),
        (NO_EXPERTS | {"experts_per_token": 1}, r"model\.experts_per_token=1 has no effect with feed_forward='dense'"),
        ({"num_experts": 4, "layer_pattern": "A"}, r"layer_pattern='A': unknown letter A"),
        (EXPERTS | {"num_experts": 0}, r"model\.num_experts=0: expected at least 1"),
        (
            {"feed_forward": "expert"},
            r"model\.feed_forward='expert': expected one of dense, experts, or MODULE:OBJECT ",
        ),
        ({"training": {"balance_loss": 0.01}}, r"training\.balance_loss=0\.01 has no effect with model\.feed_forward="),
        ({"training": {"router_z_loss": 0.1}}, r"training\.router_z_loss=0\.1 has no effect with model\.feed_forward="),
        (EXPERTS | {"training": {"balance_loss": -1.0}}, r"training\.balance_loss=-1\.0: expected at least 0"),
    ],
)
def test_bad_input(fields, problem):
    with pytest.raises(ConfigError, match=problem):
        resolved(**fields)


def test_fields_of_experts_are_read_if_any_layer_has_them():
    weights = {"balance_loss": 0.01, "router_z_loss": 0.001}
    for fields in (EXPERTS, KINDS | {"num_experts": 3, "experts_per_token": 1}):
        assert resolved(training=weights, **fields).training.balance_loss == 0.01
