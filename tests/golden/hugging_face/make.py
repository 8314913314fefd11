"""Make the reference values of tests/convert, once, with torch and transformers in an environment of their own.

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/reference/bin/python tests/golden/hugging_face/make.py [NAME ...]

Every .npz has a small random model as transformers saves it (config.json and tensors), a batch, and what transformers
computes from it: logits, loss, the gradient of every tensor, 30 greedy tokens, and the output of a beam search of 4.
Every number is random, biases and scales too, and all sizes differ.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

VOCABULARY, PAD, EOS, START = 31, 0, 1, 3
SEEDS_APART = 7  # a model's first seed is its number; do not change it: the stored models depend on it
IDS = {"bos_token_id": START, "eos_token_id": EOS, "pad_token_id": PAD}


def gpt2(**fields):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=40, n_embd=12, n_layer=2, n_head=3, n_inner=20, **IDS | fields)
    )


def llama(**fields):
    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 6}
    config = LlamaConfig(vocab_size=VOCABULARY, head_dim=4, max_position_embeddings=64, **IDS | sizes | fields)
    return LlamaForCausalLM(config)


def marian(**fields):
    sizes = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 3, f"{side}_ffn_dim": 20}
    ids = IDS | {"bos_token_id": None, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    return MarianMTModel(MarianConfig(**{"vocab_size": VOCABULARY} | ids | sizes | fields))


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
}


def randomised(model):
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" in name or "inv_freq" in name or not x.is_floating_point():
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


def main():
    for number, (name, make) in enumerate(MODELS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        # A model that writes a varied text, so that a wrong token is noticed.
        for seed in range(number, 20_000, SEEDS_APART):
            torch.manual_seed(seed)
            model, rng = randomised(make()), np.random.default_rng(seed)
            model.set_attn_implementation("eager")
            encodes = model.config.is_encoder_decoder
            ids, targets = rng.integers(4, VOCABULARY, (2, 2, 33))
            inputs, mask = rng.integers(4, model.config.vocab_size, (2, 37)), np.ones((2, 37), bool)
            mask[1, 23:] = False
            inputs = np.where(mask, inputs, PAD)
            prompt = torch.tensor(inputs[:1] if encodes else ids[:1, :5])
            generated = {f"beam_{beams}": continued(model, prompt, beams).numpy() for beams in (1, 4)}
            if all(len(set(text.tolist())) > 4 for text in generated.values()):
                break
        else:
            raise SystemExit(f"{name}: no seed writes a varied text")
        given = {"input_ids": torch.tensor(ids)}
        if encodes:
            given = {"input_ids": torch.tensor(inputs), "attention_mask": torch.tensor(mask).long()}
            given["decoder_input_ids"] = torch.tensor(ids)
        logits = model(**given).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), torch.tensor(targets).reshape(-1))
        loss.backward()
        gradients = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tensors = load_file(f"{folder}/model.safetensors")
            config = pathlib.Path(folder, "config.json").read_text()
        np.savez_compressed(
            pathlib.Path(__file__).with_name(f"{name}.npz"),
            config=json.dumps(json.loads(config)),
            **{f"tensor/{n}": x for n, x in tensors.items()},
            **{f"gradient/{n}": x for n, x in gradients.items()},
            **{"ids": ids, "targets": targets, "inputs": inputs, "mask": mask},
            **{"logits": logits.detach().numpy(), "loss": loss.detach().numpy()},
            **generated,
        )
        print(name, sorted(set(tensors) ^ set(gradients)), generated["beam_1"][:8], generated["beam_4"][:8])


if __name__ == "__main__":
    main()
