"""Ids of special tokens in config.json, as tables; no model."""

import json

import pytest

from transformer_jax.config import ModelConfig
from transformer_jax.convert.families import FAMILIES
from transformer_jax.convert.special_ids import id_keys, special_ids_of
from transformer_jax.data.tokenizers import SpecialIds
from transformer_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        ({}, SpecialIds()),
        ({"pad_token_id": 0, "eos_token_id": 5}, SpecialIds(pad=0, eos=5)),
        ({"pad_token_id": None, "eos_token_id": [7, 8]}, SpecialIds(eos=7)),
        ({"pad_token_id": -1, "eos_token_id": 10}, SpecialIds()),
        ({"pad_token_id": True, "eos_token_id": []}, SpecialIds()),
        ({"pad_token_id": "0", "eos_token_id": 9}, SpecialIds(eos=9)),
    ],
)
def test_ids_that_a_config_has(keys, ids):
    assert special_ids_of(keys, 10) == ids


@pytest.mark.parametrize("name", FAMILIES)
def test_no_id_is_invented(name):
    """Those that are known are written, zeros too; others are null, which transformers does not replace."""
    family = FAMILIES[name]
    text = ModelConfig(decoder_start_id=3)
    if family.name == "vit":
        assert id_keys(family, ModelConfig(inputs="patches"), SpecialIds(pad=0)) == {}
        return
    if family.name == "roberta":  # the only padding with which its positions are ours
        assert id_keys(family, text, None) == id_keys(family, text, SpecialIds(pad=1)) == {"pad_token_id": 1}
        with pytest.raises(ConfigError, match="the tokenizer has the padding id 0: RoBERTa has 1; positions are"):
            id_keys(family, text, SpecialIds(pad=0))
        return
    for ids in (SpecialIds(), SpecialIds(pad=0, eos=0), SpecialIds(pad=4)):
        keys = id_keys(family, text, ids)
        assert keys["pad_token_id"] == ids.pad
        assert keys.get("eos_token_id", ids.eos) == ids.eos
        assert special_ids_of(json.loads(json.dumps(keys)), 10)[:1] == (ids.pad,)
    assert id_keys(family, text, None) == id_keys(family, text, SpecialIds())
    starts = {"decoder_only": "bos_token_id", "encoder_decoder": "decoder_start_token_id"}
    assert family.architecture == "encoder_only" or keys[starts[family.architecture]] == 3
