"""Post-LN and Pre-LN, each with and without warm-up, at one peak learning rate (Xiong et al. 2020, section 3.2)."""

BASELINE = "configs/quickstart.py"

_NO_WARMUP = {"optimizer.schedule": "linear", "optimizer.warmup_steps": 0}
_WARMUP = {"optimizer.schedule": "linear"}

VARIANTS = {
    "pre": {"model.norm_position": "pre", **_WARMUP},
    "post": {"model.norm_position": "post", **_WARMUP},
    "pre_without_warmup": {"model.norm_position": "pre", **_NO_WARMUP},
    "post_without_warmup": {"model.norm_position": "post", **_NO_WARMUP},
}
