"""The table of corpora: where their files are, their checksums, and how they are unpacked into a folder for `data.dir`.

A sha256 of this table was computed from the file itself; those of SST-2.zip and mnist.npz are the ones of Hugging Face
datasets and of Keras. It is None if a publisher replaces the file from time to time.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from transformer_jax.data.downloads.unpacking import (
    Unpack,
    gunzipped,
    in_and_out,
    members,
    renamed,
    split_by_hash,
    unchanged,
)


class RemoteFile(NamedTuple):
    """A file to download. size: in bytes; sha256: in hexadecimal. None: not known, because the file changes."""

    url: str
    size: int | None
    sha256: str | None

    @property
    def name(self) -> str:
        """Name of the file on disk: the last part of its URL."""
        return urlsplit(self.url).path.rpartition("/")[2]


class Corpus(NamedTuple):
    """A corpus that this module can download.

    page: of its publisher. licence: as the publisher states it. prefixes: of the files in `data.dir`, each with all
    `endings`. unpack: writes these files. encoding: of their text.
    """

    page: str
    licence: str
    files: tuple[RemoteFile, ...]
    prefixes: tuple[str, ...]
    unpack: Unpack
    endings: tuple[str, ...] = ("en", "de")
    encoding: str = "utf-8"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files in `data.dir`."""
        return tuple(f"{prefix}.{ending}" for prefix in self.prefixes for ending in self.endings)


def _files(folder: str, table: str) -> tuple[RemoteFile, ...]:
    """Return the files of a folder on the web. table: lines of name, size and sha256."""
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(RemoteFile(f"{folder}/{name}", int(size), sha256) for name, size, sha256 in rows)


_SCAN = "https://raw.githubusercontent.com/brendenlake/SCAN/c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f"
_SCAN_SPLITS = ("train_simple", "test_simple", "train_length", "test_length")

