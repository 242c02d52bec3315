"""Dates as people write them, in several languages, to ISO form: "2021년 3월 4일" -> "2021-03-04".

Texts are made with Babel, which knows how each locale writes dates: its short, medium, long and
full formats and its skeletons (with and without weekday), as they are, in lower and in upper case.
A text must mean one date whoever reads it. So formats with two digits of the year are left out
(3/4/21), and of those with digits only just the ones that begin with the year are kept: 03/04/2021
is in March in New York and in April in London, 2021/03/04 is in March everywhere.

The dates that are tested, of 1900 to 2099, are never learned from in any language.
"""

import datetime
import random
import re
import sys

import toy_tasks
from toy_options import make_parser, parse
from toy_tasks import Task, TaskError, every_few

LOCALES = ("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
DEFAULTS = {"units": 128, "examples": 20000, "epochs": 3, "locales": LOCALES}
SMOKE = {"units": 16, "examples": 256, "epochs": 1, "locales": ("en", "ko")}
FORMATS = ("short", "medium", "long", "full")
SKELETONS = ("yMd", "yMEd", "yMMdd", "yMMMd", "yMMMEd", "yMMMMd", "yMMMMEd", "yMMMMEEEEd")
CASES = (str, str.lower, str.upper)
FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
HELD_OUT_DATES, TESTS_PER_LOCALE = 2000, 200
DRAWN = ("ko", "en", "de")
EXAMPLES = """\
examples:
  dates.py                              ten languages
  dates.py --locales en ko vi           other ones, by their names in Babel
  dates.py --attention none             the same without attention
  dates.py --text "2021년 3월 4일" "Thursday, March 4, 2021"
                                        answers with the model of build/dates
"""


def import_babel():
    """The modules `babel` and `babel.dates`."""
    try:
        import babel
        import babel.dates
    except ImportError as error:
        raise TaskError(
            "Babel is needed to write dates: pip install 'keras-attention-layers[examples]' "
            f"({error})"
        ) from None
    return babel, babel.dates


def well_defined(pattern):
    """Whether a CLDR date pattern, like "d. MMMM y", tells one date to readers everywhere.

    It has the whole year, month and day, and names the month or goes from year to month to day.
    """
    fields = [field[0] for field in re.finditer(r"([A-Za-z])\1*", re.sub("'[^']*'", "", pattern))]
    order = "".join(field[0] for field in fields if field[0] in "yMLd").replace("L", "M")
    if "yy" in fields or sorted(order) != ["M", "d", "y"]:
        return False
    return order == "yMd" or any(len(field) > 2 for field in fields if field[0] in "ML")


def patterns_of(locale):
    """The distinct patterns of a locale that are well defined.

    Raises:
        TaskError: if Babel has no such locale, or there is no such pattern.
    """
    babel, dates = import_babel()
    try:
        known = babel.Locale.parse(locale)
    except (ValueError, TypeError, babel.UnknownLocaleError):
        raise TaskError(
            f"--locales {locale}: expected locales of Babel, like {', '.join(LOCALES)}"
        ) from None
    patterns = [dates.get_date_format(name, known).pattern for name in FORMATS]
    skeletons = known.datetime_skeletons
    patterns += [skeletons[name].pattern for name in SKELETONS if name in skeletons]
    kept = [pattern for pattern in dict.fromkeys(patterns) if well_defined(pattern)]
    if not kept:
        raise TaskError(f"--locales {locale}: has no format that tells one date everywhere")
    return kept


def write(date, pattern, locale):
    """The date as text."""
    return import_babel()[1].format_date(date, pattern, locale)


def make_task(options):
    """Texts and the ISO form of their dates, the same ones for the same seed."""
    locales = list(dict.fromkeys(options.locales))
    patterns = {locale: patterns_of(locale) for locale in locales}
    generator = random.Random(options.seed)
    days = [FIRST + datetime.timedelta(n) for n in range((LAST - FIRST).days + 1)]
    generator.shuffle(days)
    held_out, learned = days[:HELD_OUT_DATES], days[HELD_OUT_DATES:]

    def pair(dates, locale):
        date, pattern = generator.choice(dates), generator.choice(patterns[locale])
        case = generator.choice(CASES)
        return case(write(date, pattern, locale)), date.isoformat()

    train = [pair(learned, generator.choice(locales)) for _ in range(options.examples)]
    test = {locale: [pair(held_out, locale) for _ in range(TESTS_PER_LOCALE)] for locale in locales}
    drawn = [locale for locale in DRAWN if locale in locales] or locales[: len(DRAWN)]
    return Task(
        f"Dates of {len(locales)} locales to ISO form",
        "locale",
        train,
        test,
        every_few([pair for pairs in test.values() for pair in pairs]),
        {f"alignment_{locale}": max(test[locale][:20], key=by_length) for locale in drawn},
        packages=(import_babel()[0],),
    )


def by_length(pair):
    return len(pair[0])


def parse_options(arguments=None):
    parser = make_parser("dates", __doc__, EXAMPLES, DEFAULTS)
    parser.add_argument(
        "--locales",
        nargs="+",
        metavar="LOCALE",
        help=f"names of Babel (default: {' '.join(LOCALES)})",
    )
    parser.set_defaults(**DEFAULTS)
    return parse(parser, arguments, SMOKE)


if __name__ == "__main__":
    sys.exit(toy_tasks.main("dates", make_task, parse_options()))
