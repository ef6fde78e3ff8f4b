#!/usr/bin/env python3
"""Draws the pictures of the README into this folder.

    python3 .github/drawings/draw.py [COMMAND]

COMMAND is the built command (default target/debug/leasehold). What the two terminals show was printed by it just now. Colours follow the reader's theme, light or dark.
"""

import html
import os
import pty
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

HERE = Path(__file__).parent

STYLE = """
  text { font: 14px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #24292f }
  .small { font-size: 12px; fill: #57606a }
  .mono { font: 12.5px ui-monospace, 'DejaVu Sans Mono', monospace; white-space: pre }
  .line { stroke: #57606a; stroke-width: 1.5; fill: none }
  .thin { stroke: #8c959f; stroke-width: 1; stroke-dasharray: 4 4 }
  .a { fill: #218bff } .a-soft { fill: #218bff; opacity: .25 }
  .head { fill: #57606a } .b { fill: #2da44e } .bad { fill: #cf222e } .bad-line { stroke: #cf222e; stroke-width: 2; fill: none }
  .grey { fill: #8c959f; opacity: .35 } .waits { fill: none; stroke: #8c959f; stroke-dasharray: 3 3 } .panel { fill: #f6f8fa; stroke: #d0d7de } .prompt { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9da7b3 } .line { stroke: #9da7b3 } .thin { stroke: #6e7681 }
    .head { fill: #9da7b3 } .a, .a-soft { fill: #58a6ff } .b { fill: #3fb950 } .bad { fill: #ff7b72 } .bad-line { stroke: #ff7b72 }
    .panel { fill: #161b22; stroke: #30363d } .prompt { fill: #3fb950 }
  }
"""


class Drawing:
    def __init__(self, width, height, title):
        self.size, self.title, self.parts = (width, height), title, []

    def text(self, x, y, words, kind="", anchor="start"):
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>')

    def bar(self, x, y, width, kind, height=22):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" class="{kind}"/>')

    def line(self, x1, y1, x2, y2, kind="line", arrow=None):
        end = f' marker-end="url(#{arrow})"' if arrow else ""
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"{end}/>')

    def save(self, name):
        width, height = self.size
        arrow = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" class="{kind}"/></marker>'
            for name, kind in (("arrow", "head"), ("bad-arrow", "bad")))
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img"><title>{html.escape(self.title)}</title><style>{STYLE}</style>'
                f'<defs>{arrow}</defs>')
        (HERE / name).write_text(head + "\n" + "\n".join(self.parts) + "\n</svg>\n")


def lease():
    """A lease of 20 s with the default heartbeat and margin; the holder dies after its second heartbeat."""
    d = Drawing(860, 250, "A lease: heartbeats move its end; a dead holder's lock is free when the lease is over")
    left, second = 110, 15
    at = lambda t: left + t * second
    d.text(10, 62, "holder A")
    d.text(10, 152, "waiter B")
    # Granted at 0, renewed at 6.7 and 13.3, killed at 16; the lease of the last renewal ends at 33.3.
    d.bar(at(0), 46, at(16) - at(0), "a")
    d.bar(at(16), 46, at(31.3) - at(16), "grey")
    d.bar(at(31.3), 46, at(33.3) - at(31.3), "a-soft")
    for t, words in ((0, "granted"), (6.7, "heartbeat"), (13.3, "heartbeat")):
        d.line(at(t), 40, at(t), 74)
        d.text(at(t) + 3, 34, words, "small")
    d.line(at(16) - 6, 50, at(16) + 6, 64, "bad-line")
    d.line(at(16) - 6, 64, at(16) + 6, 50, "bad-line")
    d.text(at(16) + 12, 86, "A dies", "small")
    d.text(at(31.3) - 6, 112, "margin: A would count itself as lost here", "small", "end")
    d.line(at(31.3), 42, at(31.3), 116, "thin")
    d.line(at(33.3), 20, at(33.3), 162, "thin")
    d.text(at(33.3) + 6, 34, "the lease is over", "small")
    d.bar(at(4), 136, at(33.3) - at(4), "waits")
    d.text(at(4) + 8, 152, "waits: the store reports a release, or it polls", "small")
    d.bar(at(33.3), 136, at(48) - at(33.3), "b")
    d.text(at(36), 180, "granted, with a higher token (DynamoDB: a grace of 1 s later)", "small", "middle")
    d.line(at(0), 205, at(48), 205, arrow="arrow")
    for t in range(0, 45, 10):
        d.line(at(t), 201, at(t), 209)
        d.text(at(t), 226, f"{t} s", "small", "middle")
    d.save("lease.svg")


