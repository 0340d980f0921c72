"""The incremental parser: bytes in, one record at a time out, whatever the pieces they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvx_ref.errors import Malformed
from nvx_ref.session.record import HEADER, Record, check_payload, read_header

if TYPE_CHECKING:
    from nvx_ref.session.record import Header


class RecordParser:
    """Takes NVXS records from a byte stream (contract openvmm 3.3).

    A header is judged as soon as its 44 bytes are there and before its body is waited for, so what a peer makes us
    hold is bounded by one record beyond what it was fed. Nothing is resynchronised: after the first fault the
    stream has no more records, and every later call raises that fault again.
    """

    __slots__ = ("_buffer", "_fault", "_header", "_position")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._header: Header | None = None
        self._fault: Malformed | None = None

    @property
    def fault(self) -> Malformed | None:
        """The fault that ended the stream, once it has been met."""
        return self._fault

    @property
    def pending(self) -> int:
        """Bytes held that no record has taken yet: over 0 at the end of a stream means that it was cut."""
        return len(self._buffer) - self._position + (HEADER.size if self._header else 0)

    def push(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes of the stream; :meth:`take` takes the records.

        Args:
            data: Any number of bytes, from none to many records.

        Raises:
            Malformed: The stream had a fault before.
        """
        if self._fault:
            raise self._fault
        self._buffer += data

    def take(self) -> Record | None:
        """Take exactly one record and leave what follows it untouched, or return None until it is whole.

        Raises:
            Malformed: The next record is not valid; ``detail`` names the field.
        """
        if self._fault:
            raise self._fault
        try:
            return self._take()
        except Malformed as fault:
            self._fault = fault
            self._buffer.clear()
            self._position = 0
            raise

    def feed(self, data: bytes | bytearray | memoryview) -> list[Record]:
        """Add bytes and take every record that they complete, in order.

        Args:
            data: Any number of bytes, from none to many records.

        Returns:
            The records. If a fault follows them in the same bytes they are returned all the same: the fault shows
            in :attr:`fault` and is raised by the next call.

        Raises:
            Malformed: The next record is not valid, or an earlier one was not; ``detail`` names the field.
        """
        self.push(data)
        records: list[Record] = []
        try:
            while (record := self.take()) is not None:
                records.append(record)
        except Malformed:
            if not records:
                raise
        return records

    def _take(self) -> Record | None:
        if self._header is None:
            if (header := self._cut(HEADER.size)) is None:
                return None
            self._header = read_header(header)
        head = self._header
        if (payload := self._cut(head.length)) is None:
            return None
        self._header = None
        check_payload(head.type, payload)
        return Record(head.type, payload, head.instance, head.epoch, head.sequence)

    def _cut(self, size: int) -> bytes | None:
        end = self._position + size
        if end > len(self._buffer):
            del self._buffer[: self._position]
            self._position = 0
            return None
        piece = bytes(memoryview(self._buffer)[self._position : end])
        self._position = end
        return piece
