"""What a user installs: name, version, dependencies, and what an import brings along."""

import importlib.metadata
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools

import keras_attention

ROOT = Path(__file__).parents[1]
DISTRIBUTION = "keras-attention-layers"
EXTRAS = {"text", "examples", "export", "test", "backends", "peers", "dev"}
EXTRAS |= {"serving", "test-serving", "distributed", "test-distributed", "docs", "notebook"}


@pytest.fixture(scope="module")
def setup_arguments():
    """What setup.py hands to `setuptools.setup`."""
    recorded = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(setuptools, "setup", lambda **arguments: recorded.update(arguments))
        runpy.run_path(str(ROOT / "setup.py"))
    return recorded


def loaded_modules(statement):
    """Names in `sys.modules` of a new interpreter after `statement`."""
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=300,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def brought_along(statement, already=frozenset()):
    """Top-level packages outside the standard library that `statement` loads anew."""
    names = {name.partition(".")[0] for name in loaded_modules(statement) - set(already)}
    return {name for name in names if name not in sys.stdlib_module_names}


def test_version_is_a_release_number_and_the_same_everywhere(setup_arguments):
    version = keras_attention.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert setup_arguments["version"] == version
    newest = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert newest.group(1) == version


def test_the_changelog_names_everything():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    names = keras_attention.__all__
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_bundled_data_has_a_licence_listed():
    listed = (ROOT / "docs" / "licences.md").read_text("utf-8")
    for folder in ("examples/data", "tests/data"):
        for path in (ROOT / folder).iterdir():
            if path.suffix in (".npz", ".xz", ".gz", ".tsv", ".txt", ".json"):
                kind = re.sub(r"^(tfa|torch|keras_hub)_.*", r"\1_*.npz", path.name)
                assert f"`{folder}/{kind}`" in listed, path


def test_installed_metadata(setup_arguments):
    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is used from its checkout and not installed")
    assert metadata["Version"] == keras_attention.__version__, "install again: the version changed"
    assert set(metadata.get_all("Provides-Extra")) == EXTRAS


def test_setup_names_packages_and_dependencies(setup_arguments):
    assert setup_arguments["name"] == DISTRIBUTION
    required = {re.match(r"[a-z]+", line).group() for line in setup_arguments["install_requires"]}
    assert required == {"keras", "tensorflow", "numpy"}
    extras = setup_arguments["extras_require"]
    assert set(extras) == EXTRAS
    assert "matplotlib" in extras["examples"]
    assert set(extras["test"]) < set(extras["dev"])


def test_setup_packages_are_the_folders_of_the_checkout(setup_arguments):
    folders = {path.parent for path in (ROOT / "keras_attention").rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(setup_arguments["packages"]) == names


def test_type_marker_and_licence_are_there(setup_arguments):
    assert (Path(keras_attention.__file__).parent / "py.typed").is_file()
    assert "py.typed" in setup_arguments["package_data"]["keras_attention"]
    assert "LICENSE" in setup_arguments["license_files"]
    licence = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in licence and "END OF TERMS AND CONDITIONS" in licence


def test_import_brings_nothing_that_keras_does_not():
    keras_alone = loaded_modules("import keras")
    assert brought_along("import keras_attention", already=keras_alone) == {"keras_attention"}


def test_an_import_that_brings_more_is_noticed():
    assert "pytest" in brought_along("import pytest", already=loaded_modules("pass"))


def test_every_public_name_exists_once():
    names = keras_attention.__all__
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(keras_attention, name)] == []
