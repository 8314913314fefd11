"""The monitor: values of layers at some updates, which change no update."""

import functools
import math
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from run_support import assert_same_run, final_state, metric_lines, run_main, train, trained_folder, write_corpus
from support import as_batch, assert_close
from training_support import SMALL, SMALL_RECURRENT, compiled_step, read_by, small_config, start, uneven_batch

from transformer_jax.config import ExperimentConfig, layer_numbers
from transformer_jax.errors import ConfigError
from transformer_jax.training.hyper import split
from transformer_jax.training.monitor import parted
from transformer_jax.training.state import state_shapes
from transformer_jax.training.step import make_train_step, monitored
from transformer_jax.training.stepper import StackedStepper, over_trials

EVERY = "--config.training.monitor_every_steps=3"


@pytest.fixture(scope="module")
def monitored_run(tmp_path_factory):
    """Return the folder of a run of 8 updates, of which the third and the sixth are monitored."""
    folder = write_corpus(tmp_path_factory.mktemp("monitored"))
    assert train(folder, EVERY) == 0
    return folder


def test_a_run_logs_the_values_of_its_monitored_updates(monitored_run):
    lines = metric_lines(monitored_run / "run")
    monitored = [line for line in lines if line["split"] == "monitor"]
    assert [line["step"] for line in monitored] == [3, 6]
    assert all(line["stream_rms_decoder_0"] > 0.1 for line in monitored)
    assert monitored[0].keys() == monitored[1].keys()
    others = [line for line in lines if line["split"] != "monitor"]
    expected = metric_lines(trained_folder() / "run")
    assert [line.keys() for line in others] == [line.keys() for line in expected]
    for line, of in zip(others, expected, strict=True):
        numbers = [name for name, value in of.items() if isinstance(value, float)]
        assert_close([line[name] for name in numbers], [of[name] for name in numbers], 1e-5)


def test_trackers_get_the_values(monitored_run):
    [events] = (monitored_run / "run" / "tensorboard").iterdir()
    assert events.read_bytes().count(b"monitor/stream_rms_decoder_0") == 2


def test_the_parameters_are_those_of_a_run_without_a_monitor(monitored_run):
    """Up to rounding; but for vectors, of which some have gradients of rounding alone: Adam moves them a whole step."""
    ours, theirs = (dict(final_state(folder)) for folder in (monitored_run, trained_folder()))
    kernels = [path for path in ours if path.startswith(".params") and "kernel" in path]
    assert len(kernels) > 10
    for path in kernels:
        actual, expected = (np.frombuffer(of[path], np.float32) for of in (ours, theirs))
        np.testing.assert_allclose(actual, expected, atol=1e-4, err_msg=path)


def test_a_resumed_run_is_the_same(monitored_run, tmp_path):
    """From step 5, between two monitored updates."""
    folder = shutil.copytree(monitored_run, tmp_path / "copy")
    shutil.rmtree(folder / "run" / "checkpoints" / "8")
    assert run_main(["train", f"--workdir={folder / 'run'}"]) == 0
    assert_same_run(folder, monitored_run)


@pytest.mark.parametrize(
    ("every", "message"),
    [
        (9, "training.monitor_every_steps=9 is more than num_train_steps=8: no update would be monitored"),
        (-1, "training.monitor_every_steps=-1: expected at least 0"),
    ],
)
def test_bad_intervals(every, message):
    with pytest.raises(ConfigError, match=message):
        ExperimentConfig.from_config_dict({"training": {"num_train_steps": 8, "monitor_every_steps": every}})


