"""A rule, which manages the parameters or rows that it matches."""

from __future__ import annotations

from dataclasses import dataclass, field

from adaps.policy.eviction import Admission, Eviction, Memory
from adaps.policy.fields import EXCHANGE_AUTO, TECHNIQUES, WIRES, Home, RowSelection
from adaps.policy.toml_text import toml_fields
from adaps.policy.validation import check_one_of, check_text, check_whole

__all__ = ["Rule"]


@dataclass(frozen=True)
class Rule:
    """The management of the parameters or rows that match the rule.

    Attributes
    ----------
    parameters : str
        Qualified name, or pattern with ``*`` and ``?``. ``tables`` and ``dense`` match the two kinds of
        parameters, and ``tables.deep.*`` is a pattern among one kind.
    rows : RowSelection, optional
        Rows that the rule matches; by default all.
    technique : str
        Technique: adaptive, relocation, replication, static or full_replication; for dense parameters also
        allreduce.
    home : Home
        Nodes that own the rows at first.
    lookahead : int, optional
        Number of batches for which intent is signalled in advance; 0 signals none. With None, the code that
        signals intent chooses.
    exchange : "auto" or int
        Minimum number of clocks between two exchanges of changes. With "auto", the server chooses.
    wire : str
        Format of values and changes in messages: float32, bfloat16, float16 or int8.
    evict : Eviction, optional
        For tables with ids: order in which the rows of a full table are given to other ids. With None, the
        table's own setting applies; by default, rows keep their ids.
    admit : Admission, optional
        For tables with ids: ids that get a row. With None, the table's own setting applies; by default, every
        id gets a row at its first request.
    memory : Memory, optional
        For tables: maximum memory for the rows of each table on each node. Rows that do not fit are in files.
        With None, the table's own setting applies; by default, all rows are in memory.
    """

    parameters: str
    rows: RowSelection | None = None
    technique: str = "adaptive"
    home: Home = field(default_factory=Home)
    lookahead: int | None = None
    exchange: str | int = EXCHANGE_AUTO
    wire: str = "float32"
    evict: Eviction | None = None
    admit: Admission | None = None
    memory: Memory | None = None

    def __post_init__(self) -> None:
        check_text("parameters", self.parameters)
        if self.rows is not None and not isinstance(self.rows, RowSelection):
            object.__setattr__(self, "rows", RowSelection.of(self.rows))
        if not isinstance(self.home, Home):
            object.__setattr__(self, "home", Home.of(self.home))
        if self.evict is not None:
            object.__setattr__(self, "evict", Eviction.of(self.evict))
        if self.admit is not None:
            object.__setattr__(self, "admit", Admission.of(self.admit))
        if self.memory is not None:
            object.__setattr__(self, "memory", Memory.of(self.memory))
        check_one_of("technique", self.technique, TECHNIQUES)
        check_one_of("wire", self.wire, WIRES)
        if self.lookahead is not None:
            check_whole("lookahead", self.lookahead, least=0)
        if isinstance(self.exchange, str):
            check_one_of("exchange", self.exchange, (EXCHANGE_AUTO,), " or a number of clocks")
        else:
            check_whole("exchange", self.exchange, least=1)

    @property
    def matches_all(self) -> bool:
        """Whether the rule matches every row of every parameter."""
        return self.parameters == "*" and self.rows is None

    def text(self) -> str:
        """Return the rule as TOML, with every field that has a value."""
        return toml_fields(
            "[[rule]]",
            parameters=self.parameters,
            rows=self.rows,
            technique=self.technique,
            home=self.home,
            lookahead=self.lookahead,
            exchange=self.exchange,
            wire=self.wire,
            evict=self.evict,
            admit=self.admit,
            memory=self.memory,
        )
