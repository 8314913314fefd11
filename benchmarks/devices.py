"""The devices that speed is measured on."""

from __future__ import annotations

import argparse

import jax

PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}
"""bfloat16 operations per second without sparsity, by the beginning of a device's kind, the first that fits; as their
makers state them."""


def peak_flops(device_kind: str) -> float | None:
    """What a device can do at most in bfloat16; None where that is not known, as of a CPU."""
    return next((peak for name, peak in PEAK_FLOPS.items() if device_kind.startswith(name)), None)


def device_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "gpu", "tpu"), help="default: the one that JAX prefers")


def use_device(name: str | None) -> None:
    """Has JAX compute on a kind of device, None for the one it prefers; ends the program if there is none."""
    if name is None:
        return
    jax.config.update("jax_platforms", {"gpu": "cuda"}.get(name, name))
    try:
        jax.devices()
    except (RuntimeError, AssertionError):  # the latter where JAX was installed without it
        raise SystemExit(f"--device={name}: JAX sees none") from None
