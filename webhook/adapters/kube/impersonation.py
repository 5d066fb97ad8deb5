"""Who asks an API server, and for how long: a person with a command, as kubectl lets them say it.

Fields that are empty are those of the kubeconfig's user, each by itself, as kubectl merges them.

Source: Kubernetes, "User impersonation"; client-go's `clientcmd` and `transport`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

NO_LIMIT_S: Final = 24 * 3600.0
"""What stands for no limit: a socket wants some number, and nobody waits for a day."""

_not_of_a_name: Final = re.compile(rb"[^!#$&'*+\-.^_`|~0-9a-z]").sub
"""Of a header (RFC 9110, `tchar`), and the sign that begins an escape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a request acts as, beside who sends it; and the time that its whole answer may take."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    """Keys, each as often as it has values."""
    limit_s: float | None = None
    """None: nobody said one; the usual patience, with retries."""

    def with_kubeconfig_user(self, user: Any) -> Identity:
        """Return this person, who is in all else what a kubeconfig's user says.

        Raises ValueError where those fields have the wrong form, or nobody is named.
        """
        said = Identity(
            user=_text(user, "as"),
            uid=_text(user, "as-uid"),
            groups=tuple(_texts(user.get("as-groups"), "as-groups")),
            extra=tuple(_extra(user.get("as-user-extra"))),
        )
        merged = Identity(
            user=self.user or said.user,
            uid=self.uid or said.uid,
            groups=self.groups or said.groups,
            extra=self.extra or said.extra,
            limit_s=self.limit_s,
        )
        if not merged.user and (merged.uid or merged.groups or merged.extra):
            raise ValueError(
                "groups, a UID or extras are impersonated with a user alone; say who with --as"
            )
        return merged

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield the headers of each request; raises ValueError where one would break the lines."""
        if self.user:
            yield "Impersonate-User", _value(self.user, "as")
        if self.uid:
            yield "Impersonate-Uid", _value(self.uid, "as-uid")
        for group in self.groups:
            yield "Impersonate-Group", _value(group, "as-group")
        for key, value in self.extra:
            yield f"Impersonate-Extra-{_escaped(key)}", _value(value, "as-user-extra")


def _text(user: Any, field: str) -> str:
    said = user.get(field)
    if said is not None and not isinstance(said, str):
        raise ValueError(f"{field} of its user must be text; put it in quotes")
    return said or ""


def _texts(said: Any, field: str) -> Iterator[str]:
    for one in () if said is None else said:
        if isinstance(said, str) or not isinstance(one, str):
            raise ValueError(f"{field} of its user must be a list of texts")  # noqa: TRY004
        yield one


def _extra(said: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(said, dict | None):
        raise ValueError("as-user-extra of its user must be an object of lists")  # noqa: TRY004
    for key, values in (said or {}).items():
        yield from ((str(key), one) for one in _texts(values, f"as-user-extra.{key}"))


def _value(text: str, option: str) -> str:
    """Return a header's value: UTF-8, as Go sends it, in the characters that Python sends."""
    if any(one < " " or one == "\x7f" for one in text):
        raise ValueError(f"{option}: {text!r} has a character that ends a line or is not printed")
    return text.encode().decode("latin-1")


def _escaped(key: str) -> str:
    """Return a key as part of a header's name, which has no capitals."""
    return _not_of_a_name(lambda one: b"%%%02X" % ord(one[0]), key.lower().encode()).decode()
