"""Policies: documents that determine each parameter's owners, message format and freshness.

A policy is a document (TOML, format 1) of rules. For each parameter, or each of its rows, the first matching
rule applies. The last rule matches all parameters. `docs/concepts/policies.md` describes every field.
"""

from __future__ import annotations

from adaps.policy.document import Policy
from adaps.policy.eviction import Admission, Eviction, Memory
from adaps.policy.fields import Home, RowSelection
from adaps.policy.matching import Managed, Part
from adaps.policy.model_parameters import Catalogue, Parameter
from adaps.policy.rule import Rule
from adaps.policy.sections import Aggregation, DataSharing, MadeFor, Synchronization
from adaps.policy.validation import AccessesMissing, PolicyError

__all__ = [
    "AccessesMissing",
    "Admission",
    "Aggregation",
    "Catalogue",
    "DataSharing",
    "Eviction",
    "Home",
    "MadeFor",
    "Managed",
    "Memory",
    "Parameter",
    "Part",
    "Policy",
    "PolicyError",
    "RowSelection",
    "Rule",
    "Synchronization",
]
