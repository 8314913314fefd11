"""The models of the commands `lens`, `ablate` and `patch`, and what each reads of a text and predicts in it."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.loading import Loaded, load
from transformer_jax.inspection.ablation import mean_loss
from transformer_jax.inspection.places import run_with
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.masked_lm import MaskedLM
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.length_limits import length_problems
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.row_translator import RowTranslator
from transformer_jax.tasks.trained.text_filler import Filler
from transformer_jax.tasks.trained.translator import SourceGenerator
from transformer_jax.typing import Batch

if TYPE_CHECKING:
    import flax.linen as nn

    from transformer_jax.config import ModelConfig
    from transformer_jax.data.tokenizers import Tokenizer
    from transformer_jax.typing import Array, Params


class Row(NamedTuple):
    """What a model reads of a text, and what it should predict there.

    batch: of one row. tokens: those that each stack reads, by its name. shown: the positions of the last stack at which
    it predicts a token. places, targets: those whose token is known, and its id. target: the text of the target, if
    there is one; own: whether it is the model's own.
    """

    batch: Batch
    tokens: dict[str, list[str]]
    shown: list[int]
    places: list[int]
    targets: list[int]
    target: str | None = None
    own: bool = False

    def loss(self, outputs: Array) -> Array:
        """Return the mean loss of logits [1, T, V] at the places, in nats."""
        return mean_loss(outputs[:, np.asarray(self.places)], jnp.asarray([self.targets], jnp.int32))


class Pair(NamedTuple):
    """Two rows of equal shapes, and the position of the last stack whose prediction is compared."""

    row: Row
    other: Row
    position: int


@dataclasses.dataclass(frozen=True)
class TextModel(abc.ABC):
    """A trained Transformer that predicts tokens of a text."""

    loaded: Loaded
    takes_target = True
    """Whether a text may have a target beside it."""

    @property
    def config(self) -> ModelConfig:
        return self.loaded.config.model

    @property
    def params(self) -> Params:
        return self.loaded.params

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    @property
    def head(self) -> nn.Module | None:
        return TASKS[self.loaded.config.task.name].head(self.loaded.config.task, self.config)

    @property
    def last(self) -> str:
        """The stack whose outputs are predictions."""
        return self.config.stacks[-1]

    @abc.abstractmethod
    def row(self, flag: str, text: str, target: str | None = None, predicts: bool = True) -> Row:
        """Return what the model reads of a text.

        Args:
          flag: that has the text, for errors. predicts: whether there must be a token to predict.
        Raises: DataError for a text that is empty or too long, or a target that does not fit; ConfigError for a target
          of a model that takes none.
        """

    @abc.abstractmethod
    def pair(self, text: str, other: str, target: str | None = None) -> Pair:
        """Return what the model reads of --text and --other; raise DataError if they do not fit together."""

    def outputs(self, batch: Batch) -> np.ndarray:
        """Return the logits [T, V] of the only row of a batch."""
        return np.asarray(run_with(self.config, self.params, batch, (), None, self.head).outputs[0])

    def one_token(self, flag: str, text: str) -> int:
        """Return the id of a text of one token; raise DataError for another."""
        ids = self._ids(text)
        if len(ids) != 1:
            raise DataError(f"--{flag}='{text}' has {len(ids)} tokens: {self.tokenizer.tokens(ids)}; expected one")
        return ids[0]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode_batch([text]).ids.tolist()

    def _check_decoder(self, flag: str, ids: Sequence[int]) -> None:
        """Raise DataError if the ids and the start are more than the positions of the decoder."""
        decoder = ARCHITECTURES[self.config.architecture].decoder(self.config)
        capacity = None if decoder is None else decoder.max_length
        if capacity is not None and len(ids) >= capacity:
            raise DataError(
                f"--{flag}: its {len(ids)} tokens and the start exceed the positions of the model, "
                f"model.max_length={capacity}; shorten it"
            )


def _check_equal(ids: Sequence[Any], other: Sequence[Any]) -> None:
    if len(ids) != len(other):
        raise DataError(f"--text has {len(ids)} tokens, --other {len(other)}; patching needs equal numbers")


class LanguageText(TextModel):
    """A language model: every token of the text is predicted, and one after it."""

    takes_target = False

    def row(self, flag: str, text: str, target: str | None = None, predicts: bool = True) -> Row:
        if target is not None:
            raise ConfigError("--target: a language model reads one text; leave it out")
        ids, start = self._ids(text), self.config.decoder_start_id
        if not ids:
            raise DataError(f"--{flag} is empty; give a text")
        self._check_decoder(flag, ids)
        read = [start, *ids]
        batch = {"decoder_inputs": jnp.asarray([read], jnp.int32)}
        return Row(batch, {"decoder": self.tokenizer.tokens(read)}, [*range(len(read))], [*range(len(ids))], ids)

    def pair(self, text: str, other: str, target: str | None = None) -> Pair:
        rows = [self.row("text", text, target), self.row("other", other)]
        _check_equal(*(row.targets for row in rows))
        return Pair(*rows, position=-1)


class TargetText(TextModel):
    """An encoder-decoder: the decoder predicts every token of the target, and its end."""

    def row(self, flag: str, text: str, target: str | None = None, predicts: bool = True) -> Row:
        source, own = self._source(flag, text), target is None
        if target is None:
            ids, target = self._output(flag, text)
        else:
            ids = [*self._ids(target), self.tokenizer.special_ids.required("eos")]
        self._check_decoder("target" if flag == "text" else flag, ids[:-1])
        return self._row(source, ids[:-1], ids)._replace(target=target, own=own)

    def pair(self, text: str, other: str, target: str | None = None) -> Pair:
        """Return the rows of two sources; the decoder reads the same in both, a target's beginning.

        By default this is what the model's outputs of both begin with.
        """
        sources = [self._source(flag, given) for flag, given in (("text", text), ("other", other))]
        _check_equal(*sources)
        own = target is None
        if target is None:
            outputs = [self._output(flag, given)[0] for flag, given in (("text", text), ("other", other))]
            if outputs[0] == outputs[1]:
                raise DataError(
                    "the model's greedy outputs of both texts are equal; give --target, the beginning of an output "
                    "after which predictions are compared"
                )
            same = itertools.takewhile(lambda ids: ids[0] == ids[1], zip(*outputs, strict=False))
            begin = [id for id, _ in same]
            target = self.tokenizer.decode_batch([begin])[0]
        else:
            begin = self._ids(target)
        self._check_decoder("target", begin)
        rows = [self._row(source, begin, [])._replace(target=target, own=own) for source in sources]
        return Pair(*rows, position=-1)

    def _source(self, flag: str, text: str) -> list[int]:
        if not text.strip():
            raise DataError(f"--{flag} is empty; give a text")
        (source,) = self._generator.encode_sources([text])
        for problem in length_problems(self.loaded.config, np.array([len(source)])).values():
            raise DataError(f"--{flag}: {problem}")
        return source

    def _output(self, flag: str, text: str) -> tuple[list[int], str]:
        """Return ids and text of the model's greedy output."""
        (found,) = self._generator.generate_chunk([Line(text)])
        if found.problem:
            raise DataError(f"--{flag}: {found.problem}")
        if not found.outputs:
            raise DataError(f"--{flag}: the model's output is empty; give a target")
        return found.outputs[0].ids, found.text

    def _row(self, source: list[int], read: Sequence[int], targets: list[int]) -> Row:
        read = [self.config.decoder_start_id, *read]
        batch = {
            "inputs": jnp.asarray([source], jnp.int32),
            "inputs_mask": jnp.ones((1, len(source)), bool),
            "decoder_inputs": jnp.asarray([read], jnp.int32),
        }
        tokens = {"encoder": self.tokenizer.source.tokens(source), "decoder": self.tokenizer.tokens(read)}
        return Row(batch, tokens, [*range(len(read))], [*range(len(targets))], targets)

    @property
    def _generator(self) -> SourceGenerator:
        config = self.loaded.config
        greedy = {
            "method": "search",
            "beam_size": 1,
            "num_best": 1,
            "length_penalty": None,
            "length_penalty_alpha": None,
        }
        config = dataclasses.replace(config, decode=dataclasses.replace(config.decode, **greedy))
        generator = TASKS[config.task.name].generator(config, self.params, self.tokenizer)
        assert isinstance(generator, SourceGenerator)
        return generator


