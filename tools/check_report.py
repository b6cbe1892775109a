#!/usr/bin/env python3
"""Opens a report of the demo in headless Chromium and checks that it works.

    check_report.py REPORT [--screenshots FOLDER]     exit status 1 if a check fails, 77 if there is no Chromium
    check_report.py REPORT --self-test                plants faults in copies of the report; each must be found

It fails on any console error or warning, exception or request; then it changes the switches, presses keys, and compares what the
page shows with the data in the page. Needs nothing but Python: it speaks to Chromium's debugging port through a pipe.
"""
import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
SECONDS = 240  # for everything: a browser that hangs is ended
WIDTHS = (1280, 400)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Browser:
    """A Chromium that is told what to do through the pipe on its descriptors 3 and 4."""

    def __init__(self, program: str, profile: str):
        while os.open(os.devnull, os.O_RDONLY) <= 4:  # so that no pipe of ours is 3 or 4, which the child needs
            pass
        commands, self.to = os.pipe()
        self.answers, answers = os.pipe()

        def connect():
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-extensions", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=connect,
            pass_fds=(3, 4), start_new_session=True)
        os.close(commands)
        os.close(answers)
        self.unread = b""
        self.count = 0
        self.session = None
        self.events = []

    def receive(self) -> dict:
        while b"\0" not in self.unread:
            some = os.read(self.answers, 1 << 20)
            if not some:
                raise RuntimeError("Chromium ended")
            self.unread += some
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **parameters) -> dict:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)


class Page:
    """One file, open in a browser."""

    def __init__(self, browser: Browser, path: Path):
        self.browser = browser
        browser.session = None
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.events.clear()
        for domain in ("Runtime", "Log", "Network", "Page"):
            browser.call(f"{domain}.enable")
        self.look(WIDTHS[0], "light")
        browser.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in browser.events):
            browser.events.append(browser.receive())

    def look(self, width: int, theme: str):
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def run(self, script: str):
        """The value of an expression in the page."""
        answer = self.browser.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']['exception'].get('description', '?')}")
        return answer["result"].get("value")

    def press(self, key: str, modifiers: int = 0):
        code = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
                "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                              modifiers=modifiers)

    def complaints(self) -> list[str]:
        """What the page said or asked for that it should not have."""
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
        found = []
        for event in self.browser.events:
            what = event.get("params", {})
            match event.get("method"):
                case "Runtime.consoleAPICalled" if what["type"] in ("error", "warning", "assert"):
                    found.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in what["args"]))
                case "Runtime.exceptionThrown":
                    details = what["exceptionDetails"]
                    found.append("exception: " + details.get("exception", {}).get("description", details["text"]))
                case "Log.entryAdded" if what["entry"]["level"] in ("error", "warning"):
                    found.append("log: " + what["entry"]["text"])
                case "Network.requestWillBeSent" if not what["request"]["url"].startswith(("file:", "data:")):
                    found.append("request: " + what["request"]["url"])
        return found

    def screenshot(self, path: Path):
        size = self.browser.call("Page.getLayoutMetrics")["cssContentSize"]
        width = self.run("innerWidth")
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=int(size["height"]),
                          deviceScaleFactor=1, mobile=False)
        shot = self.browser.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


SHADES = "cells.map((cell) => `${cell.style.getPropertyValue('--k')} ${cell.className}`).join()"
CHOOSE = """(([id, value]) => {
  const select = document.getElementById(id);
  if (![...select.options].some((o) => o.value === value)) throw new Error(`${id} has no ${value}`);
  select.value = value;
  select.dispatchEvent(new Event('change'));
})"""


def unpack(text: str) -> bytes:
    return base64.b64decode(text)


def choose(page: Page, name: str, value: str):
    page.run(f"{CHOOSE}({json.dumps([name, value])})")


