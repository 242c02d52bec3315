"""Writes docs/results.md and its figure from the JSON files in docs/results/.

So is the table in docs/attention.md that says what each attention costs and how good it is.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, stdev

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
LANGUAGES = {"ice": "Icelandic", "hun": "Hungarian", "kor": "Korean"}
# Gorman et al. 2020, table 2, word error rates: BiLSTM encoder with Luong attention (Korean by
# whole syllables), and the best system.
PUBLISHED = {"ice": (10.00, 9.11), "hun": (5.33, 4.00), "kor": (46.89, 24.00)}
MISSING = "not run"
MARKS = "<!-- by benchmarks/quality/report.py -->\n", "\n<!-- until here -->"


def load(folder):
    return {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}


def spread(values):
    """Mean and standard deviation of percentages, with the number of runs where it is not 3."""
    values = [100 * value for value in values]
    if not values:
        return MISSING
    text = f"{fmean(values):.2f}"
    if len(values) > 1:
        text += f" ± {stdev(values):.2f}"
    return text if len(values) == 3 else f"{text} ({len(values)} run{'s' * (len(values) > 1)})"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def score_functions(runs):
    """The table of score functions: a row a variant, greedy and beam for each language."""
    from score_functions import VARIANTS

    rows = []
    for variant in VARIANTS:
        cells = []
        for language in LANGUAGES:
            mine = _runs_of(runs, language, variant)
            cells += [spread(x[key] for x in mine) for key in ("word_error", "beam_word_error")]
        rows.append([variant.replace("+", " + input "), *cells])
    head = ["attention"]
    for name in LANGUAGES.values():
        head += [name, "beam of 5"]
    published = [f"{base:.2f} / {best:.2f}" for base, best in PUBLISHED.values()]
    rows.append(["published: baseline / best", *(c for x in published for c in (x, ""))])
    return table(head, rows)


def choice(runs, costs):
    """Quality beside cost: a row an attention, the fewest errors first; and a sentence on them."""
    rates, rows = {}, []
    for variant, cost in costs["variants"].items():
        mine = {name: _runs_of(runs, name, variant) for name in LANGUAGES}
        means = [100 * fmean(x["word_error"] for x in found) for found in mine.values()]
        rates[variant] = fmean(means)
        size = fmean(x["parameters"] for x in mine["ice"])
        cells = [*(f"{x:.1f}" for x in (rates[variant], *means)), f"{size:,.0f}"]
        cells.append(f"{cost['milliseconds_a_step']:.1f}")
        rows.append([variant.replace("+", " + input "), *cells])
    rows.sort(key=lambda row: float(row[1]))
    head = ["attention", "word error rate", *LANGUAGES.values(), "parameters", "ms a training step"]
    without = rates.pop("none")
    spread_of_rest = f"from {min(rates.values()):.1f} to {max(rates.values()):.1f}"
    sentence = (
        f"Without attention {without:.1f} percent of the words are wrong, with one of the others "
        f"{spread_of_rest}."
    )
    return f"{table(head, rows)}\n\n{sentence}"


def between_marks(page, text):
    """The page with `text` between MARKS."""
    before, after = page.split(MARKS[0])[0], page.split(MARKS[1])[1]
    return before + MARKS[0] + text + MARKS[1] + after


def _runs_of(runs, language, variant):
    """The runs whose key, "language variant seed", begins so."""
    return [x for key, x in runs.items() if key.rpartition(" ")[0] == f"{language} {variant}"]


def pronunciation(result):
    names = ("word_error", "phoneme_error", "beam_word_error", "beam_phoneme_error")
    rates = [f"{100 * result[name]:.2f}" for name in names]
    row = ["dot", f"{result['words']['train']:,}", *rates, f"{result['training_seconds'] / 60:.1f}"]
    head = [
        "attention",
        "training words",
        "word error rate",
        "phoneme error rate",
        "word, beam of 5",
        "phoneme, beam of 5",
        "minutes of training",
    ]
    return table(head, [row])


def transformers(results):
    """Pronunciation by a transformer: a row a language."""
    rows = []
    for name, result in sorted(results.items()):
        language = name.removeprefix("transformer-")
        rates = [100 * result[key] for key in ("word_error", "beam_word_error")]
        base, best = PUBLISHED[language]
        rows.append(
            [
                LANGUAGES[language],
                *(f"{rate:.2f}" for rate in rates),
                f"{result['training_seconds'] / 60:.1f}",
                f"{base:.2f} / {best:.2f}",
            ]
        )
    head = ["language", "word error rate", "beam of 5", "minutes", "published: baseline / best"]
    return table(head, rows)


def language(result):
    """Held-out loss of our model and of one of keras.layers: a row a model."""
    kinds = {"ours": "causal_lm", "plain": "keras.layers"}
    rows = [
        [
            kinds[kind],
            f"{result[kind]['parameters']:,}",
            f"{result[kind]['steps']:,}",
            f"{result[kind]['held_out']['nats']:.3f}",
            f"{result[kind]['held_out']['bits']:.3f}",
        ]
        for kind in kinds
        if kind in result
    ]
    return table(["model", "parameters", "steps", "nats a character", "bits a character"], rows)


def list_operations(result):
    """Right values by depth, in percent, and how many were tested."""
    rows = [
        [depth, f"{x['count']:,}", f"{100 * x['right']:.1f}"]
        for depth, x in result["accuracy"]["depth"].items()
    ]
    return table(["depth", "tested", "right, percent"], rows)


def translation(results):
    rows = []
    for name, result in sorted(results.items()):
        rows.append(
            [
                _model_name(name),
                f"{result['parameters']:,}",
                result["bleu"]["greedy"],
                result["bleu"].get("beam", MISSING),
                f"{result['seconds']['training'] / 60:.1f}",
                len(result["history"]["val_loss"]),
            ]
        )
    head = ["model", "parameters", "BLEU greedy", "BLEU, beam of 5", "minutes", "epochs"]
    return table(head, rows)


def worth_of_feeding(results):
    """What input feeding adds to BLEU, in words, if both runs are there."""
    plain, fed = (results.get(f"multi30k-dot{end}") for end in ("", "-feeding"))
    if not plain or not fed:
        return ""
    gains = {kind: fed["bleu"][kind] - plain["bleu"][kind] for kind in ("greedy", "beam")}
    times = fed["seconds"]["training"] / plain["seconds"]["training"]
    return (
        f"Input feeding adds {gains['greedy']:+.2f} (greedy) and {gains['beam']:+.2f} (beam) and "
        f"takes {times:.1f} times\nas long to train, as it puts the decoder's attention into its "
        "step loop.\n\n"
    )


def three_attentions(folder):
    """The pictures of the transformer's attentions, where there are any."""
    kinds = {
        "encoder": "Encoder self-attention: what each source token reads.",
        "decoder": "Masked decoder self-attention: nothing reads what comes later.",
        "cross": "Encoder-decoder attention: what the model reads for the token that follows.",
    }
    files = {kind: f"multi30k-transformer-attention_{kind}.png" for kind in kinds}
    if not all((folder / file).exists() for file in files.values()):
        return ""
    shown = [f"{kinds[kind]}\n\n![{kinds[kind]}](results/{files[kind]})" for kind in kinds]
    title = "The three attentions of the transformer for one test sentence, last layer, four heads:"
    return "\n\n".join([title, *shown]) + "\n\n"


