"""User impersonation and the request timeout, with the meaning of kubectl's options.

An option that is not given is taken from the kubeconfig's user, as kubectl does.

Source: Kubernetes, "User impersonation"; client-go's `clientcmd` and `transport`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

NO_LIMIT_S: Final = 24 * 3600.0
"""Timeout that stands for "no timeout", in seconds; a socket needs a number."""

_escape_name: Final = re.compile(rb"[^!#$&'*+\-.^_`|~0-9a-z]").sub
"""Escapes `%` and characters that a header name must not have (RFC 9110, `tchar`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The user to impersonate, if any, and the time limit of each request."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    """Pairs of key and value; a key may be repeated."""
    limit_s: float | None = None
    """Time limit in seconds; 0 for none, None for the default timeouts and retries."""

    def with_kubeconfig_user(self, user: Any) -> Identity:
        """Return this identity, with empty fields taken from a kubeconfig's user.

        Raises ValueError if those fields are malformed, or no user name results.
        """
        configured = Identity(
            user=_string(user, "as"),
            uid=_string(user, "as-uid"),
            groups=tuple(_string_list(user.get("as-groups"), "as-groups")),
            extra=tuple(_extra(user.get("as-user-extra"))),
        )
        merged = Identity(
            user=self.user or configured.user,
            uid=self.uid or configured.uid,
            groups=self.groups or configured.groups,
            extra=self.extra or configured.extra,
            limit_s=self.limit_s,
        )
        if not merged.user and (merged.uid or merged.groups or merged.extra):
            raise ValueError(
                "groups, a UID or extras are impersonated with a user alone; say who with --as"
            )
        return merged

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield the headers of each request; raises ValueError for control characters."""
        if self.user:
            yield "Impersonate-User", _value(self.user, "as")
        if self.uid:
            yield "Impersonate-Uid", _value(self.uid, "as-uid")
        for group in self.groups:
            yield "Impersonate-Group", _value(group, "as-group")
        for key, value in self.extra:
            yield f"Impersonate-Extra-{_escaped(key)}", _value(value, "as-user-extra")


def _string(user: Any, field: str) -> str:
    value = user.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field} of its user must be text; put it in quotes")
    return value or ""


def _string_list(values: Any, field: str) -> Iterator[str]:
    for value in () if values is None else values:
        if isinstance(values, str) or not isinstance(value, str):
            raise ValueError(f"{field} of its user must be a list of texts")  # noqa: TRY004
        yield value


def _extra(extra: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(extra, dict | None):
        raise ValueError("as-user-extra of its user must be an object of lists")  # noqa: TRY004
    for key, values in (extra or {}).items():
        yield from ((str(key), value) for value in _string_list(values, f"as-user-extra.{key}"))


def _value(text: str, option: str) -> str:
    """Return a header value whose Latin-1 encoding, which Python sends, is UTF-8 as in Go."""
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError(f"{option}: {text!r} has a character that ends a line or is not printed")
    return text.encode().decode("latin-1")


def _escaped(key: str) -> str:
    """Return a key escaped for a header name, in lower case."""
    return _escape_name(lambda found: b"%%%02X" % ord(found[0]), key.lower().encode()).decode()
