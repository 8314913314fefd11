"""The section `data`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator

from transformer_jax.config.decode import GENERATING
from transformer_jax.config.fields import choice, field, number
from transformer_jax.config.task import SOURCE_TO_TARGET

IMAGE_SOURCES = ("shapes", "image_folder", "npz", "tfds_images")
"""Sources of images; the other ones of this package have texts."""
RECALL = "recall"
"""The source of drawn rows of keys and values, whose loss counts only the answers; data/sources/recall.py."""
_SPLIT_BY_USER = {"data.source": ("text", "tfds", "image_folder", "npz", "tfds_images")}
_FILES_OR_TFDS = {"data.source": ("text", "tfds")}
_WITH_INPUTS = (
    *(*SOURCE_TO_TARGET, "language_model", "classification"),
    *("masked_lm", "span_corruption", "denoising"),
)
_WITH_LABELS = (*SOURCE_TO_TARGET, "classification", "tagging", "images")
_WITH_FEATURES = {"data.source": ("text", "tfds", "tfds_images")}
_WITH_TEST_SETS = {"data.source": (*_SPLIT_BY_USER["data.source"], RECALL)}
_OF_IMAGES = {"data.source": IMAGE_SOURCES}
_OF_RECALL = {"data.source": (RECALL,)}
_TOKENS = {"model.inputs": ("tokens",)}
_VOCABULARY_KINDS = {"data.tokenizer": ("words", "byte_bpe", "wordpiece", "wordpiece_cased")}

# Only the source `embedded` reads the sizes of the embedded corpus, but the fields have no `read_by`: a user can put
# another corpus into a config that sets them.

CORPUS_SPLITS = ("train", "valid", "test")
_TEST_SET = re.compile(r"[\w.-]+=")
_NUMBER = re.compile(r"[0-9]{1,9}")


def parse_test_sets(text: str) -> dict[str, str]:
    """Return the splits of `data.test_sets` by name; a part without NAME= belongs to the split before it.

    Raises: ValueError for a text of another form, a name given twice, and the name of a split of the corpus.
    """
    result: dict[str, str] = {}
    name = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if match := _TEST_SET.match(part):
            name, split = match[0][:-1], part[match.end() :].strip()
            if name in result or name in CORPUS_SPLITS:
                raise ValueError(f"'{name}' is {'given twice' if name in result else 'a split of the corpus'}")
            result[name] = split
        elif name:
            result[name] += f",{part}"
        if not name or not result[name]:
            raise ValueError("expected NAME=SPLIT,NAME=SPLIT with names of letters, digits, '_', '.' and '-'")
    return result


def parse_label_names(text: str) -> dict[str, str]:
    """Return the names of `data.label_names` by label; raise ValueError for a text of another form."""
    names: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        label, equals, name = (piece.strip() for piece in part.partition("="))
        if not label or not equals or not name:
            raise ValueError("expected LABEL=NAME,LABEL=NAME")
        if label in names:
            raise ValueError(f"the label {label!r} is given twice")
        names[label] = name
    return names


_FEATURES = ("input_feature", "target_feature", "second_feature")
_UNREAD_FEATURES = {
    **dict.fromkeys(("parallel", "documents", "labelled", "squad"), _FEATURES),
    **dict.fromkeys(("conll", "conllu"), ("second_feature",)),
}
"""Fields that a format of text files does not read."""
CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_OF_NUMBERS = {"conll": "a number from 1", "conllu": f"a number from 1 to 10, or one of {', '.join(CONLLU_COLUMNS)}"}


def _is_column(value: str, format: str) -> bool:
    if format == "conllu" and value in CONLLU_COLUMNS:
        return True
    return value.isdecimal() and 1 <= int(value) <= (len(CONLLU_COLUMNS) if format == "conllu" else 1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus, its tokenizer and its batches."""

    source: str = choice(
        "embedded",
        "transformer_jax.data.sources:SOURCES",
        "where examples come from, data/sources",
        outside=True,
    )
    source_locale: str = field("en", "locale of the inputs; for `text` the files' suffix")
    target_locale: str = field("de", "locale of the targets; for `text` the files' suffix")
    num_train_pairs: int = number(
        200_000, "training pairs of the embedded corpus, images of `shapes`, or rows of `recall`", 100
    )
    num_eval_pairs: int = number(
        2_000, "examples of each other split of the embedded corpus, of `shapes` or of `recall`", 10
    )
    recall_pairs: int = number(4, "`recall`: number of pairs of key and value in a row", 1, read_by=_OF_RECALL)
    recall_questions: int = number(
        1, "`recall`: number of keys of a row that are asked for, each once", 1, read_by=_OF_RECALL
    )
    recall_keys: int = number(32, "`recall`: number of different keys, and of different values", 2, read_by=_OF_RECALL)
    recall_gap: int = number(
        0, "`recall`: number of filler words between the last pair and the first question", 0, read_by=_OF_RECALL
    )
    recall_length: int = number(
        64,
        "`recall`: number of words of a row; filler words follow the answers until it is reached",
        4,
        read_by=_OF_RECALL,
    )
    recall_order: str = choice(
        "shuffled",
        "transformer_jax.data.sources.recall:ORDERS",
        "`recall`: the questions ask for the keys in a random order, or in that of the pairs. Kept, every question is "
        "equally far from its pair",
        read_by=_OF_RECALL,
    )
    dir: str = field(
        "",
        "`text`: folder of the files; `tfds` and `tfds_images`: folder of the prepared datasets, or the folder of one "
        "dataset; `image_folder`: folder of train/LABEL/FILE.png; `npz`: the file, or the folder of one file",
        read_by=_SPLIT_BY_USER,
    )
    dataset: str = field(
        "",
        "`tfds` and `tfds_images`: name and config, for example wmt14_translate/de-en; empty: dir is the folder of the "
        "dataset",
        read_by={"data.source": ("tfds", "tfds_images")},
    )
    format: str = choice(
        "parallel",
        ("parallel", "tsv", "jsonl", "labelled", "conll", "conllu", "squad", "documents"),
        "`text`: one file per language, PREFIX.LOCALE; or one file: PREFIX.tsv, PREFIX.jsonl, PREFIX.txt with a label "
        "in front of every text (labelled), PREFIX.conll or PREFIX.conllu with tagged words, PREFIX.json as of SQuAD "
        "1.1, or PREFIX.txt with documents without targets; plain or .gz; data/sources/formats.py",
        read_by={"data.source": ("text",)},
    )
    text_lists: bool = field(
        False,
        "`jsonl`: the input may be a list of texts, such as the sentences of a document, and the target a list of "
        "references; the input is then the texts joined by spaces",
        read_by={"task.name": ("text_to_text",), "data.format": ("jsonl",)},
    )
    encoding: str = choice(
        "utf-8", ("utf-8", "latin-1"), "`text`: encoding of the files", read_by={"data.source": ("text",)}
    )
    documents: str = choice(
        "line",
        "transformer_jax.data.sources.documents:UNITS",
        "`documents`: what a document is: a line, the lines between blank lines, or a file",
        read_by={"data.format": ("documents",)},
    )
    input_feature: str | None = field(
        None,
        "inputs: `tfds` feature, `jsonl` key, column of `tsv` (a number from 1, or a name in the first line), column "
        "of the words of `conll` or `conllu`; default source_locale, column 1, FORM; of `tfds_images` image",
        read_by=_WITH_FEATURES,
    )
    second_feature: str = field(
        "",
        "second text of every example, like input_feature, for `tsv`, `jsonl` and `tfds`; empty: there is none",
        read_by=_FILES_OR_TFDS,
    )
    target_feature: str | None = field(
        None,
        "targets, or labels: like input_feature; default target_locale, column 2, of `conll` the last column, of "
        "`conllu` UPOS; empty: there are none, as for a language model. `embedded`: families, phrases, answers or "
        "headlines in place of translations; default of `tfds_images`: label",
        read_by={"data.source": ("text", "tfds", "embedded", "tfds_images")},
    )
    coarse_labels: bool = field(
        False,
        "keep only the part of every label before a colon, as of TREC's DESC:manner",
        read_by={"task.name": _WITH_LABELS},
    )
    label_names: str = field(
        "", "other names of the labels: 0=negative,1=positive", read_by={"task.name": _WITH_LABELS}
    )
    input_template: str = field(
        "",
        "text that becomes the input: {inputs} and {second} stand for the texts of the example, as in "
        "'sst2 sentence: {inputs}'; empty: the input itself",
        read_by={"task.name": _WITH_INPUTS},
    )
    colours: str = choice(
        "as_stored",
        "transformer_jax.data.sources.images.image_source:MODES",
        "images: channels as in the files, or all converted to grey (1 channel) or rgb (3)",
        read_by=_OF_IMAGES,
    )
    resize: str = choice(
        "none",
        "transformer_jax.data.images:RESIZES",
        "images of another size than model.image_size: an error; scaled to it (squash); or scaled until the shorter "
        "side fits, and cut at the longer one (crop)",
        read_by={"model.inputs": ("patches",)},
    )
    unfit_images: str = choice(
        "error",
        "transformer_jax.data.sources.images.image_source:LEAVES_OUT",
        "images that cannot be read, or have another number of channels or, without resize, another size than most: an "
        "error, or left out, with a warning that has their number",
        read_by=_OF_IMAGES,
    )
    misplaced_answers: str = choice(
        "error",
        "transformer_jax.data.sources.formats:IGNORES_MISPLACED",
        "`squad`: an answer that is not at its place in the context is an error, or is only used for scores",
        read_by={"data.format": ("squad",)},
    )
    train_split: str = field(
        "train",
        "`text`: prefixes of files, separated by commas; `tfds`: the split; other images: the folder, or the name in "
        "the file; of all, parts such as train[:90%]",
        read_by=_SPLIT_BY_USER,
    )
    valid_split: str = field(
        "valid",
        "validation split, like train_split; empty: there is none, which `train` refuses",
        read_by=_SPLIT_BY_USER,
    )
    test_split: str = field("test", "test split, like train_split; empty: there is none", read_by=_SPLIT_BY_USER)
    test_sets: str = field(
        "",
        "further splits to score: NAME=SPLIT,NAME=SPLIT, each like test_split; they are not part of the corpus. Of "
        "`recall` NAME=GAP: the rows of the test split with another recall_gap",
        read_by=_WITH_TEST_SETS,
        bookkeeping=True,
    )
    text_form: str = choice(
        "plain",
        ("plain", "moses_bpe"),
        "moses_bpe: the text consists of Moses tokens, perhaps split with `@@`; scores and outputs use plain text",
        read_by=_FILES_OR_TFDS | GENERATING,
    )
    tokenizer: str = choice(
        "unigram",
        "transformer_jax.data.tokenizers:TRAINERS",
        "how text becomes tokens: two SentencePiece models, byte-level BPE, BERT's WordPiece in small letters or "
        "cased, words between spaces, characters or bytes; data/tokenizers",
        read_by=_TOKENS,
    )
    tokenizer_pairs: int = number(
        200_000,
        "number of training pairs that train the tokenizer, at most; `words` and `char` use all",
        100,
        read_by=_TOKENS,
    )
    separate_tokenizers: bool = field(
        False,
        "one tokenizer for source texts and one for target texts, with model.source_vocab_size and model.vocab_size "
        "ids; needs model.share_embeddings=false",
        read_by={"task.name": SOURCE_TO_TARGET},
    )
    vocabulary_file: str = field(
        "",
        "vocabulary that is read instead of trained. `words`: a file with one word per line; `byte_bpe`: a "
        "tokenizer.json, or a folder with GPT-2's encoder.json and vocab.bpe; `wordpiece`: BERT's vocab.txt, a "
        "tokenizer.json, or a folder with one of them. With separate_tokenizers, that of the target",
        read_by=_VOCABULARY_KINDS,
    )
    source_vocabulary_file: str = field(
        "", "with separate_tokenizers: vocabulary of the source, like vocabulary_file", read_by=_VOCABULARY_KINDS
    )
    max_length: int = number(
        128,
        "training pairs with a longer side (in tokens, with eos) are left out; see drop_long. With a decoder alone, "
        "both sides together count. "
        "Language models, masked_lm, span_corruption and denoising: length of windows, with special tokens; longer "
        "documents are cut",
        2,
        read_by=_TOKENS,
    )
    drop_long: bool = field(
        False,
        "train although more than 10 % of the training examples are longer than max_length and left out; false: this "
        "is an error",
        read_by={"data.batching": ("buckets", "packed")},
        bookkeeping=True,
    )
    cut_documents: bool = field(
        True,
        "language models: cut documents of more than max_length tokens into parts; false: they are an error",
        read_by={"task.name": ("language_model",), "data.batching": ("buckets", "packed")},
    )
    cut_texts: bool = field(
        False,
        "classification: cut texts of more than max_length tokens at their end, of two texts the longer one; false: "
        "leave them out in training, and score them whole",
        read_by={"task.name": ("classification",)},
    )
    batching: str = choice(
        "buckets",
        ("buckets", "packed", "windows", "rows"),
        "buckets: pad to a few lengths; packed: put several examples in a row; windows: random parts of the text, "
        "max_length tokens each, across the ends of documents (language models); rows: the same number of images in "
        "every batch",
    )
    tokens_per_batch: int = number(
        4096,
        "greatest size of a batch in tokens with padding: rows times the longer side",
        16,
        read_by={"data.batching": ("buckets", "packed", "windows")},
    )
    rows_per_batch: int = number(
        128, "`rows`: number of images of a batch; a multiple of row_multiple", 1, read_by={"data.batching": ("rows",)}
    )
    row_multiple: int = number(
        8, "the number of rows of a batch is a multiple of this, so that devices can divide them", 1
    )
    num_buckets: int = number(
        6,
        "`buckets`: greatest number of shapes that training batches are padded to",
        1,
        read_by={"data.batching": ("buckets",)},
    )
    packed_length: int = number(
        256,
        "`packed`: length of a row in tokens, on the side with more tokens",
        2,
        read_by={"data.batching": ("packed",)},
    )
    cache_dir: str = field(
        "",
        "folder of tokens and trained tokenizers that several runs share; default: the work directory",
        rounding=True,
    )

    def split_texts(self) -> dict[str, str]:
        """Return the values of train_split, valid_split and test_split by the names of the splits, without empty ones.

        The test sets follow; they are splits to score, but no part of the corpus.
        """
        of_corpus = {"train": self.train_split, "valid": self.valid_split, "test": self.test_split}
        return {name: text for name, text in of_corpus.items() if text} | parse_test_sets(self.test_sets)

    def problems(self) -> Iterator[str]:
        unread = _UNREAD_FEATURES.get(self.format, ()) if self.source == "text" else ()
        for name in unread:
            if getattr(self, name):
                yield f"{name}={getattr(self, name)!r} has no effect with format='{self.format}'"
        for name in ("input_feature", "target_feature"):
            value = getattr(self, name)
            if self.format in _OF_NUMBERS and self.source == "text" and value and not _is_column(value, self.format):
                yield f"{name}={value!r}: with format='{self.format}', a column is {_OF_NUMBERS[self.format]}"
        try:
            parse_label_names(self.label_names)
        except ValueError as error:
            yield f"label_names={self.label_names!r}: {error}"
        if self.input_template and "{inputs}" not in self.input_template:
            yield f"input_template={self.input_template!r}: expected {{inputs}} in it"
        for name in ("second_feature", "coarse_labels", "label_names"):
            if self.text_lists and (value := getattr(self, name)):
                yield f"{name}={value!r} cannot be used with text_lists=true"
        try:
            parse_test_sets(self.test_sets)
        except ValueError as error:
            yield f"test_sets={self.test_sets!r}: {error}"
        if self.source_vocabulary_file and not self.separate_tokenizers:
            yield (
                f"source_vocabulary_file={self.source_vocabulary_file!r} is read only with separate_tokenizers=true; "
                "one vocabulary for both sides is vocabulary_file"
            )
        if self.source == RECALL:
            yield from self._recall_problems()
        if not self.train_split:
            yield "train_split is empty; name the training split"
        if self.batching == "packed" and self.packed_length < self.max_length:
            yield f"packed_length={self.packed_length} cannot hold a pair of max_length={self.max_length}"

    def recall_gaps(self) -> dict[str, int]:
        """Return `recall_gap` of every split of the source `recall`; the test sets follow those of the corpus."""
        of_test_sets = {name: int(gap) for name, gap in parse_test_sets(self.test_sets).items()}
        return dict.fromkeys(CORPUS_SPLITS, self.recall_gap) | of_test_sets

    def recall_vocab_size(self) -> int:
        """Return the ids of the source `recall`: those of keys, values and, if there are any, filler words; and 4 more.

        The 4 are the reserved ids of a tokenizer of words.
        """
        return 2 * self.recall_keys + (self.recall_length > self._recall_told()) + 4

    def _recall_told(self) -> int:
        """Return the words of pairs, questions and answers in a row."""
        return 2 * (self.recall_pairs + self.recall_questions)

    def _recall_problems(self) -> Iterator[str]:
        pairs, questions, length = self.recall_pairs, self.recall_questions, self.recall_length
        if pairs > self.recall_keys:
            yield f"recall_pairs={pairs} needs as many different keys; recall_keys={self.recall_keys}"
        if questions > pairs:
            yield f"recall_questions={questions} exceeds recall_pairs={pairs}; each key is asked for once"
        gaps = {"recall_gap": str(self.recall_gap)}
        with contextlib.suppress(ValueError):  # text of another form is reported for every source
            gaps |= {f"test_sets: {name}": gap for name, gap in parse_test_sets(self.test_sets).items()}
        for name, gap in gaps.items():
            if not _NUMBER.fullmatch(gap):
                yield f"{name}={gap!r}: with source='{RECALL}', a test set is a number of filler words"
            elif self._recall_told() + int(gap) > length:
                yield (
                    f"{name}={gap} with recall_pairs={pairs} and recall_questions={questions} makes rows of "
                    f"{self._recall_told() + int(gap)} words; recall_length={length}"
                )
        if self.max_length <= length:
            yield f"max_length={self.max_length} cannot hold the recall_length={length} words of a row and its end"
        if self.tokenizer != "words":
            yield f"tokenizer='{self.tokenizer}': source='{RECALL}' needs 'words', with which a key is one token"
        if self.batching == "windows":
            yield f"batching='windows' cuts rows of source='{RECALL}' anywhere; choose 'buckets' or 'packed'"
