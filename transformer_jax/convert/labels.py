"""Read and write the labels in config.json, in one way for every class with a head that predicts labels.

As in transformers, `id2label` names the labels and counts them; without it, `num_labels` counts them. In transformers,
classes that label texts or images read `problem_type`, and treat a head with one row as regression. Our heads are
always a softmax over the labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.config import TaskConfig
from transformer_jax.convert.folder_config import listing
from transformer_jax.convert.tables import Family
from transformer_jax.errors import CheckpointError, ConfigError

SOFTMAX = "single_label_classification"
"""The value of `problem_type` for a softmax over the labels."""

_DEFAULT_COUNT = 2


class Labels(NamedTuple):
    """Names of labels in the order of their ids, and keys of config.json that were not needed, with the reasons."""

    names: tuple[str, ...]
    ignored: dict[str, str]


def labels_of_config(family: Family, theirs: Mapping[str, Any], rows: int | None, where: str) -> Labels:
    """Return the labels of a config.json; no names if the class predicts no labels.

    Args:
      rows: of the head; None if the class has none.
    Raises: CheckpointError, which names every key that contradicts another one, the head, or a softmax.
    """
    if not family.has_labels:
        return Labels((), {})
    names, problems = _names(theirs)
    problems += _contradictions(theirs, names, rows)
    if rows is not None and _is_softmax_said(family):
        problems += _of_regression(theirs, len(names))
    if problems:
        raise CheckpointError(listing(f"{where}: the labels of this {family.label} cannot be read", problems))
    distinct, ignored = _distinct(names), {}
    if changed := [new for old, new in zip(names, distinct, strict=True) if old != new]:
        ignored["id2label"] = (
            f"{len(changed)} labels have the name of an earlier label; their ids are added, as in {changed[0]!r}"
        )
    others = [name for name in theirs.get("label2id") or {} if name not in names]
    if others:
        ignored["label2id"] = f"names other labels than id2label, such as {others[0]!r}; those of id2label are read"
    return Labels(distinct, ignored)


def _is_softmax_said(family: Family) -> bool:
    """Return whether transformers reads `problem_type` for a class: not for tags, which are always a softmax."""
    return family.tasks[0] != "tagging"


def _names(theirs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names by id, and what is wrong with them."""
    given, count = theirs.get("id2label"), theirs.get("num_labels")
    if count is not None and (type(count) is not int or count < 1):
        return [], [f"num_labels={count!r}: expected an integer, at least 1"]
    if given is None:
        return [f"LABEL_{id}" for id in range(_DEFAULT_COUNT if count is None else count)], []
    if not isinstance(given, Mapping) or not given:
        return [], [f"id2label={given!r}: expected an object of ids and names"]
    problems, names = [], {}
    for key, name in given.items():
        if not (key.isascii() and key.isdecimal()):
            problems.append(f"id2label has the key {key!r}, expected an id, such as '0'")
        elif int(key) in names:
            problems.append(f"id2label has the id {int(key)} twice")
        elif isinstance(name, bool) or not isinstance(name, str | int):
            problems.append(f"id2label has the name {name!r} for the id {key}, expected a text")
        else:
            names[int(key)] = str(name)
    if not problems and (gaps := [id for id in range(len(names)) if id not in names]):
        problems.append(f"id2label has {len(names)} names, the largest id {max(names)}, and no name for {gaps[0]}")
    return [] if problems else [names[id] for id in range(len(names))], problems


def _contradictions(theirs: Mapping[str, Any], names: Sequence[str], rows: int | None) -> Iterator[str]:
    """Yield a line for every other key, and for the head, that contradicts the names."""
    if not names:
        return
    count, ids = theirs.get("num_labels"), theirs.get("label2id")
    if count is not None and count != len(names):
        yield f"num_labels={count}: id2label has {len(names)} names"
    if rows is not None and rows != len(names):
        source = "id2label" if theirs.get("id2label") is not None else "num_labels"
        yield f"{source} has {len(names)} labels, but the head has {rows} rows"
    if ids is not None and not isinstance(ids, Mapping):
        yield f"label2id={ids!r}: expected an object of names and ids"
        return
    of_name: dict[str, set[int]] = {}
    for id, name in enumerate(names):
        of_name.setdefault(name, set()).add(id)
    for name, id in (ids or {}).items():
        if name in of_name and (isinstance(id, bool) or not str(id).isdecimal() or int(id) not in of_name[name]):
            yield f"label2id has {id!r} for {name!r}, but id2label has {min(of_name[name])}"


def _of_regression(theirs: Mapping[str, Any], count: int) -> Iterator[str]:
    kind = theirs.get("problem_type")
    if kind not in (SOFTMAX, None):
        yield f"problem_type={kind!r}: transformer_jax has only heads with a softmax over the labels, {SOFTMAX!r}"
    elif count == 1:
        yield "one label: transformers takes such a head for regression, transformer_jax for a softmax over one label"


def _distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names with no name twice: a name that repeats an earlier one gets its id, as in `crane (517)`."""
    result: dict[str, None] = {}
    known = {*labels}
    for id, label in enumerate(labels):
        name = label
        while name in result or (name != label and name in known):
            name = f"{name} ({id})"
        result[name] = None
    return tuple(result)


def label_keys(family: Family, task: TaskConfig, labels: Sequence[str]) -> dict[str, Any]:
    """Return the entries of config.json that name the labels of a head; empty if the transformers class has no labels.

    Args:
      labels: the names of the labels; if empty, LABEL_0, LABEL_1, ... are used.
    Raises: ConfigError if transformers would treat the head as regression; or if the number of names is not
      `task.num_labels`, or two names are equal.
    """
    if not family.has_labels:
        return {}
    names = [*labels] or [f"LABEL_{id}" for id in range(task.num_labels)]
    if len(names) != task.num_labels or len({*names}) < len(names):
        raise ConfigError(f"labels={names}: expected {task.num_labels} different names, as task.num_labels says")
    softmax = _is_softmax_said(family)
    if softmax and len(names) == 1 and not family.lacks:
        raise ConfigError(
            f"task.num_labels=1: transformers takes a {family.class_name} with one label for regression, but it was "
            "trained as a softmax over one label. Train a model with two labels or more"
        )
    return {
        "id2label": {str(id): name for id, name in enumerate(names)},
        "label2id": {name: id for id, name in enumerate(names)},
        **({"problem_type": SOFTMAX} if task.name == "classification" else {}),
    }
