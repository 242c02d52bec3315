"""The newest version of a model in a folder laid out for TensorFlow Serving: MODEL/1, MODEL/2."""

import json
import logging
import threading
from pathlib import Path

import tensorflow as tf

log = logging.getLogger(__name__)


def newest_version(folder):
    """The largest number that is the name of an exported model in the folder, or None."""
    numbers = (int(path.name) for path in Path(folder).iterdir() if path.name.isdecimal())
    complete = [n for n in numbers if (Path(folder) / str(n) / "saved_model.pb").is_file()]
    return max(complete, default=None)


class NewestVersion:
    """A loaded model that is replaced when a newer version appears beside it.

    Args:
        folder: folder of numbered versions.
        seconds: how often to look.

    Attributes:
        version, signatures: of the model in use.
    """

    def __init__(self, folder, seconds=2.0):
        self.folder, self.version, self.signatures = Path(folder), None, {}
        self.models, self.broken = [], None
        if not self.folder.is_dir():
            raise FileNotFoundError(f"no such folder: {folder}")
        self.look()
        if self.version is None:
            raise FileNotFoundError(f"{folder} holds no version: expected e.g. {folder}/1")
        self._watch(seconds)

    def look(self):
        """Loads the newest version if it is not the one in use. A broken one is tried once."""
        newest = newest_version(self.folder)
        if newest in (None, self.version, self.broken):
            return
        path = self.folder / str(newest)
        try:
            card = path / "model_card.json"
            needed = json.loads(card.read_text("utf-8"))["requires"] if card.exists() else []
            if "tensorflow_text" in needed:
                import tensorflow_text  # noqa: F401  (registers its operations)
            model = tf.saved_model.load(str(path))
        except Exception:
            if self.version is None:
                raise
            self.broken = newest
            log.exception("version %s can not be loaded; %s stays", newest, self.version)
            return
        # Models are kept, as signatures do not hold their variables: this one, and the one before,
        # for requests that are with it still.
        self.models = [*self.models[-1:], model]
        self.signatures, self.version = dict(model.signatures), newest
        log.info("version %s is served", newest)

    def _watch(self, seconds):
        stopped = threading.Event()

        def run():
            while not stopped.wait(seconds):
                self.look()

        threading.Thread(target=run, daemon=True).start()
