"""Catalogues of plug-ins: a folder of files, each of which registers itself by a decorator.

A `Registry` stands in the `__init__` of such a folder. What a plug-in declares (name, summary, metadata) is
read from its source text, without importing it: help, documentation and configuration keys of a hundred
plug-ins then cost no import of numpy or of a third party, and a plug-in whose dependency is missing still
has a name and a reason. This is why the arguments of the decorator must be literals. A module is imported
when one of its entries is asked for.

It does not know what a plug-in does, reads no entry points of other distributions, and has no notion of time.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from megatrace.errors import NotInstalled, UnknownName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a plug-in says of itself. `metadata` holds literals; `module` is where it stands."""

    name: str
    summary: str
    module: str
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A declared plug-in that cannot be imported here, with the reason in words."""

    name: str
    reason: str


class Registry(Generic[T]):
    """The catalogue of one kind of plug-in, found in the modules of one package.

    `kind` is the word for error messages ("reader"), `package` the dotted name of the folder, `decorator`
    the name under which plug-in files write the registering decorator (`@registry.register(...)` or, with a
    wrapper of the package's own, say `@command(...)`).
    """

    def __init__(self, kind: str, package: str, *, decorator: str = "register") -> None:
        self.kind = kind
        self.package = package
        self.decorator = decorator
        self._declared: dict[str, Declaration] | None = None
        self._values: dict[str, T] = {}

    def register(self, name: str, *, summary: str, **metadata: object) -> Callable[[T], T]:
        """A decorator that files its object under `name`. Raises ValueError if the name is taken."""

        def file(value: T) -> T:
            module = str(getattr(value, "__module__", ""))
            declared = self._scan()
            known = declared.setdefault(name, Declaration(name, summary, module, metadata))
            if known.module != module:
                raise ValueError(f"{self.kind} {name} is registered twice: in {known.module} and in {module}")
            self._values[name] = value
            return value

        return file

    def names(self) -> tuple[str, ...]:
        """The names there are, sorted, whether or not they can be imported here."""
        return tuple(sorted(self._scan()))

    def declarations(self) -> tuple[Declaration, ...]:
        """What every plug-in says of itself, sorted by name. Imports none of them."""
        declared = self._scan()
        return tuple(declared[name] for name in sorted(declared))

    def declaration(self, name: str) -> Declaration:
        """What one plug-in says of itself. Raises UnknownName."""
        try:
            return self._scan()[name]
        except KeyError:
            raise UnknownName(self.kind, name, self._scan()) from None

    def get(self, name: str) -> T:
        """The plug-in itself; imports its module. Raises UnknownName, or NotInstalled with the reason."""
        found = self.load(name)
        if isinstance(found, Unavailable):
            raise NotInstalled(self.kind, name, found.reason)
        return found

    def load(self, name: str) -> T | Unavailable:
        """The plug-in, or why it cannot be had. Raises UnknownName.

        Only a dependency that does not import makes a plug-in unavailable. An error of our own (a module of
        MegaTrace that does not exist, a plug-in that registers nothing) is a bug and is raised as such.
        """
        module = self.declaration(name).module
        if name not in self._values:
            try:
                importlib.import_module(module)
            except ImportError as error:
                if (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
                    raise
                return Unavailable(name, _reason(error))
        if name not in self._values:
            raise ValueError(
                f"{module} declares the {self.kind} {name} but does not register it when imported"
            )
        return self._values[name]

    def available(self) -> dict[str, T]:
        """All plug-ins that can be imported here, by name, in order of name."""
        loaded = {name: self.load(name) for name in self.names()}
        return {name: value for name, value in loaded.items() if not isinstance(value, Unavailable)}

    def unavailable(self) -> tuple[Unavailable, ...]:
        """Those that cannot be imported here, each with its reason."""
        loaded = [self.load(name) for name in self.names()]
        return tuple(value for value in loaded if isinstance(value, Unavailable))

    def _scan(self) -> dict[str, Declaration]:
        if self._declared is None:
            declared: dict[str, Declaration] = {}
            for found in self._read_package():
                earlier = declared.setdefault(found.name, found)
                if earlier is not found:
                    both = f"in {earlier.module} and in {found.module}"
                    raise ValueError(f"{self.kind} {found.name} is declared twice: {both}")
            self._declared = declared
        return self._declared

    def _read_package(self) -> list[Declaration]:
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.submodule_search_locations is None:
            raise ValueError(f"{self.package} is no package, so it can hold no {self.kind}")
        found: list[Declaration] = []
        for info in pkgutil.iter_modules(spec.submodule_search_locations):
            module = f"{self.package}.{info.name}"
            found.extend(read_declarations(_source(module), module=module, decorator=self.decorator))
        return found


def read_declarations(source: str, *, module: str, decorator: str) -> list[Declaration]:
    """The declarations in the source text of a plug-in: one per use of the decorator on a function or class.

    Raises ValueError, naming module and line, where an argument is not a literal or the summary is missing.
    """
    found: list[Declaration] = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        calls = [call for call in node.decorator_list if isinstance(call, ast.Call)]
        found.extend(_declaration(call, module) for call in calls if _called(call) == decorator)
    return found


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _declaration(call: ast.Call, module: str) -> Declaration:
    try:
        (name,) = [ast.literal_eval(argument) for argument in call.args]
        metadata = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        summary = metadata.pop("summary")
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{module} line {call.lineno}: a registration is one literal name, summary= and literal "
            f"metadata, for it is read without running the module ({error})"
        ) from error
    return Declaration(str(name), str(summary), module, metadata)


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    loader = spec.loader if spec is not None else None
    get_source = getattr(loader, "get_source", None)
    source = get_source(module) if get_source is not None else None
    if source is None:
        raise ValueError(f"{module} has no source text, so what it declares cannot be read")
    return str(source)


def _reason(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"the Python package {error.name.partition('.')[0]} is not installed"
    return f"a dependency does not import ({error})"
