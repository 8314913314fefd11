"""The task `images`: augmentation, batches, loss and scores; whole runs through the command line."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_support import prepared
from image_support import config, npz_config, pictures, write_config, write_npz
from kinds_support import trained_kind
from PIL import Image
from run_support import argv, run_main, run_main_on_devices

from transformer_jax.cli.resumable import ResumableFile
from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.batching import BatchShape, Rows
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.evaluation.significance import compare_statistics
from transformer_jax.models.architecture import ARCHITECTURES, Model, init_params
from transformer_jax.tasks.batches import augmentation
from transformer_jax.tasks.batches.of_split import evaluation_batches, training_batches
from transformer_jax.tasks.batches.rand_augment import OPERATIONS, rand_augment
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.loss_sums import LossHyper

IMAGES = TASKS["images"]
EVERYTHING = {"crop_padding": 2, "flip": True, "rand_augment": 2, "mixup": 0.4}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_npz(tmp_path_factory.mktemp("images"))


def data_of(settings, tmp_path):
    return prepared(settings, tmp_path / "run")


def params_of(settings, seed=1):
    return init_params(settings.model, seed, IMAGES.head(settings.task, settings.model))


# Augmentation.


def test_a_crop_moves_the_image_by_up_to_the_padding():
    image = np.arange(1, 17, dtype=np.uint8).reshape(1, 4, 4, 1)
    middle = np.float64([[0.5, 0.5]])
    np.testing.assert_array_equal(augmentation.randomly_cropped(image, 1, middle), image)
    corner = augmentation.randomly_cropped(image, 1, np.float64([[0.0, 0.99]]))[0, ..., 0]
    assert corner.tolist() == [[0, 0, 0, 0], [2, 3, 4, 0], [6, 7, 8, 0], [10, 11, 12, 0]]
    draws = np.random.default_rng(0).random((3000, 2))
    moved = augmentation.randomly_cropped(np.repeat(image, 3000, 0), 1, draws)
    _, counts = np.unique(moved.reshape(3000, -1), axis=0, return_counts=True)
    assert len(counts) == 9
    assert counts.min() > 3000 / 9 * 0.8


def test_a_flip_exchanges_left_and_right():
    images = np.arange(12, dtype=np.uint8).reshape(2, 2, 3, 1)
    flipped = augmentation.flipped(images, np.array([True, False]))
    assert flipped[0, ..., 0].tolist() == [[2, 1, 0], [5, 4, 3]]
    np.testing.assert_array_equal(flipped[1], images[1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name, channels):
    """Each keeps shape and type; all but three do nothing at magnitude 0, and all but one something at 10."""
    pixels = pictures(3, channels=channels, size=40)[0][2] // 2 + 30
    chosen = np.array([[([*OPERATIONS].index(name) + 0.5) / len(OPERATIONS), 0.7]])
    none, full = (rand_augment(pixels, magnitude, chosen) for magnitude in (0.0, 10.0))
    assert full.shape == pixels.shape
    assert full.dtype == np.uint8
    if name not in ("autocontrast", "equalize"):
        np.testing.assert_array_equal(none, pixels)
    unchanged = name == "identity" or (name == "colour" and channels == 1)
    assert np.array_equal(full, pixels) == unchanged


def test_operations_of_a_sign_go_both_ways():
    image = np.zeros((9, 9, 1), np.uint8)
    image[4, 4] = 255
    place = ([*OPERATIONS].index("translate_x") + 0.5) / len(OPERATIONS)
    columns = [rand_augment(image, 5.0, np.array([[place, sign]])).sum((0, 2)).argmax() for sign in (0.1, 0.9)]
    assert sorted(columns) == [2, 6]  # 0.5 * 150 / 331 * 9 = 2.04


def test_shares_of_mixup_have_their_distribution():
    keys = augmentation.keys_of_rows(0, 0, np.arange(20_000))
    uniform, extreme = (augmentation.mixing(alpha, 50, keys) for alpha in (1.0, 0.2))
    assert abs(uniform.shares.mean() - 0.5) < 0.01
    assert abs(uniform.shares.var() - 1 / 12) < 0.003
    assert abs(extreme.shares.var() - 0.25 / 1.4) < 0.005  # a variance of 1 / (4 (2 a + 1))
    counts = np.bincount(uniform.partners, minlength=50)
    assert len(counts) == 50
    assert counts.min() > 300
    images = np.array([0, 255], np.uint8).reshape(2, 1, 1, 1)
    mixed = augmentation.mixed(images, images[::-1], np.float32([0.25, 0.9]))
    assert mixed.ravel().tolist() == [191, 230]


@pytest.mark.parametrize("fields", [EVERYTHING, {}])
def test_a_row_is_the_same_in_any_part_of_a_batch(corpus, tmp_path, fields):
    """So that any number of processes and devices, and a resumed run, see the same images."""
    settings = npz_config(corpus, **fields)
    plan = training_batches(settings, data_of(settings, tmp_path).splits["train"])
    whole = plan.batch(5)
    for rows in (slice(0, 3), slice(5, 8)):
        for name, part in plan.batch(5, rows).items():
            np.testing.assert_array_equal(part, whole[name][rows])
    changed = dataclasses.replace(settings, seed=7)
    other = training_batches(changed, data_of(changed, tmp_path).splits["train"])
    assert plan.shapes == other.shapes
    assert not np.array_equal(other.batch(5)["inputs"], whole["inputs"])


def test_the_same_image_is_augmented_anew_at_every_step_and_row(corpus, tmp_path):
    settings = npz_config(corpus, crop_padding=3, flip=True)
    split = data_of(settings, tmp_path).splits["train"]
    rows = Rows(np.array([4, 4, -1]), np.ones(3, np.int32), np.arange(3, dtype=np.int32), packed=False)
    shape = BatchShape(3, (("inputs", 5),))
    one, two, as_stored = (IMAGES.arrays(settings, split, rows, shape, step)["inputs"] for step in (0, 1, None))
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one[0], two[0])
    np.testing.assert_array_equal(as_stored[0], split.values("images", np.array([4]))[0])
    assert not one[2].any()


# Batches.


def test_batches_have_equal_rows_and_every_image_once(corpus, tmp_path):
    settings = npz_config(corpus)
    split = data_of(settings, tmp_path).splits["train"]
    plan = training_batches(settings, split)
    assert (plan.batches_per_epoch, plan.left_out.count, len(plan.shapes)) == (3, 0, 1)
    batches = [plan.batch(step) for step in range(3)]
    images = np.concatenate([batch["inputs"] for batch in batches])
    assert images.shape == (24, 8, 8, 1)
    assert images.dtype == np.uint8
    assert {x.tobytes() for x in images} == {x.tobytes() for x in split.values("images", np.arange(24))}
    for mixup in (0.0, 0.3):
        mixed = dataclasses.replace(settings, task=dataclasses.replace(settings.task, mixup=mixup))
        template, batch = IMAGES.batch_template(mixed, 8, {}), training_batches(mixed, split).batch(0)
        of_template, of_batch = ({n: (x.shape, x.dtype) for n, x in arrays.items()} for arrays in (template, batch))
        assert of_template == of_batch
    examples = np.concatenate([examples for _, examples in evaluation_batches(settings, split)])
    assert sorted(examples[examples >= 0]) == [*range(24)]


# The loss.


def test_the_loss_of_a_mixture(corpus):
    """share * cross-entropy of the label + (1 - share) * that of the other one; 1 is the loss without a mixture."""
    settings = npz_config(corpus, mixup=0.3)
    model = Model(_module(settings), params_of(settings))
    images, labels = pictures(4)
    shares = np.float32([1.0, 0.25, 0.5, 0.0])
    plain = {"inputs": jnp.asarray(images), "targets": jnp.asarray(labels, jnp.int32), "weights": jnp.ones(4)}
    mixture = {"other_targets": jnp.full(4, 2, jnp.int32), "shares": jnp.asarray(shares)}
    hyper = LossHyper({}, {})
    loss = jax.jit(lambda batch: IMAGES.loss(settings.task, model, batch, None, hyper))
    sums = loss(plain | mixture)
    logits = np.asarray(jax.jit(lambda batch: model.outputs(model.features(batch), batch))(plain), np.float64)
    nll = np.log(np.exp(logits).sum(-1))[:, None] - logits
    expected = (shares * nll[np.arange(4), labels] + (1 - shares) * nll[:, 2]).sum()
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(sums["weight"]) == 4
    own, without = loss(plain | mixture | {"shares": jnp.ones(4)}), loss(plain)
    assert {n: float(x) for n, x in own.items()} == pytest.approx({n: float(x) for n, x in without.items()}, rel=1e-6)


def _module(settings):
    return ARCHITECTURES["encoder_only"].module(settings.model, IMAGES.head(settings.task, settings.model))


# Scores.


def test_scores(corpus, tmp_path):
    settings = npz_config(corpus)
    evaluator = Evaluator(settings, data_of(settings, tmp_path))
    params = params_of(settings)
    scores = evaluator.score(params, "test")
    labels = [str(label) for label in pictures(9, 1)[1]]
    assert scores.outputs is not None
    right = [a == b for a, b in zip(labels, scores.outputs, strict=True)]
    assert scores.metrics["accuracy"] == pytest.approx(100 * np.mean(right))
    assert scores.metrics["examples"] == 9
    assert "top_5" not in scores.metrics  # of three labels
    counted = {
        (true, said): number for true, row in scores.metrics["confusion"].items() for said, number in row.items()
    }
    assert counted == {pair: 1 * list(zip(labels, scores.outputs, strict=True)).count(pair)
                       for pair in zip(labels, scores.outputs, strict=True)}  # fmt: skip
    assert scores.metrics["by_label"]["0"]["examples"] == 3
    assert [spec.name for spec in IMAGES.measured(settings)] == ["loss", "accuracy", "examples"]
    sums = evaluator.sums(params, "test")
    assert scores.metrics["loss"] == pytest.approx(sums["loss"] / sums["weight"], rel=1e-5)
    statistics = IMAGES.statistics(evaluator, params, "test")
    assert IMAGES.from_sums({n: x.sum() for n, x in statistics.items()})["accuracy"] == pytest.approx(
        scores.metrics["accuracy"]
    )
    assert evaluator.data.text("test").features["targets"] == IMAGES.references(settings, evaluator.data, "test")
    compared = compare_statistics(IMAGES, [statistics, statistics], 20, 1)
    assert compared.scores["accuracy"][1].always_equal


def test_top_5_counts_labels_before_the_right_one(tmp_path, monkeypatch):
    images, _ = pictures(6)
    path = write_npz(tmp_path, test_x=images, test_y=np.arange(6), train_y=np.arange(36) % 6)
    settings = npz_config(path, num_labels=6)
    evaluator = Evaluator(settings, data_of(settings, tmp_path))
    logits = np.tile(np.arange(6.0), (6, 1))  # the label 0 is the last of six for every image
    monkeypatch.setattr("transformer_jax.tasks.trained.head_outputs.outputs_of_split", lambda *_: list(logits))
    metrics = evaluator.score({}, "test").metrics
    assert metrics["top_5"] == pytest.approx(500 / 6)
    assert metrics["accuracy"] == pytest.approx(100 / 6)


def test_the_predictor(corpus, tmp_path):
    settings = npz_config(corpus)
    predictor = IMAGES.predictor(settings, params_of(settings), data_of(settings, tmp_path).tokenizer, ["a", "b", "c"])
    images, _ = pictures(3)
    Image.fromarray(images[0, ..., 0]).convert("RGB").save(tmp_path / "colours.png")
    of_array, of_file = predictor.predict([images[0], tmp_path / "colours.png"])
    assert of_array == of_file
    assert sum(of_array.probabilities.values()) == pytest.approx(1)
    assert repr(predictor).startswith(f"ImageClassifier: encoder_only of {settings.model.num_encoder_layers} layer")
    assert "images: 8 x 8 pixels in 1 channels" in repr(predictor)
    for example, problem in (
        (images[0].astype(np.float32), "an array of float32 [8, 8, 1]; expected uint8"),
        (images[0, :7], "the array: 8 x 7 pixels in 1 channel, but model.image_size=8"),
        (tmp_path / "none.png", "none.png: cannot be read: No such file"),
    ):
        with pytest.raises(DataError, match="example 1: ") as raised:
            predictor.predict([example])
        assert problem in str(raised.value)


# Configs that cannot be.


@pytest.mark.parametrize(
    ("model", "task", "data", "problem"),
    [
        ({}, {"name": "classification"}, {"batching": "buckets"}, "model.inputs='patches' cannot be trained with task"),
        ({}, {}, {"source": "embedded"}, "data.source='embedded' has text, but model.inputs='patches' reads images"),
        ({"patch_size": 3}, {}, {}, "model.patch_size=3 does not divide image_size=8; choose a divisor"),
        ({"class_token": False}, {}, {}, "task.pooling='first' with model.class_token=False"),
        ({"image_channels": 4}, {"rand_augment": 1}, {}, "task.rand_augment=1 needs grey images or colours"),
        ({"pixel_mean": "1,2"}, {}, {}, "model.pixel_mean='1,2': expected one number, or model.image_channels=1"),
        ({"pixel_std": "0"}, {}, {}, "model.pixel_std='0': expected positive numbers"),
        ({"vocab_size": 9}, {}, {}, "model.vocab_size=9 has no effect with inputs='patches', only with 'tokens'"),
        ({"max_length": 9}, {}, {}, "model.max_length=9 has no effect with inputs='patches', only with 'tokens'"),
        ({}, {}, {"tokenizer": "bpe"}, "data.tokenizer='bpe' has no effect with model.inputs='patches', only with"),
        ({}, {"chunks": True}, {}, "task.chunks=True has no effect with name='images', only with 'tagging'"),
        ({}, {}, {"rows_per_batch": 10}, "data.row_multiple=4 does not divide data.rows_per_batch=10"),
        (
            {"norm": "batchnorm"},
            {},
            {"rows_per_batch": 1, "row_multiple": 1},
            "data.rows_per_batch=1 with model.norm='batchnorm' allows batches of one row",
        ),
        ({}, {}, {"batching": "buckets"}, "data.batching='buckets': task.name='images' can only use rows"),
        ({"architecture": "decoder_only"}, {}, {}, "model.inputs='patches' has no effect with architecture="),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be(model, task, data, problem):
    with pytest.raises(ConfigError) as raised:
        config({"source": "shapes"} | data, model, **task)
    assert problem in str(raised.value)


def test_images_for_a_model_of_text_and_the_other_way_round():
    with pytest.raises(ConfigError, match=r"^config: data\.source='npz' has images, but model\.inputs='tokens' reads"):
        ExperimentConfig(data=DataConfig(source="npz", dir="x")).resolved()
    model, data = ModelConfig(architecture="encoder_only"), DataConfig(source="tfds", batching="rows")
    with pytest.raises(
        ConfigError, match=r"^config: model\.inputs='tokens' cannot be trained with task\.name='images'"
    ):
        ExperimentConfig(model=model, task=TaskConfig(name="images"), data=data).resolved()


def test_an_unknown_label_in_a_test_split(tmp_path):
    settings = npz_config(write_npz(tmp_path, test_y=np.array([0, 1, 2, 3, 0, 1, 2, 0, 1])))
    with pytest.raises(DataError) as raised:
        data_of(settings, tmp_path).splits["test"]
    assert "split 'test', example 4: the label '3' is not in the training split" in str(raised.value)


# Whole runs.


@pytest.fixture(scope="module")
def folder():
    return trained_kind("augmented images")


def test_predictions_of_files(folder, tmp_path, capsys, monkeypatch):
    checkpoint, path = f"--checkpoint={folder / 'run'}", folder / "test" / "light" / "1.png"
    assert run_main(["predict", checkpoint, f"--image={path}", "--probabilities"]) == 0
    label, probability, *others = capsys.readouterr().out.rstrip("\n").split("\t")
    assert f"{label}={probability}" in others
    assert len(others) == 3
    (tmp_path / "list.txt").write_text(f"{path}\nnone.png\n")
    assert run_main(["predict", checkpoint, f"--input={tmp_path / 'list.txt'}"]) == 3
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"{label}\t{probability}", ""]
    assert "line 2: none.png: cannot be read: No such file" in captured.err
    assert run_main(["predict", checkpoint, "--image=x", "--text=y"]) == 2
    assert run_main(["predict", checkpoint, "--text=y"]) == 2
    assert "--text: task.name='images' reads images; use --image" in capsys.readouterr().err
    Image.fromarray(np.zeros((9, 12), np.uint8)).save(tmp_path / "wide.png")
    wide = [checkpoint, f"--image={tmp_path / 'wide.png'}"]
    assert run_main(["predict", *wide]) == 3
    assert "set data.resize=crop or squash" in capsys.readouterr().err
    assert run_main(["predict", *wide, "--data.resize=crop"]) == 0
    to_file = ["predict", *wide, f"--output_file={tmp_path / 'out.txt'}"]

    def interrupt(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(ResumableFile, "finish", interrupt)
        assert run_main([*to_file, "--data.resize=crop"]) == 130
    assert run_main([*to_file, "--data.resize=squash"]) == 2
    assert "another resize" in capsys.readouterr().err
    assert run_main([*to_file, "--data.resize=crop"]) == 0
    assert run_main(["attention", *wide, "--data.resize=squash", f"--output={tmp_path / 'wide'}"]) == 0
    assert run_main(["embeddings", checkpoint]) == 2
    assert "the model has no token embeddings" in capsys.readouterr().err
    assert run_main(["attention", checkpoint, "--text=x"]) == 2


def started_from(folder, workdir, *flags):
    """Return the words of a run that starts from the trained one."""
    words = [word for word in argv("train", folder) if not word.startswith("--workdir")]
    return [*words, f"--workdir={workdir}", f"--config.training.init_from={folder / 'run'}", *flags]


@pytest.mark.slow
def test_init_from_interpolates_positions_for_another_size(folder, tmp_path, capsys):
    flags = ["--config.model.image_size=16", "--config.data.resize=squash", "--config.training.num_train_steps=2"]
    assert run_main(started_from(folder, tmp_path / "run", *flags)) == 0
    message = capsys.readouterr().err
    assert "the learned positions are interpolated for this model.image_size" in message
    assert "tokenizer" not in message


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--config.model.patch_size=2"], "has model.patch_size=4, but the config has model.patch_size=2"),
        (["--config.model.class_token=false", "--config.task.pooling=mean"], "has model.class_token=True, but the"),
        (["--config.model.emb_dim=8"], "does not fit this model"),
    ],
)  # fmt: skip
def test_init_from_another_model(folder, tmp_path, capsys, flags, problem):
    assert run_main(started_from(folder, tmp_path / "run", *flags)) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.slow
def test_launchers_and_meshes_see_the_same_images(tmp_path, corpus):
    """Four devices train as one does."""
    config_flag = write_config(tmp_path, "npz_config", f"{str(corpus)!r}, crop_padding=2, mixup=0.2")
    runs = {"one": ["--config.parallel.num_devices=1"]}
    runs |= {launcher: [f"--config.parallel.launcher={launcher}"] for launcher in ("jit", "shard_map", "pmap")}
    commands = [["train", config_flag, f"--workdir={tmp_path / name}", *flags] for name, flags in runs.items()]
    shown = run_main_on_devices(4, commands)
    assert shown.count("on 4 cpu device(s)") == len(commands)
    losses = {}
    for name in runs:
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [line["loss"] for line in lines]
    for name, values in losses.items():
        assert values == pytest.approx(losses["one"], rel=1e-5), name
