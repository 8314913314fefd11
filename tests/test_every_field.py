"""Every field of the config is read: changing it changes something that can be observed.

ModelConfig has its own lists in models/test_fields.py, and fields marked `hyper` theirs in training/test_hyper.py. Here
every other field has a pair of values, and an observer that must distinguish them.
"""

import contextlib
import dataclasses
import functools
import json
import types
from pathlib import Path
from unittest import mock

import image_support
import jax
import jax.numpy as jnp
import labelled_support
import numpy as np
import pytest
from corruption_support import ARCHITECTURES as ARCHITECTURE_OF
from corruption_support import VOCABULARY, WithMarks
from data_support import encoded_pairs, prepared
from PIL import Image
from support import random_params, tiny

from transformer_jax.checkpoints.store import Checkpoint, CheckpointStore
from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    ParallelConfig,
    TaskConfig,
    TrainingConfig,
    walk,
)
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.datasets import Data
from transformer_jax.data.sources import load_source
from transformer_jax.data.text_form import readable
from transformer_jax.data.token_cache import encode_in_memory
from transformer_jax.data.tokenizers import EncodedTexts, NoText, SpecialIds
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS
from transformer_jax.decoding.generate import generate
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.decoding.settings import Ends
from transformer_jax.errors import CheckpointError, ConfigError, DataError, TrainingError
from transformer_jax.evaluation import loading
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.parallel.launchers import Jit, make_launcher, mesh_sizes
from transformer_jax.tasks.batches.answer_spans import best_span
from transformer_jax.tasks.batches.of_split import evaluation_batches, training_batches
from transformer_jax.tasks.metrics.rouge import corpus_scores, rules_of
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained import text_generator
from transformer_jax.tasks.trained.decode_requests import source_request
from transformer_jax.tasks.trained.translator import Translator
from transformer_jax.training import loop, run, set_up
from transformer_jax.training.best_so_far import BestSoFar
from transformer_jax.training.hyper import split as split_config
from transformer_jax.training.metric_log import MetricLog
from transformer_jax.training.progress import Progress
from transformer_jax.training.session import RunParts, TrainingSession
from transformer_jax.training.state import TrainState
from transformer_jax.training.stepper import SingleStepper

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
WORDS = {
    locale: ["".join(SYLLABLES[(i * step + k * i) % 60] for k in range(3)) for i in range(97)]
    for locale, step in (("en", 7), ("de", 11), ("it", 13))
}


