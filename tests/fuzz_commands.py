"""Wrong flags, configs, studies, test sets and results: makers of cases for fuzz.py."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from fuzz_support import NASTY, WRONG, Case, Maker, Outcome

from transformer_jax.config import ExperimentConfig, walk
from transformer_jax.host.files import CHECKSUM, with_checksum

FIELDS = [name for name, _, _ in walk(ExperimentConfig())]
PRETRAINING = """
from transformer_jax.sweeps.study import Axis, Metric, Study, over

NORM = over("model.norm_position", "pre", "post", name="norm")
STUDY = Study(
    question="?",
    baseline="tiny.py",
    axes=(NORM, Axis("start", {"scratch": {"training.new_parameters": True}, "pretrained": {}})),
    metrics=(Metric("test/loss"),),
    seeds=(0, 1),
    contrasts=("start",),
    equal_flops=False,
    pretraining=Study("Before?", "tiny.py", (NORM,), (Metric("valid/loss"),), seeds=(0, 1)),
)
"""


def flags(case: Case) -> Outcome:
    """Call any command with one wrong word; the words refer to runs of all kinds."""
    bench, out = case.bench, case.folder / "out"
    corpus, study = bench.corpus(), bench.study()
    run = corpus / "run"
    lines = [
        ["list", "--json"],
        ["doctor"],
        ["runs", str(study / "runs"), "--sort=best", "--reverse", "--state=finished,failed", "--nojson"],
        ["inspect", f"--config={corpus / 'tiny.py'}", "--json", "--config.model.emb_dim=32"],
        ["inspect", f"--checkpoint={run}", "--nojson"],
        ["config", str(corpus / "tiny.py"), str(run / "config.json"), "--all", "--config.model.emb_dim=32"],
        ["evaluate", f"--checkpoint={run}", "--splits=test", "--nogenerate", "--evaluation.tokens_per_batch=512"],
        ["evaluate", f"--checkpoint={run}", "--nogenerate", f"--input={corpus / 'test.en'}", "--name=x"],
        ["evaluate", f"--checkpoint={run}", "--nogenerate", "--data.test_sets=a=test,b=valid,test", "--splits=a,b"],
        ["generate", f"--checkpoint={run}", "--decode.beam_size=2", "--decode.forbidden_ids=5"],
        ["generate", f"--checkpoint={run}", f"--output_file={out}", "--output=jsonl", "--force"],
        ["report", f"--workdir={study / 'runs' / 'heads'}", "--json", f"--output={out}"],
        ["plot", "--config=quickstart", f"--output={out}"],
        ["plot", f"--checkpoint={run}", f"--output={out}"],
        ["train", f"--config={corpus / 'tiny.py'}", f"--workdir={out}"],
        ["train", f"--workdir={run}", "--config.training.log_every_steps=4"],
        ["sweep", f"--study={study / 'experiments' / 'heads'}", "--num_workers=0", "--workdir=/proc/x"],
        ["prepare", "--dataset=no_such_dataset", "--data_dir=/proc/x"],
        ["embeddings", f"--checkpoint={run}", "--neighbours=1", "--analogy=1:2::3", "--count=2", f"--output={out}"],
        ["attention", f"--checkpoint={run}", "--text=1 2", "--target=2 1", "--layer=0", "--head=1", f"--output={out}"],
        ["compare", str(run), str(run), "--splits=test", "--samples=3", "--seed=2"],
        ["convert", f"--checkpoint={run}", f"--to={out}", "--family=marian", "--dtype=float16", "--shard_mb=1"],
        ["convert", f"--from={corpus}", f"--workdir={out}", "--config=quickstart", "--config.seed=1"],
        ["quickstart", "--workdir=/proc/x", "--config.training.num_train_steps=1"],
    ]
    words = case.choice(lines)
    if case.chance(0.3):
        words = case.choice(_of_other_kinds(case, out))
    return Outcome(case.words(words), b"1 2\n")


def _of_other_kinds(case: Case, out: Path) -> list[list[str]]:
    kind = case.choice(["classification", "language_model", "images", "masked_lm"])
    corpus = case.bench.corpus(kind)
    image = next(iter(sorted((corpus / "test").rglob("*.png"))), corpus)
    checkpoint = f"--checkpoint={corpus / 'run'}"
    return [
        ["predict", checkpoint, "--text=the cat", "--probabilities", "--output=jsonl"],
        ["predict", checkpoint, f"--image={image}", "--data.resize=crop", f"--output_file={out}"],
        ["score", checkpoint, "--text=the cat", "--output=jsonl", "--without_end"],
        ["score", checkpoint, f"--input={corpus / 'tiny.py'}", "--evaluation.max_length=20"],
        ["attention", checkpoint, "--text=the cat", f"--output={out}"],
        ["attention", checkpoint, f"--image={image}", f"--output={out}"],
        ["convert", checkpoint, f"--to={out}", "--without_tokenizer"],
        ["evaluate", checkpoint, "--splits=test", "--name=x"],
        ["inspect", checkpoint, "--json"],
        ["embeddings", checkpoint, f"--output={out}"],
    ]


def overrides(case: Case) -> Outcome:
    return Outcome(["inspect", "--config=quickstart", "--json", f"--config.{case.choice(FIELDS)}={case.choice(NASTY)}"])


def config(case: Case) -> Outcome:
    file = case.folder / "c.py"
    text = (case.bench.corpus() / "tiny.py").read_bytes()
    if case.chance(0.5):
        text = case.bytes(text)
    else:
        values = ["5", "None", "[]", "'x'", "{'a': 1}", "print", "exit()", "1/0", "__import__('sys').exit(0)"]
        text += f"\nget_config = {case.choice(values)}\n".encode()
    file.write_bytes(text)
    return Outcome(["inspect", f"--config={file}", "--json"])


def json_config(case: Case) -> Outcome:
    """Inspect or train a run's config.json with a value of another type in it."""
    kind = case.choice(["translation", "classification", "images", "masked_lm"])
    file = case.folder / "config.json"
    values = json.loads((case.bench.run(kind) / "config.json").read_text())
    section = case.choice([name for name in values if isinstance(values[name], dict)])
    wrong = case.choice(WRONG)
    if case.chance(0.3):
        values[section] = wrong
    else:
        values[section][case.choice([*values[section], "nothing"])] = wrong
    if values.pop(CHECKSUM, None) is not None and case.chance(0.9):
        values = with_checksum(values)
    file.write_text(json.dumps(values))
    if case.chance(0.3):
        file.write_bytes(case.bytes(file.read_bytes()))
    return Outcome(["inspect", f"--config={file}", "--json"])


