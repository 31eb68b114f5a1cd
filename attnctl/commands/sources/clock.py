"""Tell how much of a search for sources is over: by the seconds that forwards took, and what forwards to come will take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

APART = 1.5  # how many times as long as the shortest forward the longest is, for a line through their times


@dataclass(frozen=True)
class ForwardCost:
    """The seconds of a forward with a cache: a fixed time, and a time for each token that it reads."""

    fixed: float
    each: float

    def seconds_of(self, tokens: float) -> float:
        """Return the seconds of a forward over this many tokens."""
        return self.fixed + self.each * tokens


def fitted_cost(timed: Sequence[tuple[int, float]]) -> ForwardCost:
    """Return the cost of forwards from the tokens and seconds of each, by least squares.

    Lengths that are near each other do not show a fixed time, which is 0 then.
    """
    tokens, seconds = np.array(timed, float).T  # (forwards,) each
    each, fixed = np.polyfit(tokens, seconds, 1) if _are_spread(timed) else (1.0, 0.0)
    if each <= 0:
        return ForwardCost(float(seconds.mean()), 0.0)
    if fixed <= 0:
        return ForwardCost(0.0, float(seconds.sum() / tokens.sum()))
    return ForwardCost(float(fixed), float(each))


def _are_spread(timed: Sequence[tuple[int, float]]) -> bool:
    tokens = [tokens for tokens, _ in timed]
    return max(tokens, default=0) > APART * min(tokens, default=0)


@dataclass
class SearchClock:
    """The time of a search whose forwards come in rounds, in each of which `at_once` of them run beside each other."""

    at_once: int
    seconds: float = 0.0  # so far
    timed: list[tuple[int, float]] = field(default_factory=list)  # tokens of a forward, its seconds over those at once
    _left: int = 0  # forwards of this round that are not over
    _before: tuple[int, float] = (0, 0.0)  # forwards and seconds before this round
    _starts: deque[float] = field(default_factory=deque)  # of the forwards under way
    _last: float = 0.0  # when something ended
    _first_share: tuple[float, float] | None = None  # seconds and share when it was first asked for

    def begin_round(self, forwards: int) -> None:
        """Begin a round of this many forwards."""
        self._left, self._before, self._last = forwards, (len(self.timed), self.seconds), perf_counter()
        self._starts = deque([self._last] * self._threads(forwards))

    def end_forward(self, tokens: int) -> None:
        """Note that the next forward of the round is over, which read this many tokens."""
        now, threads = perf_counter(), len(self._starts)
        self.timed.append((tokens, (now - self._starts.popleft()) / threads))
        self._starts.append(now)
        self._left -= 1
        self.seconds += now - self._last
        self._last = now

    def _threads(self, forwards: int) -> int:
        return min(self.at_once, forwards)

    @property
    def cost(self) -> ForwardCost:
        """Return what a forward costs; the first of each thread is slow to start, and does not count once others suffice."""
        others = self.timed[self.at_once :]
        return fitted_cost(others if _are_spread(others) else self.timed)

    def seconds_left(self, rounds: Sequence[Sequence[int]]) -> float:
        """Return the seconds of rounds to come, by the tokens of their forwards; the first goes on, if it has begun."""
        cost, (forwards_before, seconds_before) = self.cost, self._before
        left = 0.0
        for place, tokens in enumerate(rounds):
            goes_on = self._left > 0 and place == 0
            each = [seconds for _, seconds in self.timed[forwards_before:]] if goes_on else []
            each += map(cost.seconds_of, tokens)
            longest = self._threads(len(each)) * max(each, default=0.0)  # the longest forward ends a round
            whole = max(sum(each), longest)
            left += max(0.0, whole - (self.seconds - seconds_before)) if goes_on else whole
        return left

    def share_done(self, left: float) -> float:
        """Return which share of the search is over, 0 to 1, if it takes `left` seconds more.

        What is over since the first call is shared out by the seconds that are left as they are known now, so that the speed
        since then tells these seconds.
        """
        if self._first_share is None:
            self._first_share = self.seconds, self.seconds / (self.seconds + left)
        seconds, share = self._first_share
        since = self.seconds - seconds
        return share + (1 - share) * since / (since + left) if since else share
