"""Between host memory, which the parameter server reads and writes, and the device of the model."""

from __future__ import annotations

import torch
from torch import Tensor


class Transfer:
    """Copies arrays to and from one device; where that is the CPU, nothing is copied.

    Copies to and from an accelerator are asynchronous and go through pinned memory. PyTorch's allocator of
    pinned memory keeps what is freed, and hands it out again only when the copies that were started on it
    are done; so host arrays are free to be dropped at any time.

    Parameters
    ----------
    device : torch.device
        Where the model is.

    Attributes
    ----------
    direct : bool
        Whether the device is the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.direct = device.type == "cpu"

    def host_array(self, *shape: int) -> Tensor:
        """Host memory for float32, not initialised."""
        if self.direct:
            return torch.empty(shape, dtype=torch.float32)
        return torch.empty(shape, dtype=torch.float32, pin_memory=True)

    def to_device(self, host: Tensor) -> Tensor:
        """The array on the device, in the order of the device's stream; `host` may not be used any more."""
        return host if self.direct else host.to(self.device, non_blocking=True)

    def start_to_host(self, values: Tensor) -> Tensor:
        """A float32 array that holds `values` after the next `finish`."""
        if self.direct:
            return values.float()
        host = self.host_array(*values.shape)
        host.copy_(values, non_blocking=True)
        return host

    def finish(self) -> None:
        """Wait until all that was started is done."""
        if not self.direct:
            torch.cuda.current_stream(self.device).synchronize()
