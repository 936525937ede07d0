"""Read configuration files: YAML, types of values, and errors that name file, key, value and the nearest valid name."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from longdecode.engine.errors import ConfigError, unknown_name

T = TypeVar("T")
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)
_REFUSED, _MOST_SHOWN = "refused", 400
MOST_NODES = 200_000
"""Values of a file once its aliases are written out; the largest configuration has about 2,000."""


def wrong(problem: str, key: str = "") -> PydanticCustomError:
    """Make the error of a validator.

    Args:
        problem: the sentence after file and key.
        key: dotted key below the place of the validator.
    """
    return PydanticCustomError(_REFUSED, "{problem}", {"problem": problem, "key": key})


def require_known(kind: str, names: Iterable[str], valid: Iterable[str], key: str, likely: Iterable[str] = ()) -> None:
    """Refuse a name that is not among the valid ones; ``likely`` as of ``unknown_name``."""
    valid = tuple(valid)
    for name in names:
        if name not in valid:
            raise wrong(unknown_name(kind, name, valid, likely), key)


def known(kind: str, names: Callable[[], Iterable[str]], unknown: Callable[[str], str] | None = None) -> AfterValidator:
    """Make a validator of texts that must be one of the names; they are looked up when a value is checked.

    Args:
        kind: what is named, in the error.
        names: the valid ones.
        unknown: words the error, where a room of plug-ins has more to say of it.
    """

    def check(name: str) -> str:
        if name not in (valid := tuple(names())):
            raise wrong(unknown(name) if unknown else unknown_name(kind, name, valid))
        return name

    return AfterValidator(check)


INTERNAL = {"internal": True}
"""Metadata of a field that no configuration gives."""


class Part:
    """Base of the dataclasses that mappings of a configuration give.

    A key that is no field is refused; null leaves a mapping or list out, and stands for a mapping without keys.
    """

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        given = (item for item in fields(source) if item.metadata != INTERNAL)
        keys = {item.name: item.default == () or item.default_factory is not MISSING for item in given}

        def check(values: Any) -> Any:
            values = {} if values is None else values
            if not isinstance(values, Mapping):
                return values
            for key in values:
                require_known("key", [key], keys, str(key))
            return {key: value for key, value in values.items() if value is not None or not keys[key]}

        return core_schema.no_info_before_validator_function(check, handler(source))


def distinct(value: Any) -> Any:
    """Refuse a list with an entry twice; 1 and 1.0 differ."""
    for index, entry in enumerate(value if isinstance(value, list | tuple) else ()):
        if repr(entry) in map(repr, value[:index]):
            raise wrong(f"{entry!r} stands twice in {value!r}")
    return value


def _folder(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise wrong(f"is {value!r}; a non-empty text is needed")
    return Path(value).expanduser()


Flag = Annotated[bool, Field(strict=True)]
MOST = 1 << 24
"""Limit of contexts, budgets, samples and other counts: far above any model's context, far below what overflows."""
Whole = Annotated[int, Field(strict=True, ge=0, le=(1 << 63) - 1)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Rounds = Annotated[int, Field(strict=True, ge=2, le=100_000)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Text = Annotated[str, Field(strict=True, min_length=1, max_length=1000)]
Name = Annotated[str, Field(strict=True, pattern="^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=80)]
"""A text that can name a folder."""
Folder = Annotated[Path, BeforeValidator(_folder)]
Distinct = BeforeValidator(distinct)
SOME = Field(min_length=1, json_schema_extra={"uniqueItems": True})
Sizes = Annotated[tuple[Count, ...], SOME, Distinct]
Length = Annotated[int, Field(strict=True, ge=64, le=MOST)]
"""A context in tokens that is timed or trained at."""
Contexts = Annotated[tuple[Length, ...], SOME, Distinct]
Names = Annotated[tuple[Text, ...], SOME, Distinct]


def read(kind: type[T], values: Any, source: str, context: Mapping[str, Any] | None = None) -> T:
    """Turn the values of a file into a dataclass.

    Args:
        kind: a dataclass whose annotations say what is allowed.
        source: the file, as errors name it.
        context: passed on to validators.

    Raises:
        ConfigError: a value is wrong; the message gives file, key, value, and the nearest valid name where it is one.
    """
    try:
        return _adapter(kind).validate_python(values, context=dict(context or {}))
    except ValidationError as raised:
        error: Any = raised.errors(include_url=False)[0]
        # The number of an entry says where a mapping in a list stands; of a plain value the message tells more.
        loc = error["loc"]
        loc = loc[:-1] if loc and isinstance(loc[-1], int) else loc
        where = [str(part) for part in loc if part != "[key]"]
        problem = _problem(error, where)
        key = ".".join([*where, *filter(None, [error.get("ctx", {}).get("key")])])
        raise ConfigError(f"{source}: {_clipped(key) or 'the file'}: {_clipped(problem, _MOST_SHOWN)}") from None


def _problem(error: Mapping[str, Any], where: list[str]) -> str:
    given = error["input"]
    match error["type"]:
        case "refused":
            return error["ctx"]["problem"]
        case "missing":
            return "is missing"
        case "literal_error":
            return unknown_name(where[-1], given, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        case "dataclass_type" | "dict_type" | "mapping_type":
            return f"is {given!r}; a mapping is needed"
        case "tuple_type":
            return f"is {given!r}; a list is needed"
        case "too_short":
            return f"is {given!r}; at least one entry is needed"
    return f"is {given!r}; {error['msg'][0].lower()}{error['msg'][1:]}"


def _clipped(text: str, most: int = 120) -> str:
    """Return text as one line that fits a terminal; the end is kept, which says what is allowed."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most // 2]} ... {line[-most // 2 :]}"


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        ConfigError: the file is missing, unreadable or no YAML, a key stands twice in a mapping, or an alias holds
            itself; one line that names the file and the place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [other.name for other in path.parent.glob("*.yaml")]
        near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.0)
        nearest = f"; nearest configuration: {path.with_name(near[0])}" if near else ""
        raise ConfigError(f"{path}: no such configuration file{nearest}") from None
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Return the content of YAML text; ``source`` names it in errors.

    Raises:
        ConfigError: as of ``read_yaml``.
    """
    try:
        loader = yaml.SafeLoader(text)
        if (node := loader.get_single_node()) is None:
            return None
        _refuse_unfolding(node, source)
        return loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        # A date of month 13 is a ValueError, `!!bool 3` a KeyError, `!!timestamp x` an AttributeError.
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        deep = "nested too deeply, or in itself" if isinstance(error, RecursionError) else None
        problem = " ".join(str(deep or getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{source}{where}: not YAML: {problem[:300]}") from None


def _refuse_unfolding(root: yaml.Node, source: str) -> None:
    """Refuse too many values as they will be written out, and a key twice as written.

    What ``<<`` brings along may be overwritten.
    """
    nodes = list(islice(_unfolded(root), MOST_NODES + 1))
    if len(nodes) > MOST_NODES:
        raise ConfigError(f"{source}: more than {MOST_NODES:,} values once its aliases are written out")
    for node in nodes:
        seen = set[tuple[str, str]]()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if (name := (key.tag, str(key.value))) in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"{source}:{line}: the key {key.value!r} stands twice in one mapping")
            seen.add(name)


def _unfolded(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yield a node and all below it, as often as aliases bring them; one that holds itself is too deep for Python."""
    yield node
    if isinstance(node, yaml.CollectionNode):
        for child in chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value:
            yield from _unfolded(child)


def merged(base: Any, over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay values over others, mappings key by key."""
    found = dict(base or {})
    for key, value in over.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return found


def retyped(value: Any) -> Any:
    """Give a value of ``--config`` the types of YAML: Snakemake passes what is inside a list or mapping as text."""
    if isinstance(value, Mapping):
        return {key: retyped(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [retyped(entry) for entry in value]
    return yaml.safe_load(value) if isinstance(value, str) else value
