"""Role maps: from a file, spread and random; what is refused."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.head_roles import RoleFile, learned_heads, read_role_file, resolve_roles, write_role_file

LLAMA = dataclasses.replace(CONFIG, num_layers=32, num_heads=32, num_kv_heads=8)


def role_file(folder: Path) -> Path:
    scores = [[0.9, 0.9], [0.1, 0.8], [0.2, 0.3], [0.0, 0.0], [0.7, 0.0], [0.0, 0.1], [0.05, 0.0]]
    roles = [[1, 1]] + [[int(score > 0.5) for score in row] for row in scores[1:]]
    path = folder / "roles.json"
    write_role_file(path, RoleFile(model="tiny", layers=7, kv_heads=2, kind="hardkuma", scores=scores, roles=roles))
    return path


def places(roles: tuple[tuple[bool, ...], ...]) -> set[tuple[int, int]]:
    return {(layer, head) for layer, row in enumerate(roles) for head, retrieves in enumerate(row) if retrieves}


def test_a_file_gives_its_roles_and_the_best_scored_where_a_number_is_asked_for(tmp_path: Path) -> None:
    path = str(role_file(tmp_path))
    assert places(resolve_roles(path, None, 0, CONFIG)) == {(0, 0), (0, 1), (1, 1), (4, 0)}
    assert places(resolve_roles(path, 3, 0, CONFIG)) == {(0, 0), (0, 1), (1, 1)}
    assert places(resolve_roles(path, 5, 0, CONFIG)) == {(0, 0), (0, 1), (1, 1), (4, 0), (2, 1)}
    assert places(resolve_roles(path, 2, 0, CONFIG, layer0=False)) == {(0, 0), (0, 1)}


def test_a_file_says_how_many_gates_ended_over_one_half_of_how_many_wanted(tmp_path: Path) -> None:
    path = role_file(tmp_path)
    assert learned_heads(str(path)) == learned_heads("random") == learned_heads(None) == {}
    heads = {"target": 16, "over_threshold": 11, "stored": 16}
    write_role_file(path, read_role_file(path).model_copy(update={"run": {"heads": heads}}))
    assert learned_heads(str(path)) == {"heads_over_half": 11, "heads_wanted": 16}


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = role_file(tmp_path)
    file = read_role_file(path)
    write_role_file(tmp_path / "again.json", file)
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert file.roles[4] == [1, 0] and file.scores[1] == [0.1, 0.8]


@pytest.mark.parametrize("count", [8, 9, 16, 32, 100, 255, 256])
@pytest.mark.parametrize("source", ["spread", "random"])
def test_made_up_maps_have_the_count_asked_for_with_layer_0_in_it(source: str, count: int) -> None:
    roles = resolve_roles(source, count, 3, LLAMA)
    assert all(roles[0]) and sum(map(sum, roles)) == count


def test_spread_roles_are_even_over_layers_and_heads() -> None:
    roles = resolve_roles("spread", 32, 0, LLAMA)
    assert max(sum(row) for row in roles[1:]) == 1
    by_head = Counter(head for layer, row in enumerate(roles[1:]) for head, one in enumerate(row) if one)
    assert set(by_head) == set(range(8)) and max(by_head.values()) - min(by_head.values()) <= 2


def test_random_roles_follow_their_seed() -> None:
    first = resolve_roles("random", 32, 1, LLAMA)
    assert first == resolve_roles("random", 32, 1, LLAMA) != resolve_roles("random", 32, 2, LLAMA)


def test_a_misfit_is_refused(tmp_path: Path) -> None:
    absent, bad = tmp_path / "none.json", tmp_path / "bad.json"
    bad.write_text('{"model": "m", "layers": 2, "kv_heads": 1, "kind": "x", "scores": [[1.0]], "roles": [[1]]}')
    for source, heads, config, error, message in (
        (role_file(tmp_path), None, LLAMA, UnsupportedCellError, "7 layers x 2 KV heads"),
        ("spread", 1, CONFIG, UnsupportedCellError, "2 to 14 are possible"),
        ("spread", None, CONFIG, ConfigError, "needs retrieval_heads"),
        ("sprad", 4, CONFIG, ConfigError, "one of spread, random"),
        (absent, None, CONFIG, ConfigError, "no such role file"),
        (bad, None, CONFIG, ConfigError, "2 layers x 1"),
    ):
        with pytest.raises(error, match=message):
            resolve_roles(str(source), heads, 0, config)
