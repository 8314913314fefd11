"""Compiled programs are cached in the user's cache folder and found there again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.host import compilation_cache, machine

PROGRAM = """
import jax, jax.numpy as jnp
from transformer_jax.host.compilation_cache import use_compilation_cache
use_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_explain_cache_misses", True)
print(jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((3, 4))).block_until_ready()
"""


def run(home, **variables):
    """Return the cache folder that a process uses."""
    environment = {**os.environ, "HOME": str(home), **variables}
    for name in ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"):
        if name not in variables:
            environment.pop(name, None)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True
    )
    return Path(result.stdout.strip())


def test_programs_are_kept_and_found_again(tmp_path):
    folder = run(tmp_path)
    assert folder.parent == tmp_path / ".cache" / "transformer_jax"
    kept = {path.name for path in folder.iterdir() if path.name.endswith("-cache")}
    assert kept
    assert run(tmp_path) == folder
    assert {path.name for path in folder.iterdir() if path.name.endswith("-cache")} == kept


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-9] + b"\0" + data[-8:]])
def test_a_damaged_program_is_compiled_anew(tmp_path, damage):
    folder = run(tmp_path)
    for file in folder.glob("*-cache"):
        data = file.read_bytes()
        file.write_bytes(damage(data))
        assert file.read_bytes() != data
    assert run(tmp_path) == folder


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"])
def test_the_folder_that_the_environment_names(tmp_path, name):
    folder = run(tmp_path / "home", **{name: str(tmp_path / "there")})
    assert (folder if name.startswith("JAX") else folder.parent.parent) == tmp_path / "there"
    assert list(folder.iterdir())


def test_different_processors_have_different_folders(monkeypatch):
    def read(text):
        monkeypatch.setattr(machine, "read_text", lambda path, **_: text)
        return compilation_cache._processor()

    one = "processor : 0\nmodel name : A\nflags : fpu avx2\n"
    assert read(one) == read(one + one.replace("processor : 0", "processor : 1"))
    assert read(one) != read(one.replace("avx2", "avx512f"))
