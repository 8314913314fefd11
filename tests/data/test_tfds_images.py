"""Images of TFDS: really prepared datasets, as PNG, read without TensorFlow."""

import pytest
import tfds_support
from image_support import pictures
from PIL import Image

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import load_source
from transformer_jax.errors import DataError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    images, labels = pictures(6, channels=3, size=32)
    for index, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{index}.png")
    rows = [{"image": str(folder / f"{i}.png"), "label": int(label), "id": str(i)} for i, label in enumerate(labels)]
    tfds_support.prepare("cifar10", folder / "data", {"train": rows, "test": rows[:2]})
    return folder / "data"


def load(dataset, **fields):
    splits = {"train_split": "train[:4]", "valid_split": "train[4:]"}
    return load_source(DataConfig(source="tfds_images", dataset="cifar10", dir=str(dataset), **splits | fields))


def test_images_and_labels(dataset):
    source, (images, labels) = load(dataset), pictures(6, channels=3, size=32)
    assert [source.num_examples(name) for name in source.split_names] == [4, 2, 2]
    names = {x.tobytes(): str(label) for x, label in zip(images, labels, strict=True)}  # the download has the names
    seen = {}
    for split in source.split_names:  # TFDS shuffles the examples
        features = source.split(split).features
        seen[split] = [picture.load().tobytes() for picture in features["inputs"]]
        assert features["targets"] == [names[pixels] for pixels in seen[split]]
    assert {*seen["train"], *seen["valid"]} == {*names}
    assert {*seen["test"]} == {x.tobytes() for x in images[:2]}
    assert "cifar10" in str(source.split("test").features["inputs"][1])
    (grey,) = next(iter(load(dataset, colours="grey").chunks("test", 1))).features["inputs"]
    assert grey.load().shape == (32, 32, 1)
    assert load(dataset).fingerprint() == source.fingerprint() != load(dataset, train_split="train[:3]").fingerprint()


def test_a_test_split_without_labels(tmp_path):
    Image.fromarray(pictures(1, channels=3, size=32)[0][0]).save(tmp_path / "0.png")
    row = {"image": str(tmp_path / "0.png"), "label": 0, "id": "0"}
    tfds_support.prepare("cifar10", tmp_path / "data", {"train": [row] * 6, "test": [row | {"label": -1}]})
    with pytest.raises(DataError, match=r"cifar10.*: image 1 of split 'test' has no label \(-1\)"):
        load(tmp_path / "data").split("test")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_feature": "id"}, r"data\.input_feature='id': this feature .* is Text.*, not an image; .*: image"),
        ({"target_feature": "labels"}, r"data\.target_feature='labels': .* does not exist; .*: label"),
        ({"train_split": "training"}, r"data\.train_split='training': no such split"),
        ({"source": "tfds", "input_feature": "image"}, r"not a text; .*; images are read with data\.source=tfds_"),
    ],
)  # fmt: skip
def test_other_features(dataset, fields, message):
    with pytest.raises(DataError, match=message):
        load(dataset, **fields) if "source" not in fields else load_source(
            DataConfig(dataset="cifar10", dir=str(dataset), **fields)
        )
