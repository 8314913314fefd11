"""Readers of files: one function per kind of file, each bounded in size, depth and counts.

No other module of the package opens a file for reading (tests/test_readers.py). A reader refuses pipes, devices and
sockets, whose content may never end, and content that is larger or deeper than any real file of its kind. It raises
OSError if a file cannot be read and ValueError if its content is damaged; the caller names the file and the remedy.

`files`: bytes, text, and streams that the user names. `json_values`: JSON. `records`: the kinds of values in JSON that
this program has written. `arrays`: .npy and .npz. `tensors`: headers of .safetensors. `archives`: gzip and zip. Modules
that need NumPy are imported by their own names, so that a wrong flag is refused at once.
"""

from transformer_jax.readers.files import (
    check_regular,
    lines_of,
    open_file,
    open_stream,
    open_text,
    read_bytes,
    read_stream,
    read_text,
)
from transformer_jax.readers.json_values import parse_json, read_json, read_json_object, through_json

__all__ = [
    "check_regular",
    "lines_of",
    "open_file",
    "open_stream",
    "open_text",
    "parse_json",
    "read_bytes",
    "read_json",
    "read_json_object",
    "read_stream",
    "read_text",
    "through_json",
]
