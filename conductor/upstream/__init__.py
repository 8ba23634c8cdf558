"""Calls to workers: what is said, how long it is waited for, and why it may come to nothing."""

from .calls import WorkerCalls
from .failures import CallFailed, Failure
from .messages import Chunk, ChunkChoice, GenerationBody, RemoteDecode, RemotePrefill
from .stream import ChunkStream, Expect, Patience

__all__ = [
    "CallFailed",
    "Chunk",
    "ChunkChoice",
    "ChunkStream",
    "Expect",
    "Failure",
    "GenerationBody",
    "Patience",
    "RemoteDecode",
    "RemotePrefill",
    "WorkerCalls",
]
