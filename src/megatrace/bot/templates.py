"""Templates of machine types: what every node of a type should look like, learned, compared, tried in shadow.

A template is YAML. ``inherits`` names another one (beside it, or one of those that come with MegaTrace),
whose values it takes and overrides; null takes a value away. ``limits`` holds thresholds of checks (``limits:
{BMC-04: {inlet_c: 35}}``); everything else are facts by family, as ``bot.facts`` collects them. Flattened
("gpu.count") it is what checks ask for.

Learning proposes by majority what a person then reviews: a value that most healthy nodes share is the type's,
one that varies from node to node is nobody's fault and is left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from megatrace.bot.facts import Facts
from megatrace.errors import ConfigError, UnknownName, UsageError

BUILT_IN = Path(__file__).parent / "machine_types"
MAX_BYTES = 1 << 20
MAX_DEPTH = 8
"""Templates that inherit from each other: type, cluster, rack are three."""
MAJORITY = 0.8
"""Share of nodes that must agree. Four of five: one odd node in five is a fault, two are two types."""
LEAST_NODES = 3
"""With two nodes there is no majority."""
HELD_ABOVE = 0.02
"""Share of nodes whose verdict may change without a person's word: more is the template's fault, not
theirs."""


# ---- reading


def names() -> tuple[str, ...]:
    """The templates that come with MegaTrace."""
    return tuple(sorted(path.stem for path in BUILT_IN.glob("*.yaml")))


def load(name: str | Path) -> dict[str, object]:
    """A template, flattened, with what it inherits. Raises UnknownName, UsageError, ConfigError."""
    return flatten(_tree(_find(str(name), None), ()))


def _find(name: str, beside: Path | None) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path if beside is None or path.is_absolute() else beside.parent / path
    near = beside.parent / f"{name}.yaml" if beside is not None else None
    if near is not None and near.is_file():
        return near
    found = BUILT_IN / f"{name}.yaml"
    if not found.is_file() or found.parent != BUILT_IN:
        raise UnknownName("template", name, names())
    return found


def _tree(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path in above or len(above) >= MAX_DEPTH:
        chain = " → ".join(item.name for item in (*above, path))
        raise ConfigError("inherits", chain, "templates that do not inherit from themselves", path=str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"the template {path} has more than {MAX_BYTES >> 20} MiB")
        found = yaml.safe_load(data) or {}
    except OSError as error:
        raise UsageError(f"the template {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise ConfigError("the template", said[:80], "YAML", path=str(path)) from None
    if not isinstance(found, dict):
        raise ConfigError("the template", found, "keys with values", path=str(path))
    parent = found.pop("inherits", None)
    if parent is None:
        return found
    if not isinstance(parent, str):
        raise ConfigError("inherits", parent, "the name of one template", path=str(path))
    return _over(_tree(_find(parent, path), (*above, path)), found)


def _over(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in more.items():
        name = str(key)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = _over(merged[name], value)
        else:
            merged[name] = value
    return merged


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Dotted keys; a level that is not a leaf is there too, as a mapping, for who wants all of it at once."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat[name] = value
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
    return flat


# ---- learning


def learn(machines: Sequence[Facts], majority: float = MAJORITY) -> tuple[dict[str, object], dict[str, str]]:
    """Values that the majority shares, by key, and the other keys with why they are left out.

    Raises UsageError for fewer machines than make a majority."""
    if len(machines) < LEAST_NODES:
        raise UsageError(f"{len(machines)} machines make no majority: record {LEAST_NODES} or more")
    learned: dict[str, object] = {}
    left: dict[str, str] = {}
    for key in sorted({key for machine in machines for key in machine.known}):
        votes = Counter(_vote(machine.known[key]) for machine in machines if key in machine.known)
        top, count = votes.most_common(1)[0]
        if count >= majority * len(machines):
            learned[key] = json.loads(top)
        elif len(votes) == 1:
            left[key] = f"only {count} of {len(machines)} machines have it"
        else:
            left[key] = f"{len(votes)} different values, the most frequent {count} times"
    return learned, left


def _vote(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def as_yaml(learned: Mapping[str, object], name: str, about: str) -> str:
    """The proposal as a file for a person to review; keys stay dotted below their family."""
    families: dict[str, dict[str, object]] = {}
    for key, value in learned.items():
        family, _, rest = key.partition(".")
        families.setdefault(family, {})[rest] = value
    head = "".join(f"# {line}\n" for line in about.splitlines())
    return head + yaml.safe_dump({"name": name, **families}, sort_keys=True, allow_unicode=True, width=110)
