"""Shared by the tests of tasks that corrupt texts: configs of a small corpus, and a tokenizer with marks."""

from data_support import prepared

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.data.tokenizers.tokenizer import SpecialIds

ARCHITECTURES = {
    "masked_lm": "encoder_only",
    "span_corruption": "encoder_decoder",
    "denoising": "encoder_decoder",
}
LINES = ["the cat sat. it was a cat. was it?", "a dog", "", "one two three four five six seven eight nine ten", "x"]
MASK, SENTINELS = 260, tuple(range(272, 260, -1))
VOCABULARY = 273


class WithMarks(ByteTokenizer):
    """Bytes, a mask and 12 sentinels, in descending order."""

    special_ids = SpecialIds(pad=0, eos=1, unk=2, bos=3, mask=MASK, sentinels=SENTINELS)
    vocab_size = VOCABULARY

    def tokens(self, ids):
        names = {MASK: "<mask>"} | {id: f"<extra_id_{i}>" for i, id in enumerate(SENTINELS)}
        return [names.get(int(id)) or super(WithMarks, self).tokens([id])[0] for id in ids]


def config_of(folder, task, data=(), fields=(), model=(), **sections):
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES * 4))
    layers = {"num_encoder_layers": 1, "mlp_dim": 32, "dropout_rate": 0.0}
    if ARCHITECTURES[task] == "encoder_decoder":
        layers |= {"num_decoder_layers": 1, "decoder_start_id": 1}
    files = {"source": "text", "format": "documents", "dir": str(folder), "train_split": "text", "valid_split": "text"}
    limits = {"tokenizer": "byte", "max_length": 24, "tokens_per_batch": 512, "test_split": ""}
    if dict(data).get("batching") == "packed":
        limits["packed_length"] = 64
    return ExperimentConfig(
        model=ModelConfig(
            **{"architecture": ARCHITECTURES[task], "vocab_size": VOCABULARY, "emb_dim": 16, "num_heads": 2}
            | layers
            | dict(model)
        ),
        task=TaskConfig(name=task, **dict(fields)),
        data=DataConfig(**files | limits | dict(data)),
        **sections,
    ).resolved()


def corpus(config, folder):
    return prepared(config, folder / "run", tokenizer=WithMarks())


def parts(size):
    """Return the texts of training and evaluation: documents in parts."""
    ids = [[4 + byte for byte in line.encode()] for line in LINES * 4]
    return sorted(row[i : i + size] for row in ids for i in range(0, len(row), size))
