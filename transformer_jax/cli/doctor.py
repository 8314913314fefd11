"""Show the devices that JAX finds, in each process of a job, and check that the processes can train together.

    transformer-jax doctor
    srun transformer-jax doctor --cluster=slurm --workdir=runs/first

Every process computes a sum over all devices and reports its library versions. With --workdir, every process looks for
a file that process 0 has just written there, because training needs a folder that all processes can see.
"""

import collections
import json
import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, path_flag
from transformer_jax.cli.processes import in_job, job_of, process_flags
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import replace_file
from transformer_jax.readers import parse_json, read_text

OVERRIDES = ()
READS_NO_FILES = True


def define(values: flags.FlagValues) -> None:
    process_flags(values)
    path_flag(values, "workdir", "folder that all processes should see; made if it does not exist")


def run(arguments: Arguments) -> int:
    job, workdir = job_of(arguments), arguments.flags.workdir
    problems: list[str] = []
    with in_job(job):
        reports = examine(Path(workdir) if workdir else None)
        problems += problems_between(reports)
        if job is None or job.process_id == 0:
            _print_table(reports)
            if problems:
                print(
                    "\n".join(["transformer-jax: error: the processes cannot train together", *problems]),
                    file=sys.stderr,
                )
    return exit_codes.USER_ERROR if problems else exit_codes.OK


def examine(workdir: Path | None) -> list[dict[str, Any]]:
    """Return the report of each process, in order; all processes must call this."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from transformer_jax.host.versions import library_versions
    from transformer_jax.parallel.processes import gathered, primary_first

    shared = None
    if workdir is not None:
        file = workdir / ".doctor"
        with primary_first("writing to the work directory"):
            if jax.process_index() == 0:
                try:
                    workdir.mkdir(parents=True, exist_ok=True)
                    replace_file(file, str(uuid.uuid4()).encode())
                except OSError as error:
                    raise ConfigError(f"--workdir={workdir}: cannot be written: {error.strerror}") from error
            shared = read_text(file) if file.exists() else ""
    count = jax.device_count()
    mesh = jax.make_mesh((count,), ("data",))
    numbers = jax.make_array_from_callback(
        (count,), NamedSharding(mesh, PartitionSpec("data")), lambda index: jnp.arange(1, count + 1)[index]
    )
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(numbers)
    device = jax.local_devices()[0]
    mine = {
        "process": jax.process_index(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "memory_gb": round((device.memory_stats() or {}).get("bytes_limit", 0) / 2**30, 1),
        "sum": int(total),
        "expected_sum": count * (count + 1) // 2,
        "versions": library_versions(),
        "shared": shared,
    }
    reports = [parse_json(text) for text in gathered(json.dumps(mine))]
    if workdir is not None and jax.process_index() == 0:
        file.unlink(missing_ok=True)
    return reports


def problems_between(reports: list[dict[str, Any]]) -> list[str]:
    """Return the reasons why processes with these reports cannot train together."""
    first, problems = reports[0], []
    for report in reports:
        name = f"  - process {report['process']} on {report['host']}"
        if report["sum"] != report["expected_sum"]:
            problems.append(f"{name}: the sum over all devices is {report['sum']}, not {report['expected_sum']}")
        if report["shared"] != first["shared"]:
            problems.append(f"{name}: does not see the file that process 0 on {first['host']} wrote to --workdir")
        if report["devices"] != first["devices"]:
            problems.append(f"{name}: has {_kinds(report)}, process 0 {_kinds(first)}")
        for package, version in report["versions"].items():
            if version != first["versions"][package]:
                problems.append(f"{name}: has {package} {version}, process 0 {first['versions'][package]}")
    return problems


def _kinds(report: dict[str, Any]) -> str:
    kinds = collections.Counter(report["devices"])
    return " and ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _print_table(reports: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from transformer_jax.host.terminal import render_table

    table = Table("process", "host", "pid", "backend", "devices", "memory per device", "sum over all devices")
    for report in reports:
        memory = f"{report['memory_gb']} GB" if report["memory_gb"] else "the machine's"
        table.add_row(
            *(str(report[name]) for name in ("process", "host", "pid", "backend")),
            _kinds(report),
            memory,
            str(report["sum"]),
        )
    print(render_table(table))
    print(", ".join(f"{name} {version}" for name, version in reports[0]["versions"].items()))