@pytest.fixture
def corpus(tmp_path):
    """Two folders of text files, each with two sets of splits."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for k, prefix in enumerate(("train", "valid", "test", "other")):
            for locale, words in WORDS.items():
                lines = [
                    " ".join(words[(i * j + k + len(folder)) % len(words)] for j in range(1, 3 + (i + k) % 9))
                    for i in range(1, 121 if prefix == "train" else 21)
                ]
                text = "\n".join(lines) + f"\n{folder}\n"
                (tmp_path / folder / f"{prefix}.{locale}").write_text(text)
    return tmp_path


def text_config(corpus, **fields):
    values = {"source": "text", "dir": str(corpus / "a"), "tokenizer_pairs": 100, "max_length": 24} | fields
    task = TaskConfig(name="text_to_text" if fields.get("text_lists") else "translation")
    return ExperimentConfig(task=task, model=ModelConfig(vocab_size=300), data=DataConfig(**values)).resolved()


def fingerprint(corpus, **fields):
    return load_source(text_config(corpus, **fields).data).fingerprint()["sha256"]


def source_type(corpus, source):
    return type(load_source(DataConfig(source=source, dir=str(corpus / "a") if source == "text" else "")))


def embedded(corpus, **fields):
    values = {"num_train_pairs": 200, "num_eval_pairs": 20} | fields
    return load_source(DataConfig(**values)).fingerprint()["sha256"]


def recall(corpus, **fields):
    """Return a few drawn rows of keys and values."""
    config = DataConfig(source="recall", tokenizer="words", num_train_pairs=100, **fields)
    return load_source(config).split("train").features["inputs"]


def first_pair(corpus, **fields):
    """Return the inputs and targets of the first example of one file that holds all languages."""
    (corpus / "a" / "one.tsv").write_text("eins\tzwei\tdrei\n")
    (corpus / "a" / "one.jsonl").write_text('{"en": "one", "de": "two", "it": "three"}\n')
    splits = {"train_split": "one", "valid_split": "", "test_split": ""}
    return load_source(text_config(corpus, **{"format": "jsonl"} | splits | fields).data).split("train")


def labelled(corpus, **fields):
    """Return the features of labelled files, which all formats find in one folder, or the error."""
    folder = corpus / "a"
    (folder / "one.tsv").write_bytes("caf\u00e9\tdesc:x\tsecond\n".encode("latin-1"))
    answer = {"text": "a", "answer_start": 1}
    question = {"question": "b", "answers": [answer]}
    (folder / "one.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "ab", "qas": [question]}]}]}))
    splits = {"train_split": "one", "valid_split": "", "test_split": ""}
    config = text_config(corpus, **{"format": "tsv", "encoding": "latin-1"} | splits | fields)
    try:
        return load_source(config.data).split("train")
    except DataError as error:
        return str(error)


def with_second(corpus, second_feature):
    """Return labelled files whose template reads the second text if there is one."""
    template = "{inputs} {second}" if second_feature else ""
    return labelled(corpus, second_feature=second_feature, input_template=template)


def questions(corpus, misplaced_answers):
    return labelled(corpus, format="squad", misplaced_answers=misplaced_answers)


def tfds_dataset(corpus, dataset):
    with pytest.raises(DataError) as raised:
        load_source(DataConfig(source="tfds", dataset=dataset, dir=str(corpus)))
    return str(raised.value)


def tokenizer(corpus, **fields):
    config = text_config(corpus, **fields)
    folder = corpus / "-".join(map(str, fields.values()))
    folder.mkdir()
    return prepared(config, folder).tokenizer.sha256


def vocabulary(corpus, vocabulary_file):
    path = corpus / "words.txt"
    path.write_text("".join(f"{letter}\n" for letter in "abcdefgh"))
    config = ExperimentConfig(
        model=ModelConfig(vocab_size=12),
        data=DataConfig(
            tokenizer="words", vocabulary_file=vocabulary_file and str(path), num_train_pairs=200, num_eval_pairs=20
        ),
    )
    return prepared(config.resolved(), corpus / f"work{vocabulary_file}").tokenizer.sha256


def separate(corpus, **fields):
    """Return the digest of tokenizers of words."""
    model = ModelConfig(vocab_size=12, source_vocab_size=12, share_embeddings=False)
    data = DataConfig(source="text", dir=str(corpus / "a"), tokenizer="words", **fields)
    folder = corpus / f"separate{len(str(fields))}"
    return prepared(ExperimentConfig(model=model, data=data).resolved(), folder).tokenizer.sha256


def source_vocabulary(corpus, source_vocabulary_file):
    path = corpus / "words.txt"
    path.write_text("".join(f"{letter}\n" for letter in "abcdefgh"))
    return separate(corpus, separate_tokenizers=True, source_vocabulary_file=source_vocabulary_file and str(path))


def cache(corpus, **fields):
    folder = corpus / f"work{len(str(fields))}"
    folder.mkdir()
    prepared(text_config(corpus, **fields), folder).splits["train"]
    return (folder / "token_cache").exists()


def shapes(corpus, **fields):
    ids = [list(range(4, 5 + n % 23)) for n in range(200)]
    side = RaggedIds(np.concatenate(ids).astype(np.int32), np.cumsum([0, *map(len, ids)]))
    plan = training_batches(text_config(corpus, **fields), encoded_pairs(side, side))
    return plan.shapes, plan.left_out.count


def packed_shapes(corpus, **fields):
    return shapes(corpus, **{"batching": "packed"} | fields)


def documents(corpus, documents):
    (corpus / "a" / "text.txt").write_text("one\ntwo\n\nthree\n")
    splits = {"train_split": "text", "valid_split": "", "test_split": ""}
    config = text_config(corpus, format="documents", documents=documents, **splits)
    return load_source(config.data).num_examples("train")


def parts(corpus, **fields):
    """Return the batches of the first epoch of a language model, or the error, for documents of up to 30 tokens."""
    config = ExperimentConfig(
        model=ModelConfig(architecture="decoder_only"),
        task=TaskConfig(name="language_model"),
        data=DataConfig(max_length=8, tokens_per_batch=64, **fields),
    ).resolved()
    split = EncodedSplit({"ids": RaggedIds(np.arange(4, 64, dtype=np.int32), np.array([0, 30, 60]))}, OWN_SPECIAL_IDS)
    try:
        return training_batches(config, split).batches_per_epoch
    except DataError as error:
        return str(error)


def pictures(corpus, damaged=False, image_size=28, **fields):
    """Return the shape of the first of a few drawn figures as stored or, from a folder, of two files; or the error."""
    if damaged:
        for name in ("good", "bad"):
            (corpus / "train" / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 200).save(corpus / "train" / "good" / "1.png")
        (corpus / "train" / "bad" / "2.png").write_bytes(b"not an image")
        fields |= {"source": "image_folder", "dir": str(corpus), "valid_split": "", "test_split": ""}
        image_size = 8
    model = {"image_size": image_size, "image_channels": 3 if fields.get("colours") == "rgb" else 1}
    try:
        few = {"num_train_pairs": 100, "num_eval_pairs": 10} if "source" not in fields else {}
        settings = image_support.config({"source": "shapes"} | few | fields, model)
        features = load_source(settings.data).split("train").features
        column, _ = TASKS["images"].columns(settings)
        return (
            encode_in_memory({"inputs": features["inputs"][:2]}, [column], NoText())
            .values("images", np.arange(1))
            .shape
        )
    except (ConfigError, DataError) as error:
        return str(error)


def rows(corpus, rows_per_batch):
    settings = image_support.config({"source": "shapes", "rows_per_batch": rows_per_batch})
    split = EncodedSplit({"images": np.zeros((100, 8, 8, 1), np.uint8), "labels": np.zeros(100, int)}, SpecialIds())
    return training_batches(settings, split).shapes


FORMS = ("plain", "moses_bpe")
DATA = {
    "source": (source_type, "text", "embedded"),
    "source_locale": (fingerprint, "en", "it"),
    "target_locale": (fingerprint, "de", "it"),
    "num_train_pairs": (embedded, 200, 300),
    "num_eval_pairs": (embedded, 20, 30),
    "recall_pairs": (recall, 4, 5),
    "recall_questions": (recall, 1, 2),
    "recall_keys": (recall, 32, 33),
    "recall_gap": (recall, 0, 3),
    "recall_length": (recall, 64, 32),
    "recall_order": (recall, "shuffled", "kept"),
    "dataset": (tfds_dataset, "wmt14_translate/de-en", "wmt14_translate/fr-en"),
    "format": (first_pair, "tsv", "jsonl"),
    "text_lists": (first_pair, False, True),
    "input_feature": (first_pair, None, "it"),
    "target_feature": (first_pair, None, "it"),
    "second_feature": (with_second, "", "3"),
    "encoding": (labelled, "latin-1", "utf-8"),
    "coarse_labels": (labelled, False, True),
    "label_names": (labelled, "", "desc:x=y"),
    "input_template": (labelled, "", "x {inputs}"),
    "misplaced_answers": (questions, "error", "ignore"),
    "dir": (lambda c, dir: fingerprint(c, dir=str(c / dir)), "a", "b"),
    "train_split": (fingerprint, "train", "other"),
    "valid_split": (fingerprint, "valid", "other"),
    "test_split": (fingerprint, "test", "other"),
    "test_sets": (lambda c, test_sets: load_source(text_config(c, test_sets=test_sets).data).split_names, "", "a=test"),
    "documents": (documents, "line", "blank_line"),
    "text_form": (lambda c, text_form: readable("ein@@ s , zwei", text_config(c, text_form=text_form).data), *FORMS),
    "tokenizer": (tokenizer, "unigram", "bpe"),
    "tokenizer_pairs": (tokenizer, 100, 121),
    "vocabulary_file": (vocabulary, "", "words.txt"),
    "separate_tokenizers": (separate, False, True),
    "source_vocabulary_file": (source_vocabulary, "", "words.txt"),
    "max_length": (shapes, 24, 16),
    "tokens_per_batch": (shapes, 4096, 256),
    "row_multiple": (shapes, 8, 24),
    "num_buckets": (shapes, 6, 2),
    "batching": (shapes, "buckets", "packed"),
    "packed_length": (packed_shapes, 256, 128),
    "cut_documents": (parts, True, False),
    "colours": (pictures, "as_stored", "rgb"),
    "resize": (lambda c, resize: pictures(c, image_size=8, resize=resize), "none", "squash"),
    "unfit_images": (lambda c, unfit_images: pictures(c, True, unfit_images=unfit_images), "error", "leave_out"),
    "rows_per_batch": (rows, 8, 16),
    "cache_dir": (lambda c, cache_dir: cache(c, cache_dir=cache_dir and str(c / cache_dir)), "", "elsewhere"),
    "cut_texts": (
        lambda c, cut_texts: labelled_run(
            c, "classification", data={"max_length": 6, "drop_long": True, "cut_texts": cut_texts}
        ),
        *(False, True),
    ),
}


def _fake(cls, **attributes):
    """Return an object of a class without calling its constructor."""
    fake = object.__new__(type(cls.__name__, (cls,), {}))
    fake.__dict__.update(attributes)
    return fake


def events(corpus, **fields):
    """Return the events of a loop without a model: steps, and after which it logs, evaluates and saves."""
    config = TrainingConfig(**{"num_train_steps": 12, "eval_every_steps": 4} | fields)
    seen = []
    names = ("loss", "nll", "accuracy", "gradient_norm", "learning_rate", "tokens", "weight", "filled", "slots")
    metrics = {name: jnp.ones(()) for name in names}
    side = RaggedIds(np.array([5, 1], np.int32), np.array([0, 2]))
    state = TrainState(jnp.zeros((), jnp.int32), {}, ())
    parts = RunParts(
        config=config,
        data=_fake(Data),
        higher_is_better=False,
        plan=training_batches(ExperimentConfig(), encoded_pairs(side, side)),
        store=_fake(CheckpointStore, save=lambda step, *_: seen.append(("save", step)), wait=lambda: None),
        evaluate=lambda params: {"loss": 1.0},
        record={},
        side_files={},
        keep_batch=lambda step, batch: Path("kept"),
    )
    log = _fake(
        MetricLog,
        write=lambda step, split, values: seen.append((split, step)),
        digest=lambda: "",
        finish=lambda ending: None,
    )
    launcher = _fake(
        Jit, mesh=None, step=lambda state, batch, hyper: (state, metrics), local_rows=lambda rows: slice(rows)
    )
    monitoring = _fake(Jit, step=lambda state, batch, hyper: (state, metrics | {"monitor/stream_rms_decoder_0": 1.0}))
    stepper = SingleStepper(launcher, state, split_config(ExperimentConfig().resolved())[1], monitoring)
    progress = Progress(0, 12, shown=False)
    loop.run_loop([TrainingSession(parts, log, progress, {})], stepper, 0, progress)
    return seen


def store_arguments(corpus, **fields):
    """Return the arguments with which a run with these fields makes its checkpoint store."""
    seen = {}

    class Stop(Exception):
        pass

    def store(directory, **arguments):
        seen.update(arguments)
        raise Stop

    config = ExperimentConfig(training=TrainingConfig(**fields)).resolved()
    with mock.patch.object(set_up, "CheckpointStore", store), pytest.raises(Stop):
        run.train(config, corpus / str(fields), lambda config, data: None)
    return seen


def log_files(corpus, **fields):
    """Return the names in the work directory of a run with an open log."""
    folder = corpus / fields["trackers"]
    folder.mkdir()
    with MetricLog(ExperimentConfig(training=TrainingConfig(**fields)).resolved(), folder, 0):
        return sorted(path.name for path in folder.iterdir())


def static(corpus, **fields):
    return split_config(ExperimentConfig(training=TrainingConfig(**fields)).resolved())[0]


TRAINING = {
    "num_train_steps": (events, 12, 13),
    "log_every_steps": (events, 4, 5),
    "monitor_every_steps": (events, 4, 5),
    "eval_every_steps": (events, 4, 5),
    "checkpoint_every_steps": (events, 4, 5),
    "patience": (events, 0, 1),
    "keep_last": (store_arguments, 3, 4),
    "keep_best": (store_arguments, 1, 2),
    "best_metric": (store_arguments, "loss", "sacrebleu"),
    "trackers": (log_files, "jsonl", "jsonl,tensorboard"),
    "accumulation_steps": (static, 1, 2),
    "loss_chunks": (static, 1, 2),
}


def test_training_nonfinite():
    """Return how a loop with these fields reacts to a third update that is not finite."""
    with pytest.raises(TrainingError, match="try a lower optimizer"):
        BestSoFar(TrainingConfig(on_nonfinite="stop"), False, {}).record_nonfinite("loss")
    for most in (2, 3):
        best_so_far = BestSoFar(TrainingConfig(on_nonfinite="skip", max_skipped_updates=most), False, {}, skipped=2)
        with pytest.raises(TrainingError) if most == 2 else contextlib.nullcontext():
            best_so_far.record_nonfinite("loss")


def test_training_init_from(tmp_path):
    """A checkpoint is opened before anything is compiled."""
    config = ExperimentConfig(training=TrainingConfig(init_from=str(tmp_path / "nowhere"))).resolved()
    with pytest.raises(CheckpointError, match=r"training\.init_from=.*nowhere: no such folder"):
        run.train(config, tmp_path / "run", lambda config, data: None)


class _Stopped(Exception):
    pass


def averaged_steps(corpus, **fields):
    """Return the checkpoints that are averaged."""
    record = {"config": ExperimentConfig().to_dict(), "corpus": None}
    store = _fake(
        CheckpointStore,
        steps=lambda: [1, 2, 3],
        folder=lambda step: Path("anywhere") / str(step),
        open=lambda step: Checkpoint(step, Path("anywhere"), record, {}, {}),
        read_record=lambda step: record,
    )

    def average(read, steps):
        raise _Stopped(steps)

    def restore(template, step):
        raise _Stopped((step,))

    store.restore_parts = restore
    opened = mock.patch.object(loading, "open_checkpoint", return_value=(store, 3))
    with opened, mock.patch.object(loading, "average_params", average), pytest.raises(_Stopped) as stopped:
        loading.load(Path("anywhere"), {f"evaluation.{name}": value for name, value in fields.items()})
    return stopped.value.args


def translated_batches(corpus, **fields):
    """Return the shapes of the batches that translation decodes."""
    seen = []

    def decode(decoders, params, decode, ends, request, row_ids):
        seen.append(request.batch["inputs"].shape)
        rows = (len(request.prompts), 1)
        empty = jnp.zeros((*rows, 1), jnp.int32)
        return Generated(empty, jnp.zeros(rows, jnp.int32), empty + 0.0, jnp.zeros(rows), jnp.ones(rows, bool))

    words = _fake(
        SentencePieceTokenizer,
        _model_bytes=b"",
        _processor=types.SimpleNamespace(vocab_size=lambda: 1),
        encode_batch=lambda lines: EncodedTexts(
            np.full(5 * len(lines), 7, np.int32), np.arange(0, 5 * len(lines) + 1, 5)
        ),
        decode_batch=lambda rows: [""] * len(rows),
    )
    config = ExperimentConfig(evaluation=EvaluationConfig(**fields)).resolved()
    without_params = mock.patch.object(Translator, "_decoding_params", ())
    with mock.patch.object(text_generator, "generate", decode), without_params:
        Translator(config, {}, words).translate_all(["x"] * 100)
    return seen


def scored_windows(corpus, **fields):
    ids = RaggedIds(np.arange(4, 204, dtype=np.int32), np.array([0, 150, 200]))
    config = ExperimentConfig(
        model=ModelConfig(architecture="decoder_only", vocab_size=300),
        task=TaskConfig(name="language_model"),
        evaluation=EvaluationConfig(**fields),
    ).resolved()
    split = EncodedSplit({"ids": ids}, OWN_SPECIAL_IDS)
    return [batch["weights"].tolist() for batch, _ in evaluation_batches(config, split)]


EVALUATION = {
    "tokens_per_batch": (translated_batches, 8192, 128),
    "average_checkpoints": (averaged_steps, 1, 2),
    "max_length": (scored_windows, None, 12),
    "context": (scored_windows, 0, 3),
}


@functools.cache
def small_model():
    model = tiny(num_encoder_layers=1, num_decoder_layers=1, position_encoding="rotary", max_length=30)
    decoder = ARCHITECTURES[model.architecture].decoder(model)
    return decoder, decoder.prepare(random_params(model, 12))  # with these some outputs end and some do not


def decoded(corpus, **fields):
    decoder, params = small_model()
    inputs = np.random.default_rng(0).integers(4, 19, (8, 6)).astype(np.int32)
    decode = DecodeConfig(**fields)
    request = source_request((decoder,), decode, 3, inputs, np.full(8, 6))
    found = jax.device_get(generate((decoder,), (params,), decode, Ends(1, (0,)), request))
    return [(x.shape, x.tobytes()) for x in found]


SAMPLE = {"method": "sample"}
DECODE = {  # values that must change outputs or their scores, and other fields to set with them
    "method": ("search", "sample", {}),
    "beam_size": (1, 3, {"length_penalty": "none"}),
    "length_penalty": ("none", "average", {"beam_size": 3}),
    "length_penalty_alpha": (0.2, 3.0, {"beam_size": 3}),
    "early_stop": ("bound", "first", {"beam_size": 3, "length_penalty_alpha": 3.0}),
    "end_among": ("beam", "candidates", {"beam_size": 2, "length_penalty": "none"}),
    "num_best": (1, 2, {"beam_size": 3}),
    "temperature": (1.0, 5.0, SAMPLE),
    "top_k": (None, 2, SAMPLE),
    "top_p": (1.0, 0.3, SAMPLE),
    "min_p": (0.0, 0.9, SAMPLE),
    "num_samples": (1, 2, SAMPLE),
    "seed": (0, 1, SAMPLE),
    "repetition_penalty": (1.0, 5.0, {}),
    "no_repeat_ngram": (0, 1, {}),
    "max_extra_length": (0, 4, {}),
    "max_new_tokens": (None, 2, {}),
    "min_length": (0, 9, {}),
    "at_limit": ("cut", "end", {"max_new_tokens": 1}),
    "cut_hypotheses": (
        "last",
        "compete",
        {"max_new_tokens": 2, "beam_size": 8, "end_among": "candidates", "length_penalty": "average"},
    ),
    "forced_tokens": ("scored", "free", {"prefix_ids": "4,5"}),
    "forbidden_ids": ("", "4,5,6,7,8,9,10,11", {}),
    "prefix_ids": ("", "4,5", {}),
}


def labelled_run(tmp_path, task, **fields):
    """Return the parameters' shapes, the first batches and the scores of a task with labels, or the error."""
    try:
        settings = labelled_support.config(task, **{"data": {"max_length": 10}} | fields)
        data = labelled_support.data_of(settings, tmp_path)
        plan = training_batches(settings, data.splits["train"])
    except (ConfigError, DataError) as error:
        return str(error)
    params = init_params(settings.model, 1, TASKS[task].head(settings.task, settings.model))
    metrics = Evaluator(settings, data).score(params, "valid").metrics
    batches = [plan.batch(step) for step in range(plan.batches_per_epoch)]
    return repr((jax.tree.map(jnp.shape, params), batches, metrics))


