"""Generation of text for any number of lines, of any length; they need not be sorted."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.data.batching import length_batches
from transformer_jax.data.tokenizers import Tokenizer, sizes_text
from transformer_jax.decoding.generate import BatchSearch, Request, generate, prepare
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import is_finite
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.models.decoder import Decoder
from transformer_jax.tasks.trained.decode_requests import ends_of
from transformer_jax.tasks.trained.length_limits import position_table_rows
from transformer_jax.tasks.trained.lines import NOT_FINITE, Line, LineOutputs, Output
from transformer_jax.typing import Params

CHUNK = 2_000
"""Number of lines that are sorted by length and decoded together; bounds memory and the time to the first output."""


class Member(NamedTuple):
    """A model of an ensemble."""

    model: ModelConfig
    params: Params


class TokenLogProbs(NamedTuple):
    """The tokens of a text with end-of-sequence: ids, the text of each, and natural log probabilities."""

    ids: list[int]
    tokens: list[str]
    log_probs: Float[np.ndarray, " tokens"]


class Reading(NamedTuple):
    """Lines as ids. A line with a problem has no output.

    ids: of each line, as the model reads them. begins: of each line, the ids that its output repeats in front. lengths:
    int [lines], by which lines share batches. problems: by the index of a line.
    """

    ids: list[list[int]]
    begins: list[list[int]]
    lengths: np.ndarray
    problems: dict[int, str]


def check_several(name: str, texts: Sequence[Any]) -> None:
    """Raise DataError for one text where several are expected: its characters would count as texts."""
    if isinstance(texts, str):
        raise DataError(f"{name}: one text in place of a list; put it into brackets, [text]")


def stacks_text(model: ModelConfig) -> str:
    """Return the architecture and its numbers of layers: `decoder_only of 6 layers`, `encoder_decoder of 6 + 4 layers`.

    An architecture from outside may have no layers of ours; the text is then its name alone.
    """
    counts = {
        "encoder_only": f"{model.num_encoder_layers}",
        "decoder_only": f"{model.num_decoder_layers}",
        "encoder_decoder": f"{model.num_encoder_layers} + {model.num_decoder_layers}",
    }
    count = counts.get(model.form)
    return model.architecture + (f" of {count} layer{'' if count == '1' else 's'}" if count else "")


@dataclasses.dataclass(frozen=True, repr=False)
class TextGenerator(abc.ABC):
    """Parameters and tokenizer, ready to generate; `config` is resolved and has the settings in `decode`."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    others: tuple[Member, ...] = ()

    def __repr__(self) -> str:
        model, decode = self.config.model, self.config.decode
        count = sum(x.size for member in self.members for x in jax.tree.leaves(member.params))
        settings = [
            f"{field.name}={getattr(decode, field.name)}"
            for field in dataclasses.fields(decode)
            if getattr(decode, field.name) != field.default
        ]
        models = f"{len(self.members)} models, " if self.others else ""
        return (
            f"{type(self).__name__}: {models}{stacks_text(model)}, emb_dim {model.emb_dim}, "
            f"{count:,} parameters\n"
            f"  tokenizer: {self.config.data.tokenizer}, {sizes_text(self.tokenizer)} ids, sha256 "
            f"{self.tokenizer.sha256[:12]}\n"
            f"  decode: {', '.join(settings) or 'greedy search'}"
        )

    @property
    def members(self) -> tuple[Member, ...]:
        """All models, including the first."""
        return (Member(self.config.model, self.params), *self.others)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each output text, without end-of-sequence; texts are in the form of the corpus.

        Raises: DataError for one text in place of a sequence of texts.
        """
        check_several("texts", texts)
        ids, offsets = self.tokenizer.encode_batch(texts)
        return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]

    def decode(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        """Return the text of each row of ids up to its end-of-sequence, in the form of the corpus."""
        return self.tokenizer.decode_batch(rows)

    def _named(self, ids: np.ndarray, log_probs: np.ndarray) -> TokenLogProbs:
        return TokenLogProbs(ids.tolist(), self.tokenizer.tokens(ids), log_probs)

    def check_limit(self) -> None:
        """Raise ConfigError if no line can have an output, because of its greatest length; here any limit fits."""
        return

    def generate(self, lines: Iterable[Line], first_number: int = 1) -> Iterator[list[LineOutputs]]:
        """Yield outputs in the order of the lines, a chunk at a time; for a line with a problem, the problem.

        Lines and outputs are in the form of the corpus, `data.text_form`.

        Args:
          lines: all with a prompt, or all without.
          first_number: number of the first line; random draws depend on the number of a line.
        """
        numbered = enumerate(lines, start=first_number)
        while chunk := list(itertools.islice(numbered, CHUNK)):
            yield self.generate_chunk([line for _, line in chunk], chunk[0][0])

    def generate_chunk(self, lines: Sequence[Line], first_number: int = 1) -> list[LineOutputs]:
        """Return the outputs of all lines in the corpus's own form, batched by length; arguments as in `generate`."""
        reading = self._read(lines)
        problems = reading.problems | {i: line.problem for i, line in enumerate(lines) if line.problem}
        outputs: list[list[Output]] = [[] for _ in lines]
        wanted = np.array([i for i, line in enumerate(lines) if self._has_output(line) and i not in problems], np.int64)
        for batch in length_batches(
            reading.lengths[wanted],
            max(self.config.evaluation.tokens_per_batch // self.config.decode.num_hypotheses, 1),
            self.config.data.row_multiple,
            self._position_rows,
        ):
            chosen = wanted[batch.indices[batch.indices >= 0]]
            numbers = np.zeros(len(batch.indices), np.int32)
            numbers[: len(chosen)] = first_number + chosen
            request = self._request(reading, chosen, len(batch.indices), batch.width)
            ends = ends_of(self.tokenizer, self.config.model.vocab_size)
            generated = generate(self._decoders, self._decoding_params, self.config.decode, ends, request, numbers)
            begins = [reading.begins[i] for i in chosen]
            for index, found in zip(chosen, self._outputs(jax.device_get(generated), begins), strict=True):
                if all(is_finite([output.score, output.log_probs]) for output in found):
                    outputs[index] = found
                else:
                    problems[index] = NOT_FINITE
        return [LineOutputs(first_number + i, outputs[i], problems.get(i)) for i in range(len(lines))]

    def search(self, line: Line) -> BatchSearch:
        """Return the search for the outputs of one line, with the settings of `generate_chunk`; it can be followed.

        Raises: DataError for a line with a problem, or without an output.
        """
        reading = self._read([line])
        if problem := line.problem or reading.problems.get(0):
            raise DataError(problem)
        if not self._has_output(line):
            raise DataError("an empty text has no output")
        (batch,) = length_batches(reading.lengths, 1, 1, self._position_rows)
        request = self._request(reading, np.zeros(1, np.int64), 1, batch.width)
        ends = ends_of(self.tokenizer, self.config.model.vocab_size)
        return prepare(self._decoders, self._decoding_params, self.config.decode, ends, request)

    @abc.abstractmethod
    def _read(self, lines: Sequence[Line]) -> Reading:
        """Encode the lines, and find their problems."""

    def _has_output(self, line: Line) -> bool:
        """Return whether a line without a problem has an output."""
        return True

    @abc.abstractmethod
    def _request(self, reading: Reading, chosen: np.ndarray, num_rows: int, width: int) -> Request:
        """Return the request for some lines.

        Args:
          chosen: the lines of the first rows; the rows after them are padding, and need no output.
          num_rows: B; width: at least the length of each of these lines.
        """

    @property
    def _models(self) -> tuple[ModelConfig, ...]:
        return tuple(member.model for member in self.members)

    @property
    def _position_rows(self) -> int | None:
        """The rows of the smallest table of positions; None if no model has one."""
        return min((c for c in map(position_table_rows, self._models) if c is not None), default=None)

    @functools.cached_property
    def _decoding_params(self) -> tuple[Params, ...]:
        params = (member.params for member in self.members)
        return tuple(decoder.prepare(p) for decoder, p in zip(self._decoders, params, strict=True))

    @functools.cached_property
    def _decoders(self) -> tuple[Decoder, ...]:
        decoders = [ARCHITECTURES[model.architecture].decoder(model) for model in self._models]
        if None in decoders:
            raise ConfigError(
                f"model.architecture='{self.config.model.architecture}' cannot generate: it has no decoder"
            )
        return tuple(decoder for decoder in decoders if decoder is not None)

    def _outputs(self, generated: Generated, begins: Sequence[Sequence[int]]) -> Iterator[list[Output]]:
        """Yield the outputs of the first rows of a batch, one per item of `begins`."""
        num_outputs = generated.ids.shape[1]
        # Ids beyond an output's length are undefined; they are not the tokenizer's padding.
        whole = [
            [*begin, *generated.ids[row, n, : generated.lengths[row, n]].tolist()]
            for row, begin in enumerate(begins)
            for n in range(num_outputs)
        ]
        texts = self.tokenizer.decode_batch(whole)
        for row in range(len(begins)):
            found = []
            for n in range(num_outputs):
                length = int(generated.lengths[row, n])
                if not length:
                    continue
                found.append(
                    Output(
                        texts[row * num_outputs + n],
                        generated.ids[row, n, :length].tolist(),
                        [round(float(x), 6) for x in generated.log_probs[row, n, :length]],
                        float(generated.scores[row, n]),
                        bool(generated.finished[row, n]),
                    )
                )
            yield found
