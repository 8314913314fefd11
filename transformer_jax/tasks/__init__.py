"""Tasks: what an example is, what is predicted from it, and how that is scored."""
