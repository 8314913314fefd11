"""Show the model of a config or checkpoint: parameters, operations, memory, devices; or a Hugging Face folder.

    transformer-jax inspect --config=wmt14:big
    transformer-jax inspect --checkpoint=runs/first --json
    transformer-jax inspect --checkpoint=runs/first --places
    transformer-jax inspect --folder=FOLDER

Costs are those of a full training batch, with the longest sentences that `data.max_length` allows. Nothing is computed
or allocated. With --compile, the training step is compiled and the compiler's figures for its memory are added.
With --places it shows instead the values of a forward pass that can be read and replaced, with their shapes for one
row.

Of a Hugging Face folder it shows what `convert` would read: the family, the config, what would be ignored and why, and
which parameters a base model has no numbers for. It warns if a transformers wrote it that is later than the one whose
keys we know.
"""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, config_flag, path_flag, switch
from transformer_jax.config import ExperimentConfig, ModelConfig, layer_letters, layer_numbers, without_outside_trackers
from transformer_jax.config_file import read_config
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text
from transformer_jax.trust import reading

OVERRIDES = ("config",)


def define(values: flags.FlagValues) -> None:
    config_flag(values)
    checkpoint_flag(values)
    path_flag(values, "folder", "Hugging Face folder")
    switch(values, "compile", "compile the training step and report its memory")
    switch(values, "places", "list the places of a forward pass that can be read and replaced")
    switch(values, "json", "print JSON instead of tables")


def run(arguments: Arguments) -> int:
    if arguments.flags.folder:
        return _inspect_folder(arguments)
    if arguments.flags.places and arguments.flags.compile:
        raise ConfigError("inspect takes one of --compile and --places")
    config = _config(arguments)

    from transformer_jax.tasks.outside_errors import errors_from_outside

    with errors_from_outside(config):
        report = _places(config) if arguments.flags.places else inspection(config, arguments.flags.compile)
    if arguments.flags.json:
        print(json_text(report, indent=2, ascii=True))
    elif arguments.flags.places:
        _print_places(report)
    else:
        _print_tables(report)
    return exit_codes.OK


def _inspect_folder(arguments: Arguments) -> int:
    values = arguments.flags
    if values.config or values.checkpoint or values.compile or values.places or arguments.overrides:
        raise ConfigError("inspect --folder takes no other flag than --json")

    from transformer_jax.convert.folder import describe_folder

    report = describe_folder(Path(values.folder))
    if values.json:
        print(json_text(report, indent=2, ascii=True))
        return exit_codes.OK
    for name, value in report.items():
        if isinstance(value, dict):
            print(f"{name}:")
            print("\n".join(f"  {key}: {text}" for key, text in value.items()) or "  none")
        elif isinstance(value, list):
            print("\n".join([f"{name}:", *(f"  {text}" for text in value)]))
        else:
            print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    return exit_codes.OK


def _config(arguments: Arguments) -> ExperimentConfig:
    spec, checkpoint = arguments.flags.config, arguments.flags.checkpoint
    if bool(spec) == bool(checkpoint):
        raise ConfigError("inspect takes one of --config=FILE.py and --checkpoint=WORKDIR")
    if spec:
        return read_config(spec, arguments.overrides)
    if arguments.overrides:
        raise ConfigError(
            "--config.FIELD overrides fields of a config file; those of a checkpoint cannot be overridden"
        )

    from transformer_jax.checkpoints.locate import open_checkpoint
    from transformer_jax.checkpoints.manifest import RECORD
    from transformer_jax.tasks.task import higher_is_better

    store, step = open_checkpoint(checkpoint, higher_is_better)
    step = store.steps()[-1] if step is None else step
    record = store.read_record(step)
    if "config" not in record:
        raise CheckpointError(f"{checkpoint}: its record contains no config")
    with reading(store.folder(step) / RECORD):
        return ExperimentConfig.from_config_dict(without_outside_trackers(record["config"]))


