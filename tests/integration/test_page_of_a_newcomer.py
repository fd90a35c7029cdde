"""From an empty folder to an exported file without a terminal, on the page that `reelworks ui` serves."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request

import pytest
from headless import wait_until, window

pytestmark = pytest.mark.slow(reason="trains for a minute")
# Of the sample recipe: few steps, and previews soon.
SHORT = {
    "max_steps = 1200": "max_steps = 60",
    "every_steps = 400": "every_steps = 30",
    "every_steps = 200": "every_steps = 30",
}


def start(folder, log):
    """Start `reelworks ui`; return the process and the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reelworks", "ui", str(folder)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        bufsize=1,
        encoding="utf-8",
    )
    line = process.stdout.readline()
    process.stdout.readline()
    return process, line.split()[-1]


def ask(address, path):
    with urllib.request.urlopen(f"{address.split('/#')[0]}/api{path}") as answer:
        return json.load(answer)


def until(found, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.3)
    raise AssertionError("it did not happen")


def ended(address):
    jobs = ask(address, "/jobs")
    assert all(job["state"] != "failed" for job in jobs), [ask(address, f"/jobs/{job['id']}")["output"] for job in jobs]
    return all(job["ended"] for job in jobs)


def test_from_an_empty_folder_to_an_exported_file(tmp_path, opened):
    folder = tmp_path / "first"
    folder.mkdir()
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        server, address = start(folder, log)
        base = address.split("#")[0]
        with window(opened) as shown:
            shown.goto(address)
            shown.click("text=Or try it on sample footage")
            shown.wait_for_selector("h1:has-text('demo-data')")
            until(lambda: ended(address))
            recipe = folder / "shapes.toml"
            text = recipe.read_text(encoding="utf-8")
            for former, now in SHORT.items():
                assert former in text
                text = text.replace(former, now)
            recipe.write_text(text, encoding="utf-8")
            (key,) = [row["key"] for row in ask(address, "/recipes")]

            # The plan is made of a scan, which the page offers.
            shown.goto(f"{base}#/plan/{key}")
            shown.click("button:has-text('Scan')")
            until(lambda: ended(address))
            shown.wait_for_selector("text=steps")

            # Train; the page is stopped meanwhile, and the training goes on.
            shown.goto(f"{base}#/runs")
            shown.click("tr:has-text('shapes.toml') button:has-text('Train')")
            run = until(
                lambda: next((r for r in ask(address, "/runs") if r["state"] == "running" and r["step"] > 1), None)
            )
            shown.goto(f"{base}#/run/{run['key']}")
            shown.wait_for_selector(".plot .main-svg")
        server.send_signal(signal.SIGINT)
        assert server.wait(120) in (0, 130, -signal.SIGINT)
        server.stdout.close()
        events = folder / tomllib.loads(text)["output"] / "events.jsonl"
        before = events.stat().st_size
        until(lambda: events.stat().st_size > before)

        # Another page tells how it stands, and does the rest.
        server, address = start(folder, log)
        base = address.split("#")[0]
        assert ask(address, "/runs")[0]["state"] in ("running", "finished")
        until(lambda: ended(address))
        assert ask(address, "/runs")[0]["state"] == "finished"
        with window(opened, 480, dark=True) as shown:
            shown.goto(address)
            shown.wait_for_selector("table")
            shown.goto(f"{base}#/run/{run['key']}/previews")
            shown.wait_for_selector("figure video")
            assert "a red circle moves right" in shown.text_content("figcaption")
            shown.goto(f"{base}#/run/{run['key']}/checkpoints")
            shown.click("button:text-is('Pin')")
            shown.wait_for_selector("button:text-is('Unpin')")
            shown.click("button:text-is('Verify')")
            shown.wait_for_selector(".toast:has-text('all digests match')")
            shown.locator("button:text-is('Generate')").first.click()
            shown.get_by_label("Prompt").fill("a red circle moves right")
            for label, value in (("Steps", "2"), ("Width", "64"), ("Height", "64"), ("Frames", "5")):
                shown.get_by_label(label, exact=True).fill(value)
            shown.click("form.generate button.main")
            shown.wait_for_selector("form.generate figure video")
            wait_until(shown, "document.querySelector('form.generate video').videoWidth === 64")
            until(lambda: ended(address))
            shown.click("button:text-is('Export')")
            shown.click("dialog button.main")
            shown.wait_for_selector("h1:has-text('export')")
            until(lambda: ended(address))
            shown.goto(f"{base}#/run/{run['key']}/checkpoints")
            with shown.expect_download() as download:
                shown.click("a[download]")
            assert os.path.getsize(download.value.path()) > 100_000  # noqa: PTH202
        pinned = subprocess.run(
            [sys.executable, "-m", "reelworks", "checkpoints", "ls", str(events.parent), "--json"],
            capture_output=True,
            check=True,
        )
        assert any(row["pinned"] for row in json.loads(pinned.stdout))
        server.send_signal(signal.SIGTERM)
        server.wait(120)
        server.stdout.close()
