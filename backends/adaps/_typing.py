"""Types of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

NonFinite = Literal["raise", "skip", "pass"]
SamplingScheme = Literal["local", "naive", "preloc", "pool"]
Technique = Literal["adaptive", "replication", "relocation", "static", "full_replication"]


class SupportsDLPack(Protocol):
    """An array of any other library that can share its memory."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


if TYPE_CHECKING:  # aliases for type checkers only, so that importing adaps loads neither library
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    Float32Like = npt.NDArray[np.float32] | Tensor | SupportsDLPack
    Int64Like = npt.NDArray[np.int64] | Tensor | Sequence[int] | SupportsDLPack
