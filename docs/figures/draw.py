"""Draw the figures of this folder: `python docs/figures/draw.py`.

The blocks and masks are drawn by the package, from a config and from the functions that make the masks. The way of a
batch names functions of the package; tests/test_figures.py checks that they exist and are called in this order. The
norm placement is the answer of a study, from its committed numbers.
"""

from __future__ import annotations

import csv
from pathlib import Path

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.inspection.diagram import layers_diagram
from transformer_jax.inspection.drawing import Drawing, Line, Rect, Shape, Text, svg
from transformer_jax.inspection.mask_drawing import masks_drawing
from transformer_jax.sweeps.report.number_text import interval

FOLDER = Path(__file__).parent
CONTRASTS = FOLDER.parent.parent / "experiments" / "norm_placement" / "results" / "contrasts.csv"
HOST_ONCE, HOST, DEVICE, AFTER = (
    "once, on the host",
    "every step, on the host",
    "every step, on the device: one compiled program",
    "every step, on the host again",
)
WAY_OF_A_BATCH = {
    HOST_ONCE: {
        "data.sources.load_source": "finds the examples",
        "data.dataset_tokenizers.tokenizer_of_directory": "reads or trains the tokenizer",
        "data.token_cache.open_split": "tokenizes every example once",
        "data.datasets.plan_batches": "assigns examples to steps",
    },
    HOST: {
        "data.batching.BatchPlan.batch": "picks the examples of this step",
        "tasks.task.Task.arrays": "makes inputs, targets and weights",
        "parallel.launchers.Launcher.step": "places the rows on the devices",
    },
    DEVICE: {
        "training.step.train_step": "computes one update",
        "training.step.batch_gradient": "differentiates the loss",
        "tasks.task.Task.loss": "sums the loss over the targets",
        "models.architecture.Model.features": "token ids [B, T] → vectors [B, T, D]",
        "nn.embedder.Embedder": "adds positions to embeddings",
        "nn.stack.Stack": "runs L layers and the final norm",
        "nn.layer.Layer": "attention, then feed-forward",
        "nn.residual.Residual.before": "norm before a sub-layer (Pre-LN)",
        "nn.attention.MultiHeadAttention.attend": "mixes the tokens of a row",
        "nn.residual.Residual.after": "sum; norm after it (Post-LN)",
        "nn.feed_forward.FeedForward": "changes every token by itself",
        "models.architecture.Model.outputs": "vectors → logits [B, T, V]",
        "tasks.metrics.cross_entropy.cross_entropy": "logits and targets → loss",
        "training.optimizers.make_optimizer": "gradients → new parameters",
    },
    AFTER: {
        "training.loop.run_loop": "logs, validates, saves; next step",
    },
}
"""By the place where they run: functions and modules below `transformer_jax`, in their order, with what they do."""


def blocks() -> Drawing:
    """Return the encoder layers of Post-LN beside those of Pre-LN, otherwise with the default config."""
    configs = {
        title: ExperimentConfig(model=ModelConfig(norm_position=position)).resolved()
        for title, position in (("Post-LN", "post"), ("Pre-LN", "pre"))
    }
    return layers_diagram(configs, "Encoder layers: model.norm_position = post, pre")


def way_of_a_batch() -> Drawing:
    """Return the functions through which a batch goes, from the top to the bottom."""
    width, left, height, gap = 420.0, 24.0, 36.0, 11.0
    frames: list[Shape] = []
    shapes: list[Shape] = []
    y, below = 40.0, None
    for place, functions in WAY_OF_A_BATCH.items():
        top = y
        shapes.append(Text(left, y + 16, place, is_bold=True, anchor="start"))
        y += 28
        for name, what in functions.items():
            if below is not None:
                shapes.append(Line(((width - 60, below), (width - 60, y)), has_head=True))
            shapes.append(Rect(left, y, width - 2 * left, height, _KINDS[place]))
            shapes.append(Text(left + 10, y + 15, name, is_bold=True, anchor="start"))
            shapes.append(Text(left + 10, y + 29, what, anchor="start"))
            below = y + height
            y += height + gap
        frames.append(Rect(10, top, width - 20, y - top, "frame", 8))
        y += 10
    title = "The way of a batch through transformer_jax"
    alt = f"{title}. " + " ".join(
        f"{place}: {', '.join(f'{name} ({what})' for name, what in functions.items())}."
        for place, functions in WAY_OF_A_BATCH.items()
    )
    shapes.append(Text(width / 2, 22, title, 12, is_bold=True))
    return Drawing(width, y, title, alt, (*frames, *shapes))


def norm_placement() -> Drawing:
    """Return what Pre-LN gains on Post-LN in the study `norm_placement`: a bar and an interval per condition."""
    with CONTRASTS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["axis"], row["metric"]) == ("norm", "test/sacrebleu")]
    rows = [row for row in rows if (row["norm"], row["against"], row["depth"].isdigit()) == ("pre", "post", True)]
    rows.sort(key=lambda row: (-int(row["depth"]), row["warmup"] == "no"))
    width, zero, top, height, scale = 440.0, 214.0, 76.0, 34.0, 2.0
    title, sub = "Post-LN or Pre-LN?", "Difference in test sacreBLEU and 95 % interval, three seeds"
    bottom = top + len(rows) * height
    shapes: list[Shape] = [
        Text(width / 2, 22, title, 14, is_bold=True),
        Text(width / 2, 40, sub, 12),
        Text(zero - 8, 64, "\N{LEFTWARDS ARROW} Post-LN ahead", 12, "end"),
        Text(zero + 8, 64, "Pre-LN ahead \N{RIGHTWARDS ARROW}", 12, "start"),
    ]
    described = []
    for index, row in enumerate(rows):
        mean, half = float(row["difference"]), float(row["difference_half_width"])
        is_decided = row["verdict"] == "ahead"
        y = top + (index + 0.5) * height
        end = zero + scale * mean
        shapes.append(Rect(min(zero, end), y - 9, abs(end - zero), 18, "on" if is_decided else "off", 0))
        low, high = zero + scale * (mean - half), zero + scale * (mean + half)
        shapes.append(Line(((low, y), (high, y))))
        shapes += [Line(((x, y - 4), (x, y + 4))) for x in (low, high)]
        condition = f"{row['depth']} + {row['depth']} layers, {'warm-up' if row['warmup'] == 'yes' else 'no warm-up'}"
        shapes.append(Text(8, y + 4, condition, 12, "start"))
        said = interval(mean, half, sign=True).replace("-", "\N{MINUS SIGN}")
        shapes.append(Text(width - 8, y - 2, said, 12, "end", is_bold=is_decided))
        verdict = f"{'Pre-LN' if mean > 0 else 'Post-LN'} ahead" if is_decided else row["verdict"]
        shapes.append(Text(width - 8, y + 12, verdict, 11, "end"))
        described.append(f"{condition}: {said}, {verdict}.")
    shapes.insert(0, Line(((zero, top), (zero, bottom))))
    return Drawing(width, bottom + 10, title, f"{title} {sub}. {' '.join(described)}", tuple(shapes))


_KINDS = {HOST_ONCE: "embedding", HOST: "embedding", DEVICE: "feed_forward", AFTER: "output"}
FIGURES = {
    "blocks.svg": blocks,
    "masks.svg": masks_drawing,
    "norm_placement.svg": norm_placement,
    "way_of_a_batch.svg": way_of_a_batch,
}
"""Functions that draw the figures, by file."""

if __name__ == "__main__":
    for file, draw in FIGURES.items():
        (FOLDER / file).write_bytes(svg(draw()))
        print(FOLDER / file)
