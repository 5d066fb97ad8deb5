"""The classes of `frozen` behave like standard dataclasses in all features that we use."""

import copy
import dataclasses

import pytest

from webhook.core import frozen


def outcome(text, made_by):
    """Return the value of an expression on two classes, or the type of its error."""
    field, replace = made_by.field, made_by.replace

    @made_by.dataclass(frozen=True, slots=True)
    class Place:
        """Some text."""

        pid: int
        command: str = field(default="", compare=False)
        seen: dict[str, int] = field(default_factory=dict, compare=False)

        @property
        def next(self):
            return self.pid + 1

    @made_by.dataclass(frozen=True, slots=True, kw_only=True)
    class Cap:
        cap_bytes: int
        late_s: float = 0.0

    known = {"Place": Place, "Cap": Cap, "a": Place(1, "a"), "cap": Cap(cap_bytes=1)}
    known |= {"replace": replace, "copy": copy.copy, "dataclasses": dataclasses}
    try:
        return repr(eval(text, known))  # noqa: S307 - of the list below
    except (TypeError, AttributeError) as error:
        return next(item for item in (TypeError, AttributeError) if isinstance(error, item))


@pytest.mark.parametrize(
    "text",
    [
        "a, Place(pid=1, seen={'a': 1}), cap, Cap(cap_bytes=1, late_s=2)",
        "a == Place(1), a == Place(2), a == 1, Place(1) != cap, a == copy(a)",
        "len({a, Place(1), Place(2)}), hash(cap) == hash(Cap(cap_bytes=1))",
        "hash(Cap(cap_bytes={}))",
        "a.next, Place.__doc__, Place.__qualname__, Place.__match_args__, Cap.__match_args__",
        "replace(a, command='b'), replace(cap, late_s=2.0), replace(a)",
        "a.seen is a.seen, a.seen is Place(1).seen",
        "dataclasses.replace(a, pid=2), dataclasses.asdict(cap), dataclasses.is_dataclass(a)",
        "[one.name for one in dataclasses.fields(Place)]",
        *("Place()", "Place(1, '', {}, 4)", "Place(1, pid=1)", "Place(1, gpu=1)", "Cap(1)"),
        *("replace(a, gpu=1)", "setattr(a, 'pid', 2)", "delattr(a, 'pid')", "a.__dict__"),
    ],
)
def test_a_value_is_as_one_of_the_standard_library(text):
    assert outcome(text, frozen) == outcome(text, dataclasses)
