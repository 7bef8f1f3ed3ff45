"""Layout of a use case's parameters in the parameter server."""

from adabench.backends.interface import Served
from adabench.usecases.interface import UseCase, hashed_tables
from autoada.model.node_setup import plan_of


def served(usecase: UseCase) -> tuple[Served, ...]:
    """Return the server's tables for a use case's model, in order.

    Raises
    ------
    ValueError
        If parameters have separate optimizers, which the server does not execute, or a table has ids of any
        value as keys.
    """
    if hashed := sorted(hashed_tables(usecase)):
        raise ValueError(f"policies cannot be searched for the ids of {hashed[0]}: use keys=dense")
    model = usecase.model()
    layout = plan_of(model, usecase.optimizer(model), None, None, nodes=1).layout
    if layout.summed:
        raise ValueError("policies cannot be searched for parameters with their own optimizer")
    names = {dense.table: dense.names for dense in layout.dense}
    found: list[Served] = []
    for table in layout.server_tables():
        first = found[-1].first_key + found[-1].keys if found else 0
        found.append(
            Served(
                table.name,
                names.get(table.name, (table.name,)),
                table.name in names,
                first,
                table.rows,
                table.length,
                table.spec().width,
            )
        )
    return tuple(found)
