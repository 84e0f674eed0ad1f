"""Every check that scikit-learn ships for a classifier, and sktime for a classifier and a forecaster, run on ours.

    pip install 'wavessm[sktime]'
    python benchmarks/estimator_checks.py --out results/estimators

A row for each check: how often it ran and passed over instances, scenarios and horizons, and why it failed. The
test suite runs all of scikit-learn's and some of sktime's; this runs all of both and takes a few minutes.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from importlib import metadata

from sklearn.utils.estimator_checks import check_estimator as check_sklearn
from sktime.utils.estimator_checks import check_estimator as check_sktime

from common import Row, arguments
from wavessm.estimators import WaveSSMClassifier
from wavessm.estimators.classifier import EXCEPTIONS
from wavessm.estimators.sktime import SktimeClassifier, SktimeForecaster
from wavessm.training.record import provenance, write_csv


def sklearn_rows() -> list[Row]:
    """The same small model as in tests/test_estimators.py."""
    model = WaveSSMClassifier(
        max_epochs=25, learning_rate=0.03, batch_size=32, d_model=8, d_state=4, n_layers=1, random_state=0
    )
    outcomes = []
    for result in check_sklearn(model, on_skip=None, on_fail=None, expected_failed_checks=EXCEPTIONS):
        name, status = result["check_name"], result["status"]
        reason = EXCEPTIONS[name] if name in EXCEPTIONS else str(result["exception"] or "")
        outcomes.append((name, status == "passed", "" if status == "passed" else f"{status}: {reason}"))
    return table("scikit-learn", type(model).__name__, outcomes)


def sktime_rows(kind: type) -> list[Row]:
    outcomes = []
    for name, result in check_sktime(kind, verbose=False).items():
        held = isinstance(result, str)
        outcomes.append((name.partition("[")[0], held, "" if held else f"{type(result).__name__}: {result}"))
    return table("sktime", kind.__name__, outcomes)


def table(package: str, estimator: str, outcomes: list[tuple[str, bool, str]]) -> list[Row]:
    """(check, held, why not) counted by check; the first reason stands for all."""
    ran = Counter(check for check, _, _ in outcomes)
    held = Counter(check for check, good, _ in outcomes if good)
    reasons = {check: why.splitlines()[0] for check, good, why in reversed(outcomes) if not good}
    return [
        {"package": package, "estimator": estimator, "check": check, "ran": ran[check], "held": held[check],
         "reason": reasons.get(check, "")}
        for check in ran
    ]  # fmt: skip


def main() -> None:
    given = arguments(__doc__, "results/estimators").parse_args()
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = [sklearn_rows(), sktime_rows(SktimeClassifier), sktime_rows(SktimeForecaster)]
    write_csv(given.out / "checks.csv", [row for rows in groups for row in rows])
    lines = []
    for rows in groups:
        ran, held = (sum(int(str(row[name])) for row in rows) for name in ("ran", "held"))
        lines.append(f"{rows[0]['package']}, `{rows[0]['estimator']}`: {held} of {ran} hold.")
        lines += [f"{row['check']}: {row['reason']}." for row in rows if row["reason"]]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("scikit-learn", "sktime", "pandas"))
    made = provenance("python benchmarks/estimator_checks.py")
    lines.append(f"checks.csv: {time.monotonic() - began:.0f} s with {versions}; {made}.")
    (given.out / "checks.md").write_text("\n\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
