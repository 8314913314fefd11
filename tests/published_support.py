"""Published config.json files of `convert/published`, and small models of the same form.

The files are copies of those on the Hugging Face hub, or of what `save_pretrained` of a later version made of them.
Their names are those of the models; after `--` stands what was done to the copy.
"""

import json
import math
import pathlib

import numpy as np

from transformer_jax.checkpoints.checksums import by_path
from transformer_jax.convert import folder_config, folder_tensors
from transformer_jax.convert.folder import _shapes
from transformer_jax.convert.labels import labels_of_config
from transformer_jax.convert.tensor_files import write_tensors

FOLDER = pathlib.Path(__file__).parent / "convert" / "published"
CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "gpt2-medium": "GPT2LMHeadModel",
    "distilgpt2": "GPT2LMHeadModel",
    "gpt2--resaved-4.38": "GPT2LMHeadModel",
    "Llama-2-7b-hf": "LlamaForCausalLM",
    "Llama-2-70b-chat-hf": "LlamaForCausalLM",
    "TinyLlama-1.1B-Chat-v1.0": "LlamaForCausalLM",
    "opus-mt-en-de": "MarianMTModel",
    "opus-mt-de-en": "MarianMTModel",
    "opus-mt-en-fr": "MarianMTModel",
    "opus-mt-en+el+es+fi-en+el+es+fi": "MarianMTModel",
    "opus-mt-en-zh": "MarianMTModel",
    "opus-mt-en-zh--resaved-4.49": "MarianMTModel",
    "bert-base-uncased": "BertForMaskedLM",
    "bert-base-chinese": "BertForMaskedLM",
    "bert-base-cased--resaved-4.10": "BertForSequenceClassification",
    "all-MiniLM-L6-v2": "BertModel",
    "t5-small": "T5ForConditionalGeneration",
    "t5-small--resaved-4.40": "T5ForConditionalGeneration",
    "flan-t5-base": "T5ForConditionalGeneration",
    "bart-large": "BartForConditionalGeneration",
    "bart-large-cnn--2020-05": "BartForConditionalGeneration",
    "bart-large-cnn": "BartForConditionalGeneration",
    "bart-large-mnli": "BartForConditionalGeneration",
    "vit-base-patch16-224--resaved-4.57": "ViTForImageClassification",
    "Qwen2-0.5B": "Qwen2ForCausalLM",
    "Qwen3-0.6B": "Qwen3ForCausalLM",
    "Mistral-7B-Instruct-v0.3--expanded-4.38": "MistralForCausalLM",
    "roberta-large": "RobertaForMaskedLM",
    "distilroberta-base": "RobertaForMaskedLM",
    "roberta-base-openai-detector": "RobertaForSequenceClassification",
    "pythia-6.9b-deduped--printed-4.45": "GPTNeoXForCausalLM",
}
"""The class as which each file of our families is read."""

SIZES = {
    **{"vocab_size": 37, "decoder_vocab_size": 37, "n_positions": 24, "max_position_embeddings": 24, "n_ctx": 24},
    **dict.fromkeys(("n_embd", "hidden_size", "d_model"), 24),
    **dict.fromkeys(("n_layer", "num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers"), 2),
    **{"num_decoder_layers": 2, "head_dim": 6, "d_kv": 6},
    **dict.fromkeys(("n_inner", "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 20),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **{"num_key_value_heads": 2, "image_size": 12, "patch_size": 4, "sliding_window": 5, "max_window_layers": 1},
}


def config_of(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def reduced(config):
    """Return a config with the same keys, small sizes, and ids that small tables have."""
    result = {}
    for name, value in config.items():
        if name in SIZES and value is not None:
            value = SIZES[name]
        elif name.endswith("_token_id") and isinstance(value, int):
            value %= 37
        elif name in ("pooler_output_size",):
            value = 24
        result[name] = value
    if "GPT2LMHeadModel" in config.get("architectures", []):
        result.setdefault("bos_token_id", 36)  # the default is an id of the large table
    if config.get("model_type") == "gpt_neox":
        result["num_attention_heads"] = 3  # so that a quarter of a head is a pair
    if "bad_words_ids" in result:
        result["bad_words_ids"] = [[3]]
    return result


def task_of(family, config):
    """Return the task of a config, whose head has one row for every label."""
    return folder_config.read_task(family, len(labels_of_config(family, config, None, "x").names))


def write_folder(path, config, bare=False, extra=None):
    """Write a folder with a config and random tensors of its class, without a tokenizer; return the tensors.

    Args:
      bare: whether the tensors have the names of a base model, without its head. extra: more arrays by name.
    """
    family = folder_config.possible_classes(config, "x")[0]
    ours, _ = folder_config.read_model_config(family, config, "x")
    shapes = by_path(_shapes(ours, task_of(family, config)))
    rng = np.random.default_rng(0)
    leaves = {
        name: (rng.standard_normal(leaf.shape) * 0.3 / math.sqrt(max(leaf.shape[0], 1))).astype(np.float32)
        for name, leaf in shapes.items()
    }
    path.mkdir()
    tensors = folder_tensors.outgoing(family, ours, leaves)
    if bare:
        tensors = [t for t in tensors if t.name.startswith(family.prefix) and not t.name.startswith("lm_head")]
        tensors = [t._replace(name=t.name.removeprefix(family.prefix)) for t in tensors]
    write_tensors(path, [*tensors, *(extra or [])])
    (path / "config.json").write_text(json.dumps(config))
    return tensors
