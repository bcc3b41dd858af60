"""The options that describe a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specmodel.cli import options

if TYPE_CHECKING:
    from specmodel.datasheets import Device
    from specmodel.deployment import Deployment

DEFAULT_DEVICE = "h100-sxm"


def describe(
    model: options.Model = "llama-3.1-8b",
    device: options.Device = None,
    bandwidth: options.Bandwidth = None,
    flops: options.Flops = None,
    memory: options.DeviceMemory = None,
    tp: options.Tp = 1,
    ep: options.Ep = 1,
    weights: options.Weights = None,
    kv: options.Kv = None,
    kv_bytes_per_token: options.KvBytes = None,
    memory_fraction: options.MemoryFraction = None,
    engine: options.Engine = "ideal",
    kv_reread: options.KvReread = None,
    fidelity: options.FidelityName = None,
    calibration: options.CalibrationFile = None,
    attention_flops: options.AttentionFlops = False,
    flops_fraction: options.FlopsFraction = None,
) -> Deployment:
    """A bundle: the deployment that the options describe."""
    from specmodel.deployment import deploy

    return deploy(
        model,
        machine(device, bandwidth=bandwidth, flops=flops, memory=memory),
        tp=tp,
        ep=ep,
        weights=weights,
        kv=kv,
        kv_bytes_per_token=kv_bytes_per_token,
        memory_fraction=memory_fraction,
        engine=engine,
        kv_reread=kv_reread,
        fidelity=fidelity,
        calibration=calibration,
        attention_flops=attention_flops,
        flops_fraction=flops_fraction,
    )


# What times a pass, and nothing else: a memory ledger does not ask.
TIMING = ("ep", "kv_reread", "fidelity", "calibration", "attention_flops", "flops_fraction")


def machine(
    device: str | None, *, bandwidth: str | None = None, flops: str | None = None, memory: str | None = None
) -> Device:
    """A device by name or file, or with figures of its own; all three of these alone describe a new one."""
    from specmodel import catalog

    if bandwidth is None and flops is None and memory is None:
        return catalog.device(DEFAULT_DEVICE if device is None else device)
    return catalog.custom_device(bandwidth=bandwidth, flops=flops, memory=memory, base=device)
