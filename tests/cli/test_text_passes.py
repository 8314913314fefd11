"""The commands `lens`, `ablate` and `patch`: their numbers, files and errors."""

import functools
import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from corruption_support import MASK, VOCABULARY, WithMarks
from support import random_params, tiny

from transformer_jax.cli.main import main
from transformer_jax.config import DecodeConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.errors import DataError
from transformer_jax.evaluation.loading import Loaded
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.text_models import TargetText
from transformer_jax.tasks.task import TASKS

TOKENIZER = ByteTokenizer()
FIELDS = {"vocab_size": TOKENIZER.vocab_size, "norm_position": "pre", "max_length": 12, "position_encoding": "learned"}


def of(task, model, params, tokenizer=TOKENIZER, **fields):
    config = ExperimentConfig(model=model, task=TaskConfig(name=task), **fields)
    return Loaded(config, params, tokenizer, (1,), None, Path("runs/x"), None)


@functools.cache
def translator():
    model = tiny(**FIELDS, num_encoder_layers=1, num_decoder_layers=1)
    return of("translation", model, random_params(model), decode=DecodeConfig(max_extra_length=2, beam_size=3))


@functools.cache
def masked():
    model = tiny(architecture="encoder_only", num_encoder_layers=1, vocab_size=VOCABULARY, norm_position="pre")
    head = TASKS["masked_lm"].head(TaskConfig(name="masked_lm"), model)
    return of("masked_lm", model, random_params(model, head=head), WithMarks())


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.setattr("transformer_jax.host.compilation_cache.use_compilation_cache", lambda: None)

    def run(name, *argv, model=None, loaded=None):
        config = model or tiny(architecture="decoder_only", **FIELDS)
        params = random_params(config) if model is None else {}
        found = loaded or of("language_model", config, params)
        monkeypatch.setattr("transformer_jax.inspection.text_models.load", lambda *args: found)
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


def test_patching_compares_the_first_token_at_which_the_greedy_outputs_differ(monkeypatch):
    outputs = {"ab": [70, 71, 72, 1], "xy": [70, 71, 73, 1], "xz": [70, 71, 72, 1]}
    monkeypatch.setattr(TargetText, "_output", lambda self, flag, text: (outputs[text], ""))
    model = TargetText(translator())
    row, other, position = model.pair("ab", "xy")
    assert (row.target, row.own, position) == (TOKENIZER.decode_batch([[70, 71]])[0], True, -1)
    assert row.batch["decoder_inputs"].tolist() == other.batch["decoder_inputs"].tolist() == [[3, 70, 71]]
    with pytest.raises(DataError, match="the model's greedy outputs of both texts are equal; give --target"):
        model.pair("ab", "xz")


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )


def ids_of(text):
    return TOKENIZER.encode_batch([text]).ids.tolist()


