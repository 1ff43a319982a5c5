"""One list per kind of named thing: data sets, networks, initialisations, normalisations.

Settings, help and errors read these lists. A new entry is one line, and its own file::

    NETWORKS = Registry("network", {"classifier": "pointvar.models.classifier:Classifier"})
    NETWORKS.add("mine", MyNetwork)  # from outside
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Generic, TypeVar

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, for the end of a message, or nothing where no known name is like this one."""
    names = list(known)
    near = [each for each in names if each.endswith(f".{name}")] or get_close_matches(name, names, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "NoneType": "null",
}


def explained(message: str, options: Iterable[str]) -> str:
    """The message of a parser in one line and plain words; of a name that it does not know, with the most
    similar one."""
    message = " ".join(message.split())
    value = (
        r"(?:Expected a (.+)\. Got value:|Does not validate .* Subtypes: \[(.+?)\] Errors: .* Given value:)"
    )
    if found := re.fullmatch(rf'Parser key "([^"]+)": {value} (.+)', message):
        key, kind, kinds, given = found.groups()
        expected = re.sub(r"typing\.Literal\[([^]]+)\]", r"\1", kind or kinds)
        expected = re.sub(r"<class '(\w+)'>", lambda name: KINDS.get(name[1], name[1]), expected)
        one_of = "one of " if "," in expected else ""
        hint = did_you_mean(given, re.findall(r"'([^']+)'", expected))
        return f"{key} must be {one_of}{expected}, got {given}{hint}"
    forms = r"Group '(.+)' does not accept option '(.+)'|Option '(.+)' is not accepted|arguments: --([^ =]+)"
    found = re.search(forms, message)
    if found is None:
        return message
    return message + did_you_mean(
        ".".join(filter(None, found.groups())), (name.lstrip("-") for name in options)
    )


class Registry(Mapping[str, T], Generic[T]):
    """Names and what they stand for. An entry ``"module:name"`` is imported when it is first asked for.

    Args:
        kind: what the entries are, for errors: "data set".
        entries: by name, the things themselves or where they are.
    """

    def __init__(self, kind: str, entries: Mapping[str, T | str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def add(self, name: str, thing: T | str) -> None:
        """Adds an entry, or replaces the one of that name."""
        self._entries[name] = thing

    def __getitem__(self, name: str) -> T:
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = getattr(import_module(module), attribute)
        return entry

    def resolve(self, name: str) -> T:
        """The entry of that name, or an error that lists the names there are."""
        self.check(name)
        return self[name]

    def check(self, name: object) -> None:
        """Raises where there is no such name, without importing what it stands for."""
        if name not in self._entries:
            hint = did_you_mean(str(name), self._entries)
            raise ValueError(f"there is no {self.kind} {name!r}{hint}; known are {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