LABELLED = {
    "num_labels": (3, 4, {"task": "classification"}),
    "pooling": ("first", "mean", {"task": "classification"}),
    "pooler": (False, True, {"task": "classification"}),
    "class_weights": ("", "1,2,3", {"task": "classification"}),
    "chunks": (True, False, {"task": "tagging"}),
    "question_length": (4, 2, {"task": "span_qa"}),
    "stride": (1, 2, {"task": "span_qa", "data": {"max_length": 14}}),  # windows begin at most half a room apart
}


def span(corpus, max_answer_length):
    return best_span(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]), max_answer_length)[:2]


def test_parallel():
    step = lambda state, batch, hyper: (state, {})  # noqa: E731
    kinds = {
        type(make_launcher(ExperimentConfig(parallel=ParallelConfig(launcher=name, num_devices=1)), step, None))
        for name in ("jit", "shard_map", "pmap")
    }
    assert len(kinds) == 3
    with pytest.raises(ConfigError, match="num_devices=4096"):
        make_launcher(ExperimentConfig(parallel=ParallelConfig(num_devices=4096)), step, None)
    for name in ("fsdp", "tensor"):
        parallel = ParallelConfig(num_devices=8, **{name: 4})
        assert mesh_sizes(ExperimentConfig(parallel=parallel)) == {"data": 2, "fsdp": 1, "tensor": 1, name: 4}


