"""Hugging Face folders: `model.safetensors`, `config.json` and tokenizer files to our parameters, config and tokenizer.

A family, such as GPT-2, is a table (`families.py`) of tensor names and config keys, which `folder_config.py` and
`folder_tensors.py` read in both directions. Neither torch nor transformers is needed.
"""
