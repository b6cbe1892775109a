#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens a page of what policies keep in headless Chromium and checks that it works: those of the demo, kvreplay and kvpolicy.evaluate.

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
import struct
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


def check_table(page: Page, data: dict):
    rows = page.run("document.querySelectorAll('#numbers tbody tr').length")
    yield rows >= len(data["rows"]), "the table has every row"
    yield page.run("document.querySelectorAll('#numbers thead th').length > 1"), "the table has columns"
    budgets = [r["budget"] for r in data["rows"] if r["tokens"] > 0]
    count = len(set(budgets))
    buttons = page.run("[...document.querySelectorAll('.budgets button')].map((b) => b.textContent)")
    yield len(buttons) == (count + 1 if count > 1 else 0), f"the table has a button for each of {count} budgets, if there are several"
    shown = "[...document.querySelectorAll('#numbers tbody tr')].filter((r) => !r.hidden).length"
    for i, name in enumerate(buttons):
        page.run(f"document.querySelectorAll('.budgets button')[{i}].click()")
        wanted = rows if i == len(buttons) - 1 else rows - sum(one != name for one in budgets)
        yield page.run(shown) == wanted, f"the table shows {wanted} rows at {name}"
    yield page.run("document.querySelector('.made a').getAttribute('href').length > 0"), "there is a link to the documentation"
    spelt = page.run("[...document.querySelectorAll('#spelt dd')].map((d) => d.textContent)")
    yield set(spelt) <= {r["spelt"] for r in data["rows"]} and len(spelt) == len({r["policy"] for r in data["rows"]}), \
        "every policy is spelt out"


