"""Settings of generation of a folder, read as fields of `decode`.

transformers takes them from `generation_config.json` or, if there is no such file, from `config.json`.
`task_specific_params` of `config.json` has other settings for each of several tasks; transformers 4 used them in its
pipelines, transformers 5 leaves them to the user.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.config import (
    SOURCE_TO_TARGET,
    DecodeConfig,
    ExperimentConfig,
    ModelConfig,
    TaskConfig,
    nearest,
    problems_of,
)
from transformer_jax.convert import keys
from transformer_jax.convert.generation import EARLY_STOPPING, ENTRIES, PREFIX, TASK_PARAMS
from transformer_jax.convert.tables import COMMON_IGNORED
from transformer_jax.errors import CheckpointError

_NO_COUNTERPART = "no field of `decode` means the same"
_UNCHANGED = "the value of transformers where it is missing; it changes nothing"
_DEFAULTS: dict[str, Any] = {
    **{"max_length": 20, "min_length": 0, "min_new_tokens": 0, "do_sample": False, "num_beams": 1, "temperature": 1.0},
    **{"early_stopping": False, "length_penalty": 1.0, "num_return_sequences": 1, "repetition_penalty": 1.0},
    **{"top_k": 50, "top_p": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "diversity_penalty": 0.0},
    **{"no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0},
    **{"num_beam_groups": 1, "remove_invalid_values": False, "renormalize_logits": False, "guidance_scale": 1},
    **{"suppress_tokens": [], "begin_suppress_tokens": [], "bad_words_ids": [], "force_words_ids": []},
    **{"exponential_decay_length_penalty": [], "sequence_bias": {}, "token_healing": False, "stop_strings": []},
}
"""Values of transformers 5.23 with which a key changes no output."""
_NOT_OF_OUTPUTS = {
    **dict.fromkeys(("transformers_version", "_from_model_config", "_commit_hash"), "a note about the file"),
    **dict.fromkeys(
        ("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile",
         "low_memory", "prefill_chunk_size", "continuous_batching_config", "use_mtp"),
        "a way to compute the same numbers",
    ),
    **dict.fromkeys(
        ("output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate"),
        "a setting of the library",
    ),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), "a special id; here the tokenizer has them"),
}  # fmt: skip


class Reading(NamedTuple):
    """Settings of a folder.

    decode: with the fields that mean the same. prefix: the text before every source; None if no entry of
    `task_specific_params` was used. prefixes: all of them, by entry. ignored: the reason for every key that no field
    expresses, with the name of its file or entry in front. used: the keys of config.json that were read.
    """

    decode: DecodeConfig
    prefix: str | None
    prefixes: dict[str, str]
    ignored: dict[str, str]
    used: frozenset[str]


def read_generation(
    model: ModelConfig,
    eos: int | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any] | None,
    where: str,
    task: str,
    params: str | None = None,
) -> Reading:
    """Return the settings of a folder for a task.

    Args:
      eos: end-of-sequence of the tokenizer. config: `config.json`; generation: `generation_config.json`, or None.
      where: the folder. task: name of our task. params: the entry of `task_specific_params` to use; by default that
        of `ENTRIES`, or the only one whose name begins so.
    Raises: CheckpointError for an unknown entry, a prefix that the task has no field for, or a value of a wrong type.
    """
    entries = _entries(config.get(TASK_PARAMS), where)
    prefixes = {name: entry[PREFIX] for name, entry in entries.items() if isinstance(entry.get(PREFIX), str)}
    chosen = _chosen(entries, task) if params is None else _named(entries, params, where)
    known = keys.of_generation() - {*COMMON_IGNORED, "decoder_start_token_id"} | {"forced_eos_token_id"}
    from_config = {name: value for name, value in config.items() if name in known and value is not None}
    origin = dict.fromkeys(from_config, "")
    settings, ignored = {**from_config}, {}
    if generation is not None:
        ignored |= dict.fromkeys(from_config, "generation_config.json takes its place, as in transformers")
        settings = {name: value for name, value in generation.items() if value is not None}
        origin = dict.fromkeys(settings, "generation_config.json ")
    elif settings.pop("force_bos_token_to_be_generated", False):
        settings["forced_bos_token_id"] = config.get("bos_token_id")
        origin["forced_bos_token_id"] = ""
    prefix = None
    if chosen is not None:
        entry = {name: value for name, value in entries[chosen].items() if value is not None}
        prefix = entry.pop(PREFIX, "")
        if not isinstance(prefix, str):
            raise CheckpointError(f"{where}: {TASK_PARAMS}.{chosen}.{PREFIX}={prefix!r}: expected a text")
        if prefix and task not in SOURCE_TO_TARGET:
            raise CheckpointError(
                f"{where}: {TASK_PARAMS}.{chosen} puts {prefix!r} before every source; task.name='{task}' has no "
                f"source, {' and '.join(SOURCE_TO_TARGET)} have"
            )
        for name, other in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            if name in entry and other not in entry:
                settings.pop(other, None)
        settings |= entry
        origin |= dict.fromkeys(entry, f"{TASK_PARAMS}.{chosen}.")
    reader = _Reader(model, task, eos, settings, where, origin)
    decode = reader.read()
    ignored |= {origin[name] + name: reason for name, reason in reader.ignored.items()}
    if generation is not None and generation.get("decoder_start_token_id") not in (None, model.decoder_start_id):
        ignored["generation_config.json decoder_start_token_id"] = f"here {model.decoder_start_id}, as in config.json"
    if entries:
        others = ", ".join(name for name in entries if name != chosen)
        ignored |= {TASK_PARAMS: f"entries that are not used: {others}"} if others else {}
    used = frozenset(name for name in from_config if name not in ignored) | {TASK_PARAMS}
    return Reading(decode, prefix, prefixes, ignored, used)


def _entries(given: Any, where: str) -> dict[str, dict[str, Any]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(entry, Mapping) for entry in given.values()):
        raise CheckpointError(f"{where}: {TASK_PARAMS}={given!r}: expected an object of objects")
    return {str(name): dict(entry) for name, entry in given.items()}


def _named(entries: Mapping[str, Any], name: str, where: str) -> str:
    if name not in entries:
        known = f"it has {', '.join(entries)}" if entries else "it has none"
        raise CheckpointError(f"{where}: {TASK_PARAMS} has no entry '{name}'; {known}{nearest(name, entries)}")
    return name


def _chosen(entries: Mapping[str, Any], task: str) -> str | None:
    usual = ENTRIES.get(task)
    if usual is None or usual in entries:
        return usual
    found = [name for name in entries if name.startswith(usual)]
    return found[0] if len(found) == 1 else None


@dataclasses.dataclass
class _Reader:
    """Takes keys from `settings` and says in `ignored` which have no counterpart."""

    model: ModelConfig
    task: str
    eos: int | None
    settings: dict[str, Any]
    where: str
    origin: Mapping[str, str]
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)

    def take(self, name: str, fits: Callable[[Any], bool], expected: str) -> Any:
        """Return the value of a key or, if it is missing, the default of transformers; None if it has none.

        Raises: CheckpointError if the value does not fit.
        """
        if name not in self.settings:
            return _DEFAULTS.get(name)
        value = self.settings.pop(name)
        if not fits(value):
            raise CheckpointError(f"{self.where}: {self.origin[name]}{name}={value!r}: expected {expected}")
        return value

    def integer(self, name: str, minimum: int) -> Any:
        return self.take(name, lambda x: type(x) is int and x >= minimum, f"an integer, at least {minimum}")

    def real(self, name: str) -> Any:
        return self.take(name, lambda x: type(x) in (int, float), "a number")

    def flag(self, name: str) -> Any:
        return self.take(name, lambda x: type(x) is bool, "true or false")

    def read(self) -> DecodeConfig:
        fields = self._limits() | self._forced() | self._forbidden()
        if size := self.integer("no_repeat_ngram_size", 0):
            fields["no_repeat_ngram"] = size
        beams, sample = self.integer("num_beams", 1), self.flag("do_sample")
        if sample and beams > 1:
            self.ignored["do_sample"] = "a beam search here draws nothing; the best hypotheses continue"
        fields |= self._of_sampling() if sample and beams == 1 else self._of_search(beams, fields)
        for name, value in self.settings.items():
            if name in _NOT_OF_OUTPUTS:
                self.ignored[name] = _NOT_OF_OUTPUTS[name]
            elif name in _DEFAULTS and value == _DEFAULTS[name]:
                self.ignored[name] = _UNCHANGED
            elif name == "eos_token_id":
                if value not in (self.eos, [self.eos]):
                    self.ignored[name] = f"{value} there; here a text ends at {self.eos}, by the tokenizer"
            elif name != "decoder_start_token_id":
                self.ignored.setdefault(name, _NO_COUNTERPART)
        decode = DecodeConfig(**fields)
        config = ExperimentConfig(model=self.model, task=TaskConfig(name=self.task), decode=decode)
        if problems := [text for text in problems_of(config) if text.startswith("decode.")]:
            raise CheckpointError(f"{self.where}: settings of generation, read as {'; '.join(problems)}")
        return decode

    @property
    def _encodes(self) -> bool:
        return self.model.architecture == "encoder_decoder"

    def _limits(self) -> dict[str, Any]:
        """Return the limits of new tokens. `max_length` and `min_length` count the start token or the prompt too."""
        fields: dict[str, Any] = {}
        for total, new, ours, least in (
            ("max_length", "max_new_tokens", "max_new_tokens", 1),
            ("min_length", "min_new_tokens", "min_length", 0),
        ):
            is_given, count = new in self.settings, self.integer(new, least) or 0
            if total in self.settings:
                length = self.integer(total, 0)
                if is_given:
                    self.ignored[total] = f"{new} takes its place, as in transformers"
                elif not self._encodes:
                    if length != _DEFAULTS[total]:
                        self.ignored[total] = "counts the prompt too"
                else:
                    is_given, count = True, max(length - 1, least)
            if count > self.model.max_length:
                self.ignored[total if total in self.origin else new] = (
                    f"the model has {self.model.max_length} positions"
                )
            elif is_given and count:
                fields[ours] = count
        return fields

    def _forced(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if name not in self.settings:
                continue
            token = self.settings.pop(name)
            token = token[0] if isinstance(token, list) and len(token) == 1 else token
            if name == "forced_bos_token_id" and self._encodes and self._is_id(token):
                fields["prefix_ids"] = str(token)
            elif name == "forced_eos_token_id" and token is not None and token == self.eos:
                fields["at_limit"] = "end"
            else:
                self.ignored[name] = _NO_COUNTERPART
        return fields

    def _is_id(self, token: Any) -> bool:
        return type(token) is int and 0 <= token < self.model.vocab_size

    def _forbidden(self) -> dict[str, Any]:
        ids: list[int] = []
        for name in ("suppress_tokens", "bad_words_ids"):
            given = self.settings.get(name)
            if not isinstance(given, list) or not given:
                continue
            words = given if name == "bad_words_ids" else [[token] for token in given]
            if all(isinstance(word, list) and len(word) == 1 and self._is_id(word[0]) for word in words):
                ids += [word[0] for word in words if name == "suppress_tokens" or word[0] != self.eos]
                del self.settings[name]
        return {"forbidden_ids": ",".join(map(str, sorted({*ids})))} if ids else {}

    def _of_sampling(self) -> dict[str, Any]:
        self._leave_out(("early_stopping", "length_penalty"), "of a beam search")
        top_k, min_p = self.integer("top_k", 0), self.real("min_p")
        fields = {
            "method": "sample",
            "temperature": float(self.real("temperature")),
            "top_p": float(self.real("top_p")),
        }
        fields |= {"num_samples": self.integer("num_return_sequences", 1)}
        return fields | ({"top_k": top_k} if top_k else {}) | ({"min_p": float(min_p)} if min_p else {})

    def _of_search(self, beams: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        self._leave_out(("temperature", "top_k", "top_p", "min_p"), "of sampling")
        if beams == 1:
            self._leave_out(("early_stopping", "length_penalty", "num_return_sequences"), "of a beam search")
            return {}
        stop, alpha = self.settings.pop("early_stopping", False), self.real("length_penalty")
        stops = {theirs: ours for ours, theirs in EARLY_STOPPING.items()}
        if not isinstance(stop, bool | str) or stop not in stops:
            raise CheckpointError(
                f"{self.where}: {self.origin['early_stopping']}early_stopping={stop!r}: expected true, false or 'never'"
            )
        found: dict[str, Any] = {"beam_size": beams, "early_stop": stops[stop]}
        if alpha > 0:
            found |= {"length_penalty": "average", "length_penalty_alpha": float(alpha)}
        else:
            found["length_penalty"] = "none"
            if alpha:
                self.ignored["length_penalty"] = f"{alpha}: here at least 0"
        if (best := self.integer("num_return_sequences", 1)) > 1:
            found["num_best"] = best
        if "prefix_ids" in fields or fields.get("at_limit") == "end":
            found["forced_tokens"] = "free"
        return found if fields.get("at_limit") == "end" else {**found, "cut_hypotheses": "compete"}

    def _leave_out(self, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            if name in self.settings:
                del self.settings[name]
                self.ignored[name] = reason