def corrupted(corpus, task, **fields):
    """Return the first batch of a task that corrupts texts, of 40 sentences of three words."""
    config = ExperimentConfig(
        model=ModelConfig(architecture=ARCHITECTURE_OF[task], vocab_size=VOCABULARY),
        task=TaskConfig(name=task, **fields),
        data=DataConfig(max_length=64, tokens_per_batch=2048),
    ).resolved()
    features = {"inputs": ["Ab cde fg. Hi jkl. Mn o p."] * 40}
    split = encode_in_memory(features, TASKS[task].columns(config), WithMarks())
    return {name: array.tolist() for name, array in training_batches(config, split).batch(0).items()}


def augmented(corpus, **fields):
    images, labels = image_support.pictures(24)
    split = EncodedSplit({"images": images, "labels": labels}, SpecialIds())
    return training_batches(image_support.config({"source": "shapes"}, **fields), split).batch(0)["inputs"].tobytes()


AUGMENTATIONS = {
    "crop_padding": (0, 2, {}),
    "flip": (False, True, {}),
    "rand_augment": (0, 3, {}),
    "rand_augment_magnitude": (10.0, 3.0, {"rand_augment": 3}),
    "mixup": (0.0, 0.4, {}),
}


CORRUPTED = {
    "mask_rate": (0.15, 0.3, {"task": "masked_lm"}),
    "whole_word": (False, True, {"task": "masked_lm"}),
    "random_share": (0.1, 0.9, {"task": "denoising"}),
    "keep_share": (0.1, 0.5, {"task": "masked_lm"}),
    "mean_span_length": (3.0, 1.0, {"task": "span_corruption"}),
    "permute_sentences": (1.0, 0.0, {"task": "denoising"}),
}


