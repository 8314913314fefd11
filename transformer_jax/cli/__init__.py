"""The command line: one module per command; no module imports JAX before its command runs.

A command's module has a docstring, which is its help; `define(flags)`, which declares its flags; `OVERRIDES`, the
fields of the config that can be set by further flags; and `run(arguments)`, which returns the exit code.
"""
