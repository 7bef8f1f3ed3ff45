"""Rows of tables move if this makes steps faster. Each training measures it in its first steps."""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class Auto(RuleBuilder):
    name = "auto"
    fixed = (Rule("tables", technique="auto"), Rule("*", technique="adaptive"))


BUILDER = Auto
