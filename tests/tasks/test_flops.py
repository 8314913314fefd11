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
from transformer_jax.config_file import read_config
from transformer_jax.data.batching import BatchShape
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES, Model
from transformer_jax.nn.masks import causal_mask
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.flops import (
    fixed_shape,
    step_flops,
    step_operations,
    steps_for_operations,
    training_flops,
    training_operations,
)
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
    operations = step_operations(config, shape.rows, dict(shape.widths))
    assert flops == 3 * products_of_loss(config, batch)
    fixed = fixed_shape(config)
    assert (fixed.rows, {**dict(fixed.widths), **dict(shape.widths)}) == (shape.rows, dict(fixed.widths))
    assert training_flops(config) == training_flops(config, plan) == config.training.num_train_steps * flops
    assert steps_for_operations(config, 7.4 * operations) == 7 == steps_for_operations(config, 7.4 * operations, plan)
    assert steps_for_operations(config, 1.0) == 1


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
    assert steps_for_operations(config, 3 * epoch, plan) == 3 * plan.batches_per_epoch


@pytest.mark.parametrize(
    ("name", "stack"), [("quickstart", "num_decoder_layers"), ("language_model", "num_decoder_layers"), ("trec", "")]
)
def test_keys_that_a_causal_mask_hides_do_not_count(name, stack):
    config, widths = read_config(name), {"inputs": 24, "targets": 17}
    model, hidden = config.model, (~causal_mask(17).allowed).sum()
    pair = 2 * model.num_heads * (model.head_dim + model.value_head_dim)  # of a query and a key, forwards
    left_out = 3 * 5 * int(hidden) * pair * (getattr(model, stack) if stack else 0)
    assert step_flops(config, 5, widths) - step_operations(config, 5, widths) == left_out


class Buckets:
    """A plan of three shapes: epochs of seven batches, in another order in every epoch."""

    batches_per_epoch = 7

    def shape(self, step):
        width = (8, 16, 16, 24, 8, 24, 16)[(3 * step + step // 7) % 7]
        return BatchShape(96 // width, (("targets", width),))


@pytest.mark.parametrize("budget", [1, 0.4, 2.6, 7, 23.49, 40, 41.6])
def test_steps_of_equal_operations_add_the_planned_shapes(budget):
    config, plan = read_config("language_model"), Buckets()
    costs = [step_operations(config, plan.shape(n).rows, dict(plan.shape(n).widths)) for n in range(60)]
    assert len(set(costs)) == 3
    wanted = budget * sum(costs[:7]) / 7
    totals = [sum(costs[:steps]) for steps in range(1, 60)]
    steps = steps_for_operations(config, wanted, plan)
    assert abs(totals[steps - 1] - wanted) == min(abs(total - wanted) for total in totals)
    training = dataclasses.replace(config.training, num_train_steps=steps)
    assert training_operations(dataclasses.replace(config, training=training), plan) == totals[steps - 1]


def test_operations_that_depend_on_the_corpus_need_its_batches():
    message = r"data\.batching='buckets' of task\.name='translation': .*data\.batching=windows"
    with pytest.raises(ConfigError, match=message):
        training_flops(ExperimentConfig().resolved())
