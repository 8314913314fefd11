"""Downloads of the corpora that the built-in configs train on: a table, and functions that fetch and unpack them."""
