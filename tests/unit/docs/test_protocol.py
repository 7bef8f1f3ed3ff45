"""The design pages agree with the code about messages, rules and files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DESIGN = ROOT / "docs" / "concepts"
CORE = ROOT / "csrc"
MESSAGES = (CORE / "core/protocol/message.h").read_text(encoding="utf-8")
PROTOCOL = (DESIGN / "protocol.md").read_text(encoding="utf-8")

# Bytes of a field by its type; an array of three and bit fields are handled below.
BYTES = {
    "MessageType": 1,
    "Route": 1,
    "Payload": 1,
    "Change": 1,
    "Answered": 1,
    "float": 4,
    "NodeId": 2,
    "Version": 4,
    "RelocationCount": 4,
    **{f"std::uint{bits}_t": bits // 8 for bits in (8, 16, 32, 64)},
}
# The struct of each message whose name differs from the message's.
STRUCTS = {
    "DROP": "Delta",
    "DROP_ACK": "Ack",
    "LIST_IDS": "ListIds",
    **dict.fromkeys(("MARK", "ECHO"), "Sync"),
}


def rows(section: str) -> Iterator[list[str]]:
    """The cells of the first table below a heading, without its head."""
    lines = PROTOCOL.partition(f"\n{section}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def size_of(struct: str) -> int:
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", MESSAGES, re.DOTALL)
    assert body is not None, f"message.h has no {struct}"
    fields = re.sub(r"//.*", "", body[1])
    size = bits = 0
    for field in filter(None, map(str.strip, fields.split(";")[:-1])):
        kind, name = field.split(" ", 1)
        if found := re.fullmatch(r"\w+ : (\d+)( = 0)?", name):
            bits += int(found[1])
        else:
            array = re.search(r"\[(\d+)\]", name)
            size += BYTES[kind] * (int(array[1]) if array else 1)
    assert bits % 8 == 0
    return size + bits // 8


def test_every_message_is_in_the_table_in_the_order_of_its_number() -> None:
    body = MESSAGES.partition("enum class MessageType")[2].partition("};")[0]
    kinds = re.findall(r"^  k(\w+)", body, re.MULTILINE)
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", kind).upper() for kind in kinds]
    assert [row[0] for row in rows("## 3. Messages")] == names


@pytest.mark.parametrize("row", list(rows("## 3. Messages")), ids=lambda row: row[0])
def test_a_message_is_as_long_as_the_table_says(row: list[str]) -> None:
    name = row[0]
    assert size_of(f"{STRUCTS.get(name, name.title())}Message") == int(row[3])


def test_a_change_has_the_fields_that_its_table_names() -> None:
    fields = [(row[0].strip("`"), row[1]) for row in rows("### A change: DELTA and DROP")]
    assert sum(int(size) for name, size in fields if size.isdigit()) == size_of("DeltaMessage")
    gradient = dict(fields)["*a gradient*"]
    assert gradient == f"{size_of('GradientHeader')} + 4 × length"


def test_every_rule_names_mutants_that_there_are() -> None:
    table = (CORE / "tests/simulation/mutants.def").read_text(encoding="utf-8")
    mutants = set(re.findall(r"^MUTANT\((\w+),", table, re.MULTILINE))
    named = [
        name for row in rows("## 15. Which race each rule closes") for name in re.findall(r"`(\w+)`", row[2])
    ]
    assert named
    assert set(named) <= mutants


def test_the_schedules_by_hand_are_those_of_the_simulator() -> None:
    text = (CORE / "tests/simulation/schedules_test.cc").read_text(encoding="utf-8")
    there = re.findall(r"^void (\w+)\(Scenario& s\)", text, re.MULTILINE)
    named = [name for row in rows("## 18. How all this is tested") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(there)


@pytest.mark.parametrize("page", sorted(DESIGN.glob("*.md")), ids=lambda page: page.name)
def test_functions_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in (CORE / "core").rglob("*.cc"))
    headers = "\n".join(path.read_text(encoding="utf-8") for path in (CORE / "core").rglob("*.h"))
    for name in re.findall(r"`((?:Channel|Store|UpdateRule|Worker)::\w+)`", text):
        member = name.split("::")[1]
        assert name in code or re.search(rf"\b{member}\(", headers), f"{page.name} names {name}"
    python = {
        path.name
        for folder in ("backends", "harness", "analysis", "results", "backends/adaps", "tests")
        for path in (ROOT / folder).rglob("*.py")
    }
    for name in re.findall(r"`(\w+\.py)`", text):
        assert name in python, f"{page.name} names {name}"
