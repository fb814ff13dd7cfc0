"""Alert rules, checked by Prometheus' own tool."""

import re
import subprocess
from pathlib import Path

from tests.deploy.packages import needs

FOLDER = Path(__file__).resolve().parents[2] / "deploy/prometheus"


def promtool(*arguments):
    done = subprocess.run(
        ["promtool", *arguments],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"cd {FOLDER}; promtool {' '.join(arguments)}\n{done.stdout}"


@needs("promtool", "prometheus")
def test_prometheus_reads_what_is_scraped_and_ruled():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "--lint-fatal", "alerts.yml")


@needs("promtool", "prometheus")
def test_each_alert_fires_when_it_should_and_not_before():
    promtool("test", "rules", "alerts_test.yml")


def test_each_alert_has_a_trial_and_a_paragraph_in_the_runbook():
    alerts = re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    assert alerts == re.findall(r"eval_time: .*\n +alertname: (\w+)", _read("alerts_test.yml"))
    runbook = (FOLDER / "../../docs/runbooks/monitoring.md").read_text()
    assert [alert for alert in alerts if f"`{alert}`" not in runbook] == []


def _read(name):
    return (FOLDER / name).read_text()
