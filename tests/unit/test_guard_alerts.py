"""The alert of a guard that would not take over, by promtool."""

import shutil
import subprocess
from pathlib import Path

import pytest

from walproof.watching.alerts_and_dashboard import alert_rules

_GONE = """
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series: [{series: 'walproof_guard_ready{instance="a"}', values: '1x10 _x200'}]
    promql_expr_test:
      - {expr: 'count(ALERTS{alertname="WalproofGuardNotReady"})', eval_time: 8m, exp_samples: []}
      - {expr: 'count(ALERTS{alertname="WalproofGuardNotReady"})', eval_time: 99m, exp_samples: [{value: 1}]}
  - {interval: 1m, input_series: [{series: 'up', values: '1x100'}],
     promql_expr_test: [{expr: 'count(ALERTS{alertname="WalproofGuardNotReady"})', eval_time: 99m, exp_samples: []}]}
"""


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_a_guard_that_is_gone_is_not_silent_and_who_has_none_hears_nothing(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alert_rules())
    (tmp_path / "gone.yml").write_text(_GONE)
    subprocess.run(["promtool", "test", "rules", str(tmp_path / "gone.yml")], check=True)
