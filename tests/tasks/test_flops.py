"""Operations of whole trainings, and steps of equal operations."""

import dataclasses

import jax
import pytest
from corruption_support import config_of as corrupted
from corruption_support import corpus
from flops_support import products
from labelled_support import config as labelled
from labelled_support import data_of
from support import slow_but

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES, Model
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.flops import fixed_shape, step_flops, steps_for_flops, training_flops
from transformer_jax.tasks.task import TASKS, param_shapes
from transformer_jax.tasks.trained.loss_sums import split_for_evaluation

WINDOWS = {"batching": "windows", "max_length": 64}
DECODER = {"architecture": "decoder_only", "num_encoder_layers": 6, "num_decoder_layers": 1, "decoder_start_id": 1}


def language_model(folder):
    """Return the config of a language model on the corpus of the tasks that corrupt texts."""
    config = corrupted(folder, "masked_lm", WINDOWS)
    model = dataclasses.replace(config.model, **DECODER).resolved()
    return dataclasses.replace(config, model=model, task=dataclasses.replace(config.task, name="language_model"))


CORRUPTED = {
    "masked_lm": lambda folder: corrupted(folder, "masked_lm", WINDOWS),
    "masked_lm, half": lambda folder: corrupted(folder, "masked_lm", WINDOWS, {"mask_rate": 0.5}),
    "span_corruption": lambda folder: corrupted(folder, "span_corruption", WINDOWS),
    "denoising": lambda folder: corrupted(folder, "denoising", WINDOWS),
    "language_model": language_model,
}
LABELLED = {
    "first token": ("classification", {"pooler": True}, {}),
    "last token": ("classification", {"pooling": "last"}, {"architecture": "decoder_only"}),
    "tags": ("tagging", {}, {}),
    "answers": ("span_qa", {}, {}),
}


def products_of_loss(config, batch):
    """Return the operations of the matrix products of a forward pass of the loss."""
    static, hyper = split_for_evaluation(config)
    task = TASKS[config.task.name]
    module = ARCHITECTURES[config.model.architecture].module(config.model, task.head(config.task, config.model))

    def loss(params, batch):
        return task.loss(static.task, Model(module, params), batch, None, hyper)

    return products(jax.make_jaxpr(loss)(param_shapes(config), batch).jaxpr)


def first_batch(config, split):
    plan = training_batches(config, split)
    shape = plan.shape(0)
    return plan, shape, plan.batch(0, slice(0, shape.rows))


@pytest.mark.parametrize("name", slow_but("masked_lm", CORRUPTED))
def test_a_step_has_three_times_the_products_of_its_loss(tmp_path, name):
    config = CORRUPTED[name](tmp_path)
    plan, shape, batch = first_batch(config, corpus(config, tmp_path).splits["train"])
    flops = step_flops(config, shape.rows, dict(shape.widths))
    assert flops == 3 * products_of_loss(config, batch)
    fixed = fixed_shape(config)
    assert (fixed.rows, {**dict(fixed.widths), **dict(shape.widths)}) == (shape.rows, dict(fixed.widths))
    assert training_flops(config) == training_flops(config, plan) == config.training.num_train_steps * flops
    assert steps_for_flops(config, 7.4 * flops) == steps_for_flops(config, 7.4 * flops, plan) == 7
    assert steps_for_flops(config, 1.0) == 1


@pytest.mark.parametrize("name", slow_but("last token", LABELLED))
def test_a_step_with_labels_has_three_times_the_products_of_its_loss(tmp_path, name):
    task, fields, model = LABELLED[name]
    config = labelled(task, None, model, **fields)
    plan, shape, batch = first_batch(config, data_of(config, tmp_path).splits["train"])
    assert step_flops(config, shape.rows, dict(shape.widths)) == 3 * products_of_loss(config, batch)
    per_step = [step_flops(config, plan.shape(n).rows, dict(plan.shape(n).widths)) for n in range(5)]
    training = dataclasses.replace(config.training, num_train_steps=5)
    assert training_flops(dataclasses.replace(config, training=training), plan) == sum(per_step)
    epoch = sum(per_step[n] for n in range(plan.batches_per_epoch))
    assert steps_for_flops(config, 3 * epoch, plan) == 3 * plan.batches_per_epoch


def test_operations_that_depend_on_the_corpus_need_its_batches():
    message = r"data\.batching='buckets' of task\.name='translation': .*data\.batching=windows"
    with pytest.raises(ConfigError, match=message):
        training_flops(ExperimentConfig().resolved())
