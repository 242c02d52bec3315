"""Fonts for labels in any script: the installed ones that have the letters of a picture."""

import functools
import itertools
import unicodedata


def drawable(*lists):
    """Texts that the installed fonts can draw, and the fonts to draw them with.

    Args:
        *lists: lists of texts, each `[n]`.

    Returns:
        The lists, and the names of font families: matplotlib takes each letter from the first of
        them that has it. A letter that no font has is spelled: Hangul by its name ("han-gug"),
        others by their number ("U+4E00").

    Example:

    >>> (labels,), families = drawable(["naïve", "\U000f0000"])
    >>> labels
    ['naïve', 'U+F0000']
    """
    from matplotlib import font_manager, rcParams

    letters = frozenset(itertools.chain.from_iterable(itertools.chain(*lists)))
    families = list(rcParams["font.family"])
    usual = font_manager.findfont(font_manager.FontProperties(family=families))
    missing = letters - _letters_of(usual, letters)
    while missing:
        best = max(_installed(), key=lambda font: len(_letters_of(font.fname, missing)))
        found = _letters_of(best.fname, missing)
        if not found:
            break
        families.append(best.name)
        missing -= found
    return [[_spell(text, missing) for text in texts] for texts in lists], families


def code_point(letter):
    """The number of a letter, as in a text of shape `[n]`.

    Example:

    >>> code_point("a")
    'U+0061'
    """
    return f"U+{ord(letter):04X}"


def _installed():
    """All fonts, the plainest first. (Fonts of last resort have boxes for all letters.)"""
    from matplotlib import font_manager

    def plainness(font):
        weight = font_manager.weight_dict.get(font.weight, font.weight)
        return font.style != "normal", abs(weight - 400), font.name

    fonts = font_manager.fontManager.ttflist
    return sorted((x for x in fonts if not x.name.startswith("Last Resort")), key=plainness)


@functools.lru_cache(maxsize=4096)
def _letters_of(file, letters):
    """Those of the letters that a font file has."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(file)
    except (OSError, RuntimeError):  # a file that is gone, or no font
        return frozenset()
    if not font.scalable:  # pictures of emoji, in one size
        return frozenset()
    return frozenset(map(chr, font.get_charmap())) & letters


def _spell(text, missing):
    def spell_word(word):
        parts = []
        for lacking, run in itertools.groupby(word, missing.__contains__):
            run = list(run)
            parts += map(_name, run) if lacking else ["".join(run)]
        return "-".join(parts)

    return " ".join(map(spell_word, text.split(" ")))


def _name(letter):
    name = unicodedata.name(letter, "")
    return name.split()[-1].lower() if name.startswith("HANGUL ") else code_point(letter)
