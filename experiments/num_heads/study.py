"""Heads of width emb_dim / num_heads, at equal computation (Vaswani et al. 2017, table 3 A); and keys and values
shared by all heads, multi-query attention (Shazeer 2019), which is smaller."""

BASELINE = "configs/quickstart.py"

VARIANTS = {
    **{f"{heads}_heads": {"model.num_heads": heads} for heads in (1, 2, 4, 8, 16)},
    "8_heads_1_kv": {"model.num_heads": 8, "model.num_kv_heads": 1},
}
