"""Store what transformers writes with the folders of tests/summaries_support.py, in expected.json.

python -m venv /tmp/reference
/tmp/reference/bin/pip install torch==2.15.0 transformers==5.23.0 --requirement requirements.lock
PYTHONPATH=.:tests /tmp/reference/bin/python tests/golden/summaries/make.py
"""

import json
import pathlib
import re
import tempfile

import torch
import transformers
from summaries_support import NAMES, STORED, sources, texts, write_summary_folder

EOS = {"bart": 2, "t5": 1}


def settings_of(folder):
    """Return the settings for summaries, without the prefix, and the prefix."""
    config = json.loads((folder / "config.json").read_text())
    entry = dict(config["task_specific_params"]["summarization"])
    return entry, entry.pop("prefix", "")


def generated(model, rows, **settings):
    """Return the ids that a model generates for each row of ids, without the start token and what follows the end."""
    width, pad = max(map(len, rows)), model.config.pad_token_id
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.arange(width)[None] < torch.tensor([[len(row)] for row in rows])
    with torch.no_grad():
        found = model.generate(input_ids=ids, attention_mask=mask.long(), **settings)[:, 1:].tolist()
    eos = model.generation_config.eos_token_id
    return [row[: row.index(eos) + 1] if eos in row else [x for x in row if x != pad] for row in found]


def outputs(folder, family):
    """Return ids for `sources`, by the value of early_stopping; for T5 also the summaries of `texts`."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    settings, prefix = settings_of(folder)
    rows = [[*row, EOS[family]] for row in sources()]
    found = {
        str(stop).lower(): generated(model, rows, **settings | {"early_stopping": stop})
        for stop in (True, False, "never")
    }
    if family != "t5":
        return found
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [tokenizer(prefix + text)["input_ids"] for text in texts()]
    summaries = [tokenizer.decode(row, skip_special_tokens=True) for row in generated(model, rows, **settings)]
    return {**found, "summaries": summaries}


def all_outputs():
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for family in NAMES:
            write_summary_folder(pathlib.Path(folder, family), family)
            found[family] = outputs(pathlib.Path(folder, family), family)
    return found


def text():
    rows = all_outputs()
    return re.sub(r"\s*(-?\d+)(,?)\s*(?=[-\d\]])", r"\1\2", json.dumps(rows, indent=1)) + "\n"


if __name__ == "__main__":
    STORED.write_text(text(), encoding="utf-8")
