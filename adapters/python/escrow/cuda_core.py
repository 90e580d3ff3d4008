# SPDX-License-Identifier: Apache-2.0
"""cuda.core's device memory from Escrow: one memory resource for eager work and for captures.

    memory = escrow.cuda_core.EscrowMemoryResource(device)
    buffer = memory.allocate(1 << 20, stream=stream_or_graph_builder)

For launches as fast as those of a graph that holds nothing:
escrow.GraphExec(graph_definition).launch(stream). cuda.core's own Graph works, too, and holds the memory by a
CUDA user object.
"""

from cuda.core import Buffer, MemoryResource

from ._escrow import Group, StreamAllocator

__all__ = ["EscrowMemoryResource"]


class EscrowMemoryResource(MemoryResource):
    """Memory in the order of the stream, or graph builder, that it is allocated for.

    A graph keeps what was allocated in its capture, also once the buffer is closed, until its last launch has
    ended; a buffer may be closed in the capture, or later. A buffer of before the capture:
    escrow.keep(buffer, stream) in the capture. The stream of a buffer's end must be alive then. `options`:
    see ScratchPool. Any thread. Errors are those of ScratchPool.claim().
    """

    def __init__(self, device=-1, *, label: str = "cuda.core", group: Group | None = None, **options) -> None:
        self._allocator = StreamAllocator(
            device=getattr(device, "device_id", device), label=label, group=group, **options
        )

    @property
    def allocator(self) -> StreamAllocator:
        """For stats(), trim(), record_stream() and the like."""
        return self._allocator

    def allocate(self, size: int, *, stream) -> Buffer:
        """A buffer of `size` bytes, not initialized, freed on `stream` unless its close() names another."""
        address = self._allocator.allocate(stream, size)
        try:
            return Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            self._allocator.free(stream, address)
            raise

    def deallocate(self, ptr, size: int, *, stream) -> None:
        """For Buffer: frees after the work on `stream` so far."""
        self._allocator.free(stream, int(ptr))

    @property
    def device_id(self) -> int:
        """The index of the memory's device."""
        return self._allocator.device

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False."""
        return False
