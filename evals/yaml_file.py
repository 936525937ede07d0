"""Read a YAML file of settings: a key stands once, no alias holds itself, no few lines unfold into gigabytes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from longdecode.engine.errors import ConfigError

MOST_BYTES = 1 << 20
MOST_NODES = 200_000
"""Values of a file once its aliases are written out; the largest configuration here has about 2,000."""
MOST_LEVELS = 50


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        ConfigError: the file is missing, unreadable, too large or no YAML, a key stands twice in a mapping, or an alias
            holds itself; one line that names the file and the place.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size:,} bytes; a configuration has at most {MOST_BYTES:,}")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [other.name for other in path.parent.glob("*.yaml")]
        near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.0)
        nearest = f"; nearest configuration: {path.with_name(near[0])}" if near else ""
        raise ConfigError(f"{path}: no such configuration file{nearest}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Return the content of YAML text; ``source`` names it in errors.

    Raises:
        ConfigError: as of ``read_yaml``.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_unfolding(node, source)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: not YAML: {_one_line(error.problem or error.context or error)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {_one_line(error)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply; at most {MOST_LEVELS} levels are read") from None
    except (ValueError, TypeError) as error:  # a date of month 13, a number of 5,000 digits
        raise ConfigError(f"{source}: not YAML: {_one_line(error)}") from None


def _refuse_unfolding(root: yaml.Node, source: str) -> None:
    """Refuse too many values as they will be written out, one that holds itself, and a key twice as written.

    What ``<<`` brings along may be overwritten.
    """
    todo, count = [(root, 0)], 0
    while todo:
        node, level = todo.pop()
        count += 1
        where = f"{source}:{node.start_mark.line + 1}"
        if count > MOST_NODES:
            raise ConfigError(f"{source}: more than {MOST_NODES:,} values once its aliases are written out")
        if level > MOST_LEVELS:
            raise ConfigError(f"{where}: nested too deeply, or in itself; at most {MOST_LEVELS} levels are read")
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            seen = set[tuple[str, str]]()
            for key, _ in node.value:
                name = (key.tag, str(key.value))
                if name in seen:
                    line = key.start_mark.line + 1
                    raise ConfigError(f"{source}:{line}: the key {key.value!r} stands twice in one mapping")
                seen.add(name)
            children = [part for pair in node.value for part in pair]
        todo += [(child, level + 1) for child in children]


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())[:300]


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
