"""Write the keys of config.json that transformers reads, from its source, into transformer_jax/convert/keys.json.

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/reference/bin/python tests/convert/transformers_keys.py

A key counts as read if the source has it as a field of the config's class, as a name of `attribute_map`, as a text in
`kwargs.pop("KEY")`, `config_dict["KEY"]`, `"KEY" in config_dict` and the like, or as an attribute of something called
`config`, also with `getattr` and `hasattr`. The files are those of the family, and those that every model goes through.
Nothing is imported from transformers but its version: what is not executed for a certain value is found too.

The command prints how many keys each part has. `tests/convert/test_live.py` compares the file with what this makes.
"""

import ast
import importlib.metadata
import importlib.util
import json
import pathlib

FAMILIES = (
    *("gpt2", "llama", "marian", "bert", "t5", "bart", "vit"),
    *("qwen2", "qwen3", "mistral", "smollm3", "roberta", "olmo2", "gpt_neox"),
)
CONFIG = "configuration_utils.py"
ROTARY = "modeling_rope_utils.py"
GENERATION = "generation/configuration_utils.py"
HETEROGENEITY = "integrations/heterogeneity/configuration_utils.py"
LIBRARY = (
    *("modeling_utils.py", "modeling_layers.py", "masking_utils.py", "loss/loss_utils.py", "generation/utils.py"),
    *("models/auto/auto_factory.py", "models/auto/configuration_auto.py", "quantizers/auto.py", HETEROGENEITY),
)
OUT = pathlib.Path(__file__).parents[2] / "transformer_jax" / "convert" / "keys.json"
CONFIGS = {"config", "text_config", "model_config", "encoder_config", "decoder_config"}
FILLED = {"kwargs", "config_dict"}
"""Names of dictionaries that hold the keys of config.json."""
FILLING = {"__post_init__", "__init__", "convert_rope_params_to_dict", "get_config_dict", "_get_config_dict"}
"""Functions in which they do; elsewhere `kwargs` are arguments of the caller."""


def tree_of(file):
    (folder,) = importlib.util.find_spec("transformers").submodule_search_locations
    return ast.parse((pathlib.Path(folder) / file).read_text(encoding="utf-8"))


def class_of(file, ending):
    return next(n for n in tree_of(file).body if isinstance(n, ast.ClassDef) and n.name.endswith(ending))


def function_of(node, name):
    return next(n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n.name == name)


def fields_of(node):
    """Return the fields of a config's class; those of the class itself (ClassVar) are no keys."""
    found = [s for s in node.body if isinstance(s, ast.AnnAssign) and "ClassVar" not in ast.unparse(s.annotation)]
    return {statement.target.id for statement in found}


def aliases_of(node):
    """Return the other names of fields: who sets one of them sets the field."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "attribute_map":
            return ast.literal_eval(statement.value)
    return {}


def named(node, names):
    return isinstance(node, ast.Name) and node.id in names


def is_config(node):
    return named(node, CONFIGS) or (isinstance(node, ast.Attribute) and node.attr in CONFIGS)


def attributes_of(tree):
    """Return the names that are read of anything called `config`; methods are left out, as they are called."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_config(node.value) and id(node) not in called:
            yield node.attr
        elif isinstance(node, ast.Call) and named(node.func, {"getattr", "hasattr"}) and is_config(node.args[0]):
            yield node.args[1]


def filled_from(node):
    """Return the names that the code of a config takes of the dictionaries with its keys, and of itself by name."""
    for function in (n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n.name in FILLING):
        for part in ast.walk(function):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and named(part.func.value, FILLED):
                yield from part.args[:1]
            elif isinstance(part, ast.Subscript) and named(part.value, FILLED):
                yield part.slice
            elif isinstance(part, ast.Compare) and named(part.comparators[0], FILLED):
                yield part.left
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and named(part.func, {"getattr", "hasattr"}) and named(part.args[0], {"self"}):
            yield part.args[1]


def properties_of(node):
    """Return the properties with a setter: who sets one sets something else."""
    return {
        function.name
        for function in ast.walk(node)
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Attribute) and decorator.attr == "setter"
    }


def texts(found):
    values = (node.value if isinstance(node, ast.Constant) else node for node in found)
    return {value for value in values if isinstance(value, str) and not value.startswith("__")}


def family(name):
    """Return the keys that are read for one family alone, with the aliases."""
    node = class_of(f"models/{name}/configuration_{name}.py", "Config")
    fields, aliases = fields_of(node), aliases_of(node)
    read = texts(filled_from(node)) | texts(attributes_of(tree_of(f"models/{name}/modeling_{name}.py")))
    if "rope_parameters" in fields:
        mixin = class_of(ROTARY, "RotaryEmbeddingConfigMixin")
        read |= texts(filled_from(mixin)) | texts(attributes_of(tree_of(ROTARY)))
    return (fields | {*aliases} | read) - methods(), aliases


def methods():
    """Return the methods and class variables of configs, which the source reads in the way of keys."""
    nodes = [class_of(CONFIG, "PreTrainedConfig"), class_of(ROTARY, "RotaryEmbeddingConfigMixin")]
    nodes.append(class_of(HETEROGENEITY, "Mixin"))
    functions = {n.name for node in nodes for n in node.body if isinstance(n, ast.FunctionDef)}
    variables = {s.target.id for node in nodes for s in node.body if isinstance(s, ast.AnnAssign)}
    return (functions | variables) - {name for node in nodes for name in fields_of(node) | properties_of(node)}


def keys():
    """Return the content of the file."""
    base = class_of(CONFIG, "PreTrainedConfig")
    library = fields_of(base) | properties_of(base) | texts(filled_from(base))
    for file in LIBRARY:
        library |= texts(attributes_of(tree_of(file)))
    settings = class_of(GENERATION, "GenerationConfig")
    defaults = function_of(settings, "_get_default_generation_params")
    (values,) = (node for node in ast.walk(defaults) if isinstance(node, ast.Dict))
    generation = texts(filled_from(function_of(settings, "__init__"))) | texts(values.keys)
    families = {name: family(name) for name in FAMILIES}
    return {
        "transformers": importlib.metadata.version("transformers"),
        "families": {name: {"aliases": aliases, "keys": sorted(read)} for name, (read, aliases) in families.items()},
        "generation": sorted(generation),
        "library": sorted(library - methods() - generation),
    }


def text():
    return json.dumps(keys(), indent=1) + "\n"


if __name__ == "__main__":
    OUT.write_text(text(), encoding="utf-8")
    print({name: len(part["keys"]) for name, part in keys()["families"].items()})
