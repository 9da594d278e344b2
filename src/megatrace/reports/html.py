"""The HTML report: one file that works offline, with the sentence, the culprit, and pictures that argue.

Made to be attached to a ticket and opened years later on a laptop without a network: style, script and data
are in the file; nothing is loaded. Its Content-Security-Policy allows the one script and the one style sheet
that it has (by hash) and nothing else, so that text from logs could not run even if it came to stand as
markup. All text is there without the script, which draws the pictures on canvases: pixels, not nodes, or ten
thousand ranks would not scroll.

Finds everything in the `Diagnosis`; opens nothing but its own template, style and script (``html_assets``).
"""

from __future__ import annotations

from markupsafe import Markup

from megatrace.model.finding import Diagnosis
from megatrace.reports import ReportOptions, reports
from megatrace.reports.describe import Scene
from megatrace.reports.html_data import data_block, json_text
from megatrace.reports.html_marks import marks
from megatrace.reports.html_shell import asset, environment, policy, script_of
from megatrace.reports.html_texts import PageTexts
from megatrace.reports.html_view import view
from megatrace.reports.texts import Texts

SCRIPTS = (
    "page.js",
    "data.js",
    "chart.js",
    "iterations.js",
    "heat.js",
    "gantt.js",
    "lateness.js",
    "series.js",
    "start.js",
)
"""In this order: each uses what stands before it."""


@reports.register("html", summary="for people, in a browser: one file with pictures", file="diagnosis.html")
def report(diagnosis: Diagnosis, options: ReportOptions) -> str:
    """The page as the options ask for it."""
    return render(diagnosis, options)


def render(diagnosis: Diagnosis, options: ReportOptions) -> str:
    """The page as text, to be written in UTF-8."""
    script, style = script_of(SCRIPTS), asset("style.css")
    shown, page = view(diagnosis, options), PageTexts(options.lang)
    block = data_block(diagnosis)
    packed, index = block.packed()
    facts = {
        **block.facts,
        "arrays": index,
        "words": page.script(),
        "marks": marks(diagnosis, Scene.of(diagnosis, Texts(options.lang))),
    }
    template = environment().get_template("page.html.j2")
    return template.render(
        v=shown,
        t=page,
        policy=policy(script, style),
        style=Markup(style),
        script=Markup(script),
        facts=Markup(json_text(facts)),
        packed=packed,
    )
