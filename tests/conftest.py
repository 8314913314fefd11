"""The strict environment that every test runs in, set before jax or the package is imported.

Tests run on the CPU wherever they are started, so that their tolerances mean the same on every machine; set
JAX_PLATFORMS to run them elsewhere. They spend their time compiling small programs that run once, so LLVM is told not
to optimise them: half the compile time, the same arithmetic. With JAX 0.10's new code generator for fused loops on the
CPU test files take up to twice the time of the one before, which it still has. What XLA_FLAGS says already is kept and
wins.
"""

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FAST_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the program
    _FAST_COMPILE += " --xla_cpu_use_fusion_emitters=false"
if _FAST_COMPILE not in os.environ.get("XLA_FLAGS", ""):  # a worker of pytest-xdist has them from its parent
    os.environ["XLA_FLAGS"] = f"{_FAST_COMPILE} {os.environ.get('XLA_FLAGS', '')}".strip()

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

PACKAGE = Path(__file__).parent.parent / "transformer_jax"

# Shapes and types of every annotated call are checked, here and nowhere else. The config is left out: its own
# validation reports a wrong type, and that is what its tests are about.
jaxtyping.install_import_hook(
    [
        f"transformer_jax.{folder.name}"
        for folder in sorted(PACKAGE.iterdir())
        if folder.is_dir() and folder.name != "config"
    ],
    "beartype.beartype",
)

jax.config.update("jax_numpy_rank_promotion", "raise")
# A cache on disk would hide from the tests what a change does to a compiled program.
jax.config.update("jax_enable_compilation_cache", False)

# Linux allows a process 65,530 mappings (vm.max_map_count), a compiled program keeps several, and LLVM ends the process
# with a segmentation fault at the first that it is refused.
_MAX_MAPPINGS = 15_000


@pytest.fixture(scope="module", autouse=True)
def _few_compiled_programs() -> Iterator[None]:
    """Forgets what a module has compiled, before a worker that runs many modules has too many programs."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > _MAX_MAPPINGS:
        jax.clear_caches()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what needs a cluster, unless `-m` asks for it."""
    if "cluster" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("cluster")])
        items[:] = [item for item in items if not item.get_closest_marker("cluster")]
