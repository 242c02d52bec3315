"""What of the tests does not apply with KERAS_BACKEND=jax or torch, and why.

A test marked `tensorflow_only(reason)` runs on the other backends too, and has to fail there: one
that passes was marked by mistake, and is an error. What is listed here is not run: modes that a
backend has not, and files whose whole subject is TensorFlow's. Each run ends with a list of it all.
"""

import collections
from pathlib import Path

import pytest
from backend import BACKEND

NO_BACKEND = "nothing in it depends on the backend"
# Files that are not run. Each reason but NO_BACKEND is a row of the table in docs/backends.md.
FILES = {
    "test_architecture.py": NO_BACKEND,
    "test_attention_page.py": NO_BACKEND,
    "test_blockwise.py": "attention in blocks",
    "test_claims.py": NO_BACKEND,
    "test_command.py": "SavedModels and the command `keras-attention`",
    "test_examples_toys.py": "the examples",
    "test_export.py": "SavedModels and the command `keras-attention`",
    "test_g2p.py": "the examples",
    "test_g2p_script.py": "the examples",
    "test_language_example.py": "the examples",
    "test_listops_example.py": "the examples",
    "test_other_backends.py": NO_BACKEND,
    "test_other_formats.py": "ONNX and LiteRT files",
    "test_package.py": NO_BACKEND,
    "test_quantised_models.py": "SavedModels and the command `keras-attention`",
    "test_readme.py": NO_BACKEND,
    "test_reference.py": NO_BACKEND,
    "test_results.py": NO_BACKEND,
    "test_safety.py": NO_BACKEND,
    "test_sizes_in_graphs.py": "sizes that a graph does not know",
    "test_text.py": "text in the graph",
    "test_text_subword.py": "text in the graph",
    "test_tiles.py": "attention in blocks",
    "test_translate_example.py": "the examples",
    "test_translate_transformer.py": "the examples",
    "test_visualize.py": NO_BACKEND,
}

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
            if "float64" in [item.callspec.params.get(name) for name in ("dtype", "policy")]:
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
