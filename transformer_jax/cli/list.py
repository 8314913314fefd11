"""Show the configs, studies and examples of own parts that come with the package.

    transformer-jax list
    transformer-jax train --config=quickstart --workdir=runs/first
    transformer-jax sweep --study=norm_placement --workdir=runs/norm_placement

`--config` and `--study` take these names or paths; a file or folder of the same name in the current folder wins. The
examples are for copying: docs/extending.md.
"""

from absl import flags

from transformer_jax import builtin
from transformer_jax.cli.arguments import Arguments, switch
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

OVERRIDES = ()
READS_NO_FILES = True


def define(values: flags.FlagValues) -> None:
    switch(values, "json", "print names, paths and descriptions as JSON")


def run(arguments: Arguments) -> int:
    found = {
        "configs": {name: (path, builtin.first_line(path)) for name, path in builtin.configs().items()},
        "studies": {name: (path, builtin.first_line(path / "study.py")) for name, path in builtin.studies().items()},
        "parts": {name: (path, builtin.first_line(path)) for name, path in builtin.parts().items()},
    }
    if arguments.flags.json:
        described = {
            kind: {name: {"path": str(path), "description": text} for name, (path, text) in entries.items()}
            for kind, entries in found.items()
        }
        print(json_text(described, indent=2, ascii=True))
        return exit_codes.OK
    width = max(len(name) for entries in found.values() for name in entries)
    uses = ("--config=NAME", "--study=NAME", f"examples in {builtin.root() / 'examples' / 'parts'}")
    for (kind, entries), use in zip(found.items(), uses, strict=True):
        print(f"{kind} ({use}):")
        for name, (_, text) in entries.items():
            print(f"  {name:<{width}}  {text}")
    return exit_codes.OK
