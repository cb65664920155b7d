"""CRC-32C, the checksum of TFRecords, over many stretches of the data at once.

The register is linear: stretches are worked off side by side from an empty register, then joined in pairs, the left
one moved on by as many zero bytes as the right one is long. Leading zeros do not touch an empty register, so that the
front is filled up to whole stretches; the register's usual start, all ones, is the same as inverting four bytes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
STRETCH = 512  # bytes worked off one after the other; a power of two
SHORT = 64  # bytes that a plain loop has done sooner
ONES = 0xFFFFFFFF

Registers = NDArray[np.uint32]


def crc32c(data: bytes | memoryview) -> int:
    if len(data) <= SHORT:
        return _one_by_one(bytes(data))
    count = -(-len(data) // STRETCH)
    filled = np.zeros(count * STRETCH, dtype=np.uint8)
    filled[-len(data) :] = np.frombuffer(data, dtype=np.uint8)
    filled[len(filled) - len(data) :][:4] ^= 0xFF
    words = np.ascontiguousarray(filled.view("<u2").reshape(count, -1).T)  # (steps, stretches)
    table, registers = _word_table(), np.zeros(count, dtype=np.uint32)
    for row in words:
        registers = table[(registers ^ row) & 0xFFFF] ^ (registers >> 16)
    return _joined(registers) ^ ONES


def masked(checksum: int) -> int:
    """As TFRecords store it: turned and shifted, so that a checksum of data with checksums stays a good one."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & ONES


def _one_by_one(data: bytes) -> int:
    table = _byte_table()
    register = ONES
    for byte in data:
        register = int(table[(register ^ byte) & 0xFF]) ^ (register >> 8)
    return register ^ ONES


def _joined(registers: Registers) -> int:
    """The register after all stretches, of the registers of each."""
    length = STRETCH
    while len(registers) > 1:
        if len(registers) % 2:
            registers = np.concatenate([np.zeros(1, dtype=np.uint32), registers])
        registers = _moved_on(_zeros(length), registers[::2]) ^ registers[1::2]
        length *= 2
    return int(registers[0])


@cache
def _byte_table() -> Registers:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


@cache
def _word_table() -> Registers:
    table, words = _byte_table(), np.arange(2**16, dtype=np.uint32)
    once = table[words & 0xFF] ^ (words >> 8)
    twice: Registers = table[once & 0xFF] ^ (once >> 8)
    return twice


@cache
def _zeros(length: int) -> Registers:
    """What `length` zero bytes, a power of two, do to each byte of a register: (4, 256)."""
    if length == 1:
        table = _byte_table()
        bytes_in_place = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], dtype=np.uint32)
        moved: Registers = table[bytes_in_place & 0xFF] ^ (bytes_in_place >> 8)
        return moved
    half = _zeros(length // 2)
    return _moved_on(half, half)


def _moved_on(operator: Registers, registers: Registers) -> Registers:
    moved: Registers = (
        operator[0][registers & 0xFF]
        ^ operator[1][(registers >> 8) & 0xFF]
        ^ operator[2][(registers >> 16) & 0xFF]
        ^ operator[3][registers >> 24]
    )
    return moved