def kept_counts(data: dict, text: dict, row: int, lanes, step: int = 0) -> list[int]:
    """How many of the lanes hold each entry after a step, from the data alone."""
    from_row = text["rows"][row]
    stride, segment = (text["length"] + 7) // 8, data.get("segment", list(range(data["layers"] * data["heads"])))
    bits, gone = bytearray(unpack(from_row["kept"])), unpack(from_row["gone"])
    pairs = struct.unpack(f"<{len(gone) // 4}I", gone)
    for i in range(from_row["ends"][step]):
        bits[pairs[2 * i] * stride + pairs[2 * i + 1] // 8] &= ~(1 << pairs[2 * i + 1] % 8)
    arrived = text["arrived"][step]
    return [sum(bits[segment[lane] * stride + at // 8] >> (at % 8) & 1 for lane in lanes) if at < arrived else 0
            for at in range(min(text["length"], 4096))]


def shown_counts(page: Page) -> list[int]:
    return page.run("cells.map((cell) => Math.round(Number(cell.style.getPropertyValue('--k')) * lanes.length))")


def go_to(page: Page, step: int):
    page.run(f"find('step').value = {step}; find('step').dispatchEvent(new Event('input'))")


def check_text(page: Page, data: dict, index: int, text: dict):
    """The cells of one text: what they show, and what is marked."""
    choose(page, "text", str(index))
    yield page.run("document.querySelectorAll('#map .cell').length") == min(text["length"], 4096), f"text {index} has a cell for each entry"
    if "bytes" in text:
        plain = "".join(chr(b) if 32 <= b < 127 else "?" for b in unpack(text["bytes"]))
        shown = page.run("cells.map((c) => /^[ -~]$/.test(c.textContent) ? c.textContent : '?').join('')")
        yield shown[: len(plain)] == plain[: len(shown)], f"text {index} shows its text"
    for kind, first in (("asked", "set "), ("question", "get ")):
        marks = page.run(f"[...document.querySelectorAll('#map .{kind}')].map((m) => m.textContent)")
        wanted = [one for one in text["spans"] if one["kind"] == kind]
        yield len(marks) == len(wanted) and all(first in one for one in marks), f"text {index} marks what is {kind}"
    for row in text["rows"]:
        if "answer" in row:
            said = page.run("find('summary').textContent")
            yield "right" in said or "wrong" in said, f"text {index} says how it was answered"


def check_maps(page: Page, data: dict, brief: bool):
    every = range(data["layers"] * data["heads"])
    for t, text in enumerate(data["texts"][: 1 if brief else None]):
        yield from check_text(page, data, t, text)
        last = len(text["arrived"]) - 1
        # A brief look is at the rows that drop most while they decode.
        rows = sorted(enumerate(data["rows"]), key=lambda one: -text["rows"][one[0]]["ends"][-1])
        for r, row in rows[: 3 if brief else None]:
            choose(page, "policy", row["policy"])
            choose(page, "budget", row["budget"])
            for step in sorted({0, last // 2, last}, key=lambda one: (one == 0, one)):  # forwards, and back to 0
                go_to(page, step)
                yield shown_counts(page) == kept_counts(data, text, r, every, step), \
                    f"text {t}, {row['policy']} at {row['budget']}, step {step}: shades are the lanes' counts"
                hidden = page.run("document.querySelectorAll('#map .cell.later').length")
                yield hidden == max(0, min(text["length"], 4096) - text["arrived"][step]), f"step {step} hides what has not arrived"


def check_steps(page: Page, data: dict):
    longest = max(range(len(data["texts"])), key=lambda one: len(data["texts"][one]["arrived"]))
    last = len(data["texts"][longest]["arrived"]) - 1
    choose(page, "text", str(longest))
    yield page.run("document.querySelector('.time').hidden") == (last == 0), "there is a slider if there are steps"
    if last == 0:
        return
    said = page.run("find('when').textContent")
    go_to(page, last)
    yield page.run("find('when').textContent") != said, "the slider says where it is"
    page.run("find('play').click()")
    yield page.run("find('play').textContent") == "Stop", "the steps play"
    yield page.run("new Promise((done) => setTimeout(() => done(step > 0 || !playing), 1500))"), "the steps go on by themselves"
    page.run("if (playing) find('play').click()")
    go_to(page, 0)


# Of each lane the entries that its row of pixels shows as held, if a pixel is an entry.
PICTURE = """(() => {
  const count = Math.min(shown.length, 2048), white = [255, 255, 255], black = [0, 0, 0];
  const image = lanes_picture(shown.length, [white, black, white, black]);
  return [...Array(lane_count).keys()].map((lane) =>
    [...Array(count).keys()].map((at) => image.data[4 * (lane * shown.length + at)] > 128 ? 1 : 0).join(''));
})()"""


def check_strips(page: Page, data: dict):
    text = data["texts"][0]
    if text["length"] < 64:
        return
    choose(page, "text", "0")
    choose(page, "policy", data["rows"][-1]["policy"])
    choose(page, "budget", data["rows"][-1]["budget"])
    go_to(page, len(text["arrived"]) - 1)
    for lane, row in enumerate(page.run(PICTURE)):
        held = kept_counts(data, text, len(data["rows"]) - 1, [lane], len(text["arrived"]) - 1)
        yield [int(c) for c in row] == held[:2048], f"the pixels of lane {lane} are what it holds"
    drawn = page.run("find('strips').toDataURL()")
    go_to(page, 0)
    if len(text["arrived"]) > 1:
        yield page.run("find('strips').toDataURL()") != drawn, "the lanes are drawn anew at another step"
    page.run("""(() => {
      const box = find('strips').getBoundingClientRect();
      find('strips').dispatchEvent(new MouseEvent('click', {clientX: box.left + gutter + (box.width - gutter) / 4, clientY: box.top + 20}));
    })()""")
    expected = min(text["length"] // 4, text["arrived"][0] - 1)
    yield abs(page.run("here") - expected) <= 2 + text["length"] // 200, "a press on the lanes moves the cursor there"


# The share of the chosen lanes that hold each entry, in thousandths.
SHARES = "cells.map((cell) => Math.round(1000 * Number(cell.style.getPropertyValue('--k'))))"


def shares(data: dict, text: dict, row: int, lanes) -> list[int]:
    return [int(1000 * count / len(lanes) + 0.5) for count in kept_counts(data, text, row, lanes)]


def check_switches(page: Page, data: dict):
    budgeted = [r for r in data["rows"] if r["tokens"] > 0] or data["rows"][-1:]
    policy = next((r["policy"] for r in budgeted if "streaming" not in r["policy"].lower()), budgeted[0]["policy"])
    budgets = [r["budget"] for r in budgeted if r["policy"] == policy]
    choose(page, "text", "0")
    choose(page, "policy", policy)
    choose(page, "budget", budgets[0])
    go_to(page, 0)
    row = next(i for i, r in enumerate(data["rows"]) if r["policy"] == policy and r["budget"] == budgets[0])
    text, lanes = data["texts"][0], range(data["layers"] * data["heads"])
    budgets_last = next(i for i, r in enumerate(data["rows"]) if r["policy"] == policy and r["budget"] == budgets[-1])
    others = [i for i, r in enumerate(data["rows"]) if r["policy"] != policy]
    several = data["layers"] > 1 and data["heads"] > 1
    layer = [lane for lane in lanes if lane // data["heads"] == 1]
    first_heads = [lane for lane in lanes if lane % data["heads"] == 0]
    # What is chosen, and the row and the lanes that are shown then.
    changes = [("layer", "1", row, layer), ("head", "0", row, layer[:1]), ("layer", "all", row, first_heads), ("head", "all", row, lanes)] if several else []
    changes += [("budget", budgets[-1], budgets_last, lanes)]
    changes += [("policy", data["rows"][others[0]]["policy"], None, lanes)] if others else []
    known = shares(data, text, row, lanes)
    yield page.run(SHARES) == known, "the map shows all lanes at first"
    for name, value, at, of in changes:
        before = page.run(SHADES)
        choose(page, name, value)
        if at is None:
            at = page.run("row_of(find('policy').value, find('budget').value)")
        expected = shares(data, text, at, of)
        yield page.run(SHARES) == expected, f"{name} {value} shows its lanes"
        yield (page.run(SHADES) != before) == (expected != known), f"the shading changes with {name} {value}, if another share of lanes holds an entry"
        known = expected
    if not any(r["policy"] == "full" for r in data["rows"]):
        return
    choose(page, "policy", policy)
    choose(page, "versus", "full")
    yield page.run("document.querySelectorAll('#map .less').length > 0"), "what only the full cache keeps is marked"
    yield page.run("document.querySelectorAll('#map .cell:not(.none):not(.less):not(.same):not(.later)').length") == 0, \
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
    for name in ("theme", "text", "policy", "budget", "layer", "head", "versus", "step", "play", "map"):
        if page.run(f"find('{name}').offsetParent !== null"):
            yield name in visited, f"Tab reaches {name}"
    go_to(page, page.run("shown.arrived.length - 1"))
    page.run("move(0)")
    style = "getComputedStyle(cells[here - base])"
    yield page.run(f"{style}.outlineStyle === 'solid' && parseFloat({style}.outlineWidth) >= 2"), "the cursor has a ring"
    start = page.run("here")
    said = page.run("find('readout').textContent")
    for key, change in (("ArrowRight", 1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        before = page.run("here")
        page.press(key)
        yield page.run("here") == before + change, f"{key} moves by {change}"
    yield page.run("here") == start + 1 and page.run("find('readout').textContent") != said, "the readout follows the cursor"
    yield page.run("document.getElementById('map').getAttribute('aria-activedescendant') === cells[here - base].id"), \
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
    yield page.run("here === arrived() - 1"), "Control and End go to the last entry"
    if page.run("!find('to-fact').hidden"):
        page.run("find('to-fact').click()")
        yield page.run("document.activeElement.id === 'map' && cells[here - base].parentNode.className === 'asked'"), \
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
  const ratios = [...document.querySelectorAll('.cell:not(.later)')].map((cell) => {
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


def failures(browser: Browser, report: Path, brief: bool = False) -> list[str]:
    """What is wrong with a report. A brief look ends at the first failure, and goes through one text and three rows."""
    page = Page(browser, report)
    failed = []
    checks = 0
    try:
        data = json.loads(page.run("document.getElementById('data').textContent"))
        groups = [check_table(page, data)]
        if data["texts"]:
            groups += [check_maps(page, data, brief), check_steps(page, data), check_strips(page, data), check_switches(page, data),
                       check_keys(page), check_looks(page)]
        for group in groups:
            for held, what in group:
                checks += 1
                if not held:
                    failed.append(f"not so: {what}")
                if failed and brief:
                    return failed
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
    "a console error": ("start_map();\nname_theme", "start_map(); console.error('planted');\nname_theme"),
    "an exception": ("start_map();\nname_theme", "start_map(); setTimeout(() => { throw new Error('planted'); });\nname_theme"),
    "a request that the page forbids": ("<noscript>", "<img src='http://127.0.0.1:9/planted.png' alt=''><noscript>"),
    "a script that does not parse": ("'use strict';\n", "'use strict'; (\n"),
    "a cell that is missing": ("while (made.length < of.length)", "made.pop(); while (made.length < of.length - 1)"),
    "a layer switch that does nothing": ("wanted(find('layer'), ", "wanted({value: 'all'}, "),
    "a budget switch that does nothing": ("find('budget').addEventListener('change', relay)", "find('budget').addEventListener('change', () => {})"),
    "a slider that does nothing": ("step = Number(find('step').value);", "step = 0;"),
    "steps that cannot go back": ("while (of.at > to) {", "while (false) {"),
    "entries that are there before they arrive": ("at < arrived() ? of.bits", "true ? of.bits"),
    "bits read in the wrong order": (">> (at & 7) & 1", ">> (7 - (at & 7)) & 1"),
    "a fact marked in the wrong place": ("s.begin <= base + i && base + i < s.end", "s.begin < base + i && base + i < s.end"),
    "lanes that cannot be pressed": ("move(Math.floor((event.offsetX", "(() => {})(Math.floor((event.offsetX"),
    "arrow keys that do nothing": ("addEventListener('keydown', on_key)", "addEventListener('keydown', () => {})"),
    "a page that is too wide": ("<h1>", "<h1 style='width: 1400px'>"),
    "characters that are too faint": ("(0.5658 - l) * 1000", "(l - 0.5658) * 1000"),
}


def self_test(browser: Browser, report: Path, folder: Path) -> int:
    """Each fault, planted in a copy of a report that has none, must be found."""
    text = report.read_text()
    missed = failures(browser, report)
    for name, (before, after) in FAULTS.items():
        copy = folder / "planted.html"
        planted = text.replace(before, after, 1)
        copy.write_text(planted)
        found = failures(browser, copy, brief=True) if planted != text else []
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
