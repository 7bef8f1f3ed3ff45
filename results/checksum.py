"""A checksum as the last member of a JSON object, over the bytes before it."""

import hashlib
import re

_SEAL = re.compile(rb',\s*"checksum":\s*"([0-9a-f]{16})"\s*\}\s*\Z')


def seal(content: bytes) -> bytes:
    """Add the checksum to a JSON object with at least one member; an object on one line stays on it."""
    before = content.rstrip()
    if not before.endswith(b"}"):
        raise ValueError("only an object can be sealed")
    before = before[:-1].rstrip()
    around = b"\n" if b"\n" in before else b""
    indent = b"\n " if around else b""
    return b"".join([before, b",", indent, b'"checksum":"', _checksum(before), b'"', around, b"}\n"])


def is_sealed(content: bytes) -> bool:
    """Whether there is a checksum."""
    return _SEAL.search(content) is not None


def is_whole(content: bytes) -> bool:
    """Whether there is a checksum that fits the bytes before it."""
    found = _SEAL.search(content)
    return found is not None and _checksum(content[: found.start()]) == found[1]


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:16].encode()
