"""``python -m longdecode.evals.config_keys``: every key of a configuration, as its types have them."""

from __future__ import annotations

from pydantic import TypeAdapter

from longdecode.evals.run_config import RunConfig


def config_keys() -> list[str]:
    """Return all keys, those of a part under its type's name; a configuration may hold no other."""
    schema = TypeAdapter(RunConfig).json_schema()
    parts = {"": schema, **schema["$defs"]}
    return [f"{part}.{key}".lstrip(".") for part, node in parts.items() for key in node.get("properties", ())]


if __name__ == "__main__":
    found = config_keys()
    print(*found, f"{len(found)} keys", sep="\n")