CORPORA = {
    "multi30k": Corpus(
        page="https://github.com/multi30k/dataset",
        licence="for non-commercial research and education",
        files=_files(
            "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw",
            """
            train.en.gz            568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
            train.de.gz            637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
            val.en.gz               21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
            val.de.gz               24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
            test_2016_flickr.en.gz  21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
            test_2016_flickr.de.gz  22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
            test_2017_flickr.en.gz  19138 76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074
            test_2017_flickr.de.gz  21471 a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee
            test_2017_mscoco.en.gz   8844 aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58
            test_2017_mscoco.de.gz  10230 799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338
            """,
        ),
        prefixes=("train", "val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"),
        unpack=gunzipped,
    ),
    "multi30k_wu2021": Corpus(
        page="https://github.com/LividWo/Revisit-MMT",
        licence="Multi30k: for non-commercial research and education",
        files=_files(
            "https://raw.githubusercontent.com/LividWo/Revisit-MMT/dc368d0af8d60270b8f4aaa2f3ac58771c551da3/data/multi30k-en-de",
            """
            train.en     1898472 0ffe3e3bac16e6aa33ef0dd6a7dca81587479b0d18dff0db2a92ac3f32b00c86
            train.de     2269411 b2c74def7ec129f7ea7023a51501c77174c377ef06c6ccc2f031adcfb5cfadbd
            valid.en       67101 193d0d18fef5d1bc9d1cddafa13a644de3c5d6a24b45ac44476dcc5e96bfac6e
            valid.de       82295 eeb95680d6a06eafb13e3494eed9f9fa99783b892f4a3c72dd36e7ce2e000b68
            test.2016.en   65416 13b5fe3f92f78c54446d66afcaaa0a00a33ab653a8411f16812c9c5ca3795d6d
            test.2016.de   75949 375c20d50f4c486149a78dfcfb161a430a04ddabe2b7d150f0c7811dc455ac60
            test.2017.en   58544 5252390a58d57bce8d6a69a973e4908e98c7b70d3fc7ccc9c3963747ae8b177d
            test.2017.de   70232 9deefbe5705b60c3b5a790146e232b411a0da0420fd194ed6f6ad3a2674340a0
            test.coco.en   26382 82d825317109d12260cfd637a23d2bf7c564308546f56e341047b2067c0dba8b
            test.coco.de   32864 5cfc9d5e6511565c53c390598d7a69d14dd302c1a374a16c56959224c5a54d99
            """,
        ),
        prefixes=("train", "valid", "test.2016", "test.2017", "test.coco"),
        unpack=unchanged,
    ),
    "tatoeba": Corpus(
        page="https://www.manythings.org/anki",
        licence="CC BY 2.0 (tatoeba.org)",
        files=(RemoteFile("https://www.manythings.org/anki/deu-eng.zip", None, None),),
        prefixes=("train", "valid", "test"),
        unpack=split_by_hash("deu-eng.zip", "deu.txt"),
    ),
    "shakespeare_char": Corpus(
        page="https://github.com/karpathy/char-rnn",
        licence="public domain text",
        files=_files(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare",
            "input.txt 1115394 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        ),
        prefixes=("input",),
        unpack=unchanged,
        endings=("txt",),
    ),
    "wikitext2": Corpus(
        page="https://github.com/pytorch/examples/tree/main/word_language_model",
        licence="CC BY-SA (Wikipedia)",
        files=_files(
            "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2",
            """
            train.txt 10797148 9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f
            valid.txt  1121681 f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8
            test.txt   1256449 d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0
            """,
        ),
        prefixes=("train", "valid", "test"),
        unpack=unchanged,
        endings=("txt",),
    ),
    "mnist": Corpus(
        page="https://keras.io/api/datasets/mnist",
        licence="CC BY-SA 3.0, as Keras states it",
        files=_files(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            "mnist.npz 11490434 731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
        ),
        prefixes=("mnist",),
        unpack=unchanged,
        endings=("npz",),
    ),
    "trec": Corpus(
        page="https://cogcomp.seas.upenn.edu/Data/QA/QC",
        licence="none stated",
        files=_files(
            "https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data/raw",
            """
            TREC.train 335858 9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3
            TREC.test   23354 033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e
            """,
        ),
        prefixes=("train", "test"),
        unpack=renamed({"TREC.train": "train.txt", "TREC.test": "test.txt"}),
        endings=("txt",),
        encoding="latin-1",
    ),
    "sst2": Corpus(
        page="https://gluebenchmark.com",
        licence="none stated",
        files=_files(
            "https://dl.fbaipublicfiles.com/glue/data",
            "SST-2.zip 7439277 d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        ),
        prefixes=("train", "dev"),
        unpack=members("SST-2.zip", {"SST-2/train.tsv": "train.tsv", "SST-2/dev.tsv": "dev.tsv"}),
        endings=("tsv",),
    ),
    "ud_ewt": Corpus(
        page="https://github.com/UniversalDependencies/UD_English-EWT",
        licence="CC BY-SA 4.0",
        files=_files(
            "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/r2.16",
            """
            en_ewt-ud-train.conllu 14203025 3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b
            en_ewt-ud-dev.conllu    1805545 531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6
            en_ewt-ud-test.conllu   1804515 e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd
            """,
        ),
        prefixes=("train", "dev", "test"),
        unpack=renamed({f"en_ewt-ud-{split}.conllu": f"{split}.conllu" for split in ("train", "dev", "test")}),
        endings=("conllu",),
    ),
    "wnut17": Corpus(
        page="https://github.com/leondz/emerging_entities_17",
        licence="CC BY 4.0",
        files=_files(
            "https://raw.githubusercontent.com/leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603",
            """
            wnut17train.conll       493781 731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5
            emerging.dev.conll      114749 e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8
            emerging.test.annotated 192425 2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0
            """,
        ),
        prefixes=("train", "dev", "test"),
        unpack=renamed(
            {
                "wnut17train.conll": "train.conll",
                "emerging.dev.conll": "dev.conll",
                "emerging.test.annotated": "test.conll",
            }
        ),
        endings=("conll",),
    ),
    "scan": Corpus(
        page="https://github.com/brendenlake/SCAN",
        licence="BSD",
        files=(
            *_files(
                f"{_SCAN}/simple_split",
                """
                tasks_train_simple.txt 3267938 941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd
                tasks_test_simple.txt   812450 1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6
                """,
            ),
            *_files(
                f"{_SCAN}/length_split",
                """
                tasks_train_length.txt 2723418 b034212dc7cf87ce62f3a067dd6ad49c4d5cd18d51d615d13825516bcb1ebbc2
                tasks_test_length.txt  1356970 0760752ed34a75116ae11dcc1ee17526b7500060da1366540730fa24894d7db3
                """,
            ),
        ),
        prefixes=_SCAN_SPLITS,
        unpack=in_and_out({f"tasks_{split}.txt": split for split in _SCAN_SPLITS}),
        endings=("in", "out"),
    ),
    "scitldr": Corpus(
        page="https://github.com/allenai/scitldr",
        licence="Apache-2.0",
        files=_files(
            "https://raw.githubusercontent.com/allenai/scitldr/5ccad9c00a60ad75c9e04abf7f27d0f53f983b20/SciTLDR-Data/SciTLDR-A",
            """
            train.jsonl 3155015 b222771d387be585cfdf5ae957b36757138415a352e0a3e3b23f73f87c3b1119
            dev.jsonl   1124865 3191fa98ccc09521332b7a1cd63b1930be4e8df125a235ccd31e40329709525e
            test.jsonl  1204107 fb42dd6cd4f4a1928ae8a01a189456fbfe994a07e938bd49f68653933f6503c9
            """,
        ),
        prefixes=("train", "dev", "test"),
        unpack=unchanged,
        endings=("jsonl",),
    ),
}
"""Corpora of files, by the name of the config that trains on them."""

TFDS_NAMES = {"wmt14": "wmt14_translate/de-en", "cifar10": "cifar10"}
"""Datasets of TensorFlow Datasets, by the name of the config that trains on them."""

NAMES = (*CORPORA, *TFDS_NAMES)
"""Names that `prepare --dataset` takes in addition to those of TensorFlow Datasets."""