class Recorder(reference.Model):
    """The reference model, which keeps the numbers from which the monitor's values are computed."""

    def __init__(self, config, params):
        super().__init__(config, params, self.dropped)
        self.streams, self.outputs, self.hidden = {}, {}, {}
        self.attentions, self.chosen, self.embedded = {}, {}, {}

    def dropped(self, x, place):
        if place == "embedding":
            self.embedded[self.name] = x
        if place == "activation":
            self.hidden.setdefault(self.place, []).append(x)
        return x

    def stack(self, name, *args):
        self.name, self.index, self.part = name, 0, -1
        self.parts = 3 if len(args) > 3 and args[3] is not None else 2
        return super().stack(name, *args)

    def residual(self, p, x, f):
        self.part += 1
        self.place = self.name, self.part // self.parts

        def recorded(y):
            output, extra = f(y)
            self.outputs.setdefault(self.place, []).append(output)
            return output, extra

        x, extra = super().residual(p, x, recorded)
        self.streams[self.place] = x
        return x, extra

    def attention(self, query, key, value, mask, bias, scale, drop, cap=None, sinks=None):
        output, weights = ATTENTION(query, key, value, mask, bias, scale, drop, cap, sinks)
        keys = np.repeat(key, query.shape[2] // key.shape[2], axis=2)
        logits = scale * np.einsum("btnh,bsnh->bnts", query, keys) + (0.0 if bias is None else bias)
        mask = np.broadcast_to(True if mask is None else mask, (len(query), 1, *logits.shape[2:]))[:, 0]
        self.attentions.setdefault(self.place, []).append((logits, mask, weights))
        return output, weights

    def experts(self, p, x):
        logits = x @ p["router"]["kernel"]
        self.chosen[self.place] = np.argsort(-logits)[..., : self.config.experts_per_token]
        return super().experts(p, x)


ATTENTION = reference.attention


def values_of(config, params, batch, monkeypatch):
    """Return the monitor's values of a model by name, but for the size of the update, computed with NumPy."""
    model = Recorder(config, params)
    monkeypatch.setattr(reference, "attention", model.attention)
    model(batch)
    is_token = {"decoder": np.asarray(batch["weights"]) > 0}
    if "inputs" in batch:
        is_token["encoder"] = np.asarray(batch["inputs_mask"])

    def rms(x, stack):
        return math.sqrt((x[is_token[stack]] ** 2).mean())

    values = {f"embedded_rms_{stack}": rms(x, stack) for stack, x in model.embedded.items()}
    for (stack, index), outputs in model.outputs.items():
        at, real = f"{stack}_{index}", is_token[stack]
        own = reference.layer_config(config, index, getattr(config, f"num_{stack}_layers"))
        mixer = {"attention": "self_attention"}.get(own.mixer, own.mixer)
        feed_forward = {"dense": "feed_forward"}.get(own.feed_forward, own.feed_forward)
        names = [mixer, *(["cross_attention"] if len(outputs) == 3 else []), feed_forward]
        values[f"stream_rms_{at}"] = rms(model.streams[stack, index], stack)
        values |= {f"{name}_rms_{at}": rms(y, stack) for name, y in zip(names, outputs, strict=True)}
        attended = [name for name in names if name.endswith("attention")]
        for name, (logits, mask, weights) in zip(attended, model.attentions.get((stack, index), []), strict=True):
            found = [
                (logits[b, n, t, mask[b, t]], weights[b, n, t, mask[b, t]], t)
                for b, n, t in np.ndindex(logits.shape[:3])
                if real[b, t] and mask[b, t].any()
            ]
            window = own.attention_window if name == "self_attention" else None
            values[f"{name}_largest_logit_{at}"] = max(of.max() for of, _, _ in found)
            values[f"{name}_entropy_{at}"] = np.mean([-(of * np.log(of)).sum() for _, of, _ in found])
            values[f"{name}_first_weight_{at}"] = np.mean(
                [of[0] if window is None or t < window else 0.0 for _, of, t in found]
            )
        hidden = np.stack(model.hidden[stack, index])
        if feed_forward == "experts":
            chosen = model.chosen[stack, index]
            values[f"experts_nonzero_{at}"] = (hidden.reshape(*chosen.shape, -1)[real] != 0).mean()
            counts = np.bincount(chosen[real].ravel(), minlength=config.num_experts)
            values |= {f"experts_load_{at}_{e}": share for e, share in enumerate(counts / counts.sum())}
        else:
            values[f"feed_forward_nonzero_{at}"] = (hidden[0][real] != 0).mean()
    return values


def ratios_of(config, before, after):
    """Return the sizes of the update, relative to those of the parameters, by name."""
    groups: dict[str, list[Any]] = {}
    numbers = layer_numbers(config)
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        keys = [key.key for key in path]
        old, new = np.asarray(old, np.float64), np.asarray(new, np.float64)
        for row, layer in enumerate(numbers.get("/".join(keys[:2]), ())):
            groups.setdefault(f"update_ratio_{keys[0]}_{layer}", []).append((old[row], new[row]))
        if "/".join(keys[:2]) not in numbers:
            name = "_".join(keys[:2] if keys[0] in ("encoder", "decoder") else keys[:1])
            groups.setdefault(f"update_ratio_{name}", []).append((old, new))
    return {
        name: math.sqrt(sum(((new - old) ** 2).sum() for old, new in pairs) / sum((old**2).sum() for old, _ in pairs))
        for name, pairs in groups.items()
    }


WITHOUT_DROPOUT = {name: 0.0 for name in SMALL if name.endswith("dropout_rate")}


def stepped(static, hyper, batch):
    """Return the state before a monitored step, and the values of the monitor; parameters are those of no training."""
    state = start(static, hyper)
    random = np.random.default_rng(0)
    shaken = jax.tree.map(lambda x: x + jnp.asarray(random.normal(size=x.shape), jnp.float32) / 10, state.params)
    state = state._replace(params=shaken)
    new, metrics = compiled_step(monitored(static))(state, batch, hyper)
    return state, new, parted(metrics).monitored


def assert_values(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=tolerance, abs=1e-6), name


def test_values_equal_numpy(monkeypatch):
    """Encoder and decoder with padding and a row without tokens; the parameters after the step are those without."""
    fields = {"model.num_encoder_layers": 2, "model.num_kv_heads": 1, "model.position_encoding": "relative"}
    static, hyper = split(small_config({**WITHOUT_DROPOUT, **fields, "model.norm_position": "pre"}))
    state, new, found = stepped(static, hyper, uneven_batch())
    expected = values_of(static.model, state.params, uneven_batch(), monkeypatch)
    assert len(expected) == 2 + 3 * 3 + 1 + 4 * 3 + 3
    assert_values(found, expected | ratios_of(static.model, state.params, new.params))


KINDS = {
    "model.architecture": "decoder_only",
    "task.name": "language_model",
    "model.num_encoder_layers": 6,  # not read; the default
    "model.num_decoder_layers": 5,
    "model.layer_pattern": "SGELS",
    "model.layer_kinds": "S: attention_window=2; G: mixer=gated_delta; E: feed_forward=experts; L:",
    "model.num_experts": 3,
    "model.experts_per_token": 2,
    "model.position_encoding": "rotary",
    "model.qk_norm": "rms",
    "training.balance_loss": 0.01,
}
"""Layers with a window, without attention and with experts."""


@functools.cache
def stepped_kinds(**fields):
    """Return the model config and what `stepped` returns, of the model of KINDS with other fields."""
    static, hyper = split(small_config({**WITHOUT_DROPOUT, **KINDS, **fields}))
    return static.model, *stepped(static, hyper, read_by("decoder_only", uneven_batch()))


def test_values_of_layers_that_differ_equal_numpy(monkeypatch):
    config, state, new, found = stepped_kinds()
    expected = values_of(config, state.params, read_by("decoder_only", uneven_batch()), monkeypatch)
    assert {name for name in expected if name.endswith("_1")} == {
        *("gated_delta_rms_decoder_1", "feed_forward_rms_decoder_1", "feed_forward_nonzero_decoder_1"),
        *("stream_rms_decoder_1", "experts_load_decoder_2_1"),
    }
    assert_values(found, expected | ratios_of(config, state.params, new.params))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"model.scan_layers": True, "model.remat": "full"},
        {"training.accumulation_steps": 4},
        {"model.attention_implementation": "xla"},
    ],
    ids=["scanned", "accumulated", "xla"],
)
def test_values_do_not_depend_on_how_they_are_computed(fields):
    """Scanned layers that are computed twice, a batch in parts, of which one has no token, and a library's kernel."""
    assert_values(stepped_kinds(**fields)[-1], stepped_kinds()[-1], 1e-4)


