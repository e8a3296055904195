"""The frame of a self-contained page with charts, in colours for light and dark."""

from __future__ import annotations

from html import escape
from typing import Final

_STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--rule:#d5dae0;--card:#f6f8fa;
--c0:#6e7781;--c1:#0a66c2;--c2:#b3480b;--c3:#11734b;--c4:#8a3ffc;--c5:#b8004f;--c6:#007d8a;--c7:#7a5c00}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6e9ed;--dim:#9aa4b0;--rule:#333b45;--card:#181e26;
--c0:#a7b0ba;--c1:#62b0ff;--c2:#ff9d5c;--c3:#58d39b;--c4:#c59bff;--c5:#ff7fb0;--c6:#4fd3e0;--c7:#e3c04a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.5rem;margin:.3rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
p,dd{margin:.3rem 0}.dim{color:var(--dim)}.warn{border-left:4px solid var(--c2);padding-left:.6rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}
figure{margin:0;max-width:36rem;background:var(--card);border-radius:8px;padding:.6rem}
figcaption{font-weight:600}
figure>svg{width:100%;height:auto;display:block}
.grid{stroke:var(--rule);stroke-width:1}.level{stroke:var(--fg);stroke-width:1;stroke-dasharray:4 3}
text{font:13px system-ui,sans-serif}.tick{fill:var(--fg)}.axis{fill:var(--dim)}
.part{stroke:none}.part:last-child,.parts li:last-child svg{opacity:.3}
.band{stroke:none;opacity:.16}.bar{fill:none;stroke-width:1.5}.line{fill:none;stroke-width:2.5}.dot{stroke:none}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}
.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}
.dot.c0,.band.c0,.part.c0{fill:var(--c0)}.dot.c1,.band.c1,.part.c1{fill:var(--c1)}.dot.c2,.band.c2,.part.c2{fill:var(--c2)}.dot.c3,.band.c3,.part.c3{fill:var(--c3)}
.dot.c4,.band.c4,.part.c4{fill:var(--c4)}.dot.c5,.band.c5,.part.c5{fill:var(--c5)}.dot.c6,.band.c6,.part.c6{fill:var(--c6)}.dot.c7,.band.c7,.part.c7{fill:var(--c7)}
.legend{list-style:none;margin:.3rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.9rem}
.legend svg{width:24px;height:10px;margin-right:.35rem}
.scroll{overflow-x:auto;background:linear-gradient(90deg,#0000,var(--bg) 70%) 100% 0/2.5rem 100% no-repeat local,
linear-gradient(90deg,#0000,var(--dim)) 100% 0/.5rem 100% no-repeat scroll}
table{border-collapse:collapse;font-size:.9rem;white-space:nowrap}
th,td{border-bottom:1px solid var(--rule);padding:.3rem .6rem;text-align:right}
th:first-child,td:first-child{text-align:left}
.arms td{white-space:normal;overflow-wrap:anywhere;min-width:7rem;max-width:20rem}
.arms td,.arms th{text-align:left}
summary{cursor:pointer;margin:.8rem 0 .3rem}dl{font-size:.9rem;overflow-wrap:anywhere}
dt{color:var(--dim)}dd{margin:0 0 .3rem}
@media(min-width:48rem){dl{display:grid;grid-template-columns:18rem minmax(0,1fr);gap:.1rem 1rem}}
"""


def sheet(title: str, body: str) -> str:
    """Return a whole page; `title` is plain text, `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