def by_length(results):
    """BLEU by length of the source: a row a model, a column a range of lengths."""
    tables = {
        name: {f"{x['from']} to {x['to']}": x["bleu"] for x in result["bleu_by_length"]["greedy"]}
        for name, result in sorted(results.items())
    }
    groups = list(next(iter(tables.values())))
    rows = [
        [_model_name(name), *(cells.get(group, MISSING) for group in groups)]
        for name, cells in tables.items()
    ]
    return table(["model", *groups], rows)


def _model_name(run):
    return run.removeprefix("multi30k-").replace("-", " + input ")


def precisions(result):
    rows = [
        [name, x["megabytes"], x["sentences_per_second"], x["bleu"]]
        for name, x in result["precisions"].items()
    ]
    return table(["", "MB", "sentences a second", "BLEU"], rows)


def plain_keras(results):
    rows = [
        [
            name.replace("ours ", "LuongDecoder, ").replace("keras ", "keras.layers."),
            f"{100 * x['word_error']:.2f}",
            f"{x['milliseconds_a_step']:.1f}",
            f"{x['search_seconds']:.1f}",
            f"{x['parameters']:,}",
        ]
        for name, x in results.items()
    ]
    head = ["attention", "word error rate", "ms a step", "s to search 450 words", "parameters"]
    return table(head, rows)


