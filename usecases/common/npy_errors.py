"""Exceptions that reading a damaged file of arrays can raise."""

import struct
import tokenize
import zipfile
import zlib

# NumPy parses an array's header as Python source; zipfile raises a RuntimeError for data that seem encrypted.
UNREADABLE_ARRAYS = (
    OSError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    OverflowError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


def why(error: Exception) -> str:
    """Return the message of an exception on one line."""
    return " ".join(str(error).split())
