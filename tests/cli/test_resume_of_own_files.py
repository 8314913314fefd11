"""`train` in a work directory whose files have changed since."""

import json

from files_support import write_reviews

from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_config
from transformer_jax.host import exit_codes


def test_files_with_other_sizes_are_said_to_have_changed(tmp_path, capsys):
    write_reviews(tmp_path / "data" / "train.tsv")
    workdir = tmp_path / "run"
    config = read_config("classify", {"data.dir": str(tmp_path / "data")})
    with open_workdir(workdir, config.to_dict()) as directory:
        directory.write_config()
    write_reviews(tmp_path / "data" / "train.tsv", count=900)
    command = ["train", "--config=classify", f"--workdir={workdir}", f"--config.data.dir={tmp_path / 'data'}"]
    assert main(command) == exit_codes.USER_ERROR
    said = capsys.readouterr().err
    assert "fields that follow from the files in" in said
    assert "training.num_train_steps: 200 in config.json, " in said
    assert "If the files have changed, restore them or choose another --workdir" in said
    assert main([*command, "--config.model.emb_dim=32"]) == exit_codes.USER_ERROR
    assert "another config is in use here" in capsys.readouterr().err
    assert json.loads((workdir / "config.json").read_text())["model"]["emb_dim"] == config.model.emb_dim
