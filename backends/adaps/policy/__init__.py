"""How each parameter is managed, as data: who keeps it, how it travels, how fresh it is.

A policy is a document (TOML, format 1) of rules. For each parameter, or each of its rows, the first rule that
matches counts; the last rule matches all. `docs/concepts/policies.md` describes it field by field.
"""

from __future__ import annotations

from adaps.policy.document import Aggregation, DataSharing, MadeFor, Policy, Rule, Synchronization
from adaps.policy.fields import AccessesMissing, Home, PolicyError, RowSelection
from adaps.policy.matching import Managed, Part
from adaps.policy.model_parameters import Catalogue, Parameter

__all__ = [
    "AccessesMissing",
    "Aggregation",
    "Catalogue",
    "DataSharing",
    "Home",
    "MadeFor",
    "Managed",
    "Parameter",
    "Part",
    "Policy",
    "PolicyError",
    "RowSelection",
    "Rule",
    "Synchronization",
]
