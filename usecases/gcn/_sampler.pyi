from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class NeighborSampler:
    def __init__(self, indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> None: ...
    def sample(
        self, seeds: NDArray[np.int64], fanouts: Sequence[int], stream: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int], list[int]]: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def num_arcs(self) -> int: ...
