"""Values for the config fields of a prepared dataset, guessed from its description in TFDS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HELD_OUT = 2000  # most examples of train to use for validation if the dataset has no validation split


def features_of(info: Any) -> dict[str, str]:
    """Return name -> kind of every feature; a kind is, for example, Text."""
    items = info.features.items() if hasattr(info.features, "items") else ()
    return {name: type(feature).__name__ for name, feature in sorted(items)}


def split_fields(splits: Mapping[str, int]) -> dict[str, str]:
    """Return values for all three fields that name splits, since the config file may have other values for them.

    Args:
      splits: split name -> number of examples.
    """
    names = {"train": "train", "valid": "", "test": "test"}
    names["valid"] = next((name for name in ("validation", "valid", "dev") if name in splits), "")
    fields = {f"{role}_split": name if name in splits else "" for role, name in names.items()}
    if fields["train_split"] and not fields["valid_split"]:
        held_out = min(_HELD_OUT, max(splits["train"] // 10, 1))
        fields |= {"train_split": f"train[:-{held_out}]", "valid_split": f"train[-{held_out}:]"}
    return fields


def text_fields(info: Any) -> tuple[dict[str, str], str]:
    """Return values for the config fields that name the texts to read, and the choice left to the user ("" if none)."""
    texts = [name for name, kind in features_of(info).items() if kind == "Text"]
    if len(texts) == 1:
        return {}, f"another dataset: this one has one text feature, {texts[0]}; translation needs two"
    pair = [name for name in info.supervised_keys or () if name in texts]
    if len(pair) == 2:
        return {"source_locale": pair[0], "target_locale": pair[1]}, ""
    return {}, (
        "--config.data.input_feature and --config.data.target_feature, two of its text features: "
        f"{', '.join(texts) or 'it has none'}"
    )
