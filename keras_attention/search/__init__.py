"""Search for output sequences over a step function; runs in the graph.

result       what the searches return
step         calling the step function; its log-probabilities; checks
constraints  what a hypothesis may go on with, for all searches
walk         the loop that follows one sequence a row
greedy       the most probable token at each step
beam         the N best sequences of K beams
largest      the largest of scores, the first of equal ones first
hypotheses   sets of hypotheses as tensors
ranking      length and coverage penalty
"""

from keras_attention.search.beam import beam_search
from keras_attention.search.greedy import greedy_search
from keras_attention.search.result import BeamResult, SearchResult
from keras_attention.search.sample import sample

__all__ = ["BeamResult", "SearchResult", "beam_search", "greedy_search", "sample"]
