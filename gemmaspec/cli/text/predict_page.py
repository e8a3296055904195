"""The page that `gemmaspec predict --html` writes."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from gemmaspec.bench.sheet import sheet
from gemmaspec.bench.svg import Chart, Line, svg
from gemmaspec.deploy.checks.predict import Prediction
from gemmaspec.predict.predict import Predicted


def page(found: Prediction) -> str:
    """Return the prediction as a page with a fan for each setting, context and method."""
    title = f"{found.profile}, predicted"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="dim">From {escape(found.why)}. A band holds a measurement with a probability of 90 %.</p>',
        *(f'<p class="warn">{escape(note)}</p>' for note in found.notes),
    ]
    for (setting, context), group in groupby(found.rows, key=lambda one: (one.setting, one.context)):
        body.append(f"<h2>{context:,} prompt tokens</h2><p>{escape(str(setting))}</p>")
        body.append(f'<div class="charts">{"".join(svg(fan) for fan in _fans(list(group)))}</div>')
    return sheet(title, "\n".join(body))


def _fans(rows: list[Predicted]) -> Iterator[Chart]:
    """Yield a chart for each method: speeds by k, a line and its band for each load."""
    for method in dict.fromkeys(one.method for one in rows if one.k) or ["none"]:
        own = [one for one in rows if one.method == method or not one.k]
        ks = sorted({one.k for one in own})
        cells = {(one.concurrency, one.k): one for one in own}
        lines = [
            Line(
                name=f"{load} {'request' if load == 1 else 'requests'}",
                values=[cells[load, k].tokens_per_second if (load, k) in cells else None for k in ks],
                ranges=[cells[load, k].interval if (load, k) in cells else None for k in ks],
            )
            for load in sorted({one.concurrency for one in own})
        ]
        yield Chart(
            title=f"Tokens per second, {'no speculation' if method == 'none' else method.replace('_', ' ')}",
            x_title="k, drafted tokens a step",
            y_title="tok/s",
            places=[str(k) for k in ks],
            lines=lines,
            band=True,
        )
