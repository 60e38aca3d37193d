"""Decoding of tensors from other machines. Claimed types and sizes are checked before memory is allocated.

hivemind sends protobuf with raw buffers and msgpack metadata, and unpickles nothing it receives. What remains to refuse are
types, sizes and values that would make the reader allocate too much, fail or learn nonsense.

Why it is safe: `download` runs on the event loop of the DHT's process and owns everything it collects; only the hash is
computed in an executor thread, on tensors that nobody changes. A download that fails or is cancelled leaves nothing behind.
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
"""Types that a state may contain, and the bytes of one value in a message."""
_SMALLEST = {runtime_pb2.NONE: 1, runtime_pb2.FLOAT16: 2, runtime_pb2.MEANSTD_16BIT: 2}
_METADATA = 1 << 20


class BadTensor(Exception):
    """A tensor from another machine is invalid. The message is a clause about it, such as "its shape is …"."""


@dataclass(frozen=True)
class State:
    """State of a swarm, as peers serve it to joining peers and to the coordinator."""

    round: int
    samples: int
    loss: float | None
    names: list[str]
    tensors: list[Tensor]
    hash: str


def open_tensor(message: runtime_pb2.Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return the tensor in a message; raise BadTensor if it is invalid or does not have the given shape."""
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
    except Exception as error:  # numpy and torch raise many kinds on bytes from strangers
        raise BadTensor(f"it cannot be read ({type(error).__name__})") from error
    if not torch.isfinite(tensor).all():
        raise BadTensor("it has values that are not finite")
    return tensor


def state_hash(names: Sequence[str], tensors: Sequence[Tensor]) -> str:
    """Return the hash of names, types, shapes and values. It is equal on all machines that hold the same state."""
    digest = blake3()
    for name, tensor in zip(names, tensors, strict=True):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name}\0{plain.dtype}\0{list(plain.shape)}\0".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


async def download(
    p2p: P2P, peer: PeerID, prefix: str, *, largest: int = 1 << 36, chunk_timeout_s: float = 30.0
) -> State:
    """Download a peer's state and check it against its own hash. The caller must check that this hash is the swarm's."""
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
    """Yield the tensor parts of a stream, up to `largest` bytes in all; its description is stored in `metadata`."""
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
    """Yield the list of parts of each tensor. A part with a type begins the next tensor."""
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
