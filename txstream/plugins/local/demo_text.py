"""The demo's text: pronounceable words with the frequencies of a natural language, the same every time."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator

SEED = 20_150_401
VOCABULARY = 6_000
WORDS_PER_LINE = 10

# fmt: off
_ONSETS = ("b", "br", "d", "dr", "f", "fl", "g", "gr", "h", "k", "l", "m", "n", "p", "pl", "r", "s", "st",
           "t", "v")
# fmt: on
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_CODAS = ("", "", "", "l", "m", "n", "r", "s", "t")


def vocabulary(size: int, rng: random.Random) -> list[str]:
    """Return `size` different words: first those of one syllable, then of two, and so on, as frequent words
    are short."""
    words: dict[str, None] = {}
    for syllables in itertools.count(1):
        # Each further syllable gives eight times as many words. A few attempts repeat earlier words.
        for _ in range(120 * 8 ** (syllables - 1)):
            word = "".join(
                rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
            )
            words[word] = None
            if len(words) == size:
                return list(words)
    raise AssertionError("itertools.count does not end")


def make_text(words: int) -> list[str]:
    """Return lines of about ten words, `words` words in all. The word of rank r has the weight 1/r (Zipf)."""
    rng = random.Random(SEED)  # noqa: S311 - a text, not a secret
    known = vocabulary(VOCABULARY, rng)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(known) + 1)))
    chosen = iter(rng.choices(known, cum_weights=weights, k=words))
    return list(_lines(chosen, rng))


def _lines(words: Iterator[str], rng: random.Random) -> Iterator[str]:
    while line := list(itertools.islice(words, rng.randint(WORDS_PER_LINE - 3, WORDS_PER_LINE + 3))):
        yield " ".join(line)


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count the words in the text itself: this is the truth."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    return counts
