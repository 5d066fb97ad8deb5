"""Suggested amounts of VRAM in messages, all of which the rule admits.

Suggestions are computed from the rule's bounds and the pod's other amounts, without judging a
changed pod. So a suggestion costs about the same as its finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from webhook.core.pod.fields import EXAMPLE_AMOUNT
from webhook.core.pod.findings import Reason
from webhook.core.pod.quantity import QuantityError, format_bytes, parse_vram
from webhook.core.pod.views import Container, effective_amount

WORK_BUDGET: Final = 2048
"""Maximum number of amounts that are added up for the suggestions of one review.

Beyond this maximum the verdict is the same but has no suggestions. Work is counted, not timed, so
that messages do not depend on load.
"""
_SMALL_EXAMPLES: Final = ("4Gi", "1Gi")
"""Examples if other containers leave too little memory for the usual example."""


class AmountBounds(NamedTuple):
    """Bounds on an amount of VRAM in bytes, and their owner, such as `rule "team"`."""

    owner: str
    min_bytes: int | None
    max_bytes: int | None
    per_container: bool = False
    """True for bounds on each container's amount; False for bounds on the pod's amount per GPU."""

    def violations(self, requested_bytes: int) -> Iterator[tuple[Reason, str]]:
        """Yield the reason and the sentence for each violated bound."""
        unit = "in one container" if self.per_container else "per GPU"
        asked = f"asks for {format_bytes(requested_bytes)} {unit}; {self.owner}"
        most, least = self.max_bytes, self.min_bytes
        if most is not None and requested_bytes > most:
            yield Reason.TOO_LARGE, f"{asked} allows at most {format_bytes(most)}"
        if least is not None and requested_bytes < least:
            yield Reason.TOO_SMALL, f"{asked} wants at least {format_bytes(least)}"


class Suggestions:
    """Amounts and GPU counts that a rule admits for a pod, within the work budget of a review."""

    __slots__ = ("_bounds", "_containers", "_read", "_work_left", "max_count")

    def __init__(
        self,
        containers: Sequence[Container],
        bounds: Iterable[AmountBounds] = (),
        max_count: int | None = None,
    ) -> None:
        """Create suggestions for the pod's containers. Without bounds every amount is admitted.

        `bounds` is only iterated for the first suggestion, since most pods need no suggestion.
        """
        self._containers = containers
        self._bounds = bounds
        self._read: tuple[AmountBounds, ...] | None = None
        self._work_left = WORK_BUDGET
        self.max_count = max_count

    @property
    def bounds(self) -> tuple[AmountBounds, ...]:
        """The bounds that apply to the pod."""
        if self._read is None:
            self._read = tuple(self._bounds)
        return self._read

    def rejection(self, amounts: Mapping[str, int]) -> str | None:
        """Return the reason why amounts per GPU would be denied, or None if they would be admitted.

        The reason is empty if the work budget is spent or there are no amounts.
        """
        self._work_left -= len(self._containers) + len(amounts)
        if self._work_left < 0 or not amounts:
            return ""
        per_gpu_bytes = effective_amount(self._containers, amounts, 0)
        for bound in self.bounds:
            asked = max(amounts.values()) if bound.per_container else per_gpu_bytes
            for _, sentence in bound.violations(asked):
                return sentence
        return None

    def example(self, amounts_with: Callable[[int], Mapping[str, int]]) -> str:
        """Return the first admitted example, or an empty string if the rule admits none.

        `amounts_with` returns the pod's amounts per GPU with the given number of bytes.
        """
        limits = [
            item for bound in self.bounds for item in (bound.max_bytes, bound.min_bytes) if item
        ]
        for text in (EXAMPLE_AMOUNT, *map(format_bytes, limits), *_SMALL_EXAMPLES):
            if self.rejection(amounts_with(parse_vram(text))) is None:
                return text
        return ""

    def describe_malformed(
        self,
        error: QuantityError,
        amounts_with: Callable[[int], Mapping[str, int]],
        agreed_bytes: int = 0,
        *,
        is_last: bool = True,
    ) -> tuple[str, str]:
        """Return the sentence for a malformed amount, and the suggested amount.

        The suggested amount is `agreed_bytes` unless this is 0, or empty if no suggestion is
        admitted. The sentence has a single amount if more suggestions follow and a maximum limits
        the sum.
        """
        if agreed_bytes:
            fits = self.rejection(amounts_with(agreed_bytes)) is None
            amount = format_bytes(agreed_bytes) if fits else ""
            return f"{error.why}; {error.advice((), amount)}", amount
        rejections = [self._reject_amount(guess.amount, amounts_with) for guess in error.guesses]
        fitting = [
            guess for guess, why in zip(error.guesses, rejections, strict=True) if why is None
        ]
        if not is_last and any(bound.max_bytes for bound in self.bounds):
            fitting = fitting[:1]
        if fitting:
            return f"{error.why}; {error.advice(fitting, '')}", fitting[0].amount
        example = self.example(amounts_with)
        if rejections and rejections[0]:
            do = f"; write e.g. {example}" if example else ""
            denied = f"{error.guesses[0].amount} would be denied: {rejections[0]}{do}"
            return f"{error.why}; {denied}", example
        return f"{error.why}; {error.advice((), example)}", example

    def _reject_amount(
        self, text: str, amounts_with: Callable[[int], Mapping[str, int]]
    ) -> str | None:
        try:
            return self.rejection(amounts_with(parse_vram(text)))
        except QuantityError as error:
            return f"{text} {error.why}"
