"""Hugging Face folders and big_vision files with wrong keys, tensors and tokenizers: makers of cases for fuzz.py."""

from __future__ import annotations

import functools
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_support import NASTY, WRONG, Case, Maker, Outcome
from support import random_params, tiny
from tokenizer_support import as_qwen, as_roberta

from transformer_jax.config import TaskConfig
from transformer_jax.convert.families import FAMILIES
from transformer_jax.convert.folder import save_pretrained
from transformer_jax.data.tokenizers import Tokenizer, train_tokenizer
from transformer_jax.tasks.task import TASKS

SMALL = {
    "emb_dim": 8,
    "num_heads": 2,
    "mlp_dim": 12,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "max_length": 40,
}
_DECODER = {"architecture": "decoder_only", "norm_position": "pre", "scale_embeddings": False}
_BERT = {
    **{"architecture": "encoder_only", "position_encoding": "learned", "scale_embeddings": False},
    **{"embedding_norm": True, "token_types": 2, "activation": "gelu"},
}
_LLAMA = _DECODER | {"norm": "rmsnorm", "position_encoding": "rotary", "activation": "swiglu", "use_bias": False}
# By name: fields of the model, the task, and the kind of the tokenizer.
FOLDERS: dict[str, tuple[dict[str, Any], TaskConfig | None, str]] = {
    "gpt2": (_DECODER | {"position_encoding": "learned", "activation": "gelu_tanh"}, None, "byte_bpe"),
    "llama": (_LLAMA, None, "bpe"),
    "qwen2": (_LLAMA | {"qkv_bias": True}, None, "qwen"),
    "qwen3": (
        _LLAMA
        | {
            "qk_norm": "rms",
            "num_decoder_layers": 2,
            "layer_pattern": "AB",
            "layer_kinds": "A:; B: attention_window=4",
        },
        None,
        "byte_bpe",
    ),
    "mistral": (_LLAMA | {"attention_window": 4}, None, "bpe"),
    "smollm3": (
        _LLAMA | {"num_decoder_layers": 2, "layer_pattern": "AB", "layer_kinds": "A:; B: attention_rotates=false"},
        None,
        "byte_bpe",
    ),
    "olmo2": (_LLAMA | {"norm_position": "output", "qk_norm": "rms_full"}, None, "byte_bpe"),
    "gpt_neox": (
        _DECODER
        | {"position_encoding": "rotary", "rotary_fraction": 0.5, "parallel": "two_norms", "activation": "gelu"},
        None,
        "byte_bpe",
    ),
    "marian": ({"norm_epsilon": 1e-5}, None, "unigram"),
    "masked_lm": (_BERT | {"output_bias": True}, TaskConfig(name="masked_lm"), "wordpiece"),
    "roberta": (_BERT | {"token_types": 1, "output_bias": True}, TaskConfig(name="masked_lm"), "roberta"),
    "classification": (_BERT, TaskConfig(name="classification", num_labels=3, pooler=True), "wordpiece"),
    "tagging": (_BERT, TaskConfig(name="tagging", num_labels=3), "wordpiece"),
    "span_qa": (_BERT | {"max_length": 100}, TaskConfig(name="span_qa"), "wordpiece"),
    "t5": (
        {
            **{"norm_position": "pre", "norm": "rmsnorm", "position_encoding": "relative", "use_bias": False},
            **{"attention_scale": False, "scale_embeddings": False, "scale_logits": True, "decoder_start_id": 0},
        },
        None,
        "unigram",
    ),
    "bart": (
        {"norm_epsilon": 1e-5, "position_encoding": "learned", "embedding_norm": True, "activation": "gelu"},
        None,
        "byte_bpe",
    ),
    "vit": (
        {
            **{"architecture": "encoder_only", "inputs": "patches", "image_size": 8, "patch_size": 4},
            **{"norm_position": "pre", "position_encoding": "learned", "activation": "gelu"},
        },
        TaskConfig(name="images", num_labels=3),
        "",
    ),
}
_TEXTS = [
    f"the {a} {b} is near the {a}, and {b} {i}" for i, a in enumerate(["ax", "bee", "cow", "elm"]) for b in "pqrst"
]
_OLD_KEYS = [
    "output_past",
    "n_special",
    "_num_labels",
    "extra_pos_embeddings",
    "auto_map",
    "model_type",
    "architectures",
]
_KEYS = [
    *("hidden_size", "n_embd", "d_model", "vocab_size", "num_hidden_layers", "n_layer", "encoder_layers", "num_layers"),
    *("num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "intermediate_size", "d_ff", "n_positions"),
    *("max_position_embeddings", "type_vocab_size", "hidden_act", "activation_function", "feed_forward_proj"),
    *("tie_word_embeddings", "rope_scaling", "rope_theta", "layer_norm_eps", "id2label", "label2id", "num_labels"),
    *("problem_type", "image_size", "patch_size", "num_channels", "eos_token_id", "pad_token_id", "torch_dtype"),
    *("rotary_pct", "rotary_emb_base", "use_parallel_residual", "rope_parameters", "layer_types", "sliding_window"),
    *("no_rope_layers", "attention_bias", "use_sliding_window", "max_window_layers", "rms_norm_eps"),
    *("decoder_start_token_id", "relative_attention_num_buckets", "transformers_version", "quantization_config"),
]


@functools.cache
def _tokenizer(kind: str) -> Tokenizer | None:
    if kind in ("roberta", "qwen"):
        return {"roberta": as_roberta, "qwen": as_qwen}[kind](train_tokenizer(_TEXTS, "byte_bpe", 290))
    return train_tokenizer(_TEXTS, kind, 40 if kind == "wordpiece" else 290) if kind else None


def _folder(case: Case, name: str) -> Path:
    """Return a new copy of a whole folder."""

    def make(folder: Path) -> Path:
        fields, task, kind = FOLDERS[name]
        tokenizer = _tokenizer(kind)
        vocabulary = {} if tokenizer is None else {"vocab_size": tokenizer.vocab_size}
        config = tiny(**SMALL | vocabulary | fields)
        params = random_params(config, head=None if task is None else TASKS[task.name].head(task, config))
        labels = ("B", "A", "C") if task is not None and task.num_labels else ()
        folder.parent.mkdir(parents=True, exist_ok=True)
        save_pretrained(folder, config, params, tokenizer, task=task, labels=labels, family=_family(name))
        return folder

    return case.copy(case.bench.shared(f"folder_{name}", make), "theirs")


def _family(name: str) -> str:
    return name if name in FAMILIES else "bert"


def _read(case: Case, source: Path) -> Outcome:
    """Show the folder or convert it; nothing may be written unless everything is."""
    if case.chance(0.3) and source.is_dir():
        return Outcome(["inspect", f"--folder={source}", "--json"])
    workdir = case.folder / "run"
    outcome = Outcome(["convert", f"--from={source}", f"--workdir={workdir}"])
    if outcome.code == 2 and workdir.exists():
        outcome.faults.append(f"wrote {sorted(path.name for path in workdir.iterdir())} and refused")
    if outcome.code == 0 and not (workdir / "config.json").exists():
        outcome.faults.append("wrote no config.json, without a word")
    return outcome


def config_key(case: Case) -> Outcome:
    """Change keys of config.json to values of any type, also keys of other families and old ones."""
    folder = _folder(case, case.choice(list(FOLDERS)))
    file = folder / "config.json"
    values = json.loads(file.read_text())
    for _ in range(case.source.randint(1, 2)):
        values[case.choice([*values, *values, *_KEYS, *_OLD_KEYS])] = case.choice(
            [*WRONG, [1, 2], {"0": "a", "2": "b"}]
        )
    file.write_text(json.dumps(values))
    return _read(case, folder)


def config_size(case: Case) -> Outcome:
    """Give a number of config.json another value, up to an absurd one."""
    folder = _folder(case, case.choice(list(FOLDERS)))
    file = folder / "config.json"
    values = json.loads(file.read_text())
    name = case.choice([name for name, value in values.items() if type(value) in (int, float)])
    values[name] = case.choice([0, 1, 2, 3, 2 * values[name], 10**4, 10**8, 10**12, -1, 1.5, float(values[name])])
    file.write_text(json.dumps(values))
    return _read(case, folder)


def other_json(case: Case) -> Outcome:
    """Spoil any file of JSON of a folder: its values or its bytes."""
    folder = _folder(case, case.choice(list(FOLDERS)))
    case.json_file(case.choice(sorted(folder.glob("*.json"))))
    return _read(case, folder)


def tokenizer_files(case: Case) -> Outcome:
    """Spoil, remove or exchange the files of a tokenizer."""
    folder = _folder(case, case.choice([name for name in FOLDERS if FOLDERS[name][2]]))
    files = [file for file in sorted(folder.iterdir()) if re.search(r"token|vocab|merges|\.spm|\.model", file.name)]
    file = case.choice(files)
    if case.chance(0.2):
        other = _folder_beside(case)
        extra = case.choice(
            [f for f in sorted(other.iterdir()) if re.search(r"token|vocab|merges|\.spm|\.model", f.name)]
        )
        (folder / extra.name).write_bytes(extra.read_bytes())
    elif case.chance(0.2):
        name = case.choice(
            ["added_tokens.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt", "merges.txt"]
        )
        values = [
            {"<new>": 400},
            {"<new>": -1},
            {"<new>": "x"},
            {"<a>": 290, "<b>": 292},
            {"eos_token": {"content": 3}},
            [],
        ]
        (folder / name).write_text(json.dumps(case.choice(values)))
    else:
        case.corrupted(file)
    return _read(case, folder)


def _folder_beside(case: Case) -> Path:
    folder = _folder(
        Case(case.bench, case.folder / "beside", case.source), case.choice(["gpt2", "t5", "marian", "tagging"])
    )
    return folder


def tensors(case: Case) -> Outcome:
    """Spoil the header, the numbers or the length of a file of tensors."""
    folder = _folder(case, case.choice(list(FOLDERS)))
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    kind, numbers = case.source.randrange(6), False
    if kind == 0:
        file.write_bytes(case.bytes(data))
    elif kind == 1:
        header = case.json(json.loads(data[8 : 8 + length]))
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    elif kind == 2:
        claimed = case.choice([0, 1, length - 1, length + 1, 1 << 40, (1 << 64) - 1])
        file.write_bytes(struct.pack("<Q", claimed) + data[8:])
    elif kind == 3:
        numbers = True
        at = 8 + length + 4 * case.source.randrange((len(data) - 8 - length) // 4)
        bad = np.float32(case.choice([float("nan"), float("inf"), float("-inf")])).tobytes()
        file.write_bytes(data[:at] + bad + data[at + 4 :])
    elif kind == 4:
        text = data[8 : 8 + length].replace(
            b'"F32"', case.choice([b'"F16"', b'"I32"', b'"F64"', b'"F8_E4M3"', b'"U8"']), 1
        )
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    else:
        case.corrupted(file)
    outcome = _read(case, folder)
    if numbers and outcome.code == 0 and outcome.words[0] == "convert" and "finite" not in outcome.err:
        outcome.faults.append("converted a number that is not finite, without a word")
    return outcome


def sharded(case: Case) -> Outcome:
    """Spoil the index or a shard of a folder with several files of tensors."""

    def make(folder: Path) -> Path:
        fields, _, kind = FOLDERS["gpt2"]
        tokenizer = _tokenizer(kind)
        assert tokenizer is not None
        config = tiny(**SMALL | {"vocab_size": tokenizer.vocab_size} | fields)
        folder.parent.mkdir(parents=True, exist_ok=True)
        save_pretrained(folder, config, random_params(config), tokenizer, shard_bytes=2000)
        return folder

    folder = case.copy(case.bench.shared("sharded", make), "theirs")
    case.corrupted(case.choice(sorted(folder.glob("model*"))))
    return _read(case, folder)


def _big_vision(folder: Path) -> Path:
    """Write a.npz, a ViT of one layer as big_vision does."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    block, of_attention = "Transformer/encoderblock_0", "MultiHeadDotProductAttention_0"
    arrays = {"embedding/kernel": array(4, 4, 3, 8), "embedding/bias": array(8), "cls": array(1, 1, 8)}
    arrays |= {"pos_embedding": array(1, 5, 8), "head/kernel": array(8, 3), "head/bias": array(3)}
    for name in ("LayerNorm_0", "LayerNorm_1"):
        arrays |= {f"{block}/{name}/scale": array(8), f"{block}/{name}/bias": array(8)}
    for name in ("query", "key", "value"):
        arrays |= {
            f"{block}/{of_attention}/{name}/kernel": array(8, 2, 4),
            f"{block}/{of_attention}/{name}/bias": array(2, 4),
        }
    arrays |= {f"{block}/{of_attention}/out/kernel": array(2, 4, 8), f"{block}/{of_attention}/out/bias": array(8)}
    arrays |= {f"{block}/MlpBlock_0/Dense_0/kernel": array(8, 12), f"{block}/MlpBlock_0/Dense_0/bias": array(12)}
    arrays |= {f"{block}/MlpBlock_0/Dense_1/kernel": array(12, 8), f"{block}/MlpBlock_0/Dense_1/bias": array(8)}
    arrays |= {"Transformer/encoder_norm/scale": array(8), "Transformer/encoder_norm/bias": array(8)}
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def big_vision(case: Case) -> Outcome:
    """Convert an .npz file of big_vision with wrong arrays, or damaged bytes."""
    whole = case.bench.shared("big_vision", _big_vision)
    with np.load(whole) as stored:
        arrays = {name: stored[name] for name in stored.files}
    file = case.folder / "a.npz"
    for _ in range(case.source.randrange(3)):
        name = case.choice(list(arrays))
        array = arrays[name]
        kind = case.source.randrange(7)
        if kind == 0:
            del arrays[name]
        elif kind == 1:
            arrays[
                case.choice(["", "x", "Transformer/encoderblock_999999999/LayerNorm_0/scale", "a/../b", "params/x"])
            ] = array
        else:
            others = [
                array[..., None],
                array[:0],
                array.astype("S2"),
                array.astype(object),
                np.array("x"),
                array * np.nan,
            ]
            others += [array.astype(np.complex64), np.float32(0), array.astype(np.float16), array.T]
            arrays[name] = case.choice(others)
    np.savez(file, **{name or "empty": array for name, array in arrays.items()})
    if case.chance(0.4):
        file.write_bytes(case.bytes(file.read_bytes()))
    not_finite = any(x.dtype.kind == "f" and not np.isfinite(x.astype(np.float64)).all() for x in arrays.values())
    outcome = _read(case, file)
    if not_finite and outcome.code == 0 and "finite" not in outcome.err:
        outcome.faults.append("converted a number that is not finite, without a word")
    return outcome


def written(case: Case) -> Outcome:
    """Write folders from runs of all kinds, with wrong and unusual flags."""
    kind = case.choice(
        ["translation", "recurrent", "language_model", "masked_lm", "classification", "tagging", "images"]
    )
    target = case.choice([case.folder / "out", case.folder / "out", "/proc/nope/x", case.folder, case.bench.run(kind)])
    flags = [
        *([f"--family={case.choice([*FAMILIES, *NASTY])}"] if case.chance(0.6) else []),
        *([f"--dtype={case.choice(['float16', 'bfloat16', 'float8', *NASTY])}"] if case.chance(0.4) else []),
        *([f"--shard_mb={case.choice(['1', '0', '-1', *NASTY])}"] if case.chance(0.3) else []),
        *(["--without_tokenizer"] if case.chance(0.4) else []),
    ]
    outcome = Outcome(["convert", f"--checkpoint={case.bench.run(kind)}", f"--to={target}", *flags])
    if outcome.code == 2 and Path(target) == case.folder / "out" and Path(target).exists():
        outcome.faults.append("wrote a folder and refused")
    if outcome.code == 0 and not (Path(target) / "config.json").exists():
        outcome.faults.append("wrote no config.json, without a word")
    return outcome


def used(case: Case) -> Outcome:
    """Convert a folder with a wrong file, and predict, score or generate with the result."""
    name = case.choice(["tagging", "classification", "gpt2", "marian"])
    folder = _folder(case, name)
    case.corrupted(case.choice(sorted(folder.iterdir())))
    first = Outcome(["convert", f"--from={folder}", f"--workdir={case.folder / 'run'}"])
    if first.code != 0:
        return first
    commands = {"tagging": ["predict"], "classification": ["predict"], "gpt2": ["score"]}
    words = commands.get(name, ["generate", "--decode.max_new_tokens=2"])
    outcome = Outcome([*words, f"--checkpoint={case.folder / 'run'}"], b"the ax p\n\nthe bee\n")
    if outcome.code in (0, 3) and outcome.out.count(b"\n") != 3:
        outcome.faults.append(f"3 lines have the output {outcome.out!r}")
    if outcome.code in (0, 3) and re.search(rb"\bnan\b", outcome.out):
        outcome.faults.append(f"wrote NaN: {outcome.out!r}")
    return outcome


MAKERS: tuple[Maker, ...] = (
    *(config_key, config_key, config_size, other_json, tokenizer_files, tokenizer_files),
    *(tensors, sharded, big_vision, written, used),
)
