"""Pages in a real browser: every kind opens without complaint, draws, filters, fits a phone, and prints."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from site_pages import Parsed

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--enable-logging=stderr", "--v=0",
    "--allow-file-access-from-files", "--hide-scrollbars",
)  # fmt: skip
KINDS = ("index", "compare", "paper-lychee", "paper-retro", "method-quest", "task-mini-longgen", "trust")
MEASURE = """
const pages = %s, widths = %s, frames = [];
for (const page of pages) for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.dataset.page = page; frame.dataset.width = width;
  document.body.append(frame); frames.push(frame);
  frame.src = page;
}
const inside = frame => frame.contentDocument;
const ready = frame => {
  const page = inside(frame);
  if (!page || page.readyState !== "complete" || !page.querySelector("h1")) return false;
  return [...page.querySelectorAll(".chart")].every(c => c.classList.contains("vega-embed") && c.querySelector("svg"));
};
const wait = tries => tries > 0 && !frames.every(ready) ? setTimeout(wait, 250, tries - 1) : report();
const hit = (a, b) => a.left + 1.5 < b.right && b.left + 1.5 < a.right && a.top + 7 < b.bottom && b.top + 7 < a.bottom;
const bad = (svg, a, r) => a.width && (a.left < svg.left - 1 || a.right > svg.right + 1 || r.some(b => hit(a, b)));
const box = e => e.getBoundingClientRect(), all = svg => [...svg.querySelectorAll("text")];
const covered = svg => all(svg).flatMap((e, i, a) => bad(box(svg), box(e), a.slice(0, i).map(box)) ? e.innerHTML : []);
const report = () => {
  const found = frames.map(frame => {
    const root = inside(frame).documentElement, shown = e => e.offsetParent !== null;
    return {
      page: frame.dataset.page.split("/").pop(), width: +frame.dataset.width,
      scroll: root.scrollWidth, client: root.clientWidth, covered: [...root.querySelectorAll("svg")].flatMap(covered),
      charts: inside(frame).querySelectorAll(".chart").length,
      drawn: inside(frame).querySelectorAll(".chart.vega-embed svg").length,
      wide: [...inside(frame).querySelectorAll("main *")].filter(e => !e.closest(".scroll, .chart, pre, svg, .hide")
        && e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.tagName + "." + e.className),
      rows: [...inside(frame).querySelectorAll("tr[data-context]")].filter(shown).map(r => [r.dataset.context, r.id]),
      heads: [...inside(frame).querySelectorAll(".sortable th")].filter(shown).map(e => e.textContent),
      target: inside(frame).querySelector("tr.target")?.id ?? "",
      title: inside(frame).getElementById("view-title")?.textContent ?? "",
      card: [...inside(frame).querySelectorAll("[data-card]")].filter(shown).map(c => c.dataset.card),
    };
  });
  const out = document.createElement("pre"); out.id = "found"; out.textContent = JSON.stringify(found);
  document.body.append(out);
};
addEventListener("load", () => setTimeout(wait, 100, 400));
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser on this machine (looked for {', '.join(NAMES)})")
    return found


def run(browser: str, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [browser, *FLAGS, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def complaints(log: str) -> list[str]:
    """Return what pages wrote to the console."""
    return [line for line in log.splitlines() if ":CONSOLE" in line]


def measure(browser: str, folder: Path, addresses: list[str], widths: list[int]) -> tuple[list[dict[str, Any]], str]:
    """Return what each page looks like in a frame of each width, once it has drawn; and the browser's log."""
    harness = folder / "harness.html"
    script = MEASURE % (json.dumps(addresses), json.dumps(widths))
    harness.write_text(f"<!doctype html><meta charset=utf-8><body><script>{script}</script></body>", encoding="utf-8")
    done = run(browser, folder / "profile", "--virtual-time-budget=110000", "--dump-dom", harness.as_uri())
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1])), done.stderr


def test_every_kind_opens_draws_and_fits(browser: str, site: Path, tmp_path: Path) -> None:
    found, log = measure(browser, tmp_path, [(site / f"{kind}.html").as_uri() for kind in KINDS], [390, 1400])
    assert complaints(log) == [] and len(found) == 2 * len(KINDS) and sum(page["charts"] for page in found) > 10
    for page in found:
        assert page["drawn"] == page["charts"], page
        assert page["scroll"] <= page["client"] and page["wide"] == page["covered"] == [], page


def test_addresses_restore_filters_and_rows(browser: str, site: Path, pages: dict[str, Parsed], tmp_path: Path) -> None:
    row = next(name for name in pages["compare"].rows if name.startswith("qwen-qwen2.5-coder-1.5b-16384-quest"))
    compare, index = (site / "compare.html").as_uri(), (site / "index.html").as_uri()
    state = "#model=qwen%7Cqwen2.5-coder-1.5b&context=16384&batch=1&faster=yes"
    narrow = f"{state}&bytes=0.25&question=decoded".replace("batch=1", "batch=8")
    addresses = [compare + state, f"{compare}#{row}", f"{index}{state}&task=ruler_decoded.all", compare + narrow]
    found, log = measure(browser, tmp_path, addresses, [1400])
    assert complaints(log) == []
    filtered, linked, view, few = found
    kept = [name for _, name in few["rows"]]
    assert any("-quest-" in name for name in kept) and not any("-duo-" in name for name in kept)  # 22 and 55 %
    assert "RULER, question decoded, points lost" in few["heads"] and "RULER, points lost" not in few["heads"]
    assert filtered["rows"] and {context for context, _ in filtered["rows"]} == {"16384"}
    assert all(name.startswith("qwen-qwen2.5-coder-1.5b-16384") for _, name in filtered["rows"])
    assert linked["target"] == row and "question decoded, 16K tokens, batch 1" in view["title"]
    assert view["card"] == ["qwen|qwen2.5-coder-1.5b|16384|1"]


def test_the_checks_see_a_broken_page(browser: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><main><h1>h</h1><div style='width:700px'>wide</div></main><script>console.error('oh')</script>",
        encoding="utf-8",
    )
    (phone,), log = measure(browser, tmp_path, [bad.as_uri()], [390])
    assert "oh" in complaints(log)[0] and phone["wide"] == ["DIV."]


@pytest.mark.parametrize("kind", ["index", "paper-lychee"])
def test_pages_print(browser: str, site: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "page.pdf"
    options = ("--no-pdf-header-footer", f"--print-to-pdf={target}")
    run(browser, tmp_path / "profile", *options, (site / f"{kind}.html").as_uri())
    content = target.read_bytes()
    assert content.startswith(b"%PDF") and len(content) > 20_000
