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
"""Vendors' peak bfloat16 operations per second, without sparsity, by prefix of the device kind (first match)."""


def peak_flops(device_kind: str) -> float | None:
    """Return a device's peak bfloat16 operations per second, or None where it is not known, as for a CPU."""
    return next((peak for name, peak in PEAK_FLOPS.items() if device_kind.startswith(name)), None)


def device_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "gpu", "tpu"), help="default: the one that JAX prefers")


def use_device(name: str | None) -> None:
    """Make JAX use a kind of device, or the one it prefers if None. Raises SystemExit if there is no such device."""
    if name is None:
        return
    jax.config.update("jax_platforms", {"gpu": "cuda"}.get(name, name))
    try:
        jax.devices()
    except (RuntimeError, AssertionError):  # AssertionError: JAX was installed without support for it
        raise SystemExit(f"--device={name}: JAX sees none") from None
