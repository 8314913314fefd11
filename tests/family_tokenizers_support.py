"""Small tokenizers of families of Hugging Face, in their files: normaliser, division of texts and special tokens."""

import functools
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import sentencepiece
from tokenizer_support import TEXTS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
THREE_DIGITS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
CAPITALS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The patterns of Qwen2; of Llama 3, SmolLM3 and OLMo 2; and of the byte-level tokenizers of Mistral."""
LINES = [
    *("", " ", "  two  spaces ", "        eight", "tab\tand\r\n\n  line\n", "x\u00a0\ufb01\u00bd \u732b\u2028y"),
    *(
        "e\u0301 \u00e9 u\u0308ber",
        "don't DON'T we'll I'M",
        "12345 3.14 1,000,000",
        "theKing OF/ships\n/\n",
        "\U0001f600",
    ),
    *("a<|endoftext|>b", "<s> <pad> </s><mask>", "<think>the king</think>", "<|im_start|>the <|im_end|>"),
]
"""Texts on which the divisions, normalisers and added tokens differ."""
_TRAINING = [*TEXTS[::4], *LINES[:11] * 100, *(f"{n} the {n * 37}" for n in range(200))]


class Spec(NamedTuple):
    """The tokenizer of a family.

    first, last: special tokens with the first ids, and added ones with the last ids. added: tokens that are not
    special, after them. roles: of the settings.
    """

    model_type: str
    class_name: str
    pattern: str | None = None
    composes: bool = False
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    roles: Mapping[str, str] = MappingProxyType({})
    frame: tuple[str, str] | None = None
    settings: Mapping[str, Any] = MappingProxyType({})


_END = "<|endoftext|>"
SPECS = {
    "qwen2": Spec(
        "qwen2", "Qwen2Tokenizer", QWEN, composes=True, last=(_END, "<|im_start|>", "<|im_end|>"),
        roles={"eos": _END, "pad": _END}, settings={"add_prefix_space": False},
    ),
    "qwen3": Spec(
        "qwen3", "Qwen2Tokenizer", QWEN, composes=True, last=(_END, "<|im_start|>", "<|im_end|>"),
        added=("<think>", "</think>"), roles={"eos": "<|im_end|>", "pad": _END}, settings={"add_prefix_space": False},
    ),
    "mistral": Spec(
        "mistral", "PreTrainedTokenizerFast", CAPITALS, first=("<unk>", "<s>", "</s>", "[INST]", "<pad>"),
        roles={"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    ),
    "smollm3": Spec(
        "smollm3", "PreTrainedTokenizerFast", THREE_DIGITS,
        last=("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"), added=("<think>", "</think>"),
        roles={"bos": "<|begin_of_text|>", "eos": "<|im_end|>", "pad": "<|im_end|>"},
    ),
    "olmo2": Spec(
        "olmo2", "GPT2Tokenizer", THREE_DIGITS, last=(_END, "<|pad|>"), added=("<|extra_0|>",),
        roles={"bos": _END, "eos": _END, "unk": _END, "pad": "<|pad|>"}, settings={"add_prefix_space": False},
    ),
    "gpt_neox": Spec(
        "gpt_neox", "GPTNeoXTokenizer", composes=True, first=(_END, "<|padding|>"),
        added=tuple(" " * n for n in range(8, 1, -1)), roles={"bos": _END, "eos": _END, "unk": _END},
        settings={"add_prefix_space": False},
    ),
    "roberta": Spec(
        "roberta", "RobertaTokenizer", first=("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",), frame=("<s>", "</s>"),
        roles={"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>"}
        | {"mask": "<mask>"},
        settings={"add_prefix_space": False, "trim_offsets": True},
    ),
}  # fmt: skip
"""By family; that of Mistral is its byte-level one. The one of SentencePiece is `write_mistral_pieces`."""


def divided(model, pattern, composes, adds_space=False):
    """Give a model of the library the normaliser and the division of a family; return it."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=adds_space, use_regex=pattern is None)
    model.normalizer = normalizers.NFC() if composes else None
    if pattern is not None:
        to_bytes = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])
    model.pre_tokenizer = to_bytes
    return model


@functools.cache
def trained(family):
    """Return the tokenizer.json of a family.

    It is trained on undivided texts, so that some tokens cross the places where a family divides them: then ids
    depend on the division.
    """
    spec = SPECS[family]
    model = divided(Tokenizer(models.BPE()), None, spec.composes)
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(spec.first),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(_TRAINING, trainer)
    divided(model, spec.pattern, spec.composes)
    model.add_special_tokens([AddedToken(name, lstrip=name == "<mask>", normalized=False) for name in spec.last])
    model.add_tokens([AddedToken(name, normalized=name.isspace()) for name in spec.added])
    if spec.frame is not None:
        start, end = ((name, model.token_to_id(name)) for name in spec.frame)
        model.post_processor = processors.RobertaProcessing(end, start)
    return model.to_str()


def write_folder(path, family, **changes):
    """Write the files of a tokenizer of a family, beside a config.json without a model; return the library's model.

    Args:
      changes: of the settings, by key; None leaves a key out.
    """
    spec, model = SPECS[family], Tokenizer.from_str(trained(family))
    path.mkdir(parents=True, exist_ok=True)
    decoder = {
        str(id): {"content": t.content, "special": t.special, "lstrip": t.lstrip, "rstrip": t.rstrip}
        | {"normalized": t.normalized, "single_word": t.single_word}
        for id, t in sorted(model.get_added_tokens_decoder().items())
    }
    settings = {"tokenizer_class": spec.class_name, "added_tokens_decoder": decoder, **spec.settings}
    settings |= {f"{role}_token": name for role, name in spec.roles.items()} | changes
    settings = {key: value for key, value in settings.items() if value is not None}
    (path / "tokenizer.json").write_text(model.to_str(), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps({"model_type": spec.model_type, "vocab_size": 512}))
    return model


def write_mistral_pieces(path):
    """Write the tokenizer of the first Mistral models: BPE of SentencePiece without rules, with bytes."""
    path.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=str(path / "tokenizer"), vocab_size=420, model_type="bpe",
        byte_fallback=True, split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2,
    )  # fmt: skip
    (path / "tokenizer.vocab").unlink()
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_bos_token": True, "legacy": False}))
    (path / "config.json").write_text('{"model_type": "mistral", "vocab_size": 420}')
