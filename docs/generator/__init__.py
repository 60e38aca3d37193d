"""Writes docs/reference from the code: its pages, and the JSON schema of the project file. Only job-runtime.md there is
written by hand.

`pages` is all there is to call: file name → text, the same on every machine.
"""

from __future__ import annotations

from generator import api, cli, errors, project_file, python, records, schemas, settings

NOTE = "<!-- Written by scripts/docs from the code: change it there, then run scripts/docs. -->\n\n"


def pages() -> dict[str, str]:
    makers = {
        "cli": cli,
        "api": api,
        "schemas": schemas,
        "settings": settings,
        "errors": errors,
        "records": records,
        "project-file": project_file,
        "python": python,
    }
    made = {f"{name}.md": NOTE + maker.page() for name, maker in makers.items()}
    return made | {"shoal.schema.json": project_file.schema()}