def check_charts(page: Page, data: dict):
    measured = [m for m in ("bits", "inside", "later", "agree", "entries") if any(r[m] is not None for r in data["rows"])]
    points = sum(r[m] is not None for m in measured for r in data["rows"])
    yield page.run("document.querySelectorAll('.charts figure').length") == 5, "there are five charts"
    yield page.run("document.querySelectorAll('.charts .mark').length") == points, f"the charts have {points} points"
    yield page.run("document.querySelectorAll('#numbers tbody tr').length") == len(data["rows"]), "the table has every row"
    page.run("document.querySelector('.legend button:last-child').click()")
    yield page.run("document.querySelectorAll('.charts .lit').length") == len(measured), "the legend singles out a policy"
    yield page.run("document.querySelectorAll('.charts .dim').length > 0") or len(data["rows"]) == 1, "the others fade"
    page.run("document.querySelector('.legend button:last-child').click()")


def kept_counts(data: dict, prompt: dict, row: int, lanes) -> list[int]:
    """How many of the lanes kept each position, from the data alone."""
    length = len(unpack(prompt["text"]))
    bits, stride = unpack(prompt["kept"][row]), (length + 7) // 8
    return [sum(bits[lane * stride + at // 8] >> (at % 8) & 1 for lane in lanes) for at in range(length)]


def shown_counts(page: Page) -> list[int]:
    return page.run("cells.map((cell) => Math.round(Number(cell.style.getPropertyValue('--k')) * lanes.length))")


def check_maps(page: Page, data: dict):
    every = range(data["layers"] * data["heads"])
    for p, prompt in enumerate(data["prompts"]):
        choose(page, "prompt", str(p))
        length = len(unpack(prompt["text"]))
        yield page.run("document.querySelectorAll('#map .cell').length") == length, f"prompt {p} has {length} cells"
        ascii_text = "".join(chr(b) if 32 <= b < 127 else "?" for b in unpack(prompt["text"]))
        shown = page.run("cells.map((c) => /^[ -~]$/.test(c.textContent) ? c.textContent : '?').join('')")
        yield shown == ascii_text, f"prompt {p} shows its text"
        marks = page.run("[...document.querySelectorAll('#map .asked, #map .question')].map((m) => m.textContent)")
        right = len(marks) == 2 and marks[0][4:8] == marks[1][4:8] and marks[0][:4] == "set " and marks[1][:4] == "get "
        yield right, f"prompt {p} marks the fact and its question"
        for r, row in enumerate(data["rows"]):
            choose(page, "policy", row["policy"])
            choose(page, "budget", row["budget"])
            yield shown_counts(page) == kept_counts(data, prompt, r, every), \
                f"prompt {p}, {row['policy']} at {row['budget']}: shades are the lanes' counts"


def check_switches(page: Page, data: dict):
    budgeted = [r for r in data["rows"] if r["share"] > 1]
    if not budgeted:
        return
    policy = next((r["policy"] for r in budgeted if r["policy"] != "streaming_llm"), budgeted[0]["policy"])
    budgets = [r["budget"] for r in budgeted if r["policy"] == policy]
    choose(page, "prompt", "0")
    choose(page, "policy", policy)
    choose(page, "budget", budgets[0])
    row = next(i for i, r in enumerate(data["rows"]) if r["policy"] == policy and r["budget"] == budgets[0])
    states = {"at first": page.run(SHADES)}
    others = [r["policy"] for r in data["rows"] if r["policy"] != policy]
    for name, value in (("layer", "1"), ("head", "0"), ("layer", "all"), ("head", "all"), ("budget", budgets[-1]),
                        ("policy", others[0] if others else policy)):
        choose(page, name, value)
        states[f"{name} {value}"] = page.run(SHADES)
        if (name, value) == ("head", "0"):
            expected = kept_counts(data, data["prompts"][0], row, [data["heads"]])
            yield shown_counts(page) == expected, "one layer and one head show that lane"
    names = list(states)
    for before, after in zip(names, names[1:]):
        if (len(budgets) > 1 or not after.startswith("budget")) and (others or not after.startswith("policy")):
            yield states[before] != states[after], f"the shading changes from '{before}' to '{after}'"
    yield states["at first"] == states["head all"], "all layers and heads show what they showed at first"
    if not any(r["policy"] == "full" for r in data["rows"]):
        return
    choose(page, "policy", policy)
    choose(page, "versus", "full")
    yield page.run("document.querySelectorAll('#map .less').length > 0"), "what only the full cache keeps is marked"
    yield page.run("document.querySelectorAll('#map .cell:not(.none):not(.less):not(.same)').length") == 0, \
        "nothing is kept that the full cache does not keep"
    choose(page, "versus", "")


def check_keys(page: Page):
    page.run("document.activeElement.blur()")
    visited = []
    for _ in range(60):
        page.press("Tab")
        visited.append(page.run("document.activeElement.id"))
        if visited[-1] == "map":
            break
    for name in ("theme", "prompt", "policy", "budget", "layer", "head", "versus", "map"):
        yield name in visited, f"Tab reaches {name}"
    style = "getComputedStyle(cells[here])"
    yield page.run(f"{style}.outlineStyle === 'solid' && parseFloat({style}.outlineWidth) >= 2"), "the cursor has a ring"
    start = page.run("here")
    said = page.run("find('readout').textContent")
    for key, change in (("ArrowRight", 1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        before = page.run("here")
        page.press(key)
        yield page.run("here") == before + change, f"{key} moves by {change}"
    yield page.run("here") == start + 1 and page.run("find('readout').textContent") != said, "the readout follows the cursor"
    yield page.run("document.getElementById('map').getAttribute('aria-activedescendant') === cells[here].id"), \
        "the map names its active cell"
    before = page.run("here")
    page.press("ArrowDown")
    down = page.run("here")
    page.press("ArrowUp")
    yield page.run("here") < down and down > before, "ArrowDown and ArrowUp move by a line"
    page.press("Home", modifiers=2)
    yield page.run("here") == 0, "Control and Home go to the first character"
    page.press("ArrowLeft")
    yield page.run("here") == 0, "the cursor stays in the text"
    page.press("End", modifiers=2)
    yield page.run("here === cells.length - 1"), "Control and End go to the last character"
    page.run("find('to-fact').click()")
    yield page.run("document.activeElement.id === 'map' && cells[here].parentNode.className === 'asked'"), \
        "a button goes to the fact"


CONTRAST = """(() => {
  const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const luminance = (...colours) => {
    for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    const linear = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = getComputedStyle(document.body).backgroundColor;
  const ratios = [...document.querySelectorAll('.cell')].map((cell) => {
    const style = getComputedStyle(cell);
    const [a, b] = [luminance(page, style.backgroundColor), luminance(style.color)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
  return Math.min(...ratios);
})()"""


# The page has heard that it is light when its button offers the dark theme.
LIGHT = """new Promise((done) => {
  const look = () => find('theme').textContent === 'Dark' ? done() : setTimeout(look, 10);
  look();
  setTimeout(done, 10000);
})"""


def check_looks(page: Page):
    for theme in ("light", "dark"):
        for width in WIDTHS:
            page.look(width, theme)
            yield page.run("document.documentElement.scrollWidth <= innerWidth"), f"no sideways scrolling at {width} px, {theme}"
        for versus in page.run("[...find('versus').options].map((o) => o.value)"):
            choose(page, "versus", versus)
            ratio = page.run(CONTRAST)
            yield ratio >= 4.5, f"characters stand out in {theme}, compared with '{versus}': {ratio:.2f} >= 4.5"
        choose(page, "versus", "")
    page.look(WIDTHS[0], "light")
    page.run(LIGHT)  # otherwise the page may hear of it after the click
    before = page.run("getComputedStyle(document.body).backgroundColor")
    page.run("find('theme').click()")
    yield page.run("getComputedStyle(document.body).backgroundColor") != before, "the button changes the theme"
    page.run("find('theme').click()")


def failures(browser: Browser, report: Path) -> list[str]:
    page = Page(browser, report)
    failed = []
    checks = 0
    try:
        data = json.loads(page.run("document.getElementById('data').textContent"))
        groups = [check_charts(page, data)]
        if data["prompts"]:
            groups += [check_maps(page, data), check_switches(page, data), check_keys(page), check_looks(page)]
        for group in groups:
            for held, what in group:
                checks += 1
                if not held:
                    failed.append(f"not so: {what}")
    except RuntimeError as error:
        failed.append(str(error).splitlines()[0])
    failed += page.complaints()
    if not failed:
        print(f"check_report: {report.name}: {checks} checks, no console message, no request")
    return failed


def take_screenshots(browser: Browser, report: Path, folder: Path):
    folder.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        for width in WIDTHS:
            page = Page(browser, report)
            page.look(width, theme)
            page.screenshot(folder / f"{report.stem}_{width}_{theme}.png")


FAULTS = {
    "a console error": ("legend();\n", "legend(); console.error('planted');\n"),
    "an exception": ("legend();\n", "legend(); setTimeout(() => { throw new Error('planted'); });\n"),
    "a request that the page forbids": ("<noscript>", "<img src='http://127.0.0.1:9/planted.png' alt=''><noscript>"),
    "a script that does not parse": ("'use strict';\n", "'use strict'; (\n"),
    "a cell that is missing": ("map.replaceChildren();\n", "map.replaceChildren(); text.pop();\n"),
    "a layer switch that does nothing": ("wanted(find('layer'), ", "wanted({value: 'all'}, "),
    "a budget switch that does nothing": ("'budget', 'layer', 'head', 'versus'", "'layer', 'head', 'versus'"),
    "bits read in the wrong order": (">> (at & 7) & 1", ">> (7 - (at & 7)) & 1"),
    "a fact marked in the wrong place": ("begin: begin + 1, end", "begin: begin + 2, end"),
    "arrow keys that do nothing": ("addEventListener('keydown', on_key)", "addEventListener('keydown', () => {})"),
    "a page that is too wide": ("<h1>", "<h1 style='width: 1400px'>"),
    "characters that are too faint": ("(0.57 - l) * 1000", "(l - 0.57) * 1000"),
}


def self_test(browser: Browser, report: Path, folder: Path) -> int:
    """Each fault, planted in a copy of a report that has none, must be found."""
    text = report.read_text()
    missed = failures(browser, report)
    for name, (before, after) in FAULTS.items():
        copy = folder / "planted.html"
        planted = text.replace(before, after, 1)
        copy.write_text(planted)
        found = failures(browser, copy) if planted != text else []
        print(f"{name}: {found[0].splitlines()[0] if found else 'NOT FOUND'}")
        if not found:
            missed.append(name)
    print(f"check_report: {len(FAULTS)} faults, {len(missed)} missed")
    return 1 if missed else 0


def too_late(*_):
    raise TimeoutError(f"Chromium took more than {SECONDS} seconds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="write the page at 1280 and 400 px, light and dark")
    parser.add_argument("--self-test", action="store_true", help="plant faults in copies; each must be found")
    given = parser.parse_args()
    if not given.report.is_file():
        parser.error(f"{given.report} is not a file")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print("skipped: no Chromium")
        return SKIPPED
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(SECONDS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder + "/profile")
        try:
            if given.self_test:
                return self_test(browser, given.report, Path(folder))
            failed = failures(browser, given.report)
            for line in failed:
                print(f"check_report: {line}")
            if given.screenshots:
                take_screenshots(browser, given.report, given.screenshots)
            return 1 if failed else 0
        finally:
            browser.close()


if __name__ == "__main__":
    sys.exit(main())
