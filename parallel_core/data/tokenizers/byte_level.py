"""The two conventions that every byte-level BPE vocabulary in GPT-2's file format shares.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2.
"""

from functools import cache

import regex  # type: ignore[import-untyped]

WORD = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
"""Cuts text into words: a merge never crosses from one into the next. Every character is in exactly one word."""

END_OF_TEXT = "<|endoftext|>"


@cache
def byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each of the 256 bytes in vocabulary files, in byte order.

    Bytes that print in Latin-1 stand for themselves; the others, in order, get the characters from U+0100.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(256))


@cache
def symbol_bytes() -> dict[str, int]:
    """The inverse of `byte_symbols`."""
    return {symbol: byte for byte, symbol in enumerate(byte_symbols())}


def to_symbols(word: str) -> str:
    """The UTF-8 bytes of `word`, one printable character a byte."""
    symbols = byte_symbols()
    # Lone surrogates have no UTF-8 form; "surrogatepass" keeps a file that has them from stopping a job.
    return "".join(symbols[byte] for byte in word.encode("utf-8", errors="surrogatepass"))


def from_symbols(symbols: str) -> str:
    """The text whose bytes `symbols` show; a cut-off character (as while generating) becomes U+FFFD."""
    table = symbol_bytes()
    return bytes(table[symbol] for symbol in symbols).decode("utf-8", errors="replace")
