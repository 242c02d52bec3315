"""The kinds of attention that the examples offer, as options of `seq2seq`."""

SCORES = ("dot", "general", "concat", "location")
LOCAL = {"local-m": "monotonic", "local-p": "predictive"}
ATTENTIONS = ("bahdanau", *SCORES, *LOCAL, "none")
HELP = """\
bahdanau: attends before the recurrent cell, as Bahdanau et al. 2015 do
dot, general, concat, location: Luong's scores (2015), after the cell
local-m: general, but step t sees only the characters around the t-th
local-p: general, but a step predicts the place around which it looks
none: the encoder's last state is all that the decoder sees
(default: %(default)s)"""


def add_attention(parser, default="dot"):
    """Adds --attention and --input-feeding to a parser or a group of it."""
    parser.add_argument("--attention", choices=ATTENTIONS, default=default, help=HELP)
    parser.add_argument(
        "--input-feeding",
        action="store_true",
        help="the output of a step goes into the next; attention is then always after the cell",
    )


def attention_options(name, input_feeding=False, window=5, longest_source=100):
    """The options of `seq2seq` that a name stands for.

    Args:
        name: one of ATTENTIONS.
        input_feeding: whether the decoder is fed its last output.
        window: how far from its place local attention sees, to either side.
        longest_source: the most tokens of a source, which the location score has weights for.

    Returns:
        A dictionary for `seq2seq(source, target, **options)`.

    Raises:
        ValueError: if there is no such name.
    """
    if name not in ATTENTIONS:
        raise ValueError(f"Expected `name` to be one of {', '.join(ATTENTIONS)}, got {name!r}")
    options = {"attention": None if name == "none" else name}
    if name == "location":
        options["attention_options"] = {"max_memory": longest_source}
    elif name in LOCAL:
        options["attention"] = "general"
        options["attention_options"] = {"local": LOCAL[name], "window": window}
    # Only Luong's decoder can be fed its output, so it is the decoder of every score then.
    return {**options, "decoder": "luong", "input_feeding": True} if input_feeding else options
