"""The form of a table of a family: tensors and config keys of theirs beside parameters and fields of ours.

Names of tensors are those that transformers writes. `{layer}` stands for the number of a layer; our parameters of all
layers are stacked on a leading axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.config import ModelConfig, changes_function
from transformer_jax.convert.layer_lists import LayerLists
from transformer_jax.convert.layouts import VECTOR, Layout
from transformer_jax.convert.rotary_keys import RotaryKeys


class Tensor(NamedTuple):
    """One tensor of theirs, or one per layer.

    ours: paths of our parameters; several are joined along the axis of features. when: fields with which the tensor
    exists. width: the axis of each of our arrays, without the one of layers, with the width of the model; None if there
    is none.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: Layout
    width: int | None = None
    when: Mapping[str, Any] = {}


class Key(NamedTuple):
    """One key of config.json and the field of `ModelConfig` with the same meaning.

    default: the value where the key is missing. values: our values by theirs, if they differ. None of theirs means the
    default of our field.
    """

    theirs: str
    ours: str
    default: Any = ...
    values: Mapping[Any, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models, which Hugging Face calls a model type, with the head of one of its classes.

    - name: its `model_type`; label: the name in messages; class_name: the class that `architectures` names. also: other
      classes that are read as this one.
    - architecture: of this package. tasks: the tasks that can train the model; the first is the default. task_fields:
      values of `TaskConfig` that the head needs. has_labels: whether the head has one output per label.
    - once: `model_type`s under which some old files have this class.
    - init: the value of `model.init` for a model that is read.
    - keys, tensors: the table. Several keys may read or write the same one of theirs.
    - fixed: the value of every other field that the model's outputs depend on, or a function of the config. A field
      that no family names has its default, see `folder_config.unnamed`.
    - required: keys whose value says something that our blocks cannot, with the values that we can read. The first
      value is written. because: what another value says, for some of them.
    - ignored: keys that transformers reads but that have no effect on the outputs, with the reason. Of the others that
      are not in this table, see `COMMON_IGNORED` and `folder_config.why_ignored`.
    - notes: keys that files have for old versions. The importer ignores them.
    - adapt: changes the keys of a file to those of the table, and returns what is wrong with them.
    - also_written: keys to write beside those of the table, for a config.
    - repeats: keys that repeat another key where they are missing.
    - copies: duplicates of another tensor (the first listed that exists); not written. computed: regular expressions
      of tensors that we do not need, with the reason; not written.
    - prefix: beginning of names that some files leave out; names without it in the table never have it. bare: whether
      it is left out in the files that we write.
    - lacks: paths of our parameters that the class has no tensor for; they are read as zeros, and not written. A run
      that starts from the model has new ones.
    - renamed: ends of names in old files, and what they are called now.
    - zeros: tensors that are written as zeros if our model lacks them, with the field that says so.
    - untied_by: the output projection, if tensors and not config.json say whether it is the embedding. It is one of its
      own if it is there, and differs from those that it could be a copy of or config.json says so.
    - own_tables: copies that are tables of their own there if the output projection is not tied. They are written too;
      read, each side gets a table of its own if one differs.
    - sines_first: whether their sinusoidal positions hold all sines before all cosines.
    - read_only: whether no model is written as this class: its head would be lost.
    - text_start: whether the texts of `text_to_text` begin with the token for the beginning of a text.
    - rope: the keys of rotary positions; None for a family without them.
    - layers: the keys about single layers; None for a family whose layers are all equal.
    """

    name: str
    label: str
    class_name: str
    architecture: str
    tasks: tuple[str, ...]
    keys: tuple[Key, ...]
    tensors: tuple[Tensor, ...]
    fixed: Mapping[str, Any]
    required: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    because: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adapt: Callable[[dict[str, Any]], list[str]] | None = None
    also_written: Callable[[ModelConfig], dict[str, Any]] | None = None
    repeats: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    computed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    task_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    has_labels: bool = False
    init: str = "normal"
    prefix: str = ""
    bare: bool = False
    lacks: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    zeros: Mapping[str, str] = dataclasses.field(default_factory=dict)
    untied_by: str = ""
    own_tables: tuple[str, ...] = ()
    sines_first: bool = False
    text_start: bool = False
    rope: RotaryKeys | None = None
    layers: LayerLists | None = None
    read_only: bool = False

    @property
    def has_decoder(self) -> bool:
        return self.architecture != "encoder_only"


TRAINING_ONLY = ("dtype", *(f.name for f in dataclasses.fields(ModelConfig) if not changes_function(f)))
"""Fields on which the numbers of a model in float32 do not depend; a family may have no key for them."""

_IDS = "a special id; here the tokenizer has them"
_BOOKKEEPING = "a note about the file"
LIBRARY = "a setting of the library, or of other models"
GENERATION = "a setting of generation; here those are the fields of `decode`"
LABEL_KEYS = ("id2label", "label2id", "num_labels")
"""Keys with the names of labels."""
COMMON_IGNORED = {
    **dict.fromkeys(("architectures", "transformers_version", "_name_or_path", "model_type"), _BOOKKEEPING),
    **dict.fromkeys(("dtype", "torch_dtype"), "the type of the numbers is read from the tensors"),
    **dict.fromkeys(("_attn_implementation", "attn_implementation"), "a way to compute the same numbers"),
    "chunk_size_feed_forward": "a way to compute the same numbers",
    **dict.fromkeys(
        ("use_cache", "output_attentions", "output_hidden_states", "return_dict"), "a setting of the library"
    ),
    **dict.fromkeys((*LABEL_KEYS, "problem_type", "classifier_dropout", "hidden_dropout"), "of another head"),
    **dict.fromkeys(("eos_token_id", "pad_token_id", "sep_token_id", "bos_token_id"), _IDS),
    **dict.fromkeys(("forced_eos_token_id", "is_encoder_decoder"), GENERATION),
    "auto_map": "names code of the folder, which is not run",
}  # fmt: skip
"""Keys that every family may have and that the importer ignores, with the reason."""
COMMON_REQUIRED: dict[str, tuple[tuple[Any, ...], str]] = {
    "is_causal": ((True,), "transformers lets every position attend to later ones"),
    "quantization_config": ((None,), "the tensors are quantized; save the folder again with numbers of 16 or 32 bits"),
    "per_layer_config": ((None, {}), "layers differ"),
    "transformers_weights": ((None, "model.safetensors", "model.safetensors.index.json"), "names another file"),
}
"""Keys that every family may have, with the values that we can read and what others say; they are not written."""

ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
OWN_HEADS: dict[str, Callable[[ModelConfig], Any]] = {
    "head_dim": lambda config: config.emb_dim // config.num_heads,
    "value_head_dim": lambda config: config.head_dim,
    "num_kv_heads": lambda config: config.num_heads,
}
"""The heads share the width of the model evenly, and each has keys and values of its own."""
PLAIN: dict[str, Any] = {"scale_logits": False, "embedding_norm": False, "token_types": 0}
UNTIED = {"tie_output": False}
BIASED = {"use_bias": True}
QKV_BIASED = {"qkv_bias": True}


def norm(theirs: str, ours: str, when: Mapping[str, Any] | None = None) -> tuple[Tensor, ...]:
    """Scale and bias of a LayerNorm."""
    return (
        Tensor(f"{theirs}.weight", (f"{ours}/scale",), VECTOR, 0),
        Tensor(f"{theirs}.bias", (f"{ours}/bias",), VECTOR, 0, when or {}),
    )


def linear(
    theirs: str,
    ours: str,
    layout: Layout,
    widths: tuple[int | None, int | None] = (None, None),
    bias: Layout = VECTOR,
    when: Mapping[str, Any] = BIASED,
) -> tuple[Tensor, ...]:
    """Weight and bias of a linear map.

    Args:
      widths: the axes of kernel and bias with the width of the model. when: fields with which it has a bias.
    """
    return (
        Tensor(f"{theirs}.weight", (f"{ours}/kernel",), layout, widths[0]),
        Tensor(f"{theirs}.bias", (f"{ours}/bias",), bias, widths[1], when),
    )
