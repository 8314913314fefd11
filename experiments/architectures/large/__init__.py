"""The study `architectures` in a larger setting, for an accelerator."""