class MaskedText(TextModel):
    """A masked language model: the masks of a text are predicted; the target is the text without them."""

    def row(self, flag: str, text: str, target: str | None = None, predicts: bool = True) -> Row:
        ids, mask = self._framed(flag, text), self.tokenizer.special_ids.required("mask")
        places = [place for place, id in enumerate(ids) if id == mask]
        if predicts and not places:
            raise DataError(f"--{flag} has no {self.tokenizer.tokens([mask])[0]}, whose token would be predicted")
        batch = {"inputs": jnp.asarray([ids], jnp.int32), "inputs_mask": jnp.ones((1, len(ids)), bool)}
        if target is None:
            targets = self.outputs(batch)[places].argmax(-1).tolist() if places else []
        else:
            whole = self._framed("target" if flag == "text" else f"{flag}: the target", target)
            if len(whole) != len(ids) or any(a != b for a, b in zip(ids, whole, strict=True) if a != mask):
                raise DataError(
                    f"--target: its tokens are not those of --{flag} beside the masks: {self.tokenizer.tokens(whole)} "
                    f"and {self.tokenizer.tokens(ids)}"
                )
            targets = [whole[place] for place in places]
        said = " ".join(self.tokenizer.tokens(targets)) if target is None else target
        return Row(batch, {"encoder": self.tokenizer.tokens(ids)}, places, places, targets, said, target is None)

    def pair(self, text: str, other: str, target: str | None = None) -> Pair:
        if target is not None:
            raise ConfigError("--target: patching of a masked language model reads two texts with a mask; leave it out")
        rows = [self.row("text", text), self.row("other", other)]
        _check_equal(*(row.tokens["encoder"] for row in rows))
        if rows[0].places != rows[1].places or len(rows[0].places) != 1:
            raise DataError(
                f"--text has masks at {rows[0].places}, --other at {rows[1].places}; expected one, at the same place"
            )
        return Pair(*(row._replace(target=None) for row in rows), position=rows[0].places[0])

    def _framed(self, flag: str, text: str) -> list[int]:
        if not text.strip():
            raise DataError(f"--{flag} is empty; give a text")
        (ids,) = Filler(self.loaded.config, self.params, self.tokenizer, framed=True).encode_sources([text])
        for problem in length_problems(self.loaded.config, np.array([len(ids)])).values():
            raise DataError(f"--{flag}: {problem}")
        return ids


def text_model(path: Path | str, overrides: Any) -> TextModel:
    """Return the model of a checkpoint; raise ConfigError for a model that predicts no tokens, or a recurrent one."""
    loaded = load(path, overrides)
    config, task = loaded.config, TASKS[loaded.config.task.name]
    if not config.model.is_transformer:
        raise ConfigError(
            f"{path}: model.architecture={config.model.architecture} has no residual stream; expected a Transformer"
        )
    generator = task.generator(config, loaded.params, loaded.tokenizer) if task.generates else None
    kinds = {RowTranslator: None, LanguageModel: LanguageText, SourceGenerator: TargetText}
    kind = next((kind for generates, kind in kinds.items() if isinstance(generator, generates)), None)
    if isinstance(task, MaskedLM):
        kind = MaskedText
    if kind is None:
        raise ConfigError(
            f"{path}: task.name='{config.task.name}' with model.architecture={config.model.architecture} is not taken; "
            "expected a language model, a masked language model, or an encoder-decoder of text"
        )
    return kind(loaded)
