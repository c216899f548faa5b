"""Headless Chromium for tests: pages measured at a given width, and screenshots of them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-dev-shm-usage --virtual-time-budget=8000"
).split()

# Measured from outside the page, which itself needs no script. The frame shares its origin.
_MEASURE = """
<script>
function measure(frame) {
  const doc = frame.contentDocument, root = doc.documentElement;
  doc.querySelectorAll("details").forEach(d => d.open = true);
  frame.style.height = root.scrollHeight + "px";
  const out = {width: root.clientWidth, scroll: root.scrollWidth, pictures: [], wide: [], cut: []};
  out.tables = doc.querySelectorAll(".scroll").length;
  out.swipes = [...doc.querySelectorAll(".swipe")].filter(e => e.offsetHeight > 0).length;
  out.ends = [...doc.querySelectorAll(".columns")].map(
    c => [...c.querySelectorAll(".column > :last-child")].map(e => e.getBoundingClientRect().bottom)
  ).filter(ends => ends.length == 2);
  for (const e of doc.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (box.right > out.width + 1 && !e.closest(".scroll") && !e.closest("svg"))
      out.wide.push(e.tagName + "." + e.className);
  }
  for (const e of doc.querySelectorAll(".scroll"))
    if (e.scrollWidth > e.clientWidth + 1) out.cut.push(e.scrollWidth - e.clientWidth);
  for (const svg of doc.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal, outside = [];
    const strings = [...svg.querySelectorAll("text")];
    const boxes = strings.map(t => t.getBoundingClientRect());
    boxes.forEach((b, i) => {
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1
          || b.bottom > box.bottom + 1) outside.push(strings[i].textContent);
    });
    const touching = [];
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const a = boxes[i], b = boxes[j];
      const w = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (w > 1 && h > 0.35 * Math.min(a.height, b.height))
        touching.push(strings[i].textContent + " / " + strings[j].textContent);
    }
    out.pictures.push({
      name: svg.getAttribute("aria-label"), width: box.width, height: box.height,
      shapes: svg.querySelectorAll("rect, polyline, circle, polygon, image").length,
      outside, touching,
      smallest: Math.min(...strings.map(t => parseFloat(t.getAttribute("font-size"))))
                * box.width / view.width,
    });
  }
  const note = document.createElement("pre");
  note.id = "measured"; note.hidden = true; note.textContent = JSON.stringify(out);
  document.body.append(note);
}
</script>
"""


def find() -> str | None:
    """The path of a Chromium, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((p for p in map(shutil.which, names) if p), None)


def measure(page: Path, width: int) -> dict[str, Any]:
    """What a page looks like at a width: its own width, its pictures, and what sticks out."""
    with tempfile.TemporaryDirectory() as folder:
        wrapper = _wrapped(page, width, Path(folder))
        dom = _run("--dump-dom", str(wrapper), window=(max(width, 600), 1200))
    found = re.search(r'<pre id="measured"[^>]*>(.*?)</pre>', dom, re.S)
    assert found, f"the page was not measured: {dom[-500:]}"
    return json.loads(html.unescape(found[1]))


def screenshot(
    page: Path, width: int, out: Path, *, dark: bool = False, height: int = 5000
) -> Path:
    """A picture of the page at a width."""
    out.parent.mkdir(parents=True, exist_ok=True)
    extra = ["--blink-settings=preferredColorScheme=0"] if dark else []
    with tempfile.TemporaryDirectory() as folder:
        wrapper = _wrapped(page, width, Path(folder))
        _run(f"--screenshot={out}", *extra, str(wrapper), window=(width, height))
    return out


def dom(address: str, width: int = 900) -> str:
    """What a page of a server has become after its scripts have run."""
    return _run("--dump-dom", address, window=(width, 1200))


def _wrapped(page: Path, width: int, folder: Path) -> Path:
    # In a frame the page has any width; the window itself cannot be as narrow as a phone.
    inner = html.escape(page.read_text(encoding="utf-8"), quote=True)
    style = f"width:{width}px;height:1200px;border:0;display:block"
    frame = f'<iframe style="{style}" onload="measure(this)" srcdoc="{inner}"></iframe>'
    wrapper = folder / "wrapper.html"
    wrapper.write_text(
        f'<!doctype html><meta charset="utf-8"><body style="margin:0">{_MEASURE}{frame}</body>',
        encoding="utf-8",
    )
    return wrapper


def _run(*arguments: str, window: tuple[int, int]) -> str:
    chromium = find()
    assert chromium is not None
    # Helpers of a browser that has ended may still write to its profile.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        *flags, page = arguments
        size = f"--window-size={window[0]},{window[1]}"
        address = page if page.startswith("http://") else f"file://{page}"
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", size, *flags, address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
