"""Make the reference values of tests/convert, once, with torch and transformers in an environment of their own.

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/reference/bin/python tests/golden/hugging_face/make.py [NAME ...]

Every .npz has a small random model as transformers saves it (config.json and tensors), a batch, and what transformers
computes from it: logits, loss, the gradient of every tensor and, if it generates, 30 greedy tokens and the output of a
beam search of 4.
Every number is random, biases and scales too, and all sizes differ.
"""

import json
import math
import pathlib
import re
import sys
import tempfile
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

VOCABULARY, PAD, EOS, START = 31, 0, 1, 3
IGNORED = -100  # a target that torch leaves out of the loss
SEEDS_APART = 7  # a model's first seed is its number; do not change it: the stored models depend on it
IDS = {"bos_token_id": START, "eos_token_id": EOS, "pad_token_id": PAD}


def gpt2(**fields):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=40, n_embd=12, n_layer=2, n_head=3, n_inner=20, **IDS | fields)
    )


def llama(config_class=LlamaConfig, model_class=LlamaForCausalLM, **fields):
    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 6}
    config = config_class(vocab_size=VOCABULARY, head_dim=4, max_position_embeddings=64, **IDS | sizes | fields)
    return model_class(config)


def gpt_neox(**fields):
    sizes = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **IDS | sizes | fields))


def marian(**fields):
    sizes = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 3, f"{side}_ffn_dim": 20}
    ids = IDS | {"bos_token_id": None, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    return MarianMTModel(MarianConfig(**{"vocab_size": VOCABULARY} | ids | sizes | fields))


def bert(model_class, **fields):
    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"max_position_embeddings": 40, "type_vocab_size": 3}
    return model_class(BertConfig(vocab_size=VOCABULARY, pad_token_id=PAD, **sizes | fields))


def roberta(model_class, **fields):
    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    return model_class(
        RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=40, type_vocab_size=1, **sizes | fields)
    )


def t5(untied=False, **fields):
    sizes = {"d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 3}
    sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=PAD, **sizes | fields))
    if untied:  # as in the files of v1.1; transformers 5 itself always ties
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


def bart(**fields):
    sizes = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 3, f"{side}_ffn_dim": 20}
    ids = IDS | {"decoder_start_token_id": EOS, "forced_eos_token_id": None}
    return BartForConditionalGeneration(BartConfig(vocab_size=VOCABULARY, **ids | sizes | fields))


def vit(model_class, **fields):
    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"image_size": 12, "patch_size": 4, "num_channels": 3}
    return model_class(ViTConfig(**sizes | fields))


