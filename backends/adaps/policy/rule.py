"""A rule: how the parameters, or the rows, that it matches are managed."""

from __future__ import annotations

from dataclasses import dataclass, field

from adaps.policy.fields import EXCHANGE_AUTO, TECHNIQUES, WIRES, Home, RowSelection
from adaps.policy.toml_text import toml_fields
from adaps.policy.validation import check_one_of, check_text, check_whole

__all__ = ["Rule"]


@dataclass(frozen=True)
class Rule:
    """How the parameters, or the rows, that it matches are managed.

    Attributes
    ----------
    parameters : str
        A qualified name, or a pattern with ``*`` and ``?``; ``tables`` and ``dense`` are the two kinds, and
        ``tables.deep.*`` is a pattern among one of them.
    rows : RowSelection, optional
        Only these rows.
    technique : str
        adaptive, relocation, replication, static or full_replication; of tables also auto, and of dense
        parameters allreduce.
    home : Home
        The nodes that own them at first.
    lookahead : int, optional
        Number of batches that are announced ahead; 0 announces none. None leaves the choice to the code that
        signals intent.
    exchange : "auto" or int
        Changes are exchanged as the server sees fit, or at most once in this number of clocks.
    wire : str
        Format in which values and changes travel: float32, bfloat16, float16 or int8.
    """

    parameters: str
    rows: RowSelection | None = None
    technique: str = "adaptive"
    home: Home = field(default_factory=Home)
    lookahead: int | None = None
    exchange: str | int = EXCHANGE_AUTO
    wire: str = "float32"

    def __post_init__(self) -> None:
        check_text("parameters", self.parameters)
        if self.rows is not None and not isinstance(self.rows, RowSelection):
            object.__setattr__(self, "rows", RowSelection.of(self.rows))
        if not isinstance(self.home, Home):
            object.__setattr__(self, "home", Home.of(self.home))
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
        """The rule as TOML, with every field that has a value."""
        return toml_fields(
            "[[rule]]",
            parameters=self.parameters,
            rows=self.rows,
            technique=self.technique,
            home=self.home,
            lookahead=self.lookahead,
            exchange=self.exchange,
            wire=self.wire,
        )
