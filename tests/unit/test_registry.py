"""A catalogue is read without running its plug-ins; what is missing becomes a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from megatrace.errors import NotInstalled, UnknownName
from megatrace.registry import Registry, Unavailable, read_declarations

Greeter = Callable[[], str]
_serial = count()

GOOD = """
import {package} as home

@home.GREETERS.register("{name}", summary="says {name}", polite=True, tags=["a", "b"])
def greet():
    return "{name}"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A catalogue folder with one good plug-in; its name is new each time (Python caches modules)."""
    folder = tmp_path / f"greeters{next(_serial)}"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        f"from megatrace.registry import Registry\nGREETERS = Registry('greeter', '{folder.name}')\n"
    )
    (folder / "hello.py").write_text(GOOD.format(package=folder.name, name="hello"))
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def registry_of(folder: Path) -> Registry[Greeter]:
    module = __import__(folder.name)
    registry = module.GREETERS
    assert isinstance(registry, Registry)
    return registry


def test_declarations_are_read_without_importing(package: Path) -> None:
    (package / "bomb.py").write_text(
        GOOD.format(package=package.name, name="bomb") + "\nraise SystemExit('imported')\n"
    )
    greeters = registry_of(package)
    assert greeters.names() == ("bomb", "hello")
    hello = greeters.declaration("hello")
    assert (hello.summary, hello.module) == ("says hello", f"{package.name}.hello")
    assert hello.metadata == {"polite": True, "tags": ["a", "b"]}
    assert f"{package.name}.bomb" not in sys.modules


def test_only_the_module_asked_for_is_imported(package: Path) -> None:
    (package / "other.py").write_text(GOOD.format(package=package.name, name="other"))
    greeters = registry_of(package)
    assert greeters.get("hello")() == "hello"
    assert f"{package.name}.other" not in sys.modules
    assert list(greeters.available()) == ["hello", "other"]


def test_a_plugin_imported_first_is_the_same_plugin(package: Path) -> None:
    greeters = registry_of(package)
    module = __import__(f"{package.name}.hello", fromlist=["greet"])
    assert greeters.get("hello") is module.greet
    assert len(greeters.declarations()) == 1


def test_a_missing_dependency_becomes_a_reason(package: Path) -> None:
    (package / "heavy.py").write_text(
        "import no_such_third_party.part\n" + GOOD.format(package=package.name, name="heavy")
    )
    greeters = registry_of(package)
    reason = "the Python package no_such_third_party is not installed"
    assert greeters.unavailable() == (Unavailable("heavy", reason),)
    assert list(greeters.available()) == ["hello"]
    assert greeters.declaration("heavy").summary == "says heavy"
    with pytest.raises(NotInstalled, match=f"greeter heavy cannot be used here: {reason}"):
        greeters.get("heavy")


def test_a_dependency_that_does_not_load_becomes_a_reason(package: Path) -> None:
    (package / "broken.py").write_text(
        GOOD.format(package=package.name, name="broken")
        + "\nraise ImportError('libcuda.so.1: cannot open')\n"
    )
    assert registry_of(package).load("broken") == Unavailable(
        "broken", "a dependency does not import (libcuda.so.1: cannot open)"
    )


def test_a_missing_module_of_ours_is_a_bug_and_not_a_reason(package: Path) -> None:
    (package / "bug.py").write_text(
        "import megatrace.nonsense\n" + GOOD.format(package=package.name, name="bug")
    )
    with pytest.raises(ModuleNotFoundError, match=r"megatrace\.nonsense"):
        registry_of(package).load("bug")


def test_an_unknown_name_lists_the_names(package: Path) -> None:
    with pytest.raises(UnknownName, match=r"no greeter is called 'helo'; did you mean hello\?") as caught:
        registry_of(package).get("helo")
    assert caught.value.known == ("hello",)


def test_one_name_belongs_to_one_module(package: Path) -> None:
    (package / "twin.py").write_text(GOOD.format(package=package.name, name="hello"))
    with pytest.raises(ValueError, match=r"greeter hello is declared twice: in .*\.hello and in .*\.twin"):
        registry_of(package).names()


def test_a_registration_at_run_time_may_not_take_a_name(package: Path) -> None:
    greeters = registry_of(package)

    def greet() -> str:
        return "from a test"

    greeters.register("mine", summary="says mine")(greet)
    assert greeters.get("mine") is greet
    with pytest.raises(ValueError, match="greeter hello is registered twice"):
        greeters.register("hello", summary="says hello")(greet)


@pytest.mark.parametrize(
    "arguments",
    ["NAME, summary='s'", "'a'", "'a', summary=f'{1}'", "'a', 'b', summary='s'", "'a', summary='s', k=K"],
)
def test_what_cannot_be_read_without_running_is_refused(arguments: str) -> None:
    source = f"\n@register({arguments})\ndef f(): ...\n"
    with pytest.raises(ValueError, match=r"pkg\.mod line 2: a registration is one literal name"):
        read_declarations(source, module="pkg.mod", decorator="register")


def test_classes_and_wrapped_decorators_count_others_do_not() -> None:
    source = """
@verb("one", summary="s")
class One: ...

@other("two", summary="s")
@catalogue.verb("three", summary="t")
async def three(): ...

@verb
def four(): ...
"""
    found = read_declarations(source, module="m", decorator="verb")
    assert [(declared.name, declared.summary) for declared in found] == [("one", "s"), ("three", "t")]


def test_a_module_that_declares_but_does_not_register_is_a_bug(package: Path) -> None:
    (package / "liar.py").write_text(
        "def register(name, summary): return lambda f: f\n@register('liar', summary='s')\ndef f(): ...\n"
    )
    with pytest.raises(ValueError, match="declares the greeter liar but does not register it"):
        registry_of(package).load("liar")


def test_a_module_is_no_catalogue() -> None:
    with pytest.raises(ValueError, match=r"megatrace\.units is no package"):
        Registry[Greeter]("greeter", "megatrace.units").names()