def inspection(config: ExperimentConfig, compile_step: bool = False) -> dict[str, Any]:
    """Return everything that `inspect` shows, as JSON values; memory is in bytes, for one device.

    Args:
      config: resolved.
    """
    import jax
    from jax.sharding import AbstractMesh

    from transformer_jax.models.architecture import ARCHITECTURES
    from transformer_jax.parallel.launchers import mesh_sizes
    from transformer_jax.parallel.rules import shardings
    from transformer_jax.tasks.flops import step_flops
    from transformer_jax.tasks.outside_errors import objects_from_outside
    from transformer_jax.tasks.task import TASKS, initial_shapes
    from transformer_jax.training.extras import initial_extra
    from transformer_jax.training.freezing import multiplied
    from transformer_jax.training.hyper import split
    from transformer_jax.training.optimizer_flops import optimizer_rules

    initial, hyper = initial_shapes(config), split(config).hyper
    architecture, params = ARCHITECTURES[config.model.architecture], initial.params
    extra = jax.eval_shape(lambda start: initial_extra(start, hyper), initial)
    leaves = {
        "/".join(str(key.key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    matches = multiplied(config.optimizer, params, layer_numbers(config.model))
    rates = {path: {"lr_multiplier": match.factor} for path, match in matches.items()}
    rules = optimizer_rules(config)
    count = sum(leaf.size for leaf in leaves.values())
    packed = config.data.batching == "packed"
    length = config.data.packed_length if packed else config.data.max_length
    rows = config.data.tokens_per_batch // length // config.data.row_multiple * config.data.row_multiple
    if config.data.batching == "rows":
        rows, length = config.data.rows_per_batch, config.model.num_positions
    sizes = mesh_sizes(config, smallest=True)
    part = max(rows // (sizes["data"] * sizes["fsdp"]) // config.training.accumulation_steps, 1)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))

    def on_one_device(tree: Any) -> int:
        places = shardings(tree, architecture.parameter_axes(config.model), mesh)
        both = zip(jax.tree.leaves(places), jax.tree.leaves(tree), strict=True)
        return sum(math.prod(place.shard_shape(leaf.shape)) for place, leaf in both)

    held = on_one_device(params)
    widths = TASKS[config.task.name].widths(config, length)
    flops = activations = None
    if widths is not None:
        flops = step_flops(config, rows, widths)
        with contextlib.suppress(KeyError):  # the architecture needs the width of a sequence that the task lacks
            activations = architecture.activation_bytes(config.model, part, widths, config.training.loss_chunks)
    memory = {
        "parameters": 4 * held,
        "gradients": 4 * held,
        "moments": _moment_bytes(config, mesh),
        **{name: 4 * on_one_device(tree) for name, tree in extra.items()},
    }
    if activations is None:
        memory["total_without_activations"] = sum(memory.values())
    else:
        memory["activations_estimate"] = activations
        memory["total_estimate"] = sum(memory.values())
    if compile_step:
        memory |= _compiled_memory(config, rows, widths)
    return {
        "parameters": [
            {"path": path, "shape": list(leaf.shape), "count": leaf.size, "rule": rules[path], **rates.get(path, {})}
            for path, leaf in leaves.items()
        ],
        "num_parameters": count,
        "batch": {"rows": rows, "widths": dict(widths or {"length": length})},
        "flops_per_step": flops,
        "flops_per_target_token": None if flops is None else flops // (rows * length),
        "newton_schulz": _newton_schulz(config, flops),
        "memory": memory,
        "mesh": sizes,
        "layers": _layer_kinds(config.model),
        "attention": _attention(config),
        "recurrent": _recurrent(config),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "from_outside": objects_from_outside(config),
        "config": config.to_dict(),
    }


def _places(config: ExperimentConfig) -> dict[str, list[int]]:
    """Return the shape of every place by name, for one row of the longest batch."""
    from transformer_jax.inspection.places import places
    from transformer_jax.tasks.task import TASKS

    task = TASKS[config.task.name]
    length = config.model.num_positions if config.data.batching == "rows" else config.data.max_length
    widths = task.widths(config, length)
    batch = None if widths is None else task.batch_template(config, 1, widths)
    found = places(config.model, batch, task.head(config.task, config.model))
    return {name: list(shape) for name, shape in found.items()}


def _print_places(shapes: Mapping[str, list[int]]) -> None:
    from rich import box
    from rich.table import Table

    from transformer_jax.host.terminal import render_table

    table = Table("place", "shape", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, shape in shapes.items():
        table.add_row(name, " x ".join(map(str, shape)))
    print(render_table(table))


def _layer_kinds(config: ModelConfig) -> dict[str, str]:
    """Return one letter for every layer of the stacks whose layers differ, by stack."""
    letters = {s: layer_letters(config, s, getattr(config, f"num_{s}_layers")) for s in config.stacks}
    return {stack: of_layers for stack, of_layers in letters.items() if of_layers}


def _moment_bytes(config: ExperimentConfig, mesh: Any) -> int:
    """Return the bytes of the optimizer's state on one device of a mesh, without its counts."""
    import jax

    from transformer_jax.models.architecture import parameter_axes
    from transformer_jax.parallel.rules import shardings
    from transformer_jax.training.hyper import split
    from transformer_jax.training.state import state_shapes

    state = state_shapes(*split(config))
    places = shardings(state, parameter_axes(config.model), mesh)
    both = zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(places.opt_state), strict=True)
    return sum(leaf.dtype.itemsize * math.prod(place.shard_shape(leaf.shape)) for leaf, place in both if leaf.ndim)


def _newton_schulz(config: ExperimentConfig, flops: int | None) -> dict[str, Any] | None:
    """Return the operations of Muon's products per step, and their share of those of model and optimizer.

    Args:
      flops: of the model per step; None: not counted, and no share.
    """
    from transformer_jax.training.optimizer_flops import muon_flops, optimizer_flops

    if not (own := muon_flops(config)):
        return None
    return {"flops": own, "share": None if flops is None else own / (flops + optimizer_flops(config))}


def _attention(config: ExperimentConfig) -> dict[str, dict[str, str]]:
    """Return the implementation of each attention of the training step on this machine, and why it is chosen."""
    from transformer_jax.models.architecture import ARCHITECTURES
    from transformer_jax.nn.attention_kernels import choose

    kinds = dict(ARCHITECTURES[config.model.architecture].attention_kinds(config.model))
    if config.data.batching == "packed":
        kinds = dict.fromkeys(kinds, "any")
    result = {}
    for name, kind in kinds.items():
        try:
            result[name] = choose(config.model, kind)._asdict()
        except ConfigError as error:  # the config is for another machine
            result[name] = {"name": config.model.attention_implementation, "why": str(error)}
    return result


def _recurrent(config: ExperimentConfig) -> dict[str, dict[str, str]]:
    """Return the implementation of each recurrent stack in training on this machine, and why it is chosen."""
    from transformer_jax.models.architecture import ARCHITECTURES
    from transformer_jax.training.implementations import trains_with_cudnn

    asked = config.model.recurrent_implementation
    chosen = {"name": asked, "why": "the default" if asked == ModelConfig.recurrent_implementation else "asked for"}
    try:
        cudnn = trains_with_cudnn(config)
    except ConfigError as error:  # the config is for another machine
        cudnn, chosen["why"] = True, str(error)
    loop = {"name": "scan", "why": "cuDNN runs a whole layer at once, and each step here needs the one before"}
    stacks = ARCHITECTURES[config.model.architecture].recurrent_stacks(config.model)
    return {name: loop if cudnn and not known else chosen for name, known in stacks.items()}


def _compiled_memory(config: ExperimentConfig, rows: int, widths: Mapping[str, int] | None) -> dict[str, int]:
    """Return the bytes that the compiler allocates on one device for a training step: (state and batch, work space)."""
    import jax

    from transformer_jax.models.architecture import parameter_axes
    from transformer_jax.parallel.launchers import make_launcher
    from transformer_jax.tasks.task import TASKS
    from transformer_jax.training.hyper import split
    from transformer_jax.training.state import state_shapes, state_template
    from transformer_jax.training.step import make_train_step

    batch = None if widths is None else TASKS[config.task.name].batch_template(config, rows, widths)
    if batch is None:
        raise ConfigError(f"--compile: task.name='{config.task.name}' does not define the shapes of a batch")
    static, hyper = split(config)
    launcher = make_launcher(config, make_train_step(static), parameter_axes(config.model))
    state = state_template(static, hyper, launcher.shardings(state_shapes(static, hyper)))
    memory = launcher.lower(state, batch, hyper).compile().memory_analysis()
    if memory is None:
        raise ConfigError(f"--compile: the {jax.default_backend()} backend does not report the memory of a program")
    return {
        "compiled_state_and_batch": memory.argument_size_in_bytes,
        "compiled_work_space": memory.temp_size_in_bytes,
        "compiled_total": memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes,
    }


def _print_tables(report: Mapping[str, Any]) -> None:
    from transformer_jax.host.terminal import render_table

    for table in (_parameter_table(report), _summary_table(report)):
        print(render_table(table))


def subtotals(parameters: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of parameters below every module, by its path; a module stands before its contents."""
    totals: dict[str, int] = {}
    for leaf in parameters:
        keys = leaf["path"].split("/")
        for depth in range(1, len(keys)):
            module = "/".join(keys[:depth])
            totals[module] = totals.get(module, 0) + leaf["count"]
    return totals


def _parameter_table(report: Mapping[str, Any]) -> Any:
    from rich import box
    from rich.table import Table

    parameters, total = report["parameters"], report["num_parameters"]
    shows_rules = len({leaf["rule"] for leaf in report["parameters"]}) > 1
    table = Table("parameters", "shape", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    has_rates = any("lr_multiplier" in leaf for leaf in parameters)
    for name, is_shown in (("update", shows_rules), ("rate", has_rates)):
        if is_shown:
            table.add_column(name)

    def add(path: str, shape: str, count: int, style: str | None, rule: str = "", rate: str = "") -> None:
        *above, name = path.split("/")
        cells = ["  " * len(above) + name, shape, f"{count:,}", f"{count / total:.1%}"]
        table.add_row(*cells, *([rule] if shows_rules else []), *([rate] if has_rates else []), style=style)

    modules, shown = subtotals(parameters), set()
    for leaf in parameters:
        keys = leaf["path"].split("/")
        for depth in range(1, len(keys)):
            if (module := "/".join(keys[:depth])) not in shown:
                shown.add(module)
                add(module, "", modules[module], "bold")
        rate = f"x {leaf['lr_multiplier']:g}" if "lr_multiplier" in leaf else ""
        add(leaf["path"], " x ".join(map(str, leaf["shape"])), leaf["count"], None, leaf["rule"], rate)
    table.add_section()
    table.add_row("total", "", f"{total:,}", "100.0%", style="bold")
    return table


def _summary_table(report: Mapping[str, Any]) -> Any:
    from rich.table import Table

    batch = report["batch"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    widths = ", ".join(f"{name} {width}" for name, width in batch["widths"].items())
    table.add_row("full batch", f"{batch['rows']} rows, {widths}")
    table.add_row("FLOPs per step", _counted(report["flops_per_step"], " (forward and backward, multiply-add = 2)"))
    table.add_row("FLOPs per target token", _counted(report["flops_per_target_token"]))
    if (orthogonalised := report["newton_schulz"]) is not None:
        share = "" if orthogonalised["share"] is None else f" ({orthogonalised['share']:.1%} of model and optimizer)"
        table.add_row("Newton-Schulz per step", _counted(orthogonalised["flops"], share))
    counts: dict[str, list[int]] = {}
    for leaf in report["parameters"]:
        counts.setdefault(leaf["rule"], []).append(leaf["count"])
    if len(counts) > 1:
        for rule, sizes in sorted(counts.items()):
            table.add_row(f"update, {rule}", f"{sum(sizes):,} parameters in {len(sizes)} arrays")
    for name, size in report["memory"].items():
        table.add_row(f"memory, {name.replace('_', ' ')}", f"{size / 1e6:,.1f} MB")
    mesh = " x ".join(f"{name} {size}" for name, size in report["mesh"].items())
    for stack, letters in report["layers"].items():
        table.add_row(f"{stack} layers", f"{letters} ({report['config']['model']['layer_kinds']})")
    for name, choice in (report["attention"] | report["recurrent"]).items():
        table.add_row(name, f"{choice['name']} ({choice['why']})")
    for named in report["from_outside"]:
        table.add_row("from outside", named)
    table.add_row("mesh", mesh)
    table.add_row("devices", ", ".join(report["devices"]))
    return table


def _counted(operations: int | None, note: str = "") -> str:
    return "not counted" if operations is None else f"{operations:.4g}{note}"
