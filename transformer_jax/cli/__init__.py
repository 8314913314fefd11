"""The command line: one module per command. No module imports JAX before its command runs.

The module of a command has a docstring, which is its help text; `define(flags)`, which declares its flags; `OVERRIDES`,
the config fields that flags can set; and `run(arguments)`, which returns the exit code.
"""
