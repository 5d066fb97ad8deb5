# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204 - type checkers read the other branch
"""`dataclass`, `field` and `replace` for the values that the sidecar loads.

Those of `dataclasses` import `inspect`, and compile the methods of each class from a text: half of
the CPU that a sidecar took to start, and it gets a hundredth of a core. Here all classes share
their methods. A type checker sees the standard ones, and whatever the standard library does with
its own values, it does with these.

What they know is what our values need: frozen, with slots, and no base of ours.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

__all__ = ["dataclass", "field", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:
    _set = object.__setattr__

    class field:  # noqa: N801 - as the standard one
        """What a class says of a field beyond its type."""

        def __init__(self, *, default=None, default_factory=None, compare=True):
            self.make = default_factory or (lambda: default)
            self.compare = compare

    class _StandardFields:
        """Describes the fields as `dataclasses` does, when it asks."""

        def __get__(self, _value, owner):
            from dataclasses import make_dataclass  # noqa: PLC0415 - it is what we do without

            return make_dataclass(owner.__name__, owner._names).__dataclass_fields__  # noqa: SLF001

    class _Value:
        __slots__ = ()
        __dataclass_fields__ = _StandardFields()

        def __init__(self, *given, **named):
            names = self.__match_args__
            if len(given) > len(names):
                raise TypeError(f"{len(given)} values for the fields {names}")
            for name, value in zip(names, given, strict=False):
                if name in named:
                    raise TypeError(f"two values for the field {name}")
                named[name] = value
            for name, make in self._makes.items():
                if name not in named:
                    named[name] = make()
            if named.keys() != self._all:
                raise TypeError(f"not the fields {self._names}, but {tuple(named)}")
            for name, value in named.items():
                _set(self, name, value)

        def __eq__(self, other):
            if type(other) is not type(self):
                return NotImplemented
            return self._compared(self) == self._compared(other)

        def __hash__(self):
            return hash(self._compared(self))

        def __repr__(self):
            shown = (f"{name}={getattr(self, name)!r}" for name in self._names)
            return f"{type(self).__qualname__}({', '.join(shown)})"

        def __setattr__(self, name, _value):
            raise AttributeError(f"{name!r} is of a value, which never changes")

        def __delattr__(self, name):
            self.__setattr__(name, None)

        def __setstate__(self, state):  # of a copy
            for name, value in state[1].items():
                _set(self, name, value)

    def dataclass(*, frozen, slots, kw_only=False):  # noqa: ARG001 - all are both
        """Make a class of values; its fields are its annotations."""

        def made(cls):
            names = tuple(cls.__annotations__)
            space = dict(vars(cls))
            del space["__dict__"], space["__weakref__"]
            said = {name: space.pop(name) for name in names if name in space}
            fields = {
                name: one if isinstance(one, field) else field(default=one)
                for name, one in said.items()
            }
            compared = [name for name in names if name not in fields or fields[name].compare]
            space |= {
                "__slots__": names,
                "__qualname__": cls.__qualname__,
                "__match_args__": () if kw_only else names,
                "_names": names,
                "_all": frozenset(names),
                "_makes": {name: one.make for name, one in fields.items()},
                "_compared": attrgetter(*compared),
            }
            return type(cls.__name__, (_Value,), space)

        return made

    def replace(value, /, **changes):
        """Return a value of the same class in which these fields are others."""
        kept = {name: getattr(value, name) for name in value._names}  # noqa: SLF001 - ours
        return type(value)(**{**kept, **changes})