def study_file(case: Case) -> Outcome:
    """Sweep a study whose file is damaged, with or without a pretraining."""
    folder, study = case.folder / "own", case.bench.study()
    folder.mkdir()
    text = (study / "experiments" / "heads" / "study.py").read_bytes()
    if case.chance(0.5):
        text = PRETRAINING.encode()
    (folder / "study.py").write_bytes(case.bytes(text))
    shutil.copy(study / "tiny.py", folder)
    return Outcome(["sweep", f"--study={folder}", "--workdir=/proc/nope"])


def pretraining(case: Case) -> Outcome:
    """Sweep a study with a pretraining and a wrong field of either config."""
    study = case.bench.study()
    (case.folder / "study.py").write_text(PRETRAINING)
    shutil.copy(study / "tiny.py", case.folder)
    names = [
        *FIELDS,
        "model.norm_position",
        "training.init_from",
        "training.new_parameters",
        "training.num_train_steps",
    ]
    changed = [
        f"--{case.choice(['pretraining', 'config'])}.{case.choice(names)}={case.choice([*NASTY, '3', 'post'])}"
        for _ in range(case.source.randint(1, 2))
    ]
    return Outcome(["sweep", f"--study={case.folder}", "--workdir=/proc/nope", *changed])


def test_files(case: Case) -> Outcome:
    """Evaluate a translation model on damaged pairs."""
    pairs = b"".join(f"{n} {n}\t{n}\n".encode() for n in range(9))
    lines = b"".join(json.dumps({"en": str(n), "de": str(n)}).encode() + b"\n" for n in range(9))
    name, text = case.choice([("x.tsv", pairs), ("x.jsonl", lines), ("x.tsv.gz", gzip.compress(pairs))])
    file = case.folder / name
    file.write_bytes(case.bytes(text))
    run = case.bench.run()
    return Outcome(["evaluate", f"--checkpoint={run}", f"--input={file}", "--name=fuzz", "--nogenerate"])


def test_sets(case: Case) -> Outcome:
    """Evaluate named test sets whose names or files are wrong."""
    corpus = case.copy(case.bench.corpus(), "corpus")
    for side in case.choice([("test.en",), ("test.en", "test.de"), ()]):
        (corpus / side).write_bytes(case.bytes((corpus / side).read_bytes()))
    texts = [
        "a=test",
        "a=test,valid",
        "a=test,b=valid",
        "a=tset",
        "test=test",
        "=test",
        "a=",
        "a=b=test",
        "a=test,a=valid",
    ]
    value = case.choice(texts if case.chance(0.8) else NASTY)
    splits = case.choice(["a", "a,b", "test", "a,test", "b", ""])
    flags = [f"--data.dir={corpus}", f"--data.test_sets={value}", f"--splits={splits}", "--nogenerate"]
    return Outcome(["evaluate", f"--checkpoint={case.bench.run()}", *flags])


