"""Dense parameters that stay on each node. All nodes average their gradients without the server."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import adaps
from autoada.parameters.layout import AllReducedLayout
from autoada.parameters.locally_stepped import LocallySteppedParameters, dense_gradient
from autoada.parameters.server_access import ServerAccess
from autoada.sync.process_group import ProcessGroup

_log = logging.getLogger("autoada")
FIRST_BUCKET = 1 << 20
BUCKET = 25 << 20
"""Bytes of gradients that are sent together, as in DistributedDataParallel: few at first, to begin early."""
FLAGS = 2
"""Number of flags after a bucket. The last bucket's flags count: nodes that step, and nodes that have changed
sent gradients."""


class AllReducedParameters(LocallySteppedParameters):
    """Parameters that the user's optimizer changes with the mean of all nodes' gradients.

    Gradients are sent in buckets, in the order of the backward pass. The first buckets are sent during the
    backward pass. A node may change gradients that it has sent, by another backward pass or by clipping. It
    then sets a flag in the last bucket, which is only sent at the step. All nodes send all buckets again, and
    from then on this node sends no bucket before its steps. If no node has a gradient of a parameter, the
    step leaves it out. A node that has closed its model takes part without gradients until all nodes have
    closed theirs. `weight` is the weight of this node's gradients in the mean.
    """

    def __init__(
        self,
        layout: AllReducedLayout,
        parameters: Mapping[str, nn.Parameter],
        access: ServerAccess,
        weight: float = 1.0,
    ) -> None:
        super().__init__(layout.name, layout.names, parameters, access.transfer, layout.optimizer)
        self.bytes_sent = 0.0
        """Bytes that this node has sent: by a ring of n nodes, 2 (n - 1) / n per byte of gradients."""
        self._node = node = access.node
        self._group: ProcessGroup | None = None
        self._frozen = {name: parameters[name] for name in layout.names if not parameters[name].requires_grad}
        self._buckets: list[_Bucket] = []
        self._launched = 0
        self._overlaps = True
        if node.world_size > 1:
            self._group = ProcessGroup(node, "allreduce", node.rank, node.world_size, "all-reduced")
            self._buckets = _buckets_of([each for each in self.parameters if each.requires_grad], weight)
            for number, bucket in enumerate(self._buckets):
                for i, parameter in enumerate(bucket.parameters):
                    parameter.register_post_accumulate_grad_hook(_arrival_hook(self, number, i))

    def begin(self) -> None:
        """Collective: copy the parameters of the first node to all nodes."""
        if self._group is not None:
            self._launch_rest(steps=False, changed=False, empty=True)  # ends a begun backward pass
            self._wait()
            self._broadcast(self._group.broadcast)

    def collect(self, scale: float) -> None:
        """Send the remaining gradients of this node. `scale` has no effect, because they are averaged."""
        del scale
        if self._group is not None:
            for name, parameter in self._frozen.items():
                if parameter.grad is not None:
                    raise RuntimeError(
                        f"the parameter {name!r} has a gradient, and had requires_grad=False when AdaModel "
                        "wrapped the model: set it before"
                    )
            changed = any(bucket.has_changed() for bucket in self._buckets[: self._launched])
            self._overlaps = self._overlaps and not changed
            self._launch_rest(steps=True, changed=changed)

    def push(self) -> None:
        """Replace this node's gradients by the means of all nodes' gradients. Waits for all nodes."""
        if self._group is None:
            return
        _, changed = self._wait()
        if changed:
            self._launch_rest(steps=True, changed=False)
            self._wait()
        for bucket in self._buckets:
            bucket.put_means(self._node.world_size)

    def leave(self) -> None:
        """Take part in the steps of other nodes without gradients, until all nodes have left."""
        self._overlaps = False
        if self._group is not None:
            # Not in the caller's way: it is to close the node, for which the others' barriers wait. And no
            # daemon, as the others need it even if the process has nothing else to do.
            self._group.hold()
            threading.Thread(target=self._sit_out, name=self.name).start()

    def arrived(self, number: int, i: int) -> None:
        """Continue after a backward pass has computed the gradient of a parameter in a bucket."""
        self._buckets[number].ready.add(i)
        while self._overlaps and self._launched < len(self._buckets) - 1:
            bucket = self._buckets[self._launched]
            if any(p.requires_grad and i not in bucket.ready for i, p in enumerate(bucket.parameters)):
                break  # Some gradients have not arrived.
            bucket.fill()
            self._launch(bucket)

    def _sit_out(self) -> None:
        assert self._group is not None
        changed = self._launched > 0  # by a backward pass whose step never came
        try:
            steps = True
            while steps:
                self._launch_rest(steps=False, changed=changed, empty=True)
                steps, changed = self._wait()
                if steps and changed:
                    self._launch_rest(steps=True, changed=False, empty=True)
                    self._wait()
                changed = False
            self._group.release()
            self._group = None
        except adaps.AdapsError as error:  # closing the node also raises it
            _log.info("nobody sums up gradients any more: %s", error)

    def _launch_rest(self, *, steps: bool, changed: bool, empty: bool = False) -> None:
        self._buckets[-1].flags.copy_(torch.tensor([steps, changed], device="cpu"))
        for bucket in self._buckets[self._launched :]:
            bucket.fill(empty)
            self._launch(bucket)

    def _launch(self, bucket: _Bucket) -> None:
        assert self._group is not None
        bucket.sums.copy_(bucket.given)
        bucket.work = self._group.begin("allreduce", [bucket.sums])
        nodes = self._node.world_size
        self.bytes_sent += 2 * (nodes - 1) / nodes * bucket.sums.nbytes
        self._launched += 1

    def _wait(self) -> tuple[bool, bool]:
        """Wait for all buckets; return whether any node steps, and whether any has changed sent gradients."""
        assert self._group is not None
        for bucket in self._buckets:
            self._group.wait(bucket.work)
            bucket.work = None
            bucket.ready.clear()
        self._launched = 0
        steps, changed = self._buckets[-1].sums[-FLAGS:].tolist()
        return steps > 0, changed > 0


class _Bucket:
    """Gradients that are sent together, followed by a flag for each gradient that is present."""

    def __init__(self, parameters: Sequence[nn.Parameter], weight: float) -> None:
        dtype = _sent_as(parameters[0]) if parameters else torch.float32
        self.parameters = parameters
        self._weight = weight
        sizes = [parameter.numel() for parameter in parameters]
        self.given = torch.zeros(sum(sizes) + len(sizes) + FLAGS, dtype=dtype, device="cpu")
        self.sums = torch.zeros_like(self.given)
        self._given = self._parts(self.given, sizes)
        self._sums = self._parts(self.sums, sizes)
        self._counts = slice(sum(sizes), -FLAGS)
        self.flags = self.given[-FLAGS:]
        self.ready: set[int] = set()
        """Places of the gradients that have arrived."""
        self.work: Any = None

    def fill(self, empty: bool = False) -> None:
        """Take the current gradients, or none."""
        gradients = [None if empty else parameter.grad for parameter in self.parameters]
        for part, gradient in zip(self._given, gradients, strict=True):
            if gradient is None:
                part.zero_()
            else:
                part.copy_(self._weighted(gradient, part))
        self.given[self._counts] = torch.tensor(
            [float(gradient is not None) for gradient in gradients], device="cpu"
        )

    def has_changed(self) -> bool:
        """Whether the current gradients differ from the taken ones."""
        counts = self.given[self._counts].tolist()
        for part, count, parameter in zip(self._given, counts, self.parameters, strict=True):
            gradient = parameter.grad
            if (gradient is not None) != bool(count):
                return True
            if gradient is not None and not torch.equal(part, self._weighted(gradient, part)):
                return True
        return False

    def put_means(self, nodes: int) -> None:
        """Set the gradients to the means of all nodes, or to None if no node has a gradient."""
        counts = self.sums[self._counts].tolist()
        self.sums.div_(nodes)
        for part, count, parameter in zip(self._sums, counts, self.parameters, strict=True):
            parameter.grad = part.to(parameter.device, parameter.dtype, copy=True) if count else None

    def _weighted(self, gradient: Tensor, part: Tensor) -> Tensor:
        gradient = dense_gradient(gradient).to(part.device, part.dtype)
        return gradient if self._weight == 1 else gradient * self._weight

    def _parts(self, buffer: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        parts = buffer[: sum(sizes)].split(list(sizes))
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]


def _arrival_hook(owner: AllReducedParameters, bucket: int, number: int) -> Callable[[Tensor], None]:
    """Return a hook of a parameter that does not keep the owner alive."""
    reference = weakref.ref(owner)

    def arrived(_: Tensor) -> None:
        if (present := reference()) is not None:
            present.arrived(bucket, number)

    return arrived


def _buckets_of(parameters: Sequence[nn.Parameter], weight: float) -> list[_Bucket]:
    """Return the parameters in buckets, the last ones first, because a backward pass reaches them first."""
    order = parameters[::-1]
    if not order:
        return [_Bucket([], weight)]
    chunks, _ = torch.distributed._compute_bucket_assignment_by_size(  # type: ignore[attr-defined]
        [*order], [FIRST_BUCKET, BUCKET]
    )
    return [_Bucket([order[i] for i in chunk], weight) for chunk in chunks]


def _sent_as(parameter: nn.Parameter) -> torch.dtype:
    return torch.float64 if parameter.dtype is torch.float64 else torch.float32
