# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204 - type checkers read the other branch
"""Light versions of `dataclass`, `field` and `replace` for modules that the sidecar loads.

The module `dataclasses` imports `inspect` and compiles the methods of each class from source text.
This took half of the CPU time of a sidecar's start, and a sidecar has a hundredth of a core. Here
all classes share their methods. Type checkers see the standard versions, and the standard library's
functions for dataclasses accept these classes.

Only frozen classes with slots are supported, and they must not inherit from one another.
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
        """Default value of a field, and whether the field is compared."""

        def __init__(self, *, default=None, default_factory=None, compare=True):
            self.make = default_factory or (lambda: default)
            self.compare = compare

    class _StandardFields:
        """Descriptor that creates dataclass metadata when the module `dataclasses` reads it."""

        def __get__(self, _value, owner):
            from dataclasses import make_dataclass  # noqa: PLC0415 - loaded only on demand

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

        def __setstate__(self, state):  # used by copy and pickle
            for name, value in state[1].items():
                _set(self, name, value)

    def dataclass(*, frozen, slots, kw_only=False):  # noqa: ARG001 - all are both
        """Return a decorator for a frozen class whose fields are its annotations."""

        def made(cls):
            names = tuple(cls.__annotations__)
            space = dict(vars(cls))
            del space["__dict__"], space["__weakref__"]
            said = {name: space.pop(name) for name in names if name in space}
            fields = {
                name: line if isinstance(line, field) else field(default=line)
                for name, line in said.items()
            }
            compared = [name for name in names if name not in fields or fields[name].compare]
            space |= {
                "__slots__": names,
                "__qualname__": cls.__qualname__,
                "__match_args__": () if kw_only else names,
                "_names": names,
                "_all": frozenset(names),
                "_makes": {name: found_field.make for name, found_field in fields.items()},
                "_compared": attrgetter(*compared),
            }
            return type(cls.__name__, (_Value,), space)

        return made

    def replace(value, /, **changes):
        """Return a copy of a value with some fields replaced."""
        kept = {name: getattr(value, name) for name in value._names}  # noqa: SLF001 - ours
        return type(value)(**{**kept, **changes})
