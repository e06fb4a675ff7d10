"""The style sheet of the pages."""

from typing import Final

from spark.page.palette import VARIABLES
from spark.page.tables import card_rules

_LIGHT = "".join(f"--{name}:{light};" for name, light, _ in VARIABLES.values())
_DARK = "".join(f"--{name}:{dark};" for name, _, dark in VARIABLES.values())
_CHARTS = "".join(
    f'svg [fill="{colour}"]{{fill:var(--{name})}}svg [stroke="{colour}"]{{stroke:var(--{name})}}'
    for colour, (name, _, _) in VARIABLES.items()
)

_RULES: Final = """
*{box-sizing:border-box}
html{color-scheme:light;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
 "Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
main,header,footer{max-width:74rem;margin:0 auto;padding:0 1rem}
header{padding-top:1.5rem}
h1,h2,h3,h4{line-height:1.25;margin:0;font-weight:600}
h1{font-size:.95rem;color:var(--muted);letter-spacing:.01em}
h2{font-size:1.25rem;margin:2.75rem 0 .75rem}
h3{font-size:1.05rem}
h4{font-size:1rem}
p{margin:.4rem 0}
a{color:var(--accent)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:3px}
.headline{font-size:clamp(1.6rem,1.2rem + 1.6vw,2.3rem);font-weight:650;line-height:1.15;letter-spacing:-.015em;margin:.35rem 0 .6rem;
 text-wrap:balance}
.lead{font-size:1.075rem;max-width:46rem}
.lead b{font-weight:600}
.do{max-width:46rem;border-left:3px solid var(--accent);padding:.1rem 0 .1rem .9rem;margin:.9rem 0}
.about{color:var(--muted);font-size:.875rem;margin-top:1rem}
.tiles{display:flex;flex-wrap:wrap;gap:1px;margin:1.5rem 0 0;padding:0;
 background:var(--line);border:1px solid var(--line);border-radius:8px;overflow:hidden}
.tiles div{flex:1 1 8.2rem;background:var(--card);padding:.7rem .9rem}
dt{color:var(--muted);font-size:.8125rem;line-height:1.3}
dd{margin:0}
.tiles dd{font-size:1.15rem;white-space:nowrap;font-weight:600;line-height:1.35}
.tiles dd small{display:block;white-space:normal;font-size:.8125rem;font-weight:400;color:var(--muted)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1.75rem 2.5rem;align-items:start}
.figures.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}
.note+.figures{margin-top:1.1rem}
figure{margin:0;min-width:0}
figcaption{margin-bottom:.6rem}
figcaption b{font-weight:600}
.note{color:var(--muted);font-size:.875rem;margin:.1rem 0 0}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font-family:Arial,Helvetica,"Liberation Sans",sans-serif}
svg.narrow{display:none}
details{margin:.5rem 0}
summary{cursor:pointer;color:var(--accent);font-size:.875rem;width:fit-content}
details[open]>summary{margin-bottom:.35rem}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.875rem;line-height:1.4}
th,td{text-align:right;vertical-align:top;padding:.4rem .75rem .4rem 0;border-bottom:1px solid var(--line);font-weight:400}
thead th{color:var(--muted);font-size:.8125rem;vertical-align:bottom}
th:first-child,td.text,th.text{text-align:left}
td,th{overflow-wrap:normal}
td{white-space:nowrap}
td.text,.numbers td{white-space:normal}
.scroll th[scope=row],.scroll td.text{overflow-wrap:anywhere;min-width:8rem}
.overview{width:100%;table-layout:fixed}
.overview thead th:first-child{width:42%}
.overview th[scope=row]{overflow-wrap:anywhere}
.overview td{white-space:normal}
.overview .why{white-space:nowrap;font-size:.8125rem}
.overview td:last-child,.overview th:last-child{padding-right:0}
.name{display:flex;flex-wrap:wrap;gap:.15rem .6rem;align-items:baseline}
.name .badge{flex:0 0 auto}
.slot{flex:0 0 8.4rem}
.names{flex:1 1 9rem;min-width:0}
.many>th,.many>td{border-bottom:0}
.folded{text-align:left;padding:0 0 .4rem;white-space:normal}
.folded th[scope=row]{padding-left:1rem}
.group .group{margin-left:1rem}
.counts{list-style:none;display:flex;flex-wrap:wrap;gap:.4rem 1.2rem;margin:0 0 .9rem;padding:0;font-size:.9375rem}
.topicname,.why,.cause{color:var(--muted)}
.cause{display:block;font-size:.8125rem}
.badge{display:inline-block;border:1px solid currentColor;border-radius:99px;padding:.02rem .55rem;font-size:.8125rem;
 line-height:1.45;font-weight:600;white-space:nowrap}
.badge i{font-style:normal;margin-right:.3rem}
.badge.critical{color:var(--critical)}.badge.warning{color:var(--warning)}.badge.quiet{color:var(--quiet)}.badge.good{color:var(--good)}
.unknown{font-style:italic;color:var(--muted)}
.group{border-top:1px solid var(--line);padding:.8rem 0;margin:0}
h3{display:inline}
h3>*{margin-right:.6rem}
.group>summary{color:inherit;font-size:1rem;width:auto;padding:.15rem 0}
.group>summary::marker{color:var(--accent)}
.target{scroll-margin-top:4rem}
.topic{margin:.3rem 0 .9rem}
.topic+.topic{margin-top:1.3rem}
.topic h4{display:flex;flex-wrap:wrap;gap:.2rem .7rem;align-items:baseline}
.topic p{max-width:46rem}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,11.5rem),1fr));gap:.6rem 1.5rem;margin:.7rem 0}
.facts dd{font-size:.9375rem}
.facts .why,.unknown+.why{font-size:.8125rem}
.clients{list-style:none;margin:0;padding:0}
.evidence{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr;gap:.1rem 1rem;font-size:.875rem;margin:0}
.evidence dd{min-width:0}
.calm{border-top:1px solid var(--line);padding-top:.9rem}
footer{color:var(--muted);font-size:.8125rem;margin-top:3rem;padding-top:1rem;padding-bottom:2.5rem}
footer p{max-width:46rem}
@media (max-width:40rem){
 svg.wide{display:none}svg.narrow{display:block}
 .slot{flex-basis:auto}
 .name .names{flex-basis:100%}
 .facts{grid-template-columns:repeat(auto-fill,minmax(min(100%,7.8rem),1fr));gap:.6rem 1rem}
 .overview,.overview tbody,.overview tr,.overview th,.overview td{display:block}
 .overview thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
 .overview tr{display:grid;grid-template-columns:repeat(3,1fr);gap:.3rem .75rem;padding:.6rem 0;border-bottom:1px solid var(--line)}
 .overview th[scope=row]{grid-column:1/-1;width:auto}
 .overview td,.overview th{border:0;padding:0;text-align:left;white-space:normal;min-width:0}
 .overview td:empty{display:none}
 .scroll td.text:last-child{min-width:18rem}
 .folded .overview,.folded .note{margin-left:1rem;width:auto}.folded th[scope=row]{padding-left:0}
 .overview td::before{display:block;color:var(--muted);font-size:.75rem;line-height:1.3}
 @CARDS@
 .overview td.folded{grid-column:1/-1}.overview td.folded::before{content:none}
 .evidence{grid-template-columns:1fr}.evidence dd{margin-bottom:.4rem}
 h2{margin-top:2.25rem}
}
@media print{
 body{font-size:10.5pt}
 main,header,footer{max-width:none;padding:0}
 figure,.topic,tr,.tiles{break-inside:avoid}
 h2,h3,h4{break-after:avoid}
 .figures,.figures.three{grid-template-columns:1fr 1fr;gap:1rem 1.5rem}
 .scroll{overflow:visible}
 .numbers{display:none}
 summary{color:inherit}
 .group::details-content{content-visibility:visible;display:block}
 svg.wide{display:block}svg.narrow{display:none}
 a{color:inherit;text-decoration:none}
}
"""

STYLE: Final = (
    f":root{{{_LIGHT}--ground:#fbfbfc;--card:#fff;--line:#dfe3e8}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}--ground:#14171b;--card:#1b1f24;--line:#363c44}}html{{color-scheme:dark}}}}"
    f"{_RULES.replace('@CARDS@', card_rules())}{_CHARTS}"
)
