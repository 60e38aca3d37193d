"""Tensors from other machines: what their envelope claims is looked at before memory is taken for them.

hivemind sends protobuf with raw buffers and msgpack beside it, and unpickles nothing that came by the wire; what is left
to refuse are types, sizes and values that make a reader allocate, fail or learn nonsense.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from blake3 import blake3
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import deserialize_torch_tensor
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = import_module("torch")

PLAIN_TYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 4, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
"""What a state may hold, and the bytes of one value on the wire."""
_SMALLEST = {runtime_pb2.NONE: 1, runtime_pb2.FLOAT16: 2, runtime_pb2.MEANSTD_16BIT: 2}
_METADATA = 1 << 20


class BadTensor(Exception):
    """What another machine sent is not what it should be; the message says in what, of `it`."""


@dataclass(frozen=True)
class State:
    """What a peer serves to those who come late, and to the keeper."""

    round: int
    samples: int
    loss: float | None
    names: list[str]
    tensors: list[Tensor]
    hash: str


def open_tensor(message: runtime_pb2.Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """The tensor in a message, of this shape if one is given."""
    claimed = tuple(message.size)
    if shape is not None and claimed != tuple(shape):
        raise BadTensor(f"its shape is {list(claimed)} instead of {list(shape)}")
    if message.dtype not in PLAIN_TYPES:
        raise BadTensor(f"its type is {message.dtype[:20]!r}")
    count, size = math.prod(claimed), len(message.buffer)
    if size < count * _SMALLEST.get(message.compression, 1):
        raise BadTensor(f"it claims {count} values in {size} bytes")
    if message.compression == runtime_pb2.NONE and size not in (count * PLAIN_TYPES[message.dtype], count * 2):
        raise BadTensor(f"it claims {count} values in {size} bytes")
    message.requires_grad = False
    try:
        tensor: Tensor = deserialize_torch_tensor(message)
    except Exception as error:  # of numpy and torch, on bytes from anywhere
        raise BadTensor(f"it cannot be read ({type(error).__name__})") from error
    if not torch.isfinite(tensor).all():
        raise BadTensor("it has values that are not finite")
    return tensor


def state_hash(names: Sequence[str], tensors: Sequence[Tensor]) -> str:
    """Of names, types, shapes and values: equal on all machines that hold the same state."""
    digest = blake3()
    for name, tensor in zip(names, tensors, strict=True):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name}\0{plain.dtype}\0{list(plain.shape)}\0".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


async def download(
    p2p: P2P, peer: PeerID, prefix: str, *, largest: int = 1 << 36, chunk_timeout_s: float = 30.0
) -> State:
    """A peer's state, whole and self-consistent; whether it is the swarm's, its hash must tell."""
    stub = DecentralizedAverager.get_stub(p2p, peer, namespace=prefix)
    stream = await asyncio.wait_for(stub.rpc_download_state(averaging_pb2.DownloadRequest()), chunk_timeout_s)
    metadata: dict[str, Any] = {}
    tensors: list[Tensor] = []
    async for parts in _whole(_bounded(aiter_with_timeout(stream, chunk_timeout_s), largest, metadata)):
        tensors.append(open_tensor(combine_from_streaming(parts)))
    names = metadata.get("names")
    if not isinstance(names, list) or len(names) != len(tensors) or not all(isinstance(name, str) for name in names):
        raise BadTensor(f"{peer} served {len(tensors)} tensors without a name for each")
    found = await asyncio.get_running_loop().run_in_executor(None, state_hash, names, tensors)
    if found != metadata.get("hash"):
        raise BadTensor(f"{peer} served a state that is not the one it announced")
    loss = metadata.get("loss")
    return State(
        round=_count(metadata.get("round")),
        samples=_count(metadata.get("samples")),
        loss=loss if isinstance(loss, float) and math.isfinite(loss) else None,
        names=names,
        tensors=tensors,
        hash=found,
    )


async def _bounded(stream: AsyncIterator[Any], largest: int, metadata: dict[str, Any]) -> AsyncIterator[Any]:
    """The stream's parts of tensors, as long as they come to no more than allowed; what else there is goes into `metadata`."""
    taken = 0
    async for message in stream:
        if message.metadata and not metadata:
            found = MSGPackSerializer.loads(message.metadata) if len(message.metadata) <= _METADATA else None
            if not isinstance(found, dict):
                raise BadTensor("the state has no description")
            metadata.update(found)
        taken += len(message.tensor_part.buffer)
        if taken > largest:
            raise BadTensor(f"the state is larger than {largest} bytes")
        yield message.tensor_part


async def _whole(stream: AsyncIterator[Any]) -> AsyncIterator[list[Any]]:
    """Parts that make one tensor; a part with a type begins the next."""
    parts: list[Any] = []
    async for part in stream:
        if part.dtype and parts:
            yield parts
            parts = []
        parts.append(part)
    if parts:
        yield parts


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise BadTensor(f"the state's round or samples are {str(value)[:20]!r}")
    return value
