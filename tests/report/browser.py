"""A headless Chromium, driven through chromedriver by the WebDriver protocol: plain HTTP and JSON."""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
]
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name that the protocol gives to references


@contextmanager
def browser() -> Iterator["Browser"]:
    """A new browser with an empty profile, and its end."""
    with ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        process = stack.enter_context(
            subprocess.Popen(
                [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
        stack.callback(process.terminate)
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "chromedriver has ended"
            found = re.search(r"successfully on port (\d+)", line)
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        address = f"http://127.0.0.1:{found[1]}/session"
        session = Browser(address).ask("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        window = Browser(f"{address}/{session}")
        stack.callback(window.ask, "", method="DELETE")
        yield window


class Browser:
    """One window."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, {"Content-Type": "application/json"}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(json.load(error)["value"]["message"]) from error

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.developer(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.developer(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.ask("/url", {"url": path.resolve().as_uri()})
        self.settle()

    def developer(self, command: str, **parameters: Any) -> Any:
        """A command of the developer tools."""
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.ask("/execute/sync", {"script": script, "args": arguments})

    def settle(self) -> None:
        """Waits until moving has ended and two pictures have been drawn."""
        script = """
            const done = arguments[0];
            setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done())), 250);
        """
        self.ask("/execute/async", {"script": script, "args": []})

    def find(self, selector: str) -> dict[str, str]:
        return self.ask("/element", {"using": "css selector", "value": selector})

    def click(self, selector: str) -> None:
        self.show(selector)
        self.ask(f"/element/{self.find(selector)[ELEMENT]}/click", {})

    def show(self, selector: str) -> None:
        """Scrolls until an element is in the middle of the window."""
        script = "document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})"
        self.run(script, selector)
        self.settle()

    def point(self, selector: str, *places: tuple[int, int], press: bool = False) -> None:
        """Moves the mouse over places, from the middle of an element, with the button down or not."""
        self.show(selector)
        origin = self.find(selector)
        steps: list[dict[str, Any]] = [
            {"type": "pointerMove", "duration": 20, "x": x, "y": y, "origin": origin} for x, y in places
        ]
        if press:
            steps = [
                steps[0],
                {"type": "pointerDown", "button": 0},
                *steps[1:],
                {"type": "pointerUp", "button": 0},
            ]
        self.ask(
            "/actions",
            {
                "actions": [
                    {
                        "type": "pointer",
                        "id": "mouse",
                        "parameters": {"pointerType": "mouse"},
                        "actions": steps,
                    }
                ]
            },
        )
        self.settle()

    def wheel(self, selector: str, delta: int) -> None:
        step = {
            "type": "scroll",
            "x": 0,
            "y": 0,
            "deltaX": 0,
            "deltaY": delta,
            "duration": 0,
            "origin": self.find(selector),
        }
        self.ask("/actions", {"actions": [{"type": "wheel", "id": "wheel", "actions": [step]}]})
        self.settle()

    def complaints(self) -> list[str]:
        """What has been written to the console since the last call."""
        return [entry["message"] for entry in self.ask("/se/log", {"type": "browser"})]

    def screenshot(self, path: Path, whole: bool = False) -> None:
        picture = self.developer("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))
