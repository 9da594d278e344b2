"""The page of a profile: one file that works offline, with bars, the critical path, operators and bandwidths.

Made like the page of a diagnosis (``html_shell``): style, script and data are in the file, its policy allows
nothing else, and all numbers are there without the script, which draws the pictures on canvases.

Finds everything in the `ProfileResult`; opens nothing but its own assets. English only.
"""

from __future__ import annotations

from markupsafe import Markup

from megatrace.model.profile_result import ProfileResult
from megatrace.reports import ReportOptions
from megatrace.reports.html_data import json_text
from megatrace.reports.html_shell import asset, environment, policy, script_of
from megatrace.reports.html_texts import PageTexts
from megatrace.reports.profile_html_data import data_block
from megatrace.reports.profile_html_view import view

SCRIPTS = (
    "page.js",
    "data.js",
    "chart.js",
    "profile.js",
    "flame.js",
    "path.js",
    "scatter.js",
    "profile_start.js",
)
WORDS = {
    "flame_axis": "time",
    "path_axis": "time",
    "bytes_axis": "size",
    "of_total": "=",
    "own": "own",
    "calls_made": "calls",
    "device": "device",
    "exposed": "exposed",
    "which_path": "Which critical path",
}
"""What the pictures of a profile say beyond the words of all pages."""


def render(result: ProfileResult, options: ReportOptions) -> str:
    """The page as text, to be written in UTF-8."""
    script = script_of(SCRIPTS)
    style = asset("style.css") + asset("profile.css")
    page = PageTexts("en")
    block = data_block(result)
    packed, index = block.packed()
    facts = {**block.facts, "arrays": index, "words": {**page.script(), **WORDS}, "marks": {}}
    return (
        environment()
        .get_template("profile.html.j2")
        .render(
            v=view(result, options),
            t=page,
            policy=policy(script, style),
            style=Markup(style),
            script=Markup(script),
            facts=Markup(json_text(facts)),
            packed=packed,
        )
    )
