"""A Grafana dashboard with the speculation panels that vLLM's own dashboards do not have (every release)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_SCHEMA: Final = 39
_WIDTH, _HEIGHT = 8, 8


@dataclass(frozen=True, kw_only=True)
class _Panel:
    title: str
    queries: Sequence[tuple[str, str]]
    """PromQL and legend."""
    unit: str = "short"


_BY: Final = "sum by (model_name)"


def _rate(name: str) -> str:
    return f'{_BY} (rate(vllm:{name}{{model_name=~"$model"}}[$__rate_interval]))'


def _quantile(share: str, name: str) -> str:
    rate = f'rate(vllm:{name}_bucket{{model_name=~"$model"}}[$__rate_interval])'
    return f"histogram_quantile({share}, sum by (le, model_name) ({rate}))"


def _quantiles(name: str) -> list[tuple[str, str]]:
    return [(_quantile(share, name), f"{label} {{{{model_name}}}}") for share, label in _SHARES]


_SHARES: Final = (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"))
_MODEL: Final = "{{model_name}}"
_PANELS: Final = (
    _Panel(title="Generated tokens per second", queries=[(_rate("generation_tokens_total"), _MODEL)]),
    _Panel(
        title="Acceptance length",
        queries=[
            (
                f"1 + {_rate('spec_decode_num_accepted_tokens_total')} / {_rate('spec_decode_num_drafts_total')}",
                _MODEL,
            )
        ],
    ),
    _Panel(
        title="Accepted by position",
        unit="percentunit",
        queries=[
            (
                "sum by (model_name, position) (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total"
                '{model_name=~"$model"}[$__rate_interval])) / on (model_name) group_left '
                + _rate("spec_decode_num_drafts_total"),
                "{{model_name}} {{position}}",
            )
        ],
    ),
    _Panel(
        title="Drafted and accepted tokens per second",
        queries=[
            (_rate("spec_decode_num_draft_tokens_total"), "drafted {{model_name}}"),
            (_rate("spec_decode_num_accepted_tokens_total"), "accepted {{model_name}}"),
        ],
    ),
    _Panel(
        title="k in use (drafted tokens per draft)",
        queries=[(f"{_rate('spec_decode_num_draft_tokens_total')} / {_rate('spec_decode_num_drafts_total')}", _MODEL)],
    ),
    _Panel(
        title="Running and waiting requests",
        queries=[
            (f'{_BY} (vllm:num_requests_running{{model_name=~"$model"}})', "running {{model_name}}"),
            (f'{_BY} (vllm:num_requests_waiting{{model_name=~"$model"}})', "waiting {{model_name}}"),
        ],
    ),
    _Panel(
        title="KV cache in use",
        unit="percentunit",
        queries=[('max by (model_name) (vllm:kv_cache_usage_perc{model_name=~"$model"})', _MODEL)],
    ),
    _Panel(
        title="Prefix cache hits",
        unit="percentunit",
        queries=[(f"{_rate('prefix_cache_hits_total')} / {_rate('prefix_cache_queries_total')}", _MODEL)],
    ),
    _Panel(title="Preemptions per second", queries=[(_rate("num_preemptions_total"), _MODEL)]),
    _Panel(title="Time to first token", unit="s", queries=_quantiles("time_to_first_token_seconds")),
    _Panel(title="Time per output token", unit="s", queries=_quantiles("request_time_per_output_token_seconds")),
    _Panel(title="Request latency", unit="s", queries=_quantiles("e2e_request_latency_seconds")),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format, with variables for the Prometheus data source and the model."""
    return {
        "title": "gemmaspec: speculative decoding",
        "uid": "gemmaspec-speculation",
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "tags": ["vllm", "gemmaspec"],
        "templating": {"list": [_datasource(), _model()]},
        "panels": [_panel(place, panel) for place, panel in enumerate(_PANELS)],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _model() -> dict[str, Any]:
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(vllm:generation_tokens_total, model_name)", "refId": "models"},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(place: int, panel: _Panel) -> dict[str, Any]:
    columns = 24 // _WIDTH
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {
            "x": place % columns * _WIDTH,
            "y": place // columns * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }
