"""How soon a browser paints the web view, with a thousand peers or ten thousand versions.

``python -m benchmarks.first_paint [--rounds N] [--json]`` prints milliseconds from the navigation
to the first content, the median and the best of so many loads, each in a context without a cache.
Needs Chromium of the system and the tests' recorded states, so it runs in a checkout.
"""

import argparse
import json
from statistics import median

from playwright.sync_api import sync_playwright

from node.api.v1.recording import Recording
from tests.browser.conftest import CHROMIUM, Served
from tests.browser.states import STATES

SWARMS = ("ready", "peers-1000", "versions-10000")
ADDRESSES = ("", "#/peers")
PAINTS = "performance.getEntriesByType('paint').map((one) => one.startTime)"
PATIENCE_MS = 30_000


def main() -> None:
    """Load and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in SWARMS:
            served = Served(Recording(STATES[name]())).start()
            for address in ADDRESSES:
                times = []
                for _ in range(options.rounds):
                    context = browser.new_context()
                    page = context.new_page()
                    page.goto(f"{served.url}{address}")
                    page.locator("main h1").wait_for(timeout=PATIENCE_MS)
                    while len(found := page.evaluate(PAINTS)) < 2:
                        page.wait_for_timeout(20)
                    times.append(max(found))
                    context.close()
                rows.append(
                    {"swarm": name, "page": address or "#/", "median_ms": round(median(times))}
                    | {"best_ms": round(min(times))}
                )
            served.stop()
        browser.close()
    for row in rows:
        if not options.json:
            print(" ".join(f"{key}={value}" for key, value in row.items()))
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
