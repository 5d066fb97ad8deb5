"""Decision on the admission review of a pod."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from webhook.core.bounds import MAX_SENTENCE_LENGTH
from webhook.core.formatting import shorten
from webhook.core.pod.fields import Json
from webhook.core.pod.findings import Finding, join_findings
from webhook.core.pod.patch import Operation, apply_patch
from webhook.core.pod.request import BAD_REQUEST, FORBIDDEN

_LOGGED_FINDINGS: Final = 16


class Phase(StrEnum):
    """Phases of admission, by their Kubernetes names."""

    MUTATE = "mutate"
    VALIDATE = "validate"


class Outcome(StrEnum):
    """Outcome of a review."""

    ALLOWED = "allowed"
    MUTATED = "mutated"
    DENIED = "denied"
    WARNED = "warned"
    AUDITED = "audited"
    SKIPPED = "skipped"
    MALFORMED = "malformed"


class Skip(StrEnum):
    """Reason why a review is allowed without judging the pod."""

    NOT_A_POD = "NotAPod"
    OPERATION = "Operation"
    SUBRESOURCE = "Subresource"
    MIRROR_POD = "MirrorPod"
    NO_RULE = "NoRule"
    RULE_IGNORES = "RuleIgnores"


# Not frozen, like `views.Pod`. Without slots, since cached properties need a dictionary.
@dataclass(kw_only=True)
class Decision:
    """Decision on a review, and the reasons for it; immutable by convention."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    patch: tuple[Operation, ...] = ()
    rule: str = ""
    policy: str = ""
    """First 12 hex digits of the policy's digest."""
    skip: Skip | None = None
    malformed: str = ""
    """Message about an object that cannot be read; empty if it can be read."""
    notes: tuple[str, ...] = ()
    """Warnings that are returned whatever the outcome."""
    unread_keys: tuple[str, ...] = ()
    """Warnings about vramwarden keys that nothing reads. The command `admit` counts them as
    findings."""
    guidance: str = ""
    """The platform team's message that follows the findings; may be empty."""
    advice_bytes: int | None = None
    """Bytes of VRAM per GPU that a new pod requests, if advice may be given; otherwise None."""
    advice_path: str = ""
    """Path of the field that requests `advice_bytes`."""
    silent: bool = False
    """True if findings are only recorded, and the caller gets neither findings nor hints."""
    original: Json = field(default_factory=dict, repr=False, compare=False)
    """The object in the request."""

    def with_advice(self, advice: str) -> Decision:
        """Return the decision with the advice as a warning, unless `advice` is empty."""
        warning = f"{self.advice_path}: {advice}"
        return replace(self, notes=(*self.notes, warning)) if advice else self

    @cached_property
    def obj(self) -> Json:
        """The object with the patch applied."""
        return apply_patch(self.original, self.patch) if self.patch else self.original

    @property
    def allowed(self) -> bool:
        """True if the API server may proceed."""
        return self.outcome not in {Outcome.DENIED, Outcome.MALFORMED}

    @property
    def message(self) -> str:
        """Message of a denial."""
        message = self.malformed or join_findings(self.findings)
        return f"{message}. {self.guidance}" if self.guidance else message

    @property
    def code(self) -> int:
        """HTTP status code of a denial."""
        return BAD_REQUEST if self.malformed else FORBIDDEN

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that the API server returns to the caller of an allowed request."""
        hints = (*self.unread_keys, *self.notes)
        if self.outcome is not Outcome.WARNED:
            return hints
        guidance = (self.guidance,) if self.guidance else ()
        return (*map(str, self.findings), *guidance, *hints)

    @cached_property
    def log_message(self) -> str:
        """The findings in one line, for the webhook's log and the audit log; may be empty.

        The message is cut, since a tenant's pod can make it long. The response to the tenant is not
        cut.
        """
        return shorten(
            self.malformed or join_findings(self.findings[:_LOGGED_FINDINGS], "; "),
            MAX_SENTENCE_LENGTH,
        )

    @property
    def audit_annotations(self) -> dict[str, str]:
        """Annotations of the audit event, in addition to outcome and reasons."""
        annotations = {"rule": self.rule, "policy": self.policy}
        return {**annotations, "message": self.log_message} if self.log_message else annotations

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields of the log entry, in addition to outcome and reasons."""
        fields: dict[str, Any] = {
            "rule": self.rule,
            "policy": self.policy,
            "patchOps": len(self.patch),
        }
        if self.log_message:
            fields["why"] = self.log_message
        if self.unread_keys or self.notes:
            fields["notes"] = (*self.unread_keys, *self.notes)
        return fields

    @property
    def reasons(self) -> tuple[str, ...]:
        """The distinct reasons of the findings, or the reason why the review was skipped."""
        if self.skip:
            return (self.skip.value,)
        return tuple(dict.fromkeys(finding.reason.value for finding in self.findings))
