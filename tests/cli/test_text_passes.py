"""The commands `lens`, `ablate` and `patch`: their numbers, files and errors."""

import json
import re

import numpy as np
import pytest
from support import random_params, tiny

from transformer_jax.cli.main import main
from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.evaluation import loading
from transformer_jax.tasks.trained.language_model import LanguageModel

TOKENIZER = ByteTokenizer()
FIELDS = {"vocab_size": TOKENIZER.vocab_size, "norm_position": "pre", "max_length": 12, "position_encoding": "learned"}


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.setattr("transformer_jax.host.compilation_cache.use_compilation_cache", lambda: None)

    def run(name, *argv, model=None):
        config = model or tiny(architecture="decoder_only", **FIELDS)
        params = random_params(config) if model is None else {}
        experiment = ExperimentConfig(model=config, task=TaskConfig(name="language_model"))
        trained = LanguageModel(experiment, params, TOKENIZER)
        monkeypatch.setattr(loading, "load_language_model", lambda *args, **options: trained)
        code = main([name, "--checkpoint=runs/x", *argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.slow
def test_each_command_prints_and_draws(command, tmp_path):
    code, out, _ = command("lens", "--text=abc", "--json", "--top=2", f"--output={tmp_path}")
    found = json.loads(out.splitlines()[0])
    assert (code, len(found["tokens"]), next(iter(found["predictions"]))) == (0, 4, "decoder/embedding")
    assert all(len(rows) == 4 and len(rows[0]) == 2 for rows in found["predictions"].values())
    assert "layer 1" in command("lens", "--text=abc", "--without=decoder/0/self_attention/heads/1")[1]

    _, out, _ = command("ablate", "--text=abc", "--json", f"--output={tmp_path}")
    changes = json.loads(out.splitlines()[0])["changes"]
    assert {name: len(row) for name, row in changes.items()} == {f"decoder/{i}/self_attention/heads": 4 for i in (0, 1)}
    assert "head 3" in command("ablate", "--text=abc", "--mean_of=xyz")[1]

    _, out, _ = command(
        "patch", "--text=abc", "--other=axc", "--token=q", "--against=r", "--json", f"--output={tmp_path}"
    )
    shares = json.loads(out.splitlines()[0])["shares"]
    np.testing.assert_allclose(shares["decoder/embedding"], [0, 0, 1, 0], atol=1e-3)
    _, out, _ = command("patch", "--text=abc", "--other=axc", "--token=q", "--against=r", "--json", "--of=heads")
    shares = json.loads(out.splitlines()[0])["shares"]
    assert [*shares] == [f"decoder/{i}/self_attention/heads/{head}" for i in (0, 1) for head in range(4)]
    # The first tokens are equal, and the later ones reach the last position through heads of all layers.
    for name, row in shares.items():
        np.testing.assert_allclose(row[:2], 0, atol=1e-3)
        assert abs(row[3]) > 1e-4, name
    assert {path.name for path in tmp_path.iterdir()} == {"lens.png", "ablation.png", "patching.png"}


@pytest.mark.slow
def test_ablate_shows_means_over_the_lines_of_a_file(command, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("abc\nbca\nxyz\n")
    each = [json.loads(command("ablate", f"--text={line}", "--json")[1]) for line in ("abc", "bca", "xyz")]
    found = json.loads(command("ablate", f"--data={file}", "--json")[1])
    assert found["lines"] == 3
    assert found["loss"] == pytest.approx(np.mean([one["loss"] for one in each]))
    for name, row in found["changes"].items():
        of_lines = np.array([one["changes"][name] for one in each])
        np.testing.assert_allclose(row, of_lines.mean(0), rtol=1e-6)
        # 4.3027 is the 0.975 quantile of Student's t with 2 degrees of freedom.
        expected = 4.302653 * of_lines.std(0, ddof=1) / np.sqrt(3)
        np.testing.assert_allclose(found["half_widths"][name], expected, rtol=1e-5)
    assert re.search("loss: .* ± .* over 3 lines", command("ablate", f"--data={file}")[1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "--data=.* has no lines"),
        (b"abc\n\nabc\n", "--data=.*line 2 is empty; give a text"),
        (b"abc\n\xff\n", "--data=.*line 2: not valid UTF-8"),
        (b"a" * 12 + b"\n", "--data=.*line 1: its 12 tokens and the start exceed"),
    ],
)
def test_bad_files(command, tmp_path, content, message):
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    code, _, err = command("ablate", f"--data={file}")
    assert code == 2
    assert re.search(message, err), err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lens", "--text=" + 12 * "a"], "--text: its 12 tokens and the start exceed .* model.max_length=12"),
        (["lens"], "--text=... is missing"),
        (["lens", "--text=a", "--without=head"], "--without=head: expected names such as decoder/0"),
        (["lens", "--text=a", "--without=decoder/9/self_attention/heads/0"], "'decoder/9/self_attention' has no heads"),
        (["lens", "--text=a", "--without=decoder/0/self_attention/heads/4"], "no head 4; expected 0 to 3"),
        (["ablate", "--text=a", "--data=b"], "--text and --data: give one of them"),
        (["ablate", "--data=/no/such/file"], "--data=/no/such/file: No such file"),
        (["ablate", "--text=a", "--mean_of="], "--mean_of is empty"),
        (["patch", "--text=ab", "--other=abc"], "--text has 2 tokens, --other 3; patching needs equal numbers"),
        (["patch", "--text=ab", "--other=ac", "--token=xy"], "--token='xy' has 2 tokens.*expected one"),
    ],
)
def test_bad_input(command, argv, message):
    code, _, err = command(*argv)
    assert code == 2
    assert re.search(message, err), err


@pytest.mark.parametrize("name", ["lens", "ablate", "patch"])
def test_a_recurrent_model_has_no_residual_stream(command, name):
    model = ModelConfig(architecture="recurrent", vocab_size=TOKENIZER.vocab_size, emb_dim=8, hidden_dim=8).resolved()
    further = ["--other=b"] if name == "patch" else []
    code, _, err = command(name, "--text=a", *further, model=model)
    assert code == 2
    assert "model.architecture=recurrent has no residual stream" in err