def fencing():
    d = Drawing(860, 270, "Fencing: the late write of a holder that was stopped carries a lower token and is refused")
    for y, name, gaps in ((60, "holder A", (120, 670)), (140, "holder B", (450, 700)), (220, "the data", (845, 845))):
        d.text(10, y + 5, name)
        d.line(110, y, gaps[0], y, "thin")
        d.line(gaps[1], y, 845, y, "thin")
    d.bar(120, 49, 130, "a")
    d.text(128, 40, "granted, token 41", "small")
    d.bar(250, 49, 300, "grey")
    d.text(258, 65, "stopped, as by a debugger", "small")
    d.line(430, 25, 430, 225, "thin")
    d.text(424, 102, "A's lease is over", "small", "end")
    d.bar(450, 129, 250, "b")
    d.text(458, 120, "granted, token 42", "small")
    d.line(500, 151, 500, 212, arrow="arrow")
    d.text(508, 190, "write, 42", "small")
    d.text(494, 246, "accepted: 42 is the highest", "small", "middle")
    d.bar(550, 49, 120, "a-soft")
    d.text(556, 40, "goes on, and does not know yet", "small")
    d.line(640, 71, 640, 212, "bad-line", arrow="bad-arrow")
    d.text(648, 190, "late write, 41", "small")
    d.line(633, 213, 647, 227, "bad-line")
    d.line(633, 227, 647, 213, "bad-line")
    d.text(660, 246, "refused: 41 is below 42", "small", "middle")
    d.save("fencing.svg")


def at_home(command, home):
    """An environment in which the first word of a line is found, and nothing of this machine is to be read."""
    path = f"{Path(command).resolve().parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": home, "TERM": "dumb", "LANG": "C.UTF-8", "COLUMNS": "96"}


def soon(what):
    """The first answer that is none of nothing."""
    until = time.monotonic() + 30
    while not (answer := what()):
        if time.monotonic() > until:
            raise TimeoutError("what the picture shows did not come")
        time.sleep(0.05)
    return answer


def screen(lines, title, name):
    """Lines as a terminal shows them: (prompt, text), or (None, text) for words beside it."""
    d = Drawing(860, 40 + 19 * len(lines), title)
    d.parts.append(f'<rect x=".5" y=".5" width="859" height="{39 + 19 * len(lines)}" rx="8" class="panel"/>')
    for at, (prompt, line) in enumerate(lines):
        y = 32 + 19 * at
        if prompt:
            d.text(18, y, "$", "mono prompt")
        d.text(36 if prompt else 18, y, line, "small" if prompt is None else "mono")
    d.save(name)


def terminal(command):
    """A session as it happens; texts that differ from run to run (process numbers, times) are what they were."""
    session = [
        "leasehold run --owner web1 nightly-report -- sleep 4 &",
        "leasehold status",
        'leasehold run --try nightly-report -- echo never; echo "exit code $?"',
        'leasehold run --wait 10s nightly-report -- sh -c \'echo "mine, with token $LEASEHOLD_TOKEN"\'',
    ]
    lines = []
    with tempfile.TemporaryDirectory() as home:
        env = at_home(command, home)
        background = None
        for line in session:
            lines.append(("$ ", line))
            if line.endswith("&"):
                background = subprocess.Popen(["bash", "-c", line[:-1]], env=env, cwd=home)
                soon(lambda: b"live" in subprocess.run(["leasehold", "status"], env=env, capture_output=True).stdout)
                continue
            said = subprocess.run(["bash", "-c", line], env=env, cwd=home, capture_output=True, text=True)
            for text in (said.stderr + said.stdout).replace(home, "/home/me").splitlines():
                lines += [("", part) for part in textwrap.wrap(text, 105, subsequent_indent="    ", drop_whitespace=False)]
        background.wait()
    screen(lines, "A terminal in which the command leasehold is used", "terminal.svg")


def watch(command):
    """Three looks of one `status --watch`: web1 holds, then is killed, and web2, which waited, is granted it."""
    with tempfile.TemporaryDirectory() as home:
        env = at_home(command, home)
        run = lambda owner, comment: subprocess.Popen(
            ["leasehold", "run", "--owner", owner, "--comment", comment, "--lease", "10s", "deploy", "--", "sleep", "60"],
            env=env, cwd=home, start_new_session=True)
        ours, theirs = pty.openpty()
        first = run("web1", "build 41")
        soon(lambda: b"live" in subprocess.run(["leasehold", "status"], env=env, capture_output=True).stdout)
        second = run("web2", "build 42")
        watching = subprocess.Popen(
            ["leasehold", "status", "--watch=1s"], env={**env, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs)
        said = b""

        def looks():
            """What stood on the screen, one look after the other; the last may not be whole."""
            nonlocal said
            said += os.read(ours, 65536)
            text = re.sub(r"\x1b\[[0-9;]*m", "", said.decode()).replace("\r", "")
            return [look.strip("\n").splitlines() for look in text.split("\x1b[H\x1b[2J")[1:-1]]

        held = soon(lambda: [look for look in looks() if "web1" in look[-1]])[-1]
        first.kill()
        left = lambda look: int(re.search(r"(\d+)(\.\d+)? s left", look[-1])[1])
        dead = soon(lambda: [look for look in looks() if "web1" in look[-1] and left(look) < 4])[-1]
        taken = soon(lambda: [look for look in looks() if "web2" in look[-1]])[0]
        for process in (watching, second):
            process.terminate()
            process.wait()
        first.wait()
    lines = [("$ ", "leasehold status --watch")]
    for why, look in (("", held), ("web1 is killed: its lease runs out", dead),
                      ("web2, which waited for it, is granted the lock, with a higher token", taken)):
        lines += [(None, ""), (None, why)] if why else []
        lines += [("", line) for line in look]
    screen(lines, "status --watch: a holder is killed, its lease runs out, and another is granted the lock", "watch.svg")


if __name__ == "__main__":
    lease()
    fencing()
    built = sys.argv[1] if len(sys.argv) > 1 else "target/debug/leasehold"
    terminal(built)
    watch(built)
