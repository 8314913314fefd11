"""The Transformers implemented again from the papers, as the tests' reference.

NumPy in float64 with loops over heads and queries; it uses no code of the package.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Drop = Callable[[np.ndarray, str], np.ndarray]


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float = 1.0,
    drop: Drop = lambda x, place: x,
    cap: float | None = None,
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Vaswani et al. 2017, equation 1, one query and one head at a time; [B, T, N, H], [B, S, K, H], [B, S, K, Hv].

    A cap is that of Gemma 2, a sink (a logit for each head) that of gpt-oss.
    """
    batch, length, heads, _ = query.shape
    source, kv_heads = key.shape[1:3]
    weights = np.zeros((batch, heads, length, source))
    mask = np.broadcast_to(True if mask is None else mask, weights.shape)
    bias = np.broadcast_to(0.0 if bias is None else bias, weights.shape)
    for b, n, t in np.ndindex(batch, heads, length):
        allowed = np.flatnonzero(mask[b, n, t])
        if len(allowed):
            logits = [scale * query[b, t, n] @ key[b, s, n * kv_heads // heads] + bias[b, n, t, s] for s in allowed]
            if cap is not None:
                logits = [cap * math.tanh(logit / cap) for logit in logits]
            exponentials = np.exp(np.array(logits) - max(logits))
            missing = 0.0 if sinks is None else math.exp(sinks[n] - max(logits))
            weights[b, n, t, allowed] = exponentials / (exponentials.sum() + missing)
    kept = drop(weights, "attention")
    output = np.zeros((batch, length, heads, value.shape[-1]))
    for b, n, t in np.ndindex(batch, heads, length):
        for s in range(source):
            output[b, t, n] += kept[b, n, t, s] * value[b, s, n * kv_heads // heads]
    return output, weights


def gated_delta_rule(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, decay: np.ndarray, strength: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Yang et al. 2024, equation 10 transposed, one token and one head at a time.

    [B, T, N, H], [B, T, N, H], [B, T, N, Hv], [B, T, N], [B, T, N] and the state before, [B, N, H, Hv]; the outputs
    [B, T, N, Hv] and the state after.
    """
    state, output = state.copy(), np.zeros(value.shape)
    for b, t, n in np.ndindex(*value.shape[:3]):
        k, beta = key[b, t, n], strength[b, t, n]
        erase = np.eye(len(k)) - beta * np.outer(k, k)
        state[b, n] = decay[b, t, n] * erase @ state[b, n] + beta * np.outer(k, value[b, t, n])
        output[b, t, n] = query[b, t, n] @ state[b, n]
    return output, state


def gated_delta(config: Any, p: Any, x: np.ndarray) -> np.ndarray:
    """Yang et al. 2024, section 3.4, and the authors' code: the mixer of one text after the other, x [B, T, D]."""

    def mapped(name: str) -> np.ndarray:
        y = np.tensordot(x, p[name]["kernel"], 1)
        return y + p[name]["bias"] if "bias" in p[name] else y

    batch, length, _ = x.shape
    joined = np.concatenate([mapped(name) for name in ("query", "key", "value")], -1)
    kernel = p["convolution"]["kernel"]
    convolved = np.zeros(joined.shape)
    for b, t, tap in np.ndindex(batch, length, len(kernel)):
        if (source := t - tap) >= 0:
            convolved[b, t] += kernel[len(kernel) - 1 - tap] * joined[b, source]
    convolved = activation("silu", convolved)
    query, key, value = np.split(convolved, [config.head_dim, 2 * config.head_dim], -1)
    query, key = (y / np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (query, key))
    decay = np.exp(-np.exp(p["decay"]["scale"]) * np.log1p(np.exp(mapped("decay"))))
    state = np.zeros((batch, config.num_heads, config.head_dim, config.value_head_dim))
    strength = 1 / (1 + np.exp(-mapped("strength")))
    output, _ = gated_delta_rule(query / math.sqrt(config.head_dim), key, value, decay, strength, state)
    output = output / np.sqrt((output**2).mean(-1, keepdims=True) + config.norm_epsilon) * p["norm"]["scale"]
    y = np.tensordot(output * activation("silu", mapped("gate")), p["out"]["kernel"], 2)
    return y + p["out"]["bias"] if config.use_bias else y


def sinusoids(positions: np.ndarray, dim: int) -> np.ndarray:
    """Section 3.5, one number at a time."""
    table = np.zeros((*positions.shape, dim))
    for index in np.ndindex(*positions.shape):
        for i in range(dim // 2):
            angle = positions[index] / 10000 ** (2 * i / dim)
            table[(*index, 2 * i)], table[(*index, 2 * i + 1)] = math.sin(angle), math.cos(angle)
    return table


def rotated(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """Su et al. 2021: pairs of x [B, T, N, H] as complex numbers, turned by e^(i pos theta)."""
    dim = x.shape[-1]
    theta = np.array([base ** (-2 * i / dim) for i in range(dim // 2)])
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * positions[:, :, None, None] * theta)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def slopes(heads: int) -> list[float]:
    """Press et al. 2022 and the authors' code, which calls itself for a number of heads that is no power of 2."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return slopes(closest) + slopes(2 * closest)[0::2][: heads - closest]


def qk_norm(config: Any, x: np.ndarray, p: Any) -> np.ndarray:
    """The norm of queries or keys x [B, T, N, H]; of one token, or one head, at a time."""
    y = np.zeros(x.shape)
    for b, t, n in np.ndindex(*x.shape[:3]):
        head = x[b, t, n]
        if config.qk_norm == "rms":
            y[b, t, n] = head / math.sqrt((head**2).mean() + config.norm_epsilon) * gains(config, p)
        elif config.qk_norm == "rms_full":
            of_all = np.broadcast_to(gains(config, p), x.shape[2] * x.shape[3]).reshape(x.shape[2:])
            y[b, t, n] = head / math.sqrt((x[b, t] ** 2).mean() + config.norm_epsilon) * of_all[n]
        elif config.qk_norm == "layernorm":
            y[b, t, n] = (head - head.mean()) / math.sqrt(head.var() + config.norm_epsilon) * gains(config, p)
        else:
            factor = p["scale"][n] if "scale" in p else 1.0
            y[b, t, n] = factor * head / math.sqrt((head**2).sum() + config.norm_epsilon)
    return y


def bucket(distance: int, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
    """Raffel et al. 2020: the bucket of one distance key - query, computed in float64."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    # Where the quotient of logarithms is a whole number, rounding must not push it below.
    step = math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact) + 1e-12
    return first + min(exact + int(step), num_buckets - 1)


def gains(config: Any, p: Any) -> Any:
    return {"learned": lambda: p["scale"], "none": lambda: 1.0, "offset": lambda: 1 + p["scale"]}[config.norm_scale]()


def norm(config: Any, x: np.ndarray, p: Any) -> np.ndarray:
    if config.norm == "none":
        return x
    gain = gains(config, p)
    if config.norm == "rmsnorm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon) * gain
    if config.norm == "batchnorm":
        y = (x - p["running_mean"]) / np.sqrt(p["running_variance"] + config.norm_epsilon) * gain
    elif config.norm == "dyt":
        y = np.tanh(p["alpha"] * x) * gain
    else:
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config.norm_epsilon) * gain
    return y + p["bias"] if config.use_bias else y


def activation(name: str, x: np.ndarray) -> np.ndarray:
    if name in ("relu", "reglu"):
        return np.where(x > 0, x, 0.0)
    if name == "swiglu_clamped":
        x = np.minimum(x, 7.0)
        return x / (1 + np.exp(-1.702 * x))
    if name == "bilinear":
        return x
    if name in ("gelu_tanh", "geglu_tanh"):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name in ("swiglu", "silu"):
        return x / (1 + np.exp(-x))
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def layer_config(config: Any, index: int, depth: int) -> Any:
    """The config of one layer, for patterns that are the same in both stacks."""
    if not config.layer_pattern:
        return config
    repeated, _, last = config.layer_pattern.partition("|")
    letter = last[index - depth] if index >= depth - len(last) else repeated[index % len(repeated)]
    kinds = dict(kind.split(":") for kind in config.layer_kinds.split(";"))
    of_kind = {name.strip(): text for name, text in kinds.items()}[letter]
    settings = dict(part.split("=") for part in of_kind.split(",") if "=" in part)
    read = {
        "attention_window": int,
        "rotary_base": float,
        "attention_rotates": lambda text: text == "true",
        "mixer": str,
        "feed_forward": str,
    }
    values = {name.strip(): read[name.strip()](text.strip()) for name, text in settings.items()}
    return dataclasses.replace(config, layer_pattern="", layer_kinds="", **values)


def deepnorm_alpha(config: Any, stack: str) -> float:
    """Wang et al. 2022, figure 2."""
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if config.architecture != "encoder_decoder":
        return (2 * (encoder if stack == "encoder" else decoder)) ** (1 / 4)
    return 0.81 * (encoder**4 * decoder) ** (1 / 16) if stack == "encoder" else (3 * decoder) ** (1 / 4)


class Model:
    """The model of one config with given parameters; `drop(x, place)` is called where the papers apply dropout."""

    def __init__(self, config: Any, params: Any, drop: Drop = lambda x, place: x):
        self.config, self.params, self.drop = config, params, drop

    def __call__(self, batch: dict[str, Any]) -> np.ndarray:
        config = self.config
        batch = {k: np.asarray(v) for k, v in batch.items()}
        memory = source_mask = None
        if config.architecture != "decoder_only":
            inputs, source_mask = batch["inputs"], batch["inputs_mask"][:, None, None, :]
            source_positions = np.broadcast_to(np.arange(inputs.shape[1]), inputs.shape)
            table = "embedding" if config.architecture == "encoder_only" else "source_embedding"
            x = self.embed(inputs, table)
            if config.token_types:
                x = x + self.leaf("encoder", "type_embedding", "embedding")[batch["types"]]
            memory, self.memory_weights = self.stack("encoder", x, source_positions, source_mask)
        if config.architecture == "encoder_only":
            return self.logits(memory)
        read = batch["decoder_inputs"]
        target_positions = np.broadcast_to(np.arange(read.shape[1]), read.shape)
        causal = np.array([[s <= t for s in range(read.shape[1])] for t in range(read.shape[1])])
        x, self.weights = self.stack(
            "decoder", self.embed(read, "embedding"), target_positions, causal[None, None], memory, source_mask
        )
        return self.logits(x)

    def logits(self, x: np.ndarray) -> np.ndarray:
        config = self.config
        x = x / math.sqrt(config.emb_dim) if config.scale_logits else x
        kernel = self.leaf("embedding", "embedding").T if config.tie_output else self.leaf("output", "kernel")
        y = x @ kernel + self.leaf("output", "bias") if config.output_bias else x @ kernel
        y, cap = config.logits_multiplier * y, config.output_logit_cap
        return y if cap is None else cap * np.tanh(y / cap)

    def leaf(self, *path: str) -> np.ndarray:
        node = self.params
        for name in path:
            node = node[name]
        return np.asarray(node, np.float64)

    def embed(self, ids: np.ndarray, table: str) -> np.ndarray:
        rows = self.leaf("embedding" if self.config.share_embeddings else table, "embedding")[ids]
        root = math.sqrt(self.config.emb_dim) if self.config.scale_embeddings else 1.0
        return rows * root * self.config.embedding_multiplier

    def stack(self, name, x, positions, mask, memory=None, memory_mask=None):
        config = self.config
        self.alpha = deepnorm_alpha(config, name)
        if config.position_encoding == "sinusoidal":
            x = x + sinusoids(positions, config.emb_dim)
        if config.position_encoding == "learned":
            x = x + self.leaf(name, "position_embedding", "learned", "embedding")[positions]
        bias = None
        if config.position_encoding == "relative":
            table = self.leaf(name, "relative_bias", "embedding")
            bias = np.zeros((len(x), config.num_heads, x.shape[1], x.shape[1]))
            for b, n, t, s in np.ndindex(*bias.shape):
                distance = int(positions[b, s] - positions[b, t])
                index = bucket(distance, name == "encoder", config.relative_num_buckets, config.relative_max_distance)
                bias[b, n, t, s] = table[index, n]
        if config.position_encoding == "alibi":
            distances = np.abs(positions[:, None, :, None] - positions[:, None, None, :])
            bias = -np.array(slopes(config.num_heads))[:, None, None] * distances
        if config.embedding_norm or config.norm_position == "peri":
            x = norm(config, x, self.layer(self.params[name].get("embedding_norm", {}), None))
        x = source = self.drop(x, "embedding")
        weights = []
        num_layers = config.num_encoder_layers if name == "encoder" else config.num_decoder_layers
        configs = [layer_config(config, i, num_layers) for i in range(num_layers)]
        plain = {"mixer": "attention", "feed_forward": "dense"}
        folders = [
            "_".join(["layers", *(getattr(own, name) for name, value in plain.items() if getattr(own, name) != value)])
            for own in configs
        ]
        for i in range(num_layers):
            own_config = configs[i]
            p = self.layer(self.params[name][folders[i]], folders[:i].count(folders[i]))
            weights.append({})
            if config.residual_lambdas:
                x = self.leaf(name, "stream_lambdas", "scale")[i] * x
                x = x + self.leaf(name, "input_lambdas", "scale")[i] * source
            start = x
            if own_config.mixer == "gated_delta":
                x, _ = self.residual(
                    p.get("gated_delta_residual", {}),
                    x,
                    lambda y, p=p, c=own_config: (gated_delta(c, p["gated_delta"], y), None),
                )
            else:
                x, weights[-1]["self_attention"] = self.residual(
                    p.get("self_attention_residual", {}),
                    x,
                    lambda y, p=p, c=own_config: self.self_attention(c, p, y, positions, mask, bias),
                )
            if memory is not None:
                x, weights[-1]["cross_attention"] = self.residual(
                    p.get("cross_attention_residual", {}),
                    x,
                    lambda y, p=p: self.heads(config, p["cross_attention"], y, memory, None, memory_mask, None),
                )
            part, f = {
                "dense": ("feed_forward", self.feed_forward),
                "experts": ("experts", self.experts),
            }[own_config.feed_forward]
            own = p.get(f"{part}_residual", {})
            if config.parallel == "none":
                x, _ = self.residual(own, x, lambda y, p=p, part=part, f=f: (f(p[part], y), None))
            else:
                mixer = {"attention": "self_attention", "gated_delta": "gated_delta"}[own_config.mixer]
                of_norm = own if config.parallel == "two_norms" else p.get(f"{mixer}_residual", {})
                x = x + self.branch(own, f(p[part], norm(config, start, of_norm.get("norm"))))
        if config.norm_position not in ("post", "deepnorm"):
            x = norm(config, x, self.layer(self.params[name].get("final_norm", {}), None))
        return self.drop(x, "final"), weights

    def layer(self, node: Any, i: int | None) -> Any:
        if hasattr(node, "items"):
            return {k: self.layer(v, i) for k, v in node.items()}
        return np.asarray(node if i is None else node[i], np.float64)

    def residual(self, p, x, f):
        """Post: Norm(x + Dropout(f(x))). Pre: x + Dropout(f(Norm(x))). Output: x + Dropout(Norm(f(x)))."""
        place = self.config.norm_position
        y, extra = f(norm(self.config, x, p.get("norm")) if place in ("pre", "sandwich", "peri") else x)
        if place in ("sandwich", "output", "peri"):
            y = norm(self.config, y, p.get("output_norm"))
        y = self.branch(p, y)
        if place == "deepnorm":
            return norm(self.config, self.alpha * x + y, p.get("norm")), extra
        return (norm(self.config, x + y, p.get("norm")) if place == "post" else x + y), extra

    def branch(self, p, y):
        """Bachlechner et al. 2021 and Touvron et al. 2021: learned factors of the output."""
        y = y if self.config.residual_scale == "none" else p["scale"] * y
        return self.drop(self.config.residual_multiplier * y, "residual")

    def self_attention(self, config, p, x, positions, mask, bias):
        """A window hides the keys that are so far away, or farther (Beltagy et al. 2020)."""
        length = x.shape[1]
        mask = np.array(np.broadcast_to(True if mask is None else mask, (len(x), 1, length, length)))
        for b, t, s in np.ndindex(len(x), length, length):
            if config.attention_window and abs(int(positions[b, t] - positions[b, s])) >= config.attention_window:
                mask[b, 0, t, s] = False
        return self.heads(config, p["self_attention"], x, x, positions, mask, bias)

    def heads(self, config, p, x, y, positions, mask, bias):
        query, key, value = self.project(p["query"], x), self.project(p["key"], y), self.project(p["value"], y)

        def normed(query, key):
            of = {name: p.get(f"{name}_norm", {}) for name in ("query", "key")}
            return qk_norm(config, query, of["query"]), qk_norm(config, key, of["key"])

        if config.qk_norm != "none" and not config.qk_norm_after_rotation:
            query, key = normed(query, key)
        if positions is not None and config.position_encoding == "rotary" and config.attention_rotates:
            width = round(config.rotary_fraction * config.head_dim)
            query, key = (
                np.concatenate([rotated(y[..., :width], positions, config.rotary_base), y[..., width:]], -1)
                for y in (query, key)
            )
        if config.qk_norm != "none" and config.qk_norm_after_rotation:
            query, key = normed(query, key)
        scale = 1 / math.sqrt(config.head_dim) if config.attention_scale and config.qk_norm != "l2" else 1.0
        scale = scale if config.attention_multiplier is None else config.attention_multiplier
        sinks = {"none": None, "zero": np.zeros(config.num_heads), "learned": p.get("sinks")}[config.attention_sink]
        cap = config.attention_logit_cap
        concatenated, weights = attention(query, key, value, mask, bias, scale, self.drop, cap, sinks)
        out = np.einsum("btnh,nhd->btd", concatenated, p["out"]["kernel"])
        return out + p["out"]["bias"] if config.use_bias else out, weights

    def project(self, p, x):
        y = np.einsum("btd,dnh->btnh", x, p["kernel"])
        return y + p["bias"] if self.config.qkv_bias else y

    def feed_forward(self, p, x):
        def dense(name, y):
            y = y @ p[name]["kernel"]
            return y + p[name]["bias"] if self.config.use_bias else y

        name = self.config.activation
        if "gate" in p:
            linear = dense("hidden", x)
            linear = np.clip(linear, -7, 7) + 1 if name == "swiglu_clamped" else linear
            hidden = activation(name, dense("gate", x)) * linear
        else:
            hidden = activation(name, dense("hidden", x))
        return dense("out", self.drop(hidden, "activation"))

    def experts(self, p, x):
        """Shazeer et al. 2017, equation 1, one token at a time: the experts of the k largest logits, weighted."""
        y = np.zeros(x.shape)
        for b, t in np.ndindex(*x.shape[:2]):
            logits = x[b, t] @ p["router"]["kernel"]
            chosen = sorted(range(len(logits)), key=lambda e: -logits[e])[: self.config.experts_per_token]
            exponentials = {e: math.exp(logits[e] - max(logits)) for e in chosen}
            for e, exponential in exponentials.items():
                own = self.layer({name: p[name] for name in p if name != "router"}, e)
                y[b, t] += exponential / sum(exponentials.values()) * self.feed_forward(own, x[b, t])
        return y
