"""The configs, studies and examples of the package, found by name in a clone and in an installed wheel.

A wheel contains `configs/`, `experiments/` and `examples/parts/` in `transformer_jax/builtin/`; a clone has them beside
the package.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable
from pathlib import Path

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.readers import read_text

logger = logging.getLogger(__name__)


def root() -> Path:
    """Return the folder that holds `configs/`, `experiments/` and `examples/`."""
    package = Path(__file__).resolve().parent
    installed = package / "builtin"
    return installed if installed.is_dir() else package.parent


def configs() -> dict[str, Path]:
    """Return the files of the built-in configs by name, in alphabetical order."""
    return {path.stem: path for path in sorted((root() / "configs").glob("*.py")) if path.stem != "__init__"}


def studies() -> dict[str, Path]:
    """Return the folders of the built-in studies by name, in alphabetical order."""
    return {path.parent.name: path.parent for path in sorted((root() / "experiments").glob("*/study.py"))}


def parts() -> dict[str, Path]:
    """Return the examples of parts from outside the package, docs/extending.md, by name, in alphabetical order."""
    return {path.stem: path for path in sorted((root() / "examples" / "parts").glob("*.py"))}


def config_file(name: str) -> Path:
    """Return the file of a config.

    Args:
      name: a path, or the name of a built-in config. If a file has exactly this name, the file is used, with a warning.
    Raises: ConfigError for a name that is neither a file nor built in, and for a missing file with a built-in's name.
    """
    return _find("config", name, configs(), is_one=Path.is_file, file_name=f"{name}.py")


def study_folder(name: str) -> Path:
    """Return the folder of a study; arguments and errors as in `config_file`, with folders instead of files."""
    return _find("study", name, studies(), is_one=lambda path: (path / "study.py").is_file(), file_name=f"./{name}")


def first_line(file: Path) -> str:
    """Return the first line of a Python file's docstring, without executing the file."""
    docstring = ast.get_docstring(ast.parse(read_text(file))) or ""
    return docstring.partition("\n")[0]


def _find(kind: str, name: str, known: dict[str, Path], is_one: Callable[[Path], bool], file_name: str) -> Path:
    path = Path(name).expanduser()
    if path.name != name or path.suffix:
        if path.stem in known and not path.exists():
            raise ConfigError(f"--{kind}={name}: does not exist; the built-in one is --{kind}={path.stem}")
        return path
    if is_one(path):
        if name in known:
            logger.warning("--%s=%s: uses %s, not the built-in %s of this name", kind, name, path.absolute(), kind)
        return path
    if name not in known:
        there = f"; there is {file_name}" if is_one(Path(file_name)) else nearest(name, known)
        raise ConfigError(
            f"--{kind}={name}: neither in {Path.cwd()} nor built in{there}; `transformer-jax list` shows all"
        )
    if is_one(Path(file_name)):
        logger.warning(
            "--%s=%s: uses the built-in %s; for the file here write --%s=%s", kind, name, kind, kind, file_name
        )
    return known[name]
