import math
import os
import re
from collections.abc import Iterator

import pytest

from adabench.harness.checks import doctor
from adabench.harness.machine import noise, orphans
from adabench.harness.machine.environment import capture


def noise_floor(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> str:
    answers: Iterator[float] = iter(seconds)
    monkeypatch.setattr(doctor, "_train", lambda server, seed: next(answers))
    return doctor.noise_floor(lambda line: None)


def test_a_machine_without_noise_has_a_floor_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = noise_floor(monkeypatch, [10.0] * 2 * doctor.PAIRS)
    assert "ratio 1.000 [1.000, 1.000] in 6 pairs" in text
    assert "below 0.0%" in text


def test_the_floor_is_the_widest_ratio_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second of every pair takes 4 % longer; which of the two is counted against the other alternates.
    text = noise_floor(monkeypatch, [10.0, 10.4] * doctor.PAIRS)
    match = re.search(r"\[(.*), (.*)\].*below (.*)% cannot", text)
    assert match is not None
    low, high, floor = (float(group) for group in match.groups())
    assert (low, high) == pytest.approx((1 / 1.04, 1.04), abs=1e-3)
    assert floor == pytest.approx(4.0, abs=0.1)


def test_a_busy_or_unsteady_machine_is_complained_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "find", lambda: orphans.Orphans([], [], []))
    steady = iter([(0.0, 0.005)] * 100)
    monkeypatch.setattr(noise, "probe", lambda: next(steady))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    environment = capture()
    monkeypatch.setattr(doctor, "capture", lambda: {**environment, "governor": "performance"})
    assert doctor.examine()[1] == []

    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    unsteady = iter([(0.0, 0.005 * (1 + 0.1 * math.sin(number))) for number in range(100)])
    monkeypatch.setattr(noise, "probe", lambda: next(unsteady))
    monkeypatch.setattr(doctor, "capture", lambda: {**environment, "governor": "powersave"})
    lines, complaints = doctor.examine()
    assert [complaint.split()[1] for complaint in complaints] == ["load", "governor", "fixed"]
    assert any("99.00 over the last minute" in line for line in lines)
