"""Every check that sktime ships for a classifier and for a forecaster, run on ours; how many hold, check by check.

    pip install 'wavessm[sktime]'
    python benchmarks/sktime_checks.py --out results/estimators

The test suite runs some of them each time; this runs all, a few minutes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from importlib import metadata
from pathlib import Path

from sktime.utils.estimator_checks import check_estimator

from wavessm.estimators.sktime import SktimeClassifier, SktimeForecaster
from wavessm.record import provenance, write_csv


def measure(kind: type) -> list[dict[str, object]]:
    """A row for each check: on how many instances, scenarios and horizons it ran and held; why not, if it did not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(kind, verbose=False)
    ran, held, reasons = Counter(), Counter(), {}
    for name, result in results.items():
        check = name.partition("[")[0]
        ran[check] += 1
        if isinstance(result, str):
            held[check] += 1
        else:
            reasons.setdefault(check, f"{type(result).__name__}: {str(result).splitlines()[0]}")
    return [
        {"estimator": kind.__name__, "check": check, "ran": ran[check], "held": held[check],
         "first_reason": reasons.get(check, "")}
        for check in ran
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/estimators"))
    given = parser.parse_args()
    began = time.monotonic()
    rows = [row for kind in (SktimeClassifier, SktimeForecaster) for row in measure(kind)]
    write_csv(given.out / "sktime_checks.csv", rows)
    ran, held = (sum(int(str(row[name])) for row in rows) for name in ("ran", "held"))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("sktime", "scikit-learn", "pandas"))
    line = f"sktime_checks.csv: {held} of {ran} checks hold, {time.monotonic() - began:.0f} s, {versions}; "
    line += provenance("python benchmarks/sktime_checks.py") + "."
    (given.out / "sktime_checks.md").write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
