"""Amounts of VRAM that a message may tell people to write: those within all bounds of the rule.

They are computed from the bounds and the other amounts of the pod. No changed pod is judged for a
suggestion, so a message costs about as much as the finding that it explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from webhook.core.pod.fields import EXAMPLE_AMOUNT
from webhook.core.pod.findings import Reason
from webhook.core.pod.quantity import QuantityError, format_bytes, parse_vram
from webhook.core.pod.views import Container, effective_amount

WORK_BUDGET: Final = 2048
"""Amounts that are added up for the suggestions of one review, and entries of lists.

Beyond it the verdict is the same, without suggestions. Work is counted, not timed, so that no
message depends on load.
"""
_SMALL_EXAMPLES: Final = ("4Gi", "1Gi")
"""Examples if other containers leave no room for the usual one."""


class AmountBounds(NamedTuple):
    """Bounds on an amount of VRAM, and their owner in words."""

    owner: str
    min_bytes: int | None
    max_bytes: int | None
    per_container: bool = False
    """Whether it bounds each container's amount; otherwise the pod's amount per GPU."""

    def violations(self, asked_bytes: int) -> Iterator[tuple[Reason, str]]:
        """Yield reason and sentence of each bound that an amount violates."""
        unit = "in one container" if self.per_container else "per GPU"
        asked = f"asks for {format_bytes(asked_bytes)} {unit}; {self.owner}"
        most, least = self.max_bytes, self.min_bytes
        if most is not None and asked_bytes > most:
            yield Reason.TOO_LARGE, f"{asked} allows at most {format_bytes(most)}"
        if least is not None and asked_bytes < least:
            yield Reason.TOO_SMALL, f"{asked} wants at least {format_bytes(least)}"


class Suggestions:
    """Amounts and counts that a rule admits for a pod, until the budget of the review is spent."""

    __slots__ = ("_bounds", "_containers", "_read", "_work_left", "max_count")

    def __init__(
        self,
        containers: Sequence[Container],
        bounds: Iterable[AmountBounds] = (),
        max_count: int | None = None,
    ) -> None:
        """Take the pod's containers and the rule's bounds; without bounds every amount fits.

        The bounds are read when the first suggestion is made: most pods need none.
        """
        self._containers = containers
        self._bounds = bounds
        self._read: tuple[AmountBounds, ...] | None = None
        self._work_left = WORK_BUDGET
        self.max_count = max_count

    @property
    def bounds(self) -> tuple[AmountBounds, ...]:
        """The bounds that hold for the pod."""
        if self._read is None:
            self._read = tuple(self._bounds)
        return self._read

    def rejection(self, amounts: Mapping[str, int]) -> str | None:
        """Return the reason why amounts per GPU, by container, would be denied; None if admitted.

        It is empty if the budget is spent or there is no amount.
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
        """Return the first example that is admitted, or an empty text.

        `amounts_with` returns the pod's amounts per GPU with an example's bytes among them.
        """
        limits = [one for bound in self.bounds for one in (bound.max_bytes, bound.min_bytes) if one]
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
        """Return the sentence on a text that is no amount, and the amount that it suggests.

        The amount is empty if there is none. It is `agreed_bytes` if that is not 0. If others are
        suggested after it, and a bound limits them together, it is the only one.
        """
        if agreed_bytes:
            fits = self.rejection(amounts_with(agreed_bytes)) is None
            amount = format_bytes(agreed_bytes) if fits else ""
            return f"{error.why}; {error.advice((), amount)}", amount
        rejections = [self._rejection_of(one.amount, amounts_with) for one in error.guesses]
        fitting = [one for one, why in zip(error.guesses, rejections, strict=True) if why is None]
        if not is_last and any(one.max_bytes for one in self.bounds):
            fitting = fitting[:1]
        if fitting:
            return f"{error.why}; {error.advice(fitting, '')}", fitting[0].amount
        example = self.example(amounts_with)
        if rejections and rejections[0]:
            do = f"; write e.g. {example}" if example else ""
            denied = f"{error.guesses[0].amount} would be denied: {rejections[0]}{do}"
            return f"{error.why}; {denied}", example
        return f"{error.why}; {error.advice((), example)}", example

    def _rejection_of(
        self, text: str, amounts_with: Callable[[int], Mapping[str, int]]
    ) -> str | None:
        try:
            return self.rejection(amounts_with(parse_vram(text)))
        except QuantityError as error:
            return f"{text} {error.why}"