@pytest.mark.slow
def test_packed_texts_have_the_values_of_the_texts_alone():
    """But for the updates: the loss of a packed batch is the same, and so are these, up to Adam's signs of rounding."""
    static, hyper = split(small_config(WITHOUT_DROPOUT))
    alone = uneven_batch((5, 1, 4, 2), seed=2)
    packed = {}
    for name, tokens in (("inputs", 6), ("targets", 5)):
        mask = alone["inputs_mask" if name == "inputs" else "weights"] > 0
        rows = [[(i, t, x) for i in pair for t, x in enumerate(alone[name][i][mask[i]])] for pair in ((0, 1), (2, 3))]
        arrays = np.zeros((3, 2, 2 * tokens), np.int32)  # ids, segments, positions
        for row, texts in enumerate(rows):
            for at, (text, position, token) in enumerate(texts):
                arrays[:, row, at] = token, text % 2 + 1, position
        packed |= {name: arrays[0], f"{name}_segment_ids": arrays[1], f"{name}_positions": arrays[2]}
    packed = {name: np.asarray(array) for name, array in as_batch(**packed).items()}
    packed["row_ids"] = alone["row_ids"][:2]
    found, expected = (stepped(static, hyper, batch)[-1] for batch in (packed, alone))
    assert_values(found, expected, 1e-4)


