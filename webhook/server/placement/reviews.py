"""Reviews of Bindings: from memory where that is enough, else on a thread that may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from webhook.core.placement.binding_review import (
    BindingOutcome,
    BindingReason,
    Verdict,
    answered,
    read_binding,
)
from webhook.core.pod.findings import MalformedObjectError
from webhook.server.reviews import Answer, Review, Reviews

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.core.placement.binding_review import Binding
    from webhook.core.pod.request import Request
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics
    from webhook.server.placement.binder import Binder

    N = TypeVar("N", Verdict, Verdict | None)

_NOT_A_BINDING: Final = Verdict(BindingOutcome.UNTOUCHED, BindingReason.NOT_A_BINDING)
_BY_NAME: Final = Verdict(
    BindingOutcome.UNTOUCHED,
    BindingReason.NO_UID,
    "the Binding has no metadata.uid, so nothing is reserved: a name may be another pod's by now",
)
_NOT_CONFIGURED: Final = Verdict(
    BindingOutcome.UNAVAILABLE,
    BindingReason.NOT_CONFIGURED,
    "this server does not place pods: it was started without --placement-namespace",
)


class BindingReviews:
    """Answers reviews of Bindings."""

    def __init__(self, binder: Binder | None, metrics: Metrics, log: JsonLog) -> None:
        """Decide by `binder`; without one every Binding is denied."""
        self._binder = binder
        self._reviews = Reviews(metrics, log)

    def read(self, body: bytes) -> Review | Answer:
        """Read a review; return the answer where the body is none."""
        return self._reviews.read("bind", body)

    def at_once(self, review: Review) -> Answer | None:
        """Answer a review from memory; None where the API server has to be asked (`answer`)."""
        return self._reviews.answer(review, self._from_memory)

    def answer(self, review: Review) -> Answer:
        """Answer any review; may wait for the API server, so give it a thread."""
        return self._reviews.answer(review, self._bind)

    def _from_memory(self, request: Request) -> Verdict | None:
        return self._decided(request, lambda binder, binding: binder.from_memory(binding))

    def _bind(self, request: Request) -> Verdict:
        dry_run = request.dry_run
        return self._decided(request, lambda binder, it: binder.bind(it, dry_run=dry_run))

    def _decided(self, request: Request, decide: Callable[[Binder, Binding], N]) -> Verdict | N:
        """Return the verdict where no binder is needed, else what `decide` returns."""
        try:
            binding = read_binding(request)
        except MalformedObjectError as error:
            return Verdict(BindingOutcome.MALFORMED, message=str(error))
        if binding is None:
            return _NOT_A_BINDING
        if not binding.uid:
            return answered(binding, _BY_NAME)
        verdict = decide(self._binder, binding) if self._binder else _NOT_CONFIGURED
        return verdict and answered(binding, verdict)
