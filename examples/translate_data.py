"""Pairs of sentences: files of two formats, Multi30k from its public address, a toy grammar."""

import hashlib
import itertools
import lzma
import tempfile
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from keras_attention.text import DataError, read_pairs, read_parallel
from keras_attention.whole import whole

# Captions of Multi30k (Elliott et al., 2016), German and English: for research, not bundled.
ADDRESS = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)
SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
PARTS = ("train", "val", "test_2016_flickr")
CACHE = Path.home() / ".cache" / "keras_attention" / "multi30k"
TIMEOUT = 30  # seconds
# Of a .zip that is cut or damaged, needs a password, or was compressed in an unusual way.
UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError)
OFFLINE = (
    "Without the network: give the files with --data DIR or --pairs FILE; try this script with "
    "--smoke; or run g2p.py, dates.py, reverse.py or addition.py, which bring or make their data"
)
PERCENT, LARGEST_DEV, LARGEST_TEST = 2, 1000, 2000


class Pairs(NamedTuple):
    """Texts and their translations, two lists of one length."""

    sources: list
    targets: list

    def take(self, count):
        return self if count is None else Pairs(self.sources[:count], self.targets[:count])


class Parts(NamedTuple):
    train: Pairs
    dev: Pairs
    test: Pairs


def load_parts(options):
    """The three parts that the options ask for, in lower case, and the name of the data."""
    if options.pairs:
        name, parts = options.pairs.name, split(read_pair_file(options.pairs, options.swap))
    elif options.data is None and options.smoke:
        name, parts = "a small grammar", split(grammar(), percent=10)
    elif options.data is None:
        fetch(options.cache)
        name, parts = "Multi30k", read_folder(options.cache)
    else:
        name, parts = options.data.name, read_folder(options.data)
    for part, pairs in parts._asdict().items():
        if not pairs.sources:
            raise DataError(f"{name}: expected more pairs, the {part} part is empty")
    return name, Parts(*(Pairs(*([x.lower() for x in side] for side in part)) for part in parts))


def read_folder(folder, languages=("de", "en")):
    """Reads `train.de` and `train.en`, `val.*` and `test_2016_flickr.*`, plain or .gz."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of data")
    return Parts(*(Pairs(*read_parallel(*_both(folder, part, languages))) for part in PARTS))


def _both(folder, part, languages):
    for language in languages:
        plain = folder / f"{part}.{language}"
        yield plain if plain.exists() else plain.with_name(plain.name + ".gz")


def read_pair_file(path, swap=False):
    """Reads lines `source<TAB>target[<TAB>...]`, also from the one such file of a .zip."""
    if path.suffix.lower() == ".zip":
        sources, targets = _read_zip(path)
    else:
        sources, targets = read_pairs(path)
    return Pairs(targets, sources) if swap else Pairs(sources, targets)


def _read_zip(path):
    if not path.exists():
        raise DataError(f"no such file: {path}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                names = [x for x in archive.namelist() if x.endswith((".txt", ".tsv"))]
                names = [x for x in names if not x.endswith("_about.txt")]
                if len(names) != 1:
                    raise DataError(f"{path}: expected one .txt or .tsv file, got {names}")
                member = archive.extract(names[0], folder)
            return read_pairs(member)
        except UNREADABLE as error:
            raise DataError(f"{path} is not a whole .zip archive: {error}") from None
        except DataError as error:  # names the file by where it was unpacked
            raise DataError(str(error).replace(folder, str(path))) from None


def stable_hash(text):
    """A number that depends on the text alone: the same on every machine and day."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def split(pairs, percent=PERCENT):
    """Splits by a hash of the source, so that no source is in two parts.

    Each source that is held out is tested on once, with the first of its translations.
    """
    train, dev, test = [], {}, {}
    for source, target in zip(*pairs, strict=True):
        place = stable_hash(source.lower()) % 100
        if place < 2 * percent:
            (test if place < percent else dev).setdefault(source.lower(), (source, target))
        else:
            train.append((source, target))
    held_out = []
    for part, most in ((dev, LARGEST_DEV), (test, LARGEST_TEST)):
        held_out.append([part[key] for key in sorted(part, key=stable_hash)[:most]])
    sides = ([list(side) for side in zip(*part, strict=True)] for part in (train, *held_out))
    return Parts(*(Pairs(*(side or ([], []))) for side in sides))


def fetch(folder, address=ADDRESS, files=SHA256):
    """Downloads the files that are not in `folder` yet, and checks all of them."""
    for name, sha256 in files.items():
        path = Path(folder) / name
        if path.exists():
            _check(path.read_bytes(), sha256, path)
            continue
        print(f"Fetching {address}{name}", flush=True)
        try:
            with urllib.request.urlopen(address + name, timeout=TIMEOUT) as response:
                data = response.read()
        except OSError as error:
            raise DataError(f"can not fetch {address}{name}: {error}. {OFFLINE}") from None
        _check(data, sha256, address + name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as unfinished:
            unfinished.write_bytes(data)


def _check(data, expected, where):
    got = hashlib.sha256(data).hexdigest()
    if got != expected:
        raise DataError(f"{where}: expected the SHA256 {expected}, got {got}")


# German and English: articles by case, nouns, verbs, places.
SUBJECTS = {
    "ein Mann": "a man",
    "eine Frau": "a woman",
    "ein Kind": "a child",
    "der Hund": "the dog",
    "die Katze": "the cat",
}
VERBS = {"sieht": "sees", "sucht": "is looking for", "findet": "finds"}
OBJECTS = {"den Ball": "the ball", "einen Stuhl": "a chair", "das rote Boot": "the red boat"}
PLACES = {"": "", "im Park": "in the park", "am Strand": "on the beach", "heute": "today"}


def grammar():
    """All sentences of a small grammar: enough to try the script, not to translate German."""
    sources, targets = [], []
    for words in itertools.product(*(x.items() for x in (SUBJECTS, VERBS, OBJECTS, PLACES))):
        (who, subject), (does, verb), (what, thing), (where, place) = words
        sources.append(_sentence(who, does, where, what))
        targets.append(_sentence(subject, verb, thing, place))
    return Pairs(sources, targets)


def _sentence(*words):
    text = " ".join(filter(None, words))
    return text[0].upper() + text[1:] + "."