def summarised(corpus, **fields):
    """Return the scores of a summary."""
    outputs, references = ["a b c learning"], [["a b x learned", "c b a learned"]]
    return corpus_scores(outputs, references, rules_of(TaskConfig(name="text_to_text", **fields)))


def prefixed(corpus, **fields):
    """Return the ids that an encoder reads."""
    config = ExperimentConfig(task=TaskConfig(name="text_to_text", **fields))
    split = encode_in_memory({"inputs": ["Ab"], "targets": ["b"]}, TASKS["text_to_text"].columns(config), WithMarks())
    return split.ragged("inputs").take(np.array([0]), 8).tolist()


# Every field: its observer, two values that it must tell apart, and other arguments of the observer.
FIELDS = {
    **{f"data.{name}": (*row, {}) for name, row in DATA.items()},
    **{f"training.{name}": (*row, {}) for name, row in TRAINING.items()},
    **{f"evaluation.{name}": (*row, {}) for name, row in EVALUATION.items()},
    **{f"decode.{name}": (decoded, *row) for name, row in DECODE.items()},
    **{f"task.{name}": (labelled_run, *row) for name, row in LABELLED.items()},
    **{f"task.{name}": (augmented, *row) for name, row in AUGMENTATIONS.items()},
    **{f"task.{name}": (corrupted, *row) for name, row in CORRUPTED.items()},
    "task.max_answer_length": (span, 3, 2, {}),
    "task.rouge_stemmer": (summarised, True, False, {}),
    "task.best_reference": (summarised, "each", "rouge1", {}),
    "task.source_prefix": (prefixed, "", "a ", {}),
    "task.text_start": (prefixed, False, True, {}),
}
SLOW = {f"data.{name}" for name in ("num_train_pairs", "num_eval_pairs", "vocabulary_file", "cut_texts")}
SLOW |= {name for name, row in FIELDS.items() if row[0] in (decoded, labelled_run)}
ELSEWHERE = {
    *("training.on_nonfinite", "training.max_skipped_updates"),  # above
    *("parallel.launcher", "parallel.num_devices", "parallel.fsdp", "parallel.tensor"),
    *("training.init_from", "training.new_head", "training.new_parameters"),  # training/test_init_from.py
    "data.drop_long",  # training/test_long_texts.py
    "seed_data",  # training/test_seeds.py
    *("task.name", "task.prefix", "task.source_mask"),  # test_own_fields.py, tasks/
    *(f"model.{field.name}" for field in dataclasses.fields(ModelConfig)),
    # training/test_optimizers.py, training/test_schedules.py
    *(name for name, _, _ in walk(ExperimentConfig()) if name.startswith("optimizer.")),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FIELDS]
)
def test_another_value_is_observed(corpus, name):
    observe, one, other, others = FIELDS[name]
    field = name.rpartition(".")[2]
    assert observe(corpus, **others | {field: one}) != observe(corpus, **others | {field: other})


def test_every_field_is_tested():
    assert not FIELDS.keys() & ELSEWHERE
    every = {name for name, _, _ in walk(ExperimentConfig())}
    hyper = {name for name, field, _ in walk(ExperimentConfig()) if field.metadata.get("hyper")}
    assert every - hyper == FIELDS.keys() | (ELSEWHERE - hyper)
