"""The model side of the built-in engine: files to weights, tokens to logits, logits to text."""

from .config import ModelConfig, RopeScaling
from .decoder import Decoder
from .detokenizer import Detokenizer, StopMatcher
from .kv_tensors import KV_DTYPES, KVTensors, block_buffers
from .load import LoadedModel, load_model
from .sampling import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, Sampling, sample
from .step import LayerHook, SequenceChunk

__all__ = [
    "LoadedModel",
    "load_model",
    "ModelConfig",
    "RopeScaling",
    "Decoder",
    "SequenceChunk",
    "LayerHook",
    "KVTensors",
    "KV_DTYPES",
    "block_buffers",
    "Sampling",
    "MAX_STOP_CHARACTERS",
    "MAX_STOP_STRINGS",
    "sample",
    "Detokenizer",
    "StopMatcher",
]
