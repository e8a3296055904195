"""What Prometheus needs to monitor a server: a scrape job, and alert rules for speculation that no longer helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_ACCEPTED: Final = "sum by (instance, model_name) (rate(vllm:spec_decode_num_accepted_tokens_total[5m]))"
_DRAFTS: Final = "sum by (instance, model_name) (rate(vllm:spec_decode_num_drafts_total[5m]))"
_ENOUGH: Final = "sum by (instance, model_name) (increase(vllm:spec_decode_num_drafts_total[5m])) > 200"
"""Fewer drafts are not significant."""
_TOKENS: Final = "sum by (instance, model_name) (rate(vllm:generation_tokens_total[2m]))"
_PROMPT: Final = "sum by (instance, model_name) (rate(vllm:prompt_tokens_total[2m]))"
_RUNNING: Final = "min by (instance, model_name) (min_over_time(vllm:num_requests_running[2m]))"


@dataclass(frozen=True, kw_only=True)
class ScrapeTarget:
    """A server to scrape."""

    name: str
    address: str
    """host:port."""


_RULES: Final = (
    {
        "alert": "GemmaspecDraftIsDead",
        "expr": f"({_ACCEPTED} / {_DRAFTS}) < 0.05 and {_ENOUGH}",
        "for": "5m",
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": "{{ $labels.model_name }} accepts almost no draft tokens",
            "description": "Answers stay correct, but speculation only costs time. Restart the server, "
            "or start it with --no-spec.",
        },
    },
    {
        "alert": "GemmaspecEngineHangs",
        "expr": f"{_TOKENS} == 0 and {_PROMPT} == 0 and {_RUNNING} > 0",
        "for": "3m",
        "labels": {"severity": "critical"},
        "annotations": {
            "summary": "{{ $labels.model_name }} has running requests but generates no tokens",
            "description": "/health may still be green. A very long prefill looks the same for a while.",
        },
    },
    {
        "alert": "GemmaspecServerIsGone",
        "expr": 'up{job="gemmaspec"} == 0',
        "for": "2m",
        "labels": {"severity": "critical"},
        "annotations": {"summary": "{{ $labels.stack }} does not answer /metrics"},
    },
    {
        "alert": "GemmaspecKvCacheFull",
        "expr": "max by (instance, model_name) (vllm:kv_cache_usage_perc) > 0.95",
        "for": "10m",
        "labels": {"severity": "warning"},
        "annotations": {"summary": "{{ $labels.model_name }} has used 95 % of its KV cache for ten minutes"},
    },
)


def rules() -> dict[str, Any]:
    """Return the alert rules in the format of a rule file."""
    return {"groups": [{"name": "gemmaspec", "rules": [dict(rule) for rule in _RULES]}]}


def configuration(targets: Sequence[ScrapeTarget], *, rule_file: str) -> dict[str, Any]:
    """Return a Prometheus configuration that scrapes these servers and loads the rules.

    It contains no key. For a server with a key, add `authorization: {credentials_file: …}` to its job.
    """
    return {
        "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
        "rule_files": [rule_file],
        "scrape_configs": [
            {
                "job_name": "gemmaspec",
                "static_configs": [
                    {"targets": [target.address], "labels": {"stack": target.name}} for target in targets
                ],
            }
        ],
    }
