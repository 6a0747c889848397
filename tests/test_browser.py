"""What a reader sees: the explorer in JupyterLab and the HTML report, driven in Debian's Chromium.

Needs the package playwright and a browser called chromium on the path, and skips with the reason without
them. Screenshots go to the folder named by CIR_SCREENSHOTS, for whoever wants to look at them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
import pytest
from small_world import open_bench, write_world

from cir_utils.experiments import METHODS, compare_experiments, run_experiments
from cir_utils.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
ROOT = Path(__file__).parent.parent
TOKEN = "explorer"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no browser called chromium on the path"),
]


@dataclass
class Seen:
    """A page with what it complained of and where it asked for things."""

    page: Any
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self) -> Seen:
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda request: self.judge(request.url))
        self.page.on("websocket", lambda socket: self.judge(socket.url))
        return self

    def judge(self, url: str) -> None:
        place = urlsplit(url)
        if place.scheme not in ("data", "blob", "file", "about") and place.hostname != "127.0.0.1":
            self.foreign.append(url)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # A container's root user has no sandbox; only our own pages are opened.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CIR_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """A JupyterLab on a copy of the explorer's notebook, small; its address."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    node = nbformat.read(ROOT / "notebooks" / "08_explorer.ipynb", as_version=4)
    for cell in node.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if "parameters" in cell.metadata.get("tags", []):
            cell.source += "\nLIMIT, OTHERS = 4, []"
    nbformat.write(node, folder / "08_explorer.ipynb")
    settings = tmp_path / "settings" / "@jupyterlab"
    for name, values in (
        ("notebook-extension/tracker", {"windowingMode": "none"}),  # every cell is part of the page
        ("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False}),
    ):
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "CIR_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "JUPYTERLAB_SETTINGS_DIR": str(settings.parent),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += [f"--port={port}", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.expose_app_in_browser=True"]  # its commands, run by name
    with open(tmp_path / "lab.log", "wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "lab.log").read_text()
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.notebook
def test_the_explorer_in_jupyterlab(chromium: Any, lab: str, shots: Path) -> None:
    """Cells run, the α slider moves by keyboard, strip and metric follow, a click explains a picture."""
    page = chromium.new_page(viewport={"width": 1400, "height": 1300})
    seen = Seen(page).watch()
    page.goto(f"{lab}/lab/tree/08_explorer.ipynb?token={TOKEN}")
    page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for(timeout=120_000)
    # Asked to run before the kernel is there, JupyterLab asks for a kernel instead.
    kernel = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"
    page.wait_for_function(f"() => {kernel}?.status === 'idle'", timeout=120_000)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.get_by_text("[*]:").first.wait_for(timeout=60_000)
    explorer = page.locator(".cir-explorer")
    side = explorer.locator(".cir-side").first
    side.locator(".cir-strip figure").nth(11).wait_for(timeout=900_000)
    handle = explorer.locator(".widget-hslider", has_text="α Anchor").locator(".noUi-handle")
    handle.scroll_into_view_if_needed()
    head, strip = side.locator("[aria-live]"), side.locator(".cir-strip")
    before = head.inner_text(), strip.inner_html()
    handle.focus()
    for _ in range(16):
        page.keyboard.press("ArrowRight")
    playwright.expect(head).to_contain_text("alpha 1,", timeout=60_000)
    assert strip.inner_html() != before[1], "the strip follows the slider"

    def metric(text: str) -> str:
        return text.partition("over")[2]

    assert metric(head.inner_text()) != metric(before[0]), "the metric follows the slider"
    strip.locator("img").nth(2).click()
    why = explorer.get_by_text("Why is image")
    playwright.expect(why).to_be_visible(timeout=60_000)
    assert explorer.get_by_text("sdr-cir: rank 3 of").count() == 1
    pressed = side.locator(".cir-pick button").nth(3)
    pressed.focus()
    page.keyboard.press("Space")
    playwright.expect(explorer.get_by_text("sdr-cir: rank 4 of")).to_be_visible(timeout=60_000)
    page.screenshot(path=str(shots / "explorer.png"))
    assert not seen.foreign, "no request may leave the machine"
    page.close()


@pytest.mark.parametrize(("name", "width", "height"), [("phone", 390, 844), ("desktop", 1280, 900)])
def test_the_report_on_phone_and_desktop(
    name: str, width: int, height: int, chromium: Any, tiny_clip: Path, tmp_path: Path, shots: Path
) -> None:
    """No complaint, no request, nothing wider than the page; and the filter hides queries."""
    bench = open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache")
    runs = run_experiments(bench, chosen=METHODS)
    path = write_report(tmp_path / "index.html", "A report", compare_experiments(runs), runs, bench.benchmark)
    page = chromium.new_page(viewport={"width": width, "height": height})
    seen = Seen(page).watch()
    page.goto(path.as_uri())
    assert page.locator("article").count() == len(bench.queries)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    page.locator("[data-filter='sdr-cir']").first.click()
    missed = "a => a.filter(one => one.dataset.missed.split('|').includes('sdr-cir')).length"
    assert page.locator("article:visible").count() == page.locator("article").evaluate_all(missed)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=str(shots / f"report-{name}-{scheme}.png"), full_page=True)
    assert not seen.errors and not seen.foreign
    page.close()