WINDOWS = {
    **{"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
SERIAL = {
    **{"use_parallel_residual": False, "hidden_act": "gelu_new", "tie_word_embeddings": True},
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75},
}
SEPARATE = {"share_encoder_decoder_embeddings": False, "vocab_size": 23, "decoder_vocab_size": VOCABULARY}
MODELS = {
    "gpt2": lambda: gpt2(),
    "gpt2_untied": lambda: gpt2(tie_word_embeddings=False, activation_function="relu", scale_attn_weights=False),
    "llama": lambda: llama(num_key_value_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "llama_tied": lambda: llama(num_key_value_heads=6, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "llama_biases": lambda: llama(num_key_value_heads=3, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "marian": lambda: marian(activation_function="swish", scale_embedding=True),
    "marian_gelu": lambda: marian(activation_function="gelu", scale_embedding=False),
    "marian_separate": lambda: marian(**SEPARATE, activation_function="relu"),
    "marian_separate_untied": lambda: marian(**SEPARATE, scale_embedding=True, tie_word_embeddings=False),
    "bert": lambda: bert(BertForMaskedLM),
    "bert_classification": lambda: bert(BertForSequenceClassification, num_labels=4, hidden_act="gelu_new"),
    "bert_tagging": lambda: bert(BertForTokenClassification, num_labels=5, hidden_act="relu"),
    "bert_span_qa": lambda: bert(BertForQuestionAnswering, layer_norm_eps=1e-5),
    "t5": lambda: t5(),
    "t5_v1_1": lambda: t5(untied=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": lambda: bart(),
    "bart_scaled": lambda: bart(scale_embedding=True, activation_function="relu"),
    "vit": lambda: vit(ViTForImageClassification, num_labels=5),
    "vit_grey": lambda: vit(ViTForImageClassification, num_labels=4, num_channels=1, patch_size=6, hidden_act="relu"),
    "vit_pooler": lambda: vit(ViTModel, layer_norm_eps=1e-6),
    "qwen2": lambda: llama(Qwen2Config, Qwen2ForCausalLM, num_key_value_heads=2, num_hidden_layers=3, **WINDOWS),
    "qwen3": lambda: llama(Qwen3Config, Qwen3ForCausalLM, num_key_value_heads=3, tie_word_embeddings=True),
    "mistral": lambda: llama(MistralConfig, MistralForCausalLM, num_key_value_heads=2, sliding_window=7),
    "smollm3": lambda: llama(SmolLM3Config, SmolLM3ForCausalLM, num_key_value_heads=2, num_hidden_layers=4),
    "roberta": lambda: roberta(RobertaForMaskedLM),
    "roberta_classification": lambda: roberta(RobertaForSequenceClassification, num_labels=4, hidden_act="gelu_new"),
    "olmo2": lambda: llama(Olmo2Config, Olmo2ForCausalLM, num_key_value_heads=2),
    "gpt_neox": lambda: gpt_neox(),
    "gpt_neox_serial": lambda: gpt_neox(**SERIAL),
}


OF_FILES = {  # names of parts of a layer of ViT in files, by those that transformers 5 gives them in memory
    **{f"attention.{x[0]}_proj": f"attention.attention.{x}" for x in ("query", "key", "value")},
    **{"attention.o_proj": "attention.output.dense", "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"},
    **{name: name for name in ("layernorm_before", "layernorm_after")},
}


def in_files(name, model_type):
    if model_type == "gpt_neox":
        name = name.replace("lm_head.", "embed_out.")
    for of_memory, of_file in OF_FILES.items():
        name = re.sub(rf"(^|\.)layers\.(\d+)\.{re.escape(of_memory)}\.", rf"\1encoder.layer.\2.{of_file}.", name)
    return name


def randomised(model):
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            is_sinusoid = "embed_positions" in name and model.config.model_type == "marian"
            if is_sinusoid or "inv_freq" in name or not x.is_floating_point():
                continue
            is_scale = x.dim() == 1 and name.endswith("weight")
            x.copy_(torch.randn_like(x) * (0.2 if is_scale else 0.35) + (1.0 if is_scale else 0.0))
    return model.eval()


def continued(model, prompt, beams):
    settings = {"length_penalty": 0.0, "early_stopping": "never"} if beams > 1 else {}
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=30,
        do_sample=False,
        num_beams=beams,
        **settings,
    )[0]
    return found[1 if model.config.is_encoder_decoder else prompt.shape[1] :]


class Candidate(NamedTuple):
    """A random model, a batch, and what it generates. variety: different tokens of the less varied text."""

    model: torch.nn.Module
    rng: np.random.Generator
    ids: np.ndarray
    targets: np.ndarray
    inputs: np.ndarray
    mask: np.ndarray
    generated: dict[str, np.ndarray]
    variety: float


def candidate(make, seed):
    torch.manual_seed(seed)
    model, rng = randomised(make()), np.random.default_rng(seed)
    model.set_attn_implementation("eager")
    if model.config.model_type == "vit":
        size, channels = model.config.image_size, model.config.num_channels
        images = rng.integers(0, 256, (2, size, size, channels)).astype(np.uint8)
        return Candidate(model, rng, np.zeros(0), np.zeros(0), images, np.zeros(0), {}, math.inf)
    ids, targets = rng.integers(4, VOCABULARY, (2, 2, 33))
    inputs, mask = rng.integers(4, model.config.vocab_size, (2, 37)), np.ones((2, 37), bool)
    mask[1, 23:] = False
    is_encoder = model.config.model_type in ("bert", "roberta")
    inputs = np.where(mask, inputs, model.config.pad_token_id if is_encoder else PAD)
    if is_encoder:
        return Candidate(model, rng, ids, targets, inputs, mask, {}, math.inf)
    prompt = torch.tensor(inputs[:1] if model.config.is_encoder_decoder else ids[:1, :5])
    generated = {f"beam_{beams}": continued(model, prompt, beams).numpy() for beams in (1, 4)}
    variety = min(len(set(text.tolist())) for text in generated.values())
    return Candidate(model, rng, ids, targets, inputs, mask, generated, variety)


def main():
    """Make the models that the arguments name; without arguments all."""
    for number, (name, make) in enumerate(MODELS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        # A model that writes a varied text, so that a wrong token is noticed.
        candidates = (candidate(make, seed) for seed in range(number, 20_000, SEEDS_APART))
        model, rng, ids, targets, inputs, mask, generated, _ = next(c for c in candidates if c.variety > 4)
        encodes, generates = model.config.is_encoder_decoder, bool(generated)
        given = {"input_ids": torch.tensor(ids)}
        if encodes:
            given = {"input_ids": torch.tensor(inputs), "attention_mask": torch.tensor(mask).long()}
            given["decoder_input_ids"] = torch.tensor(ids)
        types = rng.integers(0, getattr(model.config, "type_vocab_size", 3), inputs.shape)
        if model.config.model_type == "vit":  # pixels of -1 to 1, as ViTImageProcessor makes them
            given = {"pixel_values": torch.tensor((inputs / 255 - 0.5) / 0.5).float().permute(0, 3, 1, 2)}
        elif not generates:
            given = {"input_ids": torch.tensor(inputs), "attention_mask": torch.tensor(mask).long()}
            given["token_type_ids"] = torch.tensor(types)
        output = model(**given)
        ends = [output[name] for name in ("start_logits", "end_logits") if name in output]
        logits = torch.stack(ends, -1) if ends else output.get("logits", output.get("pooler_output"))
        if not generates:
            targets = rng.integers(0, logits.shape[-1], logits.shape[:-1])
            if targets.ndim == 2:
                targets = np.where(mask, targets, IGNORED)
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), torch.tensor(targets).reshape(-1)
        )
        loss.backward()
        gradients = {
            in_files(n, model.config.model_type): p.grad.numpy()
            for n, p in model.named_parameters()
            if p.grad is not None
        }
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tensors = load_file(f"{folder}/model.safetensors")
            config = pathlib.Path(folder, "config.json").read_text()
        np.savez_compressed(
            pathlib.Path(__file__).with_name(f"{name}.npz"),
            config=json.dumps(json.loads(config)),
            **{f"tensor/{n}": x for n, x in tensors.items()},
            **{f"gradient/{n}": x for n, x in gradients.items()},
            **{"ids": ids, "targets": targets, "inputs": inputs, "mask": mask, "types": types},
            **{"logits": logits.detach().numpy(), "loss": loss.detach().numpy()},
            **generated,
        )
        print(name, sorted(set(tensors) ^ set(gradients)), *(text[:8] for text in generated.values()))


if __name__ == "__main__":
    main()