def by_kind(results):
    """Pairs of an attention and its runs, of which there is one a seed."""
    kinds = sorted({name.split("-")[1] for name in results})
    return [(k, [x for name, x in results.items() if name.split("-")[1] == k]) for k in kinds]


def reversal(results):
    """Accuracy by length: a row an attention, mean and deviation over seeds."""
    groups = [group for group in next(iter(results.values()))["accuracy"] if group != "all"]
    rows = []
    for kind, mine in by_kind(results):
        rows.append([kind, *(spread([x["accuracy"][g]["texts"] for x in mine]) for g in groups)])
    return table(["attention", *groups], rows)


def pronunciation_by_length(results):
    """Word error rate by letters of the word: a row an attention, mean and deviation over seeds."""
    groups = [
        f"{x['from']}-{x['to']}" for x in next(iter(results.values()))["word_error_by_length"]
    ]
    rows = []
    for kind, mine in by_kind(results):
        columns = zip(*(x["word_error_by_length"] for x in mine), strict=True)
        whole = spread(x["word_error"] for x in mine)
        rows.append([kind, *(spread(x["word_error"] for x in column) for column in columns), whole])
    return table(["attention", *groups, "all"], rows)


def draw(results, path):
    """Accuracy by length of reversed strings, as lines."""
    from matplotlib.figure import Figure

    from keras_attention.whole import whole

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for kind, runs in by_kind(results):
        mine = [x["accuracy"] for x in runs]
        groups = [group for group in mine[0] if group != "all"]
        shares = [100 * fmean(x[group]["characters"] for x in mine) for group in groups]
        axes.plot(groups, shares, marker="o", label=kind)
    axes.set(xlabel="letters", ylabel="right letters, percent", ylim=(0, 102))
    axes.set_title("Reversing strings: trained on up to 30 letters")
    axes.legend(title="attention")
    with whole(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def sections(found, folder):
    """The parts of the page for which there are results."""
    if runs := found.get("score_functions"):
        recipe = next(iter(runs.values()))["recipe"]
        settings = ", ".join(f"{name.replace('_', ' ')} {x}" for name, x in recipe.items())
        yield f"""## Score functions

Word error rates in percent on the 450 test words of SIGMORPHON 2020, task 1 (one word is 0.22
points), mean and standard deviation of three seeds, or of the number of runs in brackets: greedy
search and a beam of 5. The epoch with the fewest errors on the dev words was tested. Hangul was
split into jamo. The model has a bidirectional GRU as encoder and a GRU as decoder; only the
attention differs.

{score_functions(runs)}

Published: Gorman et al. 2020, "The SIGMORPHON 2020 shared task on multilingual grapheme-to-phoneme
conversion", table 2: the BiLSTM encoder with Luong attention, and the best system (Korean baseline:
whole syllables).

- `python benchmarks/quality/score_functions.py --data DIR`
- Settings: {settings}."""
    if "cmudict-dot" in found:
        yield f"""## CMUdict

The bundled dictionary, all its words but 10 percent held out by a hash of the word; rates in
percent on the held-out test words. Published on the current dictionary without stress: word error
rate 33.9 without a network, 30.2 with a transformer.

{pronunciation(found["cmudict-dot"])}

- `python examples/g2p.py --full`"""
    pronouncing = {k: v for k, v in found.items() if k.startswith("transformer-")}
    if pronouncing:
        yield f"""## Pronunciation by a transformer

The data of the table of score functions, one seed, greedy search and a beam of 5.

{transformers(pronouncing)}

- `python benchmarks/quality/runs.py --sigmorphon DIR --names {" ".join(sorted(pronouncing))}`"""
    if "shakespeare" in found:
        result = found["shakespeare"]
        minutes = result["options"]["time_limit"]
        yield f"""## Tiny Shakespeare, letter by letter

A causal transformer and a model of the same shape made of `keras.layers` alone, each trained for
{minutes:g} minutes, in turns on the same batches; loss on the last tenth of the text, which neither
has seen.

{language(result)}

- `python benchmarks/quality/runs.py --shakespeare FILE --names shakespeare`"""
    if "python-topics" in found:
        result = found["python-topics"]
        yield f"""## Python's help topics, letter by letter

The default of examples/language_model.py: {result["characters"]["train"]:,} characters to learn,
{result["seconds"]["training"] / 60:.1f} minutes; loss on the held-out tenth.

{language(result)}

- `python benchmarks/quality/runs.py --names python-topics`"""
    if "listops" in found:
        result = found["listops"]
        yield f"""## Nested lists computed by an encoder

Expressions such as `[ MAX 2 9 [ MIN 4 7 ] 0 ]` up to depth {result["options"]["depth"]} to learn
from, {result["parameters"]:,} parameters, {result["seconds"]["training"] / 60:.1f} minutes. Always
saying the most frequent value would be right for {100 * result["most_frequent"]:.1f} percent.

{list_operations(result)}

- `python benchmarks/quality/runs.py --names listops`"""
    translations = {k: v for k, v in found.items() if k.startswith("multi30k")}
    if translations:
        one = next(iter(translations.values()))
        names = " ".join(sorted(translations))
        yield f"""## Multi30k, German to English

Test 2016, lower case, detokenised, one seed. BLEU by sacrebleu, `{one["signature"]}`.

{translation(translations)}

{worth_of_feeding(translations)}BLEU (greedy) by the number of words of the source:

{by_length(translations)}

{three_attentions(folder)}- `python benchmarks/quality/runs.py --names {names}`"""
    if "precision" in found:
        one = found["precision"]
        yield f"""## Precision

A {one["model"]} of {one["parameters"]:,} parameters that was trained on Multi30k, exported in each
precision; {one["sentences"]:,} test sentences by greedy search on {one["cores"]} cores, in batches
of 64 (LiteRT: one by one). Megabytes of the weights (LiteRT: of the file).

{precisions(one)}

- `python benchmarks/quality/precision.py MODEL.keras --data DIR`"""
    if "plain_keras" in found:
        yield f"""## The same with keras.layers alone

Icelandic, one seed, the weights of the last epoch, all four models in one run: greedy word error
rate on the test words, the median time of a training step, taken in turn, and the time of the
search. Keras has no attentional decoder and no search; see the script.

{plain_keras(found["plain_keras"])}

- `python benchmarks/quality/plain_keras.py --data DIR/ice_train.tsv`"""
    reverse = {k: v for k, v in found.items() if k.startswith("reverse")}
    if reverse:
        draw(reverse, folder / "reverse.svg")
        yield f"""## The fixed vector fails with length

Reversing strings of random letters, trained on up to 30 letters: percent of strings that are right
throughout, by length, mean and standard deviation over seeds.

{reversal(reverse)}

![Right letters by length](results/reverse.svg)

- `python benchmarks/quality/runs.py --names {" ".join(sorted(reverse))}`"""
    spoken = {k: v for k, v in found.items() if k.startswith("pronunciation")}
    if spoken:
        one = next(iter(spoken.values()))
        yield f"""## And with real words

Pronouncing {one["words"]["test"]:,} held-out words of the CMU dictionary after
{one["recipe"]["epochs"]} epochs on {one["words"]["train"]:,} others: word error rates in percent by
the number of letters, greedy search, mean and standard deviation over seeds.

{pronunciation_by_length(spoken)}

- `python benchmarks/quality/runs.py --names {" ".join(sorted(spoken))}`"""


def main(arguments=None):
    from keras_attention.whole import whole

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results.md")
    parser.add_argument("--attention", type=Path, default=ROOT / "docs" / "attention.md")
    options = parser.parse_args(arguments)
    found = load(options.folder)
    if not found:
        parser.error(f"--folder {options.folder}: no results")
    parts = ["# Results", *sections(found, options.folder)]
    parts.append(
        "All runs: one or two CPU cores, no accelerator, whatever else the machine was doing.\n"
        "Versions and settings of each run are in `docs/results/`."
    )
    with whole(options.output) as path:
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written to {options.output}")
    if "score_functions" in found and "step_times" in found:
        text = choice(found["score_functions"], found["step_times"])
        page = between_marks(options.attention.read_text("utf-8"), text)
        with whole(options.attention) as path:
            path.write_text(page, encoding="utf-8")
        print(f"written to {options.attention}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
