"""Sizes of models with equally many parameters: the value of one field of a config, such as the feed-forward width."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig, base_type, nearest, unread_by, walk
from transformer_jax.config_file import leaf_types
from transformer_jax.errors import ConfigError

TOLERANCE = 0.005
"""Largest relative difference of the numbers of parameters."""
_MOST_COUNTS, _MOST_INVALID = 24, 128


@dataclasses.dataclass(frozen=True)
class EqualParameters:
    """Fields that make every variant of a study as large as its baseline variant; see `Study.equal_parameters`.

    Attributes:
      fields: integer fields of the model. A variant is sized by the first one that its choices read.
      embeddings: whether all parameters count; if not, those of tables (of tokens, positions and types) and of an
        output layer of its own do not.
    """

    fields: tuple[str, ...]
    embeddings: bool = True

    def check(self) -> None:
        """Raise ConfigError for fields that do not exist, are not integers or are not of the model."""
        if not self.fields:
            raise ConfigError("equal_parameters: no field; name one, such as model.mlp_dim")
        for name in self.fields:
            if name not in leaf_types():
                raise ConfigError(f"equal_parameters: no field '{name}'{nearest(name, leaf_types())}")
            if not name.startswith("model.") or base_type(leaf_types()[name]) is not int:
                raise ConfigError(f"equal_parameters: '{name}' is not an integer field of the model, as model.mlp_dim")

    def field_of(self, config: ExperimentConfig) -> str:
        """Return the field that sizes a config; raise ConfigError if its choices read none."""
        unread = unread_by(config)
        for name in self.fields:
            if name not in unread:
                return name
        because = ", ".join(f"{name} (see {unread[name]})" for name in self.fields)
        raise ConfigError(f"equal_parameters: the model does not read {because}; name a field that it reads too")

    def count(self, config: ExperimentConfig) -> int:
        """Return the number of parameters of a config that count."""
        return _count(config.model, config.task, self.embeddings)

    @property
    def counted(self) -> str:
        """The name of the counted parameters, for messages."""
        return "parameters" if self.embeddings else "parameters without tables and output layer"


@functools.lru_cache(maxsize=4096)
def _count(model: ModelConfig, task: TaskConfig, embeddings: bool) -> int:
    import jax

    from transformer_jax.tasks.task import param_shapes

    shapes = param_shapes(ExperimentConfig(model=model, task=task))
    leaves = [(path[0].key, path[-1].key, leaf.size) for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)]
    return sum(size for first, last, size in leaves if embeddings or (last != "embedding" and first != "output"))


def size_for(
    equal: EqualParameters, config: ExperimentConfig, wanted: int, read: Callable[[str, int], ExperimentConfig]
) -> tuple[str, int] | None:
    """Return the field and the value with which a config has `wanted` parameters, to `TOLERANCE`.

    None if the config has them as it is. Of all values within the tolerance it is the one that is divisible by the
    highest power of two, and of several such the one closest to `wanted`: accelerators prefer round sizes.

    Args:
      read: returns the config with another value of a field; raises ConfigError if it is invalid.
    Raises: ConfigError, with the reason, if no value gives them; or if the field does not change their number.
    """
    if _is_close(equal.count(config), wanted):
        return None
    field = equal.field_of(config)
    search = _Search(equal, field, wanted, read)
    search.counts[_value(config, field)] = equal.count(config)
    search.enclose()
    for value in search.candidates():
        if (count := search.count(value)) is not None and _is_close(count, wanted):
            return field, value
    raise search.failure()


def _value(config: ExperimentConfig, field: str) -> int:
    return next(value for name, _, value in walk(config) if name == field)


def _is_close(count: int, wanted: int) -> bool:
    return abs(count - wanted) <= TOLERANCE * wanted


class _Search:
    """Values of a field that were tried: counts by valid value, errors by invalid value."""

    def __init__(
        self, equal: EqualParameters, field: str, wanted: int, read: Callable[[str, int], ExperimentConfig]
    ) -> None:
        self._equal, self._field, self._wanted, self._read = equal, field, wanted, read
        self.counts: dict[int, int] = {}
        self._errors: dict[int, str] = {}

    def count(self, value: int) -> int | None:
        """Return the number of parameters with a value; None if it is invalid."""
        if value not in self.counts and value not in self._errors:
            try:
                config = self._read(self._field, value)
                check_mesh(config)
                self.counts[value] = self._equal.count(config)
            except ConfigError as error:
                self._errors[value] = str(error)
        return self.counts.get(value)

    def enclose(self) -> None:
        """Try values until one gives about the wanted number: secants, with the valid values nearest to their ends."""
        (first,) = self.counts
        self._nearest_valid(2 * first if self.counts[first] < self._wanted else max(first // 2, 1))
        if len(self.counts) == 1:
            return
        if len(set(self.counts.values())) == 1:
            raise ConfigError(f"equal_parameters: {self._field} does not change the number of {self._equal.counted}")
        for _ in range(_MOST_COUNTS):
            low, high = self._ends()
            slope = (self.counts[high] - self.counts[low]) / (high - low)
            known = len(self.counts)
            if slope <= 0:
                return
            value = max(round(low + (self._wanted - self.counts[low]) / slope), 1)
            if value in self.counts or self._nearest_valid(value) is None or len(self.counts) == known:
                return

    def _ends(self) -> tuple[int, int]:
        """Return the two tried values whose numbers are closest to the wanted one, in order."""
        closest = sorted(self.counts, key=lambda value: abs(self.counts[value] - self._wanted))
        low, high = sorted(closest[:2])
        return low, high

    def _nearest_valid(self, value: int) -> int | None:
        for distance in range(_MOST_INVALID):
            for near in dict.fromkeys((value + distance, max(value - distance, 1))):
                if self.count(near) is not None:
                    return near
        return None

    def candidates(self) -> Iterator[int]:
        """Yield values that should be within the tolerance, the roundest first, by the line through two tried values.

        At most `_MOST_COUNTS` of them.
        """
        if len(self.counts) < 2:
            return
        low, high = self._ends()
        slope = (self.counts[high] - self.counts[low]) / (high - low)
        if slope <= 0:
            return
        middle = low + (self._wanted - self.counts[low]) / slope
        reach = TOLERANCE * self._wanted / slope
        values = range(max(int(middle - reach), 1), int(middle + reach) + 2)
        roundest = sorted(values, key=lambda value: (-(value & -value), abs(value - middle)))
        tried = 0
        for value in roundest:
            if self.count(value) is None:
                continue
            yield value
            tried += 1
            if tried == _MOST_COUNTS:
                return

    def failure(self) -> ConfigError:
        closest = min(self.counts, key=lambda value: abs(self.counts[value] - self._wanted))
        count = self.counts[closest]
        text = (
            f"equal_parameters: no value of {self._field} gives {self._wanted:,} {self._equal.counted} to "
            f"{TOLERANCE:.1%}: {closest} gives {count:,} ({count / self._wanted - 1:+.1%})"
        )
        near = sorted(self._errors, key=lambda value: abs(value - closest))
        if near:
            text += f", and {near[0]} is invalid: {self._errors[near[0]].removeprefix('config: ')}"
        return ConfigError(f"{text}; use another field, or sizes that allow it")


def check_mesh(config: ExperimentConfig) -> None:
    """Raise ConfigError if `parallel.fsdp` and `parallel.tensor` do not divide the model's arrays."""
    parallel = config.parallel
    if parallel.fsdp == parallel.tensor == 1:
        return
    from jax.sharding import AbstractMesh

    from transformer_jax.models.architecture import parameter_axes
    from transformer_jax.parallel.placement import FSDP, TENSOR
    from transformer_jax.parallel.rules import shardings
    from transformer_jax.tasks.task import param_shapes

    mesh = AbstractMesh((parallel.fsdp, parallel.tensor), (FSDP, TENSOR))
    shardings(param_shapes(config), parameter_axes(config.model), mesh)
