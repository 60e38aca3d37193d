"""Makes console.png from a real run: `python docs/images/console.py` in the environment Shoal is installed in, with Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
VIEW = {"width": 1280, "height": 720}
SHARE_DONE = 0.6


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "SHOAL_HOME": home}
        shoal(env, "up", "--slots", "4")
        try:
            options = [
                "--dir",
                str(HERE.parents[1] / "examples" / "masked_lm"),
                "--nodes",
                "2",
                "--accels",
                "2",
                "--no-preflight",
            ]
            shoal(env, "training", "run", "masked-lm", *options, "--", "train.py", "--epochs", "24")
            while progress(env) < SHARE_DONE:
                time.sleep(0.2)
            take(json.loads(shoal(env, "console", "--no-browser", "--json"))["url"])
        finally:
            shoal(env, "training", "stop", "masked-lm", "--wait")
            shoal(env, "server", "stop")


def shoal(env: dict[str, str], *words: str) -> str:
    return subprocess.run(["shoal", *words], env=env, check=True, capture_output=True, text=True).stdout


def progress(env: dict[str, str]) -> float:
    job = json.loads(shoal(env, "training", "inspect", "masked-lm", "--json"))
    if job["ended_at"]:
        raise SystemExit(f"masked-lm has ended too early: {job['reason']}")
    found = job["progress"] or {}
    return found.get("step", 0) / (found.get("total") or 1)


def take(link: str) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=VIEW, device_scale_factor=1.25)
        page.goto(link)
        page.get_by_role("link", name="masked-lm").first.click()
        page.get_by_role("link", name="Metrics").click()
        page.locator(".chart canvas").first.wait_for()
        page.screenshot(path=HERE / "console.png", animations="disabled")
        browser.close()


if __name__ == "__main__":
    main()
