"""The pages in a real browser: they load without complaint, fit a phone, show their figures, and print."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--enable-logging=stderr", "--v=0", "--allow-file-access-from-files",
)  # fmt: skip
MEASURE = """
const pages = %s, widths = %s;
const frames = [];
const count = sheet => { try { return sheet.cssRules.length; } catch { return 0; } };  // throws where it did not load
for (const page of pages) for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px"; frame.style.height = "900px"; frame.style.border = "0";
  frame.dataset.page = page; frame.dataset.width = width;
  document.body.append(frame); frames.push(frame);
}
// A page that loads in a frame without a width yet takes narrow figures, and may keep them: lay out all frames first.
for (const frame of frames) if (frame.getBoundingClientRect().width) frame.src = frame.dataset.page;
// A frame chooses its images anew once it has its width: wait for that, and measure what there is where it never comes.
const chosen = frame => [...frame.contentDocument.images].every(
  i => i.complete && i.currentSrc.endsWith("#narrow") === (frame.dataset.width === "390"));
const measure = tries => tries > 0 && !frames.every(chosen) ? setTimeout(measure, 500, tries - 1) : found();
const found = () => {
  const found = frames.map(frame => {
    const root = frame.contentDocument.documentElement;
    const images = [...frame.contentDocument.images];
    return {
      page: frame.dataset.page, width: +frame.dataset.width, scroll: root.scrollWidth, client: root.clientWidth,
      broken: images.filter(i => !i.complete || !i.naturalWidth).map(i => i.currentSrc),
      sources: images.map(i => i.currentSrc.split("/").pop()),
      wide: [...frame.contentDocument.querySelectorAll("main *")].filter(e => !e.closest(".scroll, pre, nav")
        && e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.tagName + "." + e.className),
      rules: [...frame.contentDocument.styleSheets].reduce((sum, sheet) => sum + count(sheet), 0),
      heading: frame.contentDocument.querySelector("h1")?.textContent,
    };
  });
  document.title = "measured";
  const out = document.createElement("pre"); out.id = "found"; out.textContent = JSON.stringify(found);
  document.body.append(out);
};
addEventListener("load", () => setTimeout(measure, 1000, 24));
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser on this machine (looked for {', '.join(NAMES)})")
    return found


def run(browser: str, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [browser, *FLAGS, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def complaints(log: str) -> list[str]:
    """Return what pages wrote to the console."""
    return [line for line in log.splitlines() if ":CONSOLE" in line]


Measured = tuple[list[dict[str, Any]], str]


def measure(browser: str, folder: Path, pages: list[Path]) -> Measured:
    """Every page in frames as wide as a phone and a desk: what they look like inside, and the browser's log."""
    harness = folder / "harness.html"
    script = MEASURE % (json.dumps([path.as_uri() for path in pages]), json.dumps([390, 1100]))
    harness.write_text(f"<!DOCTYPE html><meta charset=utf-8><body><script>{script}</script></body>", encoding="utf-8")
    done = run(browser, folder / "profile", "--virtual-time-budget=20000", "--dump-dom", harness.as_uri())
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1])), done.stderr


@pytest.fixture(scope="module")
def measured(browser: str, report: Path, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(browser, tmp_path_factory.mktemp("browser"), sorted(report.glob("*.html")))


def test_pages_load_without_complaint(report: Path, measured: Measured) -> None:
    found, log = measured
    assert complaints(log) == []
    assert len(found) == 2 * len(list(report.glob("*.html")))
    assert all(page["heading"] and page["rules"] > 20 for page in found)
    assert [page for page in found if page["broken"]] == []


def test_no_page_is_wider_than_a_phone(measured: Measured) -> None:
    for page in measured[0]:
        assert page["scroll"] <= page["client"] <= page["width"], page
        assert page["wide"] == [], page


def test_phones_get_the_narrow_figures(measured: Measured) -> None:
    for page in measured[0]:
        narrow = [source.endswith(".svg#narrow") for source in page["sources"]]
        assert all(found == (page["width"] == 390) for found in narrow), (page["page"], page["width"], page["sources"])


def test_the_checks_see_a_broken_page(browser: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><link rel=stylesheet href=gone.css><main><img src=gone.svg>"
        "<div style='width:700px'>wide</div></main><script>console.error('oh')</script>",
        encoding="utf-8",
    )
    (phone, desk), log = measure(browser, tmp_path, [bad])
    assert len(complaints(log)) == 2 and "oh" in complaints(log)[0]
    assert phone["broken"] and phone["rules"] == 0
    assert phone["scroll"] > phone["client"] and phone["wide"] == ["DIV."]
    assert desk["wide"] == []


def test_rows_of_scores_are_named_for_links(browser: str, report: Path, tmp_path: Path) -> None:
    page = f"{(report / 'suite-mini-longgen.html').as_uri()}"
    done = run(browser, tmp_path / "profile", "--virtual-time-budget=5000", "--dump-dom", page)
    names = re.findall(r'<tr\b[^>]*\bid="([^"]+)"', done.stdout)
    assert len(set(names)) == len(names) > 5
    assert all(f'href="#{name}"' in done.stdout for name in names)
    assert re.fullmatch(r"mini-longgen[a-z0-9-]*\.[a-z0-9-]+\.\d+\.[a-z0-9.-]+", names[0])


@pytest.mark.parametrize("page", ["index", "suite-mini-longgen"])
def test_pages_print(browser: str, report: Path, tmp_path: Path, page: str) -> None:
    target = tmp_path / "page.pdf"
    run(
        browser,
        tmp_path / "profile",
        "--no-pdf-header-footer",
        f"--print-to-pdf={target}",
        (report / f"{page}.html").as_uri(),
    )
    content = target.read_bytes()
    assert content.startswith(b"%PDF") and len(content) > 20_000
