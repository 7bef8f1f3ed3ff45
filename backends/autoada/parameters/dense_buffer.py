"""Dense parameters, which a pull and a push of one flat buffer move together."""

from __future__ import annotations

import ctypes
from collections.abc import Container, Iterable, Mapping

import torch
from torch import Tensor, nn

from autoada.parameters.layout import DenseLayout, extent_of
from autoada.parameters.locally_stepped import dense_gradient
from autoada.parameters.server_access import ServerAccess
from autoada.parameters.table_tensor import TableTensor
from autoada.sync.gradient_exchange import CombinedGradients, Gradients

# It reads both once and writes nothing; `torch.equal` and NumPy take twice as long for what is in no cache.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class DenseParameters:
    """The dense parameters of one rule and dtype: a pull and a push move them all.

    The parameters are views of the buffer. If one is not contiguous, or if the program gives one other
    memory, all have their own memory, which other tensors may share, and the buffer is a copy of them.

    If the parameters change only in steps of an optimizer (`at_steps`), which have a visible effect at once,
    and no other worker changes them, the rows in the server follow the parameters instead of the reverse.
    With `combines`, gradients may be requested before they are pushed, to combine them with the gradients of
    other workers. If all workers step `together`, they write the same values by hand.
    """

    def __init__(
        self,
        layout: DenseLayout,
        parameters: Mapping[str, nn.Parameter],
        access: ServerAccess,
        at_steps: bool,
        combines: bool,
        together: bool = False,
    ) -> None:
        self._worker = access.worker
        self._together = together
        self._workers = access.num_workers
        self._layout = layout
        self._of_model = parameters
        self._table = access.node.table(layout.table)
        self._transfer = transfer = access.transfer
        self._pushed: tuple[Tensor, Tensor] | None = None
        self.parameters = [parameters[name] for name in layout.names]
        self._spans = list(zip(layout.first_blocks, layout.blocks, strict=True))
        self._values = torch.zeros(layout.rows, layout.length, device=transfer.device, dtype=layout.dtype)
        self.keys: Tensor = self._table.keys(torch.arange(layout.rows, device="cpu"))
        self.name = layout.table
        self.names = layout.names
        self._shared = shared = not access.alone
        self._views = layout.views(self._values)
        self._is_copy = not all(parameter.is_contiguous() for parameter in self.parameters)
        for view, parameter in zip(self._views, self.parameters, strict=True):
            view.copy_(parameter.detach())
            if not self._is_copy:
                parameter.data = view
        self._places = [_place(parameter) for parameter in self.parameters]
        in_place = at_steps and transfer.direct and layout.dtype is torch.float32
        self._is_source = in_place and not shared
        self._in_one_pass = in_place and shared and not combines
        self._steps: list[tuple[int, Tensor]] = []
        self._stepped: list[nn.Parameter] = []
        self._scale = 1.0
        kept = (
            torch.empty(0, layout.length, dtype=torch.float32, device="cpu")
            if self._is_source
            else self._values
        )
        self._pulled = kept.clone()
        self._gradients = torch.zeros_like(kept, dtype=torch.float32)
        self._gradient_views = [] if self._is_source else layout.views(self._gradients)
        self._seen = torch.zeros(len(self.keys), dtype=torch.int64, device="cpu")
        self._behind = False

    def keys_of(self, names: Container[str]) -> Tensor:
        """Return the server's keys of some parameters, given by their names."""
        return self.keys[self._rows_of([i for i, name in enumerate(self.names) if name in names])]

    def initialise(self) -> None:
        """Set the server's values to the current values."""
        self._follow_parameters()
        host = self._transfer.start_to_host(self._values)
        self._transfer.finish()
        self._worker.set(self.keys, host)

    def pull(self) -> None:
        """Refresh the parameters, in place."""
        self._follow_memory()
        self._worker.changed(self.keys, self._seen)
        if self._transfer.direct and self._values.dtype is torch.float32:
            self._worker.pull(self.keys, self._values)
        else:
            host = self._transfer.host_array(*self._values.shape)
            self._worker.pull(self.keys, host)
            self._values.copy_(self._transfer.to_device(host))
        self._copy_to_parameters()
        if not self._is_source:
            self._pulled.copy_(self._values)
        self._behind = False

    def refresh(self) -> None:
        """Bring parameters up to date, and push values that were written by hand."""
        self.keep_changes()
        if not self._is_source:
            self.pull()

    def update(self) -> None:
        """Bring parameters up to date during training.

        Nothing happens if no worker has changed them since they were pulled. Values that were written by hand
        stay. Where all workers step together, they are handed over now, and else with the next step.
        """
        if self._is_source:
            return
        if self._together:
            self.keep_changes()  # all workers have the same, and hand them over in the same call
        else:
            self._follow_parameters()
        if self._worker.changed(self.keys, self._seen):
            self.refresh()

    def settle(self) -> None:
        """Bring the server's values up to date."""
        self.keep_changes()
        if self._is_source:
            self._worker.set(self.keys, self._values)

    def keep_changes(self) -> None:
        """Hand over changes of the parameters since the last pull that no optimizer has made.

        All workers make the same change. Where they step together, the call is collective, and the changed
        values replace the values in the server. Otherwise the mean of the changes is added to the values in
        the server, as with gradients, also if a single worker has made a step since the pull. Where the
        server's rows follow the parameters, there is nothing to hand over.

        Raises
        ------
        RuntimeError
            If a parameter was given other memory, of another shape, dtype or device.
        """
        self._follow_parameters()
        if self._is_source or _same_bits(self._values, self._pulled):
            return
        differs = (self._values != self._pulled) & ~(self._values.isnan() & self._pulled.isnan())
        chosen = differs.any(1).nonzero()[:, 0]
        if len(chosen) == 0:
            return
        add = not self._together and (self._shared or self._behind)
        values = self._values[chosen]
        if add:
            values = (values - self._pulled[chosen]) / self._workers
        host = self._transfer.start_to_host(values)
        self._transfer.finish()
        if self._together:
            self._worker.barrier()  # after it, no worker applies its change to the changed values
        (self._worker.push if add else self._worker.set)(self.keys[chosen.cpu()], host)
        self._pulled[chosen] = self._values[chosen]
        if self._together:
            self._worker.end_setup()

    def collect(self, scale: float) -> None:
        """Take the gradients of the parameters, to be pushed; parameters without one are left out."""
        self._steps, self._stepped = [], []
        self.keep_changes()
        # In one pass, all rows were on this node at the last check.
        if self._is_source or (self._in_one_pass and bool(self._seen.all()) and self._have_gradients()):
            self._scale = scale
            for parameter, (first, _) in zip(self.parameters, self._spans, strict=True):
                if (gradient := parameter.grad) is not None:
                    self._steps.append((first, dense_gradient(gradient).contiguous()))
                    self._stepped.append(parameter)
            return
        present = []
        for i, parameter in enumerate(self.parameters):
            if (gradient := parameter.grad) is not None:
                present.append(i)
                _scale_into(self._gradient_views[i], dense_gradient(gradient), scale)
        if not present:
            return
        if len(present) == len(self.parameters):
            keys, gradients = self.keys, self._gradients
        else:
            chosen = self._rows_of(present)
            keys, gradients = self.keys[chosen], self._gradients[chosen.to(self._gradients.device)]
        self._pushed = (keys, self._transfer.start_to_host(gradients))

    def push(self) -> None:
        """Push the collected gradients, which have arrived in host memory."""
        if self._steps:
            steps, self._steps = self._steps, []
            if self._is_source:
                self._worker.step_rows(self._table, self._values, steps)
            else:
                copies = (self._values, self._pulled, self._seen)
                self._worker.step_copies(self._table, *copies, steps, self._scale)
            self._copy_to_parameters()
            torch.autograd.graph.increment_version(self._stepped)
        if self._pushed is not None:
            self._worker.push_gradients(*self._pushed)
            self._pushed = None
            self._behind = True

    def given(self) -> Gradients:
        """The collected gradients, which have arrived in host memory."""
        if self._pushed is None:
            return Gradients(self.keys[:0], self._gradients.new_empty(0, self._values.shape[1]))
        return Gradients(*self._pushed)

    def put(self, combined: CombinedGradients) -> None:
        """Push this worker's part of the combined gradients of all workers."""
        self._pushed = None
        if combined.anywhere:
            for step in combined.steps:
                self._worker.push_gradients(*step)
            self._behind = True

    def follow_step(self) -> None:
        """Show the effect of an optimizer's step in the parameters, and mark them as changed for autograd."""
        if self._behind:
            self.pull()
            torch.autograd.graph.increment_version(self.parameters)

    def _rows_of(self, parameters: Iterable[int]) -> Tensor:
        """Return the rows of some parameters, given by their positions."""
        spans = [self._spans[i] for i in parameters]
        rows = [torch.arange(first, first + count, device="cpu") for first, count in spans]
        return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64, device="cpu")

    def _have_gradients(self) -> bool:
        """Whether all parameters have a gradient, in the rows' dtype."""
        gradients = (parameter.grad for parameter in self.parameters)
        return all(one is not None and one.dtype is self._values.dtype for one in gradients)

    def _follow_parameters(self) -> None:
        """Let the buffer have the values of the parameters."""
        self._follow_memory()
        if self._is_copy:
            torch._foreach_copy_(self._views, [parameter.data for parameter in self.parameters])

    def _follow_memory(self) -> None:
        """Let the buffer be a copy of the parameters if some have been given other memory."""
        places = [_place(parameter) for parameter in self.parameters]
        if places == self._places:
            return
        changed = [i for i, place in enumerate(places) if place != self._places[i]]
        for i in changed:
            self._check_form(i)
        self._check_overlaps({id(self.parameters[i]) for i in changed})
        if not self._is_copy:  # The program may have other tensors with the memory that was the buffer.
            with torch.inference_mode(False):  # Steps write to it later.
                self._is_copy, self._values = True, self._values.clone()
                self._views = self._layout.views(self._values)
        self._places = places

    def _copy_to_parameters(self) -> None:
        """Let the parameters have the values of the buffer."""
        if self._is_copy:
            torch._foreach_copy_([parameter.data for parameter in self.parameters], self._views)

    def _check_form(self, i: int) -> None:
        """Raise RuntimeError if a parameter has other memory of a form that it cannot have when wrapped."""
        name, view, new = self.names[i], self._views[i], self.parameters[i]
        if (new.shape, new.dtype, new.device) != (view.shape, view.dtype, view.device):
            raise RuntimeError(
                f"the parameter {name!r} was given {new.dtype} of shape {tuple(new.shape)} on "
                f"{new.device}; in a wrapped model it stays {view.dtype} of shape {tuple(view.shape)} on "
                f"{view.device}: change it before AdaModel wraps the model"
            )

    def _check_overlaps(self, changed: Container[int]) -> None:
        """Raise RuntimeError if the memory of a changed parameter overlaps with that of another one."""
        plain = [
            (*extent_of(each), name, id(each))
            for name, each in self._of_model.items()
            if not isinstance(each, TableTensor) and each.device == self._values.device and each.numel() > 0
        ]
        furthest = (0, 0, "", 0)
        for one in sorted(plain):
            if one[0] < furthest[1] and (one[3] in changed or furthest[3] in changed):
                raise RuntimeError(
                    f"the parameters {furthest[2]!r} and {one[2]!r} overlap in memory, as after `a.data = "
                    "b.data`: tie parameters before AdaModel wraps the model, or give one a copy, clone()"
                )
            furthest = max(furthest, one, key=lambda each: each[1])


def _place(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Return where the elements of a tensor are: address, shape and strides."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors of one shape, dtype and device are the same, bit for bit."""
    if not a.is_cpu:
        return torch.equal(a, b)
    return bool(_memcmp(a.data_ptr(), b.data_ptr(), a.nbytes) == 0)


def _scale_into(view: Tensor, gradient: Tensor, scale: float) -> None:
    """Write a gradient times `scale`, computed in the dtype of `view`, where a server call takes it from."""
    if scale == 1:
        view.copy_(gradient)
    elif gradient.dtype is view.dtype:
        torch.mul(gradient, scale, out=view)
    else:
        view.copy_(gradient).mul_(scale)
