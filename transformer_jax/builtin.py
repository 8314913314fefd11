"""Configs and studies that come with the package: found by name, in a clone and in an installed wheel alike.

A wheel carries `configs/` and `experiments/` in `transformer_jax/builtin/`; a clone has them beside the package.
"""

from __future__ import annotations

import ast
import logging
from pathlib import Path

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError

logger = logging.getLogger(__name__)


def root() -> Path:
    """Return the folder that holds `configs/` and `experiments/`."""
    package = Path(__file__).resolve().parent
    installed = package / "builtin"
    return installed if installed.is_dir() else package.parent


def configs() -> dict[str, Path]:
    """Return the files of the built-in configs by name, in alphabetical order."""
    return {path.stem: path for path in sorted((root() / "configs").glob("*.py")) if path.stem != "__init__"}


def studies() -> dict[str, Path]:
    """Return the folders of the built-in studies by name, in alphabetical order."""
    return {path.parent.name: path.parent for path in sorted((root() / "experiments").glob("*/study.py"))}


def config_file(name: str) -> Path:
    """Return the file of a config.

    Args:
      name: a path, or the name of a built-in config. A file of this name in the current folder wins, with a warning.
    Raises: ConfigError for a name that is neither a file nor a built-in config. A path is not checked.
    """
    return _found(name, configs(), "config")


def study_folder(name: str) -> Path:
    """Return the folder of a study; arguments and errors are those of `config_file`."""
    return _found(name, studies(), "study")


def first_line(file: Path) -> str:
    """Return the first line of a Python file's docstring, without executing the file."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _found(name: str, known: dict[str, Path], kind: str) -> Path:
    path = Path(name).expanduser()
    if not name or path.name != name or path.suffix:
        return path
    if path.exists():
        if name in known:
            logger.warning("--%s=%s: the one in the current folder is used, not the built-in %s", kind, name, kind)
        return path
    if name not in known:
        raise ConfigError(
            f"--{kind}={name}: neither in {Path.cwd()} nor among the built-in ones in {root()}{nearest(name, known)}; "
            "`transformer-jax list` shows these"
        )
    return known[name]
