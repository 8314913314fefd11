"""The machine: files, the terminal, processors, caches of programs and exit codes."""
