"""Protobuf's wire format: the fields of a message by their numbers, without its schema."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5


def numbers(message: memoryview) -> dict[int, int]:
    """The fields that are numbers."""
    return {number: value for number, value in fields(message) if isinstance(value, int)}


def parts(message: memoryview, number: int) -> Iterator[memoryview]:
    """Every message that stands in the field of this number."""
    return (value for found, value in fields(message) if found == number and isinstance(value, memoryview))


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values of one message in protobuf's wire format.

    Raises:
      ValueError: a field does not end where the message does, at the latest.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
        else:
            length, place = _length(message, place, key & 7)
            if place + length > len(message):
                raise ValueError("a message that was cut")
            yield key >> 3, message[place : place + length]
            place += length


def packed(message: memoryview) -> Iterator[int]:
    """The numbers of a field that repeats them."""
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value


def _length(message: memoryview, place: int, wire: int) -> tuple[int, int]:
    return _varint(message, place) if wire == _SIZED else ({_EIGHT_BYTES: 8, _FOUR_BYTES: 4}[wire], place)


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