@pytest.mark.slow
def test_lens_shows_means_over_the_lines_of_a_file(command, tmp_path):
    """Over the last layer they are those of the logits; each line has the numbers of its own lens."""
    config = tiny(architecture="decoder_only", **FIELDS)
    file, lines = tmp_path / "texts.txt", ("abc", "bca", "xyz")
    file.write_text("".join(f"{line}\n" for line in lines))
    _, out, _ = command("lens", f"--data={file}", "--json", f"--output={tmp_path}")
    found = json.loads(out.splitlines()[0])
    losses, shares, same = [], [], []
    for line in lines:
        batch = {"decoder_inputs": jnp.asarray([[3, *ids_of(line)]])}
        log_probs = log_softmax(run_with(config, random_params(config), batch).outputs[0])[:3]
        losses.append(-log_probs[[0, 1, 2], ids_of(line)].mean())
        shares.append(np.exp(log_probs.max(-1)).mean())
        tops = json.loads(command("lens", f"--text={line}", "--json", "--top=1")[1])["predictions"]
        first, *_, last = ([row[0]["token"] for row in rows[:3]] for rows in tops.values())
        same.append(np.mean([a == b for a, b in zip(first, last, strict=True)]))
    assert found["lines"] == 3
    *_, last = found["layers"].values()
    assert last["loss"]["mean"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert last["loss"]["half_width"] == pytest.approx(4.302653 * np.std(losses, ddof=1) / np.sqrt(3), abs=1e-5)
    assert last["probability"]["mean"] == pytest.approx(np.mean(shares), abs=1e-5)
    assert last["as_last"] == {"mean": 1.0, "half_width": 0.0}
    assert found["layers"]["decoder/embedding"]["as_last"]["mean"] == pytest.approx(np.mean(same))
    assert (tmp_path / "lens.png").exists()
    out = command("lens", f"--data={file}")[1]
    assert out.startswith("means over 3 lines\n")
    assert re.search(r"layer 1 .*\d ± \d", out)


@pytest.mark.slow
def test_the_decoder_of_an_encoder_decoder_is_looked_into(command, tmp_path):
    """The lens ends in the logits of source and target; a head that is left out is a value that is replaced."""
    loaded = translator()
    model, params, source, target = loaded.config.model, loaded.params, "abcd", "xy"
    batch = {
        "inputs": jnp.asarray([[*ids_of(source), 1]]),
        "inputs_mask": jnp.ones((1, 5), bool),
        "decoder_inputs": jnp.asarray([[3, *ids_of(target)]]),
    }

    def loss(replace=None):
        log_probs = log_softmax(run_with(model, params, batch, (), replace).outputs[0])
        return -log_probs[[0, 1, 2], [*ids_of(target), 1]].mean()

    flags = [f"--text={source}", f"--target={target}", "--json"]
    found = json.loads(command("lens", *flags, "--top=3", loaded=loaded)[1])
    assert (found["tokens"], found["target"], found["own_targets"]) == (["<s>", "x", "y"], target, 0)
    logits = log_softmax(run_with(model, params, batch).outputs[0])
    *_, last = found["predictions"].values()
    np.testing.assert_allclose([[one["log_prob"] for one in row] for row in last], -np.sort(-logits)[:, :3], atol=1e-5)

    found = json.loads(command("ablate", *flags, loaded=loaded)[1])
    parts = ["encoder/0/self_attention", "decoder/0/self_attention", "decoder/0/cross_attention"]
    assert [*found["changes"]] == [f"{part}/heads" for part in parts]
    assert found["loss"] == pytest.approx(loss(), abs=1e-5)
    for name in (f"{parts[0]}/heads", f"{parts[2]}/heads"):
        change = loss({name: lambda x: x.at[:, :, 2].set(0)}) - loss()
        assert abs(change) > 1e-4
        assert found["changes"][name][2] == pytest.approx(change, abs=1e-5)

    file = tmp_path / "pairs.tsv"
    file.write_text(f"{source}\t{target}\nabdd\n")
    out = command("lens", f"--data={file}", loaded=loaded)[1]
    assert out.startswith("targets: of 1 of 2 lines the model's own greedy output\nmeans over 2 lines\n")
    own = command("lens", f"--text={source}", loaded=loaded)[1]
    assert own.startswith("target, the model's own greedy output: ")

    _, out, _ = command(
        "patch",
        "--text=abcd",
        "--other=abzd",
        "--target=x",
        "--token=q",
        "--against=r",
        "--json",
        f"--output={tmp_path}",
        loaded=loaded,
    )
    found = json.loads(out.splitlines()[0])
    np.testing.assert_allclose(found["shares"]["encoder/embedding"], [0, 0, 1, 0, 0], atol=1e-3)
    np.testing.assert_allclose(found["shares"]["decoder/embedding"], [0, 0], atol=1e-3)
    np.testing.assert_allclose(found["shares"]["decoder/0/feed_forward/stream"], [0, 1], atol=1e-3)
    assert (found["tokens"], found["source_tokens"]) == (["<s>", "x"], ["a", "b", "c | z", "d", "</s>"])
    assert {path.name for path in tmp_path.glob("*.png")} == {"patching_encoder.png", "patching_decoder.png"}


@pytest.mark.slow
def test_the_masks_of_a_masked_language_model_are_looked_into(command):
    loaded = masked()
    model, params = loaded.config.model, loaded.params
    head = TASKS["masked_lm"].head(loaded.config.task, model)
    read = [3, *ids_of("ab"), MASK, *ids_of("d"), 1]
    batch = {"inputs": jnp.asarray([read]), "inputs_mask": jnp.ones((1, len(read)), bool)}

    def log_probs(replace=None):
        return log_softmax(run_with(model, params, batch, (), replace, head).outputs[0, 3])

    flags = ["--text=ab<mask>d", "--json"]
    found = json.loads(command("lens", *flags, "--top=3", loaded=loaded)[1])
    assert (found["positions"], found["tokens"][3]) == ([3], "<mask>")
    *_, ((*last,),) = found["predictions"].values()
    np.testing.assert_allclose([one["log_prob"] for one in last], -np.sort(-log_probs())[:3], atol=1e-5)
    assert (found["target"], found["own_targets"]) == (last[0]["token"], 1)

    found = json.loads(command("ablate", *flags, "--target=abcd", loaded=loaded)[1])
    (right,), name = ids_of("c"), "encoder/0/self_attention/heads"
    assert found["loss"] == pytest.approx(-log_probs()[right], abs=1e-5)
    without = -log_probs({name: lambda x: x.at[:, :, 1].set(0)})[right]
    assert found["changes"][name][1] == pytest.approx(without + log_probs()[right], abs=1e-5)

    flags = ["--text=ab<mask>d", "--other=xb<mask>d", "--token=q", "--against=r", "--json"]
    shares = json.loads(command("patch", *flags, loaded=loaded)[1])["shares"]
    np.testing.assert_allclose(shares["encoder/embedding"], [0, 1, 0, 0, 0, 0], atol=1e-3)
    np.testing.assert_allclose(shares["encoder/0/feed_forward/stream"], [0, 0, 0, 1, 0, 0], atol=1e-3)


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


@pytest.mark.parametrize(
    ("loaded", "argv", "message"),
    [
        (translator, ["lens", "--text="], "--text=... is missing"),
        (translator, ["lens", "--text= "], "--text is empty; give a text"),
        (translator, ["lens", "--text=" + 12 * "a"], "--text: 13 tokens with end-of-sequence are too many"),
        (translator, ["lens", "--text=a", "--target=" + 12 * "a"], "--target: its 12 tokens and the start exceed"),
        (translator, ["ablate", "--data=a", "--target=b"], "--target and --data: give a target behind a tab"),
        (translator, ["patch", "--text=a", "--other=ab", "--target=c"], "--text has 2 tokens, --other 3; patching"),
        (masked, ["lens", "--text=abc"], "--text has no <mask>, whose token would be predicted"),
        (masked, ["ablate", "--text=a<mask>c", "--target=axyc"], "--target: its tokens are not those of --text"),
        (masked, ["ablate", "--text=a<mask>c", "--target=dbc"], "--target: its tokens are not those of --text"),
        (masked, ["patch", "--text=a<mask>", "--other=ab", "--target=x"], "--target: .*leave it out"),
        (masked, ["lens", "--text=a<mask>", "--target=ab"], "--target: lens shows .*leave it out"),
        (masked, ["lens", "--data=a", "--top=3"], "--top and --data: .*leave --top out"),
        (
            lambda: of("language_model", tiny(architecture="decoder_only", **FIELDS), {}),
            ["lens", "--text=a", "--target=b"],
            "--target: a language model reads one text; leave it out",
        ),
        (
            lambda: of("translation", tiny(architecture="decoder_only", **FIELDS), {}),
            ["ablate", "--text=a"],
            "task.name='translation' with model.architecture=decoder_only is not taken; expected a language model, a",
        ),
        (
            lambda: of("classification", tiny(architecture="encoder_only"), {}),
            ["lens", "--text=a"],
            "task.name='classification' with model.architecture=encoder_only is not taken",
        ),
    ],
)
def test_what_a_kind_of_model_does_not_take(command, loaded, argv, message):
    code, _, err = command(*argv, loaded=loaded())
    assert code == 2
    assert re.search(message, err), err


@pytest.mark.parametrize("name", ["lens", "ablate", "patch"])
def test_a_recurrent_model_has_no_residual_stream(command, name):
    model = ModelConfig(architecture="recurrent", vocab_size=TOKENIZER.vocab_size, emb_dim=8, hidden_dim=8).resolved()
    further = ["--other=b"] if name == "patch" else []
    code, _, err = command(name, "--text=a", *further, model=model)
    assert code == 2
    assert "model.architecture=recurrent has no residual stream" in err