def compare(case: Case) -> Outcome:
    """Compare runs of any kinds on files and splits, some of which are wrong."""
    one, other = (case.bench.corpus(case.choice(["translation", "recurrent", "classification"])) for _ in range(2))
    files = [f"--input={other / 'test.en'}", f"--reference={other / 'test.de'}"]
    spoiled = case.folder / "x.tsv"
    spoiled.write_bytes(
        case.bytes((other / "test.tsv").read_bytes() if (other / "test.tsv").exists() else b"1\t2\n" * 5)
    )
    choices = [["--splits=test"], ["--splits=valid,test"], files, files[:1], [f"--input={spoiled}", "--name=x"]]
    flags = [*case.choice(choices), f"--samples={case.choice(['3', '3', '3', '3', '0', 'x'])}"]
    outcome = Outcome(["compare", str(one / "run"), str(other / "run"), *flags])
    if outcome.code == 0 and b"nan" in outcome.out.lower():
        outcome.faults.append(f"shows NaN:\n{outcome.out.decode()}")
    return outcome


def looks(case: Case) -> Outcome:
    """Draw attention, embeddings and plots of runs of all kinds, for odd texts and words."""
    kind = case.choice(["translation", "recurrent", "language_model", "masked_lm", "classification", "images"])
    run, out = case.bench.run(kind), f"--output={case.folder / 'out'}"
    text = case.choice([*NASTY, "the cat saw", "1 2 3", "<mask>", "1\n2", "a\tb", "\u202e1"])
    lines = [
        ["attention", f"--text={text}", out],
        ["attention", "--text=1 2", f"--target={text}", out],
        ["attention", f"--image={text}", out],
        ["embeddings", f"--neighbours={text}", out],
        ["embeddings", f"--analogy={text}:1::2", out],
        ["plot", out],
        ["inspect", "--json"],
    ]
    name, *words = case.choice(lines)
    return Outcome([name, f"--checkpoint={run}", *words])


def stdin(case: Case) -> Outcome:
    words = ["generate", f"--checkpoint={case.bench.run()}"]
    if case.chance(0.3):
        prompts = case.folder / "prompts.txt"
        prompts.write_bytes(case.bytes(b"1\n2\n\n6\n"))
        words.append(f"--prompts={prompts}")
    return Outcome(words, case.bytes(b"1 2 3\n4 5\n\n6\n"))


def decode(case: Case) -> Outcome:
    name = case.choice([field for field in FIELDS if field.startswith("decode.")])
    value = case.choice([*NASTY, "2", "3", "0.5", ",".join(map(str, range(4, 290)))])
    kind = case.choice(["translation", "language_model", "span_corruption"])
    return Outcome(["generate", f"--checkpoint={case.bench.run(kind)}", f"--{name}={value}"], b"1 2\n")


def results(case: Case) -> Outcome:
    """Report a study with a wrong file."""
    copy = case.copy(case.bench.study() / "runs" / "heads")
    file = case.choice([path for path in sorted(copy.rglob("*.json*")) if path.is_file()])
    wrong = [b"[]", b"3", b"null", b"[" * 100_000, b'{"a": 1}', b"\xff\xfe"]
    if case.chance(0.7) and file.suffix == ".json":
        values = json.loads(file.read_text())
        if case.chance(0.5):  # a record that somebody else wrote, whose checksum is right
            values.pop(CHECKSUM, None)
            values = with_checksum(case.json(values))
        else:
            values[case.choice(list(values))] = case.choice(WRONG)
        file.write_text(json.dumps(values))
    else:
        file.write_bytes(case.choice(wrong))
    return Outcome(["report", f"--workdir={copy}"])


def style(case: Case) -> Outcome:
    """Report a study with figures in a wrong style."""
    values = {
        **{"width": 3.3, "height": 2, "font": "serif", "font_size": 8, "colours": ["#004488", "#BB5566"]},
        **{"colour_map": "viridis", "labels": {"num_heads": "heads", "num_heads=1": "one", "test/loss": "loss"}},
    }
    file = case.folder / "style.json"
    if case.chance(0.2):
        file.write_bytes(case.choice([b"[]", b"3", b"null", b"[" * 100_000, b"\xff\xfe"]))
    else:
        file.write_text(json.dumps(case.json(values)))
    workdir = case.bench.study() / "runs" / "heads"
    return Outcome(["report", f"--workdir={workdir}", f"--output={case.folder / 'out'}", f"--style={file}"])


MAKERS: tuple[Maker, ...] = (
    *(flags, flags, flags, overrides, overrides, config, json_config, study_file, pretraining),
    *(test_files, test_sets, compare, looks, stdin, decode, results, style),
)
