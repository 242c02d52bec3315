"""What of the tests does not apply with KERAS_BACKEND=jax or torch, and why.

A test marked `tensorflow_only(reason)` runs on the other backends too, and has to fail there: one
that passes was marked by mistake, and is an error. What is listed here is not run: modes that a
backend has not, and files whose whole subject is TensorFlow's. Each run ends with a list of it all.
"""

import collections
from pathlib import Path

import pytest
from backend import BACKEND

# Why a whole file is about TensorFlow. The keys are rows of the table in docs/backends.md.
FILES = {}

MODES_HERE = {
    "tensorflow": {"eager": "", "graph": "", "xla": ""},
    "jax": {"eager": "", "xla": "", "graph": "jax.jit is XLA, the mode `xla`"},
    "torch": {"eager": "", "graph": "PyTorch has no graphs", "xla": "PyTorch has no XLA"},
}


def mark_what_does_not_apply(items):
    """Marks each item that is TensorFlow's, where another backend runs."""
    if BACKEND == "tensorflow":
        return
    for item in items:
        reason = FILES.get(item.path.name)
        if reason is None and hasattr(item, "callspec"):
            modes = [item.callspec.params.get(name) for name in ("mode", "way")]
            reason = next((MODES_HERE[BACKEND].get(x) for x in modes if isinstance(x, str)), None)
            if item.callspec.params.get("dtype") == "float64":
                reason = "Keras computes float64 as float32 here: a case of float64"
        if reason:
            item.add_marker(pytest.mark.skip(reason))
            continue
        marks = list(item.iter_markers("tensorflow_only"))
        if marks:
            item.add_marker(pytest.mark.xfail(reason=marks[0].args[0], strict=True))


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "tensorflow_only(reason): what cannot apply on JAX and PyTorch, and has to fail there",
    )


def pytest_terminal_summary(terminalreporter):
    """How many tests did not apply, by reason."""
    if BACKEND == "tensorflow":
        return
    counts = collections.Counter()
    for report in terminalreporter.stats.get("skipped", []):
        counts[report.longrepr[2].removeprefix("Skipped: "), Path(report.fspath).name] += 1
    for report in terminalreporter.stats.get("xfailed", []):
        counts[report.wasxfail.removeprefix("reason: "), Path(report.fspath).name] += 1
    terminalreporter.section(f"What did not apply on {BACKEND}, and why")
    for reason in sorted({reason for reason, _ in counts}):
        files = {name: n for (why, name), n in counts.items() if why == reason}
        where = ", ".join(f"{name} {n}" for name, n in sorted(files.items()))
        terminalreporter.write_line(f"{sum(files.values()):5}  {reason}: {where}")
