"""`transformer-jax prepare`: its output and its errors."""

import shlex
import subprocess
import sys

import pytest
from image_support import write_npz
from tfds_support import PAIRS, examples, prepare

from transformer_jax.cli.arguments import parse
from transformer_jax.cli.help import command_module
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_config
from transformer_jax.data.downloads.table import NAMES
from transformer_jax.data.sources import load_source
from transformer_jax.data.sources.source import joined
from transformer_jax.errors import DataError

EMBEDDED = "embedded_translate/en-it-100-10"


@pytest.fixture
def failing(monkeypatch):
    """Make the preparation of any dataset raise an error."""

    def install(error):
        def fail(self, **kwargs):
            print("what TFDS prints")
            raise error

        monkeypatch.setattr("tensorflow_datasets.core.DatasetBuilder.download_and_prepare", fail)

    return install


@pytest.fixture
def without_tensorflow(monkeypatch):
    """Let no import find TensorFlow, as where it is not installed.

    None in `sys.modules` would not do: TFDS asks whether the name is there, and takes TensorFlow for imported.
    """
    finders = list(sys.meta_path)

    class Others:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] == "tensorflow":
                return None
            return next((spec for finder in finders if (spec := finder.find_spec(name, path, target))), None)

    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Others])


def printed_flags(out: str) -> list[str]:
    return shlex.split(out.partition("Flags to train with it:\n")[2].splitlines()[0])


def source_of(tmp_path, flags: list[str]):
    """Return the source that a training run with these flags reads, over a config that names other splits."""
    path = tmp_path / "config.py"
    path.write_text(
        "from transformer_jax.config import DataConfig, ExperimentConfig\n"
        "data = DataConfig(source='text', train_split='a', valid_split='b', test_split='c', source_locale='fr')\n"
        "def get_config(arg=''):\n    return ExperimentConfig(data=data).to_config_dict()\n"
    )
    arguments = parse(command_module("train"), "train", [f"--config={path}", *flags])
    return load_source(read_config(str(path), arguments.overrides).data)


def test_prepares_and_shows_the_flags_to_train_with(tmp_path, capsys):
    data_dir = tmp_path / "new" / "data"
    argv = ["prepare", f"--dataset={EMBEDDED}", f"--data_dir={data_dir}"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    folder = data_dir / EMBEDDED / "1.0.0"
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == f"{EMBEDDED}/1.0.0 is prepared"
    assert lines[1:4] == [
        f"  folder    {folder}",
        "  splits    train 100, valid 10, test 10, test_longer 10",
        "  features  en (Text), family (Text), it (Text)",
    ]
    assert lines[-1] == f"  {folder}"
    source = source_of(tmp_path, printed_flags(out))
    assert [source.num_examples(name) for name in source.split_names] == [100, 10, 10]
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main(argv) == 0
    again = capsys.readouterr().out.splitlines()
    assert again == [f"{EMBEDDED}/1.0.0 was already prepared: nothing to do", *lines[1:]]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_default_config_and_the_default_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path))
    prepare("wmt14_translate/cs-en", tmp_path, {"train": examples("cs", "en"), "test": examples("cs", "en")})
    capsys.readouterr()
    assert main(["prepare", "--dataset=wmt14_translate"]) == 0
    flags = printed_flags(capsys.readouterr().out)
    assert flags == [
        "--config.data.source=tfds",
        "--config.data.dataset=wmt14_translate/cs-en",
        "--config.data.train_split=train[:-1]",
        "--config.data.valid_split=train[-1:]",
        "--config.data.test_split=test",
        "--config.data.source_locale=cs",
        "--config.data.target_locale=en",
    ]
    source = source_of(tmp_path, flags)
    assert [source.num_examples(name) for name in source.split_names] == [3, 1, 4]


def test_the_flags_translate_in_the_direction_of_the_dataset(tmp_path, capsys):
    prepare("ted_hrlr_translate/pt_to_en", tmp_path, {"train": examples("pt", "en")})
    capsys.readouterr()
    assert main(["prepare", "--dataset=ted_hrlr_translate/pt_to_en", f"--data_dir={tmp_path}"]) == 0
    source = source_of(tmp_path, printed_flags(capsys.readouterr().out))
    split = joined(source.split(name) for name in ("train", "valid"))
    assert sorted(zip(split.features["inputs"], split.features["targets"], strict=True)) == sorted(PAIRS)


def test_the_name_of_a_config_stands_for_its_dataset(tmp_path, capsys):
    prepare("wmt14_translate/de-en", tmp_path, dict.fromkeys(("train", "validation", "test"), examples("de", "en")))
    capsys.readouterr()
    assert main(["prepare", "--dataset=wmt14", f"--data_dir={tmp_path}"]) == 0
    config, *flags = printed_flags(capsys.readouterr().out)
    assert config == "--config=wmt14"
    data = read_config("wmt14", parse(command_module("train"), "train", flags).overrides).data
    assert (data.source_locale, data.target_locale) == ("en", "de")  # as in the paper
    split = load_source(data).split("test").features
    assert sorted(zip(split["targets"], split["inputs"], strict=True)) == sorted(PAIRS)


