import subprocess
import sys
from pathlib import Path

import pytest

from adabench.backends import strategies
from adabench.harness.errors import UsageError
from adabench.harness.plugins import registry


def test_a_backend_file_that_is_dropped_in_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class B:\n    name = 'dropped-in'; Options = int; distributed = False; open = None\n"
    (tmp_path / "dropped_in.py").write_text(f"{source}\n\nBACKEND = B\n")
    (tmp_path / "_helper.py").write_text("BACKEND = None\n")
    (tmp_path / "no_backend.py").write_text("X = 1\n")
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path)])
    found = registry.names("backend")
    assert {"dropped-in", "single"} <= set(found)
    assert not {"helper", "no-backend", "interface", "autoada"} & set(found)
    assert registry.load_backend("dropped-in").name == "dropped-in"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import not_there\nBACKEND = 1",
            "backend 'broken' .* cannot be imported: No module named 'not_there'",
        ),
        (
            "class B:\n    name = 'broken'\nBACKEND = B",
            "lacks Options, distributed, open of the backend protocol",
        ),
        (
            "class B:\n    name = 'other'; Options = int; distributed = True; open = None\nBACKEND = B",
            "names itself 'other'",
        ),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "adabench.backends.strategies.broken", raising=False)
    with pytest.raises(UsageError, match=message):
        registry.load_backend("broken")


def test_listing_names_imports_no_torch() -> None:
    code = (
        "import sys, adabench.harness.cli.main; from adabench.harness.plugins import registry; "
        "registry.names('backend'); registry.names('usecase'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_describing_use_cases_imports_no_library_that_only_data_or_training_need() -> None:
    code = (
        "import sys; from adabench.harness.plugins.describe import describe_plugin, plugin_summaries; "
        "assert [*map(list, (describe_plugin('usecase', name) for name in plugin_summaries('usecase')))]; "
        "print({'pandas', 'scipy', 'torch._dynamo', 'torch_geometric'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
