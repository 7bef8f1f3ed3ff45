"""A study from Python: the calls behind `adabench plan`, `run`, `compare` and `plot`.

Run it as ``python examples/study.py --results /tmp/sessions``.
"""

import argparse
from pathlib import Path

from rich.console import Console

from adabench.analysis.compare import compare
from adabench.analysis.figures import draw_figures
from adabench.analysis.load import load_frame
from adabench.harness.session.execute import run_session
from adabench.harness.session.plan_text import plan_text
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study.study import load_study


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares two strategies on generated clicks.")
    parser.add_argument("--results", type=Path, default=Path("results/sessions"), help="folder of sessions")
    parser.add_argument("--rows", type=int, default=50_000, help="generated clicks")
    parser.add_argument("--repeats", type=int, default=6, help="runs per strategy; six for a verdict")
    given = parser.parse_args()

    study = load_study(
        None,
        "two-strategies",
        {
            "usecases": f"ctr[rows={given.rows}]",
            "backends": "prefetch,autoada-automatic",
            "nodes": "2",
            "repeats": str(given.repeats),
        },
    )
    print(plan_text(study, given.results))

    session, _ = run_session(study, given.results, ResumeOptions(), Console())
    frame = load_frame(session)
    print(frame[frame["phase"] == "measured"].groupby("backend")["seconds.train"].describe())

    for one in compare(session.runs(), "prefetch"):
        interval = f"[{one.ratio_low:.3f}, {one.ratio_high:.3f}]"
        print(f"{one.label} over {one.baseline}: {one.ratio:.3f} {interval}, {one.verdict}")
    for figure in draw_figures(session):
        print(f"figure: {figure}")


if __name__ == "__main__":
    main()