@pytest.mark.slow
def test_trials_of_one_program_have_their_own_values():
    """Two trials with other parameters and other rates, against each alone."""
    config, state, _, expected = stepped_kinds()
    static, hyper = split(small_config({**WITHOUT_DROPOUT, **KINDS}))
    assert static.model == config
    other = state._replace(params=jax.tree.map(lambda x: 2 * x, state.params))
    hypers = [hyper, hyper._replace(learning_rate=0.1)]
    batch = read_by("decoder_only", uneven_batch())
    of_other = parted(compiled_step(monitored(static))(other, batch, hypers[1]).metrics).monitored
    steps = [over_trials(make_train_step(of), "vmap") for of in (static, monitored(static))]
    trials = StackedStepper(steps[0], [state, other], hypers, steps[1])
    metrics = jax.device_get(trials.step([batch, batch], monitored=True))
    for number, values in enumerate((expected, of_other)):
        assert_values(parted(trials.metrics_of(metrics, number)).monitored, values, 1e-4)


def test_a_recurrent_model_has_ratios_of_updates_alone():
    static, hyper = split(small_config(SMALL_RECURRENT))
    step = make_train_step(monitored(static))
    metrics = jax.eval_shape(step, state_shapes(static, hyper), uneven_batch(), hyper).metrics
    names = set(parted(metrics).monitored)
    assert {"update_ratio_embedding", "update_ratio_encoder_forwards_0", "update_ratio_decoder_layers_1"} <= names
    assert all(name.startswith("update_ratio_") for name in names)


def test_a_step_without_monitor_has_none_of_its_values():
    static, hyper = split(small_config())
    metrics = jax.eval_shape(make_train_step(static), state_shapes(static, hyper), uneven_batch(), hyper).metrics
    assert parted(metrics) == (metrics, {})
