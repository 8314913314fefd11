"""Convert a Hugging Face folder into a work directory, or a checkpoint into a Hugging Face folder.

    transformer-jax convert --from=FOLDER --workdir=runs/gpt2
    transformer-jax convert --from=FOLDER --workdir=runs/gpt2 --config=wikitext2 --config.data.dir=wikitext-2
    transformer-jax convert --from=FOLDER --workdir=runs/t5 --task=text_to_text
    transformer-jax convert --checkpoint=runs/language_model --to=FOLDER

FOLDER has `config.json`, `model.safetensors` (or its shards and their index) and the files of a tokenizer, as
transformers writes them. Families: GPT-2, Llama (without scaled rotary positions), MarianMT, BERT, T5, BART and ViT.
Neither torch nor transformers is needed. FOLDER may also be an .npz file of a ViT, as big_vision writes it.

The work directory evaluates, generates and serves as `training.init_from`. Its corpus and its other settings are those
of --config, whose model is replaced; by default the embedded corpus, or drawn shapes for a model of images. The numbers
become float32. The folder's settings of generation become the section `decode`, unless --config has its own. For the
task text_to_text, those of `task_specific_params.summarization` in config.json count, with their prefix;
--task_params=NAME takes another entry.

The folder is what transformers' `from_pretrained` loads: model, settings of generation, and tokenizer. A model that the
family cannot express is refused, with the names of the fields.

Nothing is written unless everything can be. `transformer-jax inspect --folder=FOLDER` shows a folder first.
"""

from __future__ import annotations

import time
from pathlib import Path

from absl import flags

from transformer_jax.cli.arguments import (
    Arguments,
    checkpoint_flag,
    choice_flag,
    config_flag,
    integer,
    path_flag,
    switch,
    text,
)
from transformer_jax.config import DecodeConfig
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.progress_bars import progress_bar
from transformer_jax.host.terminal import say

OVERRIDES = ("config",)
_MB = 1_000_000


def define(values: flags.FlagValues) -> None:
    path_flag(values, "from", "Hugging Face folder, or big_vision's .npz file, to read")
    path_flag(values, "workdir", "work directory to write; must not exist, or be empty")
    config_flag(values)
    text(values, "task", "task of the model, such as text_to_text; default: that of --config, or the family's first")
    text(values, "task_params", "entry of task_specific_params whose settings of generation and prefix are read")
    checkpoint_flag(values)
    path_flag(values, "to", "Hugging Face folder to write; must not exist, or be empty")
    text(values, "family", "family of the written folder, such as gpt2, bert or t5; default: the one that fits")
    choice_flag(values, "dtype", "number type of the written tensors", "float32", ("float32", "float16", "bfloat16"))
    integer(values, "shard_mb", "largest size of a written file, in MB", 5000, 1)
    switch(values, "without_tokenizer", "write no tokenizer")


def run(arguments: Arguments) -> int:
    values = arguments.flags
    source, target = values["from"].value, values.to
    if bool(source) == bool(target):
        raise ConfigError("convert takes one of --from=FOLDER --workdir=... and --checkpoint=... --to=FOLDER")
    _refuse_flags_of_the_other_way(values, bool(source))
    start = time.perf_counter()
    nbytes = _read(arguments, source) if source else _write(arguments, target)
    seconds = time.perf_counter() - start
    say(f"{nbytes / _MB:,.1f} MB in {seconds:.1f} s, {nbytes / _MB / seconds:,.0f} MB/s")
    return exit_codes.OK


def _refuse_flags_of_the_other_way(values: flags.FlagValues, reads: bool) -> None:
    others = (
        ("checkpoint", "family", "dtype", "shard_mb", "without_tokenizer")
        if reads
        else ("workdir", "task", "task_params")
    )
    for name in others:
        if values[name].present:
            way = "--checkpoint=... --to=FOLDER" if reads else "--from=FOLDER"
            raise ConfigError(f"--{name} is for convert {way}")


def _read(arguments: Arguments, source: str) -> int:
    workdir, spec = Path(arguments.required("workdir")), arguments.flags.config
    if arguments.overrides and not spec:
        raise ConfigError("--config.FIELD overrides fields of a config file; give --config too")
    base = read_config(spec, arguments.overrides) if spec else None
    task_name, params_of = arguments.flags.task, arguments.flags.task_params
    if base is not None and task_name is not None:
        raise ConfigError("--task is for convert without --config; give --config.task.name")

    from transformer_jax.convert.big_vision import SUFFIX, open_big_vision
    from transformer_jax.convert.folder import open_folder, write_workdir

    if source.endswith(SUFFIX):
        if task_name or params_of:
            raise ConfigError("--task and --task_params are for Hugging Face folders")
        folder = open_big_vision(Path(source))
    else:
        folder = open_folder(source, base.task.name if base is not None else task_name, params_of)
    say(f"{folder.family.label}, {folder.num_parameters:,} parameters, {folder.files.nbytes / _MB:,.1f} MB")
    for warning in folder.warnings:
        say(f"warning: {warning}")
    with progress_bar("converting", folder.files.nbytes) as advance:
        write_workdir(folder, workdir, base, advance)
    if base is not None and folder.decode != DecodeConfig() != base.decode:
        say("the settings of generation are those of --config, not of the folder")
    if folder.ignored:
        say(f"ignored: {', '.join(folder.ignored)}; inspect --folder={source} says why")
    if untrained := folder.family.lacks:
        say(
            f"a base model: {', '.join(untrained)} are zeros. To train them, start a run with "
            f"--config.training.init_from={workdir}"
        )
    say(f"{workdir}: checkpoint of step 0")
    return folder.files.nbytes


def _write(arguments: Arguments, target: str) -> int:
    values = arguments.flags
    checkpoint = Path(arguments.required("checkpoint"))
    if values.config or arguments.overrides:
        raise ConfigError("--config is for --from; the config of a checkpoint is its own")

    from transformer_jax.convert.folder import save_pretrained
    from transformer_jax.convert.folder_config import check_family
    from transformer_jax.evaluation.loading import load

    if values.family:
        check_family(values.family)  # before the checkpoint is loaded
    loaded = load(checkpoint)
    if loaded.config.task.prefix != "none":
        raise ConfigError(
            f"{checkpoint}: task.prefix='{loaded.config.task.prefix}': this model reads prompts in both directions, "
            "and no family does"
        )
    total = sum(x.nbytes for x in _leaves(loaded.params))
    with progress_bar("converting", total) as advance:
        left_out = save_pretrained(
            Path(target),
            loaded.config.model,
            loaded.params,
            None if values.without_tokenizer else loaded.tokenizer,
            special_ids=loaded.tokenizer.special_ids,
            task=loaded.config.task,
            labels=loaded.labels,
            decode=loaded.config.decode,
            family=values.family,
            dtype=values.dtype,
            resize=loaded.config.data.resize,
            shard_bytes=values.shard_mb * _MB,
            advance=advance,
        )
    if left_out:
        say(f"not in the folder, which has no place for it: {', '.join(left_out)}")
    say(f"{target}: written")
    return total


def _leaves(params: object) -> list:
    import jax

    return jax.tree.leaves(params)
