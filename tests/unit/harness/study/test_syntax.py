import pytest

from adabench.backends.interface import ServerOptions
from adabench.harness.errors import UsageError
from adabench.harness.study.syntax import (
    Selection,
    check_slow_pair,
    combinations,
    convert_params,
    parse_duration,
    parse_network,
    parse_networks,
    parse_selections,
)


class Shapes(ServerOptions, frozen=True, kw_only=True):
    hidden: tuple[int, ...] = (128, 64)


def test_names_parameters_and_several_values() -> None:
    assert parse_selections("manual, prefetch[lookahead=0,10,timing=off] ,single") == [
        Selection("manual", {}),
        Selection("prefetch", {"lookahead": ["0", "10"], "timing": ["off"]}),
        Selection("single", {}),
    ]


def test_a_value_may_have_brackets_of_its_own() -> None:
    text = "manual[policy=nups[times=50,x=1],lapse,nups[times=9],lookahead=0,10],single"
    policies = ["nups[times=50,x=1]", "lapse", "nups[times=9]"]
    assert parse_selections(text) == [
        Selection("manual", {"policy": policies, "lookahead": ["0", "10"]}),
        Selection("single", {}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not of the form name"),
        ("a,,b", "'' is not of the form name"),
        ("a[x=1", "brackets of 'a\\[x=1' do not match"),
        ("a]x=1[", "do not match"),
        ("a[[x=1]]", "'\\[x=1\\]' in .* is not of the form param=value"),
        ("a[x=b[1]", "do not match"),
        ("a[x=1]]b[", "do not match"),
        ("a[x=1]b[y=2]", "is not of the form name"),
        ("a[1]", "'1' in 'a\\[1\\]' is not of the form param=value"),
        ("a[x=]", "'x=' in 'a\\[x=\\]' is not of the form param=value"),
        ("a[x=1,]", "'' in .* is not of the form param=value"),
        ("a[=1]", "'=1' in .* is not of the form param=value"),
        ("a[x=1,x=2]", "parameter x is given twice"),
        ("a[x=1]b", "is not of the form name"),
    ],
)
def test_what_is_malformed_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_selections(text)


def test_every_combination_of_values() -> None:
    assert combinations({"a": [1, 2], "b": [3]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert combinations({}) == [{}]


def test_text_becomes_the_type_that_the_plugin_declares() -> None:
    given = {"lookahead": "50", "timing": "off", "policy": "static", "hidden": "32x16"}
    checked = convert_params(Shapes, given, "backend 'x'")
    assert checked == Shapes(lookahead=50, timing=False, policy="static", hidden=(32, 16))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lookahed": "1"}, "unknown parameter 'lookahed' of backend 'x': did you mean 'lookahead'"),
        ({"lookahead": "many"}, "parameter lookahead of backend 'x' cannot be 'many': expected `int`"),
        ({"lookahead": 1.5}, "parameter lookahead of backend 'x' cannot be 1.5: expected `int`"),
        ({"timing": "maybe"}, "parameter timing of backend 'x' cannot be 'maybe'"),
        ({"sampling": "pools"}, r"sampling of backend 'x' cannot be 'pools': .*; there is loader, "),
        ({"row_dtype": "bfloat"}, "invalid enum value 'bfloat'; there is float32, bfloat16"),
        ({"policy": 3}, "parameter policy of backend 'x' cannot be 3: expected `str`"),
        ({"hidden": "32xwide"}, "parameter hidden of backend 'x' cannot be '32xwide'"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_owner(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert_params(Shapes, given, "backend 'x'")


def test_durations() -> None:
    assert [parse_duration(text) for text in ("90", "90s", "20m", "1.5h")] == [90, 90, 1200, 5400]
    for text in ("", "0", "0s", "-3", "20 minutes", "nan"):
        with pytest.raises(UsageError, match="is not a duration"):
            parse_duration(text)


def test_networks() -> None:
    known = ["loopback", "sockets", "lan", "0.5ms,2gbit", "namespaces:slow", "namespaces:0.5ms,2gbit"]
    known += ["namespaces:lan:0-2/10", "namespaces:1ms,1gbit:1-0/2.5"]
    assert [parse_network(text.upper()) for text in known] == known
    unknown = ["wan", "5ms", "5,2gbit", "", "namespaces:", "namespaces:wan", "lan:namespaces", "lan:0-1/10"]
    unknown += [f"namespaces:lan{pair}" for pair in (":", ":0-1", ":0/10", ":0-1/-2", ":0-1/1e9", ":0-1/10:")]
    for text in unknown:
        with pytest.raises(UsageError, match="unknown network"):
            parse_network(text)
    for text in ("namespaces:lan:1-1/10", "namespaces:lan:0-1/0", "namespaces:loopback:0-1/10"):
        with pytest.raises(UsageError, match=f"network '{text}' slows down no link: after a link that takes"):
            parse_network(text)
    with pytest.raises(UsageError, match="all links are sockets: give namespaces:loopback"):
        parse_network("namespaces:sockets")


def test_a_slower_link_is_between_nodes_that_there_are() -> None:
    for network in ("loopback", "lan", "namespaces:slow", "namespaces:lan:0-2/10"):
        check_slow_pair(network, 3)
    with pytest.raises(UsageError, match="between nodes 0 and 3, but 3 nodes are 0 to 2"):
        check_slow_pair("namespaces:lan:0-3/10", 3)


def test_several_networks() -> None:
    assert parse_networks("lan, slow") == ["lan", "slow"]
    assert parse_networks("0.5ms,2gbit") == ["0.5ms,2gbit"]
    assert parse_networks("lan,0.5ms,2gbit,namespaces:1ms, 1gbit,slow") == [
        *("lan", "0.5ms,2gbit", "namespaces:1ms,1gbit", "slow")
    ]
    assert parse_networks("namespaces:1ms,1gbit:0-1/10,slow") == ["namespaces:1ms,1gbit:0-1/10", "slow"]
    for text in ("lan,", "5ms,lan", "2gbit", "lan,,slow"):
        with pytest.raises(UsageError, match="unknown network"):
            parse_networks(text)
