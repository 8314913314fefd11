"""The strict environment of every test, set before jax or the package is imported.

Tests run on the CPU by default, so that their tolerances mean the same on every machine; set JAX_PLATFORMS to run them
elsewhere. They mostly compile small programs that run once, so LLVM's optimisation is off: half the compile time, the
same arithmetic. JAX 0.10's new CPU code generator for fused loops makes test files take up to twice as long, so the old
one is used. Flags already in XLA_FLAGS are kept and win.
"""

import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FAST_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if version("jaxlib").startswith("0.10."):  # XLA exits at an unknown flag
    _FAST_COMPILE += " --xla_cpu_use_fusion_emitters=false"
if _FAST_COMPILE not in os.environ.get("XLA_FLAGS", ""):  # a pytest-xdist worker inherits them
    os.environ["XLA_FLAGS"] = f"{_FAST_COMPILE} {os.environ.get('XLA_FLAGS', '')}".strip()

import docs_support  # noqa: E402
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from budget import SUITES, Budget  # noqa: E402

PACKAGE = Path(__file__).parent.parent / "transformer_jax"

# Shapes and types of every annotated call are checked, in tests only, in the modules whose annotations have shapes.
# Elsewhere there are only types, which `make types` checks, and checking them in every call is slow.
jaxtyping.install_import_hook(
    [
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        for file in sorted(PACKAGE.rglob("*.py"))
        if "from jaxtyping import" in file.read_text()
    ],
    "beartype.beartype",
)

jax.config.update("jax_numpy_rank_promotion", "raise")
# A cache on disk would hide from the tests how a change affects a compiled program.
jax.config.update("jax_enable_compilation_cache", False)
# What commands keep in the user's cache folder must not make a test depend on an earlier one's run.
_CACHE = tempfile.TemporaryDirectory(prefix="transformer_jax_tests_")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

# Linux allows a process 65,530 mappings (vm.max_map_count). Each compiled program keeps several, and LLVM crashes with
# a segmentation fault when one is refused.
_MAX_MAPPINGS = 15_000


@pytest.fixture(scope="module", autouse=True)
def _few_compiled_programs() -> Iterator[None]:
    """Drop a module's compiled programs, before a worker that runs many modules has too many."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > _MAX_MAPPINGS:
        jax.clear_caches()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", choices=list(SUITES), help="fail above this part of tests/budget.json")
    parser.addoption("--renew-budget", action="store_true", help="write the part that --budget names instead")


def pytest_configure(config: pytest.Config) -> None:
    budget = Budget(config)
    jax.monitoring.register_event_duration_secs_listener(budget.count)
    config.pluginmanager.register(budget, "budget")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that need a cluster, unless `-m` asks for them."""
    if "cluster" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("cluster")])
        items[:] = [item for item in items if not item.get_closest_marker("cluster")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The installed Chromium as playwright's `BrowserContext`. Without one, tests skip, or fail where CI is set."""
    program = docs_support.program("browser")
    if program.find() is None:
        if os.environ.get("CI"):
            pytest.fail("CI is set, and there is no Chromium")
        pytest.skip("there is no Chromium")
    with program.browser(tmp_path_factory.mktemp("profile")) as context:
        yield context
