"""From settings to an engine: model, namespace, pool, store."""

from __future__ import annotations

import torch

from moontide.kvstore import Group, KVLayout, Namespace
from moontide.kvstore.service import SettingsError, Size

from ..engine.plan import Limits
from ..errors import OutOfMemory
from ..model import KV_DTYPES, KVTensors, LoadedModel, ModelConfig
from .memory import available_bytes
from .settings import WorkerSettings


def namespace_of(model: LoadedModel, *, kv_dtype: str, block_tokens: int) -> Namespace:
    """What the model's KV is stored under: its content, never its name."""
    config = model.config
    group = Group("full", config.num_layers, config.num_kv_heads, config.head_dim, kv_dtype)
    return Namespace(
        weights_id=model.weights_id,
        layout=KVLayout((group,)),
        tokenizer_digest=model.tokenizer_digest,
        block_tokens=block_tokens,
        rope_scaling=config.rope_scaling_id,
    )


def choose_device(device: str) -> torch.device:
    """Raises SettingsError naming the device and what there is."""
    num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda:0" if num_cuda else "cpu")
    kind, _, index = device.partition(":")
    if device == "cpu" or (kind == "cuda" and (index or "0").isdigit()):
        if kind == "cuda" and int(index or 0) >= num_cuda:
            raise SettingsError(f"device={device}: this machine has {num_cuda} CUDA devices")
        return torch.device(device)
    raise SettingsError(f"device={device}: write auto, cpu or cuda:N")


def make_pool(config: ModelConfig, settings: WorkerSettings, device: torch.device) -> KVTensors:
    """The KV pool, its memory really taken. Raises SettingsError and OutOfMemory, with both
    sizes."""
    dtype = KV_DTYPES[settings.kv_dtype]
    page_bytes = KVTensors.page_bytes(config, settings.block_tokens, dtype)
    num_pages = settings.hbm // page_bytes
    if num_pages < 2:
        raise SettingsError(
            f"hbm={settings.hbm} holds {num_pages} blocks of {page_bytes} bytes; give at least "
            f"{Size(2 * page_bytes)}"
        )
    if device.type == "cpu" and (available := available_bytes()) < settings.hbm:
        raise OutOfMemory(
            f"hbm={settings.hbm} exceeds the {available >> 20} MiB of memory available; give less"
        )
    try:
        tensors = KVTensors(
            config,
            num_pages=num_pages,
            page_tokens=settings.block_tokens,
            dtype=dtype,
            device=device,
        )
        for tensor in (*tensors.keys, *tensors.values):
            tensor.zero_()
    except (RuntimeError, MemoryError) as error:  # torch has no narrower one for CPU memory
        raise OutOfMemory(f"hbm={settings.hbm} cannot be had: {error}; give less") from error
    return tensors


def limits_of(settings: WorkerSettings, config: ModelConfig) -> Limits:
    return Limits(
        block_tokens=settings.block_tokens,
        context_tokens=config.context_tokens,
        max_batch_tokens=settings.max_batch_tokens,
        idle_batch_tokens=settings.idle_batch_tokens,
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
    )