def test_manual_files_of_a_download(tmp_path, capsys):
    assert main(["prepare", "--dataset=tatoeba", f"--data_dir={tmp_path}", "--manual_dir=x"]) == 2
    assert f"is for datasets of TFDS; put files into {tmp_path}/downloads/tatoeba" in capsys.readouterr().err


def test_the_user_chooses_among_many_texts(tmp_path, capsys):
    prepare("ag_news_subset", tmp_path, {"train": [{"title": "a", "description": "b", "label": 1}] * 9})
    capsys.readouterr()
    assert main(["prepare", "--dataset=ag_news_subset", f"--data_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    fields = "--config.data.input_feature and --config.data.target_feature"
    assert f"  and {fields}, two of its text features: description, title\n" in out
    features = ["--config.data.input_feature=description", "--config.data.target_feature=title"]
    assert source_of(tmp_path, [*printed_flags(out), *features]).split("train").features["targets"] == ["a"] * 8


def test_one_text_is_not_enough_to_translate(tmp_path, capsys):
    prepare("lm1b", tmp_path, {"train": [{"text": "a"}, {"text": "b"}], "validation": [{"text": "c"}]})
    capsys.readouterr()
    assert main(["prepare", "--dataset=lm1b", f"--data_dir={tmp_path}"]) == 0
    assert (
        "  and another dataset: this one has one text feature, text; translation needs two\n" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], f"--dataset=... is missing: name of the dataset: {', '.join(NAMES)}, or one of TFDS"),
        (["--dataset=multi30"], "wnut17, scan, scitldr, wmt14, cifar10 (did you mean 'multi30k'?)"),
        (["--dataset=wmt14_translat"], "TFDS has no dataset 'wmt14_translat'; nearest: wmt14_translate"),
        (["--dataset=wmt14_translate/de-em"], "has no config 'de-em'; nearest: de-en"),
        (["--dataset=embedded_translate/en-de-5"], "expected two different locales"),
        pytest.param(
            ["--dataset=embedded_translate:7.0.0"], "cannot be loaded at version 7.0.0", marks=pytest.mark.slow
        ),
        (["--dataset=super_glue/rte"], 'needs TensorFlow, which training does not: pip install "transformer-jax[prep'),
    ],
)
@pytest.mark.usefixtures("without_tensorflow")
def test_datasets_that_cannot_be_prepared(tmp_path, capsys, argv, message):
    assert main(["prepare", *argv, f"--data_dir={tmp_path}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("transformer-jax: error: ")
    assert message in err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'tensorflow'"), 'pip install "transformer-jax[prepare]"'),
        (ModuleNotFoundError("No module named 'apache_beam'"), "a library that is not installed: No module named 'ap"),
        (
            ConnectionError("statmt.org: no route"),
            "cannot download lm1b: statmt.org: no route; complete files are kept",
        ),
        (AssertionError("put the files into manual_dir"), "TFDS cannot prepare lm1b: put the files into manual_dir"),
        (DataError("too few distinct sentences"), "error: too few distinct sentences"),
        (OSError(28, "No space left on device", "/data"), "/data: No space left on device"),
    ],
)
def test_errors_of_tfds(tmp_path, capsys, failing, error, message):
    failing(error)
    assert main(["prepare", "--dataset=lm1b", f"--data_dir={tmp_path}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_folder_that_cannot_be_created(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["prepare", f"--dataset={EMBEDDED}", f"--data_dir={tmp_path}/file/data"]) == 2
    assert f"cannot make the folder {tmp_path}/file/data of datasets: Not a directory" in capsys.readouterr().err


def test_a_dataset_in_another_format_is_reported_and_kept(tmp_path, capsys):
    prepare("lm1b", tmp_path, {"train": [{"text": "a"}]}, file_format="parquet")
    capsys.readouterr()
    assert main(["prepare", "--dataset=lm1b", f"--data_dir={tmp_path}"]) == 2
    assert "prepare --dataset=lm1b --data_dir=ANOTHER_FOLDER" in capsys.readouterr().err


def test_manual_dir_is_passed_on(tmp_path, monkeypatch, capsys):
    given = []

    def record(self, **options):
        given.append(options["download_config"])
        raise RuntimeError("enough")

    monkeypatch.setattr("tensorflow_datasets.core.DatasetBuilder.download_and_prepare", record)
    main(["prepare", "--dataset=lm1b", f"--data_dir={tmp_path}", "--manual_dir=/somewhere"])
    main(["prepare", "--dataset=lm1b", f"--data_dir={tmp_path}"])
    assert [config.manual_dir for config in given] == ["/somewhere", None]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from transformer_jax.cli.main import main; main(['prepare', '--help'])\n"
        "print({'jax', 'tensorflow_datasets', 'tensorflow', 'numpy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "set()"


def test_a_corpus_of_images(tmp_path, capsys):
    write_npz(tmp_path / "mnist").rename(tmp_path / "mnist" / "mnist.npz")
    assert main(["prepare", "--dataset=mnist", f"--data_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "mnist was already prepared: nothing to do" in out
    assert "  images    train 36, test 9\n" in out
    assert out.endswith(f"  --config=mnist --config.data.dir={tmp_path / 'mnist'}\n")
