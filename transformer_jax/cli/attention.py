"""Show attention weights: heat maps of every layer and head, an interactive page, arrays.

    transformer-jax attention --checkpoint=runs/first --text="Friday, March 7, 2031"
    transformer-jax attention --checkpoint=runs/first --text="two liters" --target="zwei Liter" --layer=2 --head=1
    transformer-jax attention --checkpoint=runs/images --image=picture.png --data.resize=crop

The attention kinds of an encoder-decoder are the encoder's self-attention, the decoder's masked self-attention, and
cross-attention. Without --target, the model translates the text (--decode.FIELD=VALUE sets how), and the attention is
that of its own translation. A language model reads the text itself; its only kind is masked self-attention. A recurrent
model has cross-attention in one layer and head, or none, which is an error.

OUTPUT/KIND_layer_LAYER.png are the heat maps: one row per query, one column per key. The label of a decoder row gives
the token that it reads and the token that comes next. OUTPUT/attention.html shows one head at a time, with every
weight. OUTPUT/attention.npz holds the weights, KIND [layers, heads, queries, keys], always for all layers and heads,
and the tokens. A table of entropies shows how spread out the attention of each head is: 0 nats if all weight is on one
key, ln n if it is equal on n keys. Layers and heads are counted from 0.

Of an image, OUTPUT/layer_LAYER.png lay the weights of the class token over the picture, one panel per head; without a
class token, the means over all patches. OUTPUT/rollout.png shows attention rollout through all layers and heads. The
page shows either. OUTPUT/attention.npz holds the pixels, `weights` [layers, heads, queries, keys], `patches` [layers,
heads, rows, columns] and `rollout` [rows, columns]. --data.resize=crop or squash scales an image of another size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, checkpoint_flag, integer, path_flag, text
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host import exit_codes

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.evaluation.loading import Loaded
    from transformer_jax.inspection.attention import AttentionMaps, Selection
    from transformer_jax.inspection.image_attention import ImageSelection

OVERRIDES = ("evaluation", "decode", "data.resize")


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "text", "the source sentence; of a language model, the text")
    text(values, "target", "its translation; default the model's own")
    path_flag(values, "image", "PNG or JPEG file, for a model of images")
    path_flag(values, "output", "folder for the files; default WORKDIR/attention")
    integer(values, "layer", "the only layer to show; default all", None, 0)
    integer(values, "head", "the only head to show; default all", None, 0)


def run(arguments: Arguments) -> int:
    checkpoint, values = Path(arguments.required("checkpoint")), arguments.flags
    if values.text == "":
        raise DataError("--text is empty; give a sentence")
    if values.image and (values.text or values.target):
        raise ConfigError("--image and --text: give one of them")
    sentence = None if values.image else arguments.required("text")

    from transformer_jax.evaluation.loading import load
    from transformer_jax.host.compilation_cache import use_compilation_cache
    from transformer_jax.inspection.attention import attention_maps, selection
    from transformer_jax.inspection.pictures import output_folder
    from transformer_jax.tasks.task import TASKS

    use_compilation_cache()
    given = output_folder(Path(values.output)) if values.output else None
    loaded = load(checkpoint, arguments.overrides)
    if (sentence is None) != (loaded.config.model.inputs == "patches"):
        reads = "text; use --text" if sentence is None else "images; use --image=FILE"
        raise ConfigError(f"{checkpoint}: task.name='{loaded.config.task.name}' reads {reads}")
    if sentence is None:
        return _of_image(loaded, values, given or output_folder(loaded.folder("attention")))
    shown = selection(loaded.config.model, values.layer, values.head)
    folder = given or output_folder(loaded.folder("attention"))
    task = TASKS[loaded.config.task.name]
    maps = attention_maps(task.generator(loaded.config, loaded.params, loaded.tokenizer), sentence, values.target)
    about = {
        "text": sentence,
        **({("translation" if values.target is None else "target"): maps.target} if maps.source else {}),
        "model": f"{checkpoint}, step {', '.join(map(str, loaded.steps))}",
    }
    _write(maps, shown, about, folder)
    return exit_codes.OK


def _of_image(loaded: Loaded, values: flags.FlagValues, folder: Path) -> int:
    """Write all files of an image, then print a summary of them."""
    import io

    import numpy as np

    from transformer_jax.host.files import write_atomically
    from transformer_jax.inspection.attention import mean_entropy
    from transformer_jax.inspection.image_attention import image_maps, image_page, image_selection, write_image_maps
    from transformer_jax.tasks.task import TASKS

    config = loaded.config
    shown = image_selection(config.model, values.layer, values.head)
    predictor = TASKS[config.task.name].predictor(config, loaded.params, loaded.tokenizer, loaded.labels)
    (prediction,) = predictor.predict([values.image])
    maps = image_maps(config.model, loaded.params, predictor.features(values.image)["inputs"].load())
    _check_finite({"encoder_self_attention": maps.weights})
    about = {
        "image": values.image,
        "prediction": f"{prediction.label}, {prediction.probability:.4f}",
        "model": f"{values.checkpoint}, step {', '.join(map(str, loaded.steps))}",
    }
    pictures = write_image_maps(maps, shown, folder)
    write_atomically(folder / "attention.html", image_page(maps, shown, about).encode())
    arrays = io.BytesIO()
    saved: dict[str, Any] = maps._asdict()
    np.savez_compressed(arrays, **saved)
    write_atomically(folder / "attention.npz", arrays.getvalue())
    for name, value in about.items():
        print(f"{name}: {value}")
    print(_table({"encoder_self_attention": mean_entropy(maps.weights)}, _as_selection(shown)))
    print(f"{folder}: attention.html, attention.npz, {', '.join(path.name for path in pictures)}")
    return exit_codes.OK


def _as_selection(shown: ImageSelection) -> Selection:
    from transformer_jax.inspection.attention import Selection

    return Selection({"encoder_self_attention": shown.layers}, shown.heads)


def _write(maps: AttentionMaps, shown: Selection, about: dict[str, str], folder: Path) -> None:
    """Write all files, then print a summary of them."""
    import io

    import numpy as np

    from transformer_jax.host.files import write_atomically
    from transformer_jax.inspection.attention import mean_entropy
    from transformer_jax.inspection.heat_maps import write_heat_maps
    from transformer_jax.inspection.page import attention_page

    _check_finite({kind: weights[shown.layers[kind]] for kind, weights in maps.weights.items()})
    pictures = write_heat_maps(maps, shown, folder)
    write_atomically(folder / "attention.html", attention_page(maps, shown, about).encode())
    arrays = io.BytesIO()
    tokens = {"source": maps.source, "read": maps.read, "predicted": maps.predicted}
    saved: dict[str, Any] = maps.weights | {name: np.array(value) for name, value in tokens.items()}
    np.savez_compressed(arrays, **saved)
    write_atomically(folder / "attention.npz", arrays.getvalue())
    for name, value in about.items():
        print(f"{name}: {value}")
    if not maps.finished:
        print("the translation was cut off at the length limit; raise it with --decode.max_extra_length")
    print(_table({kind: mean_entropy(weights) for kind, weights in maps.weights.items()}, shown))
    print(f"{folder}: attention.html, attention.npz, {', '.join(path.name for path in pictures)}")


def _check_finite(weights: Mapping[str, np.ndarray]) -> None:
    """Raise DataError if an attention weight is NaN or infinite."""
    import numpy as np

    from transformer_jax.tasks.trained.lines import NOT_FINITE

    for kind, of_kind in weights.items():
        if not np.isfinite(of_kind).all():
            raise DataError(f"{kind}: an attention weight is NaN or infinite; {NOT_FINITE}")


def _table(entropies: Mapping[str, np.ndarray], shown: Selection) -> str:
    from rich.table import Column, Table

    from transformer_jax.host.terminal import render_table
    from transformer_jax.inspection.heat_maps import entropy_rows

    heads = [Column(f"head {head}", justify="right") for head in shown.heads]
    table = Table("mean entropy in nats", Column("layer", justify="right"), *heads, Column("mean", justify="right"))
    for name, layer, values in entropy_rows(entropies, shown):
        table.add_row(name, str(layer), *(f"{v:.3f}" for v in values), f"{sum(values) / len(values):.3f}")
    return render_table(table)
