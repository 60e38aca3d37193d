"""The console's JavaScript modules: what they import from each other is there and used, and lines are short enough to read."""

import re

import pytest

from shoal.server.web.render import STATIC

MODULES = {path.name: path.read_text() for path in sorted((STATIC / "js").glob("*.js"))}
LONGEST = 160
_EXPORTED = re.compile(r"^export (?:async )?(?:const|let|function|class) (\w+|\{[^}]*\})", re.M)
_LISTED = re.compile(r"^export \{([^}]*)\}", re.M)


def exported(text):
    listed = [*_LISTED.findall(text), *(found.strip("{ }") for found in _EXPORTED.findall(text))]
    return {name.strip() for part in listed for name in part.split(",")}


@pytest.mark.parametrize("module", MODULES)
def test_lines_are_short_enough_to_read(module):
    assert [f"{module}:{n}" for n, line in enumerate(MODULES[module].splitlines(), 1) if len(line) > LONGEST] == []


def test_what_is_imported_is_there_and_used():
    """A name that is not there is an error only when its line runs, which may be in a dialog that no test opens."""
    wrong = []
    for module, text in MODULES.items():
        for names, source in re.findall(r'^import \{([^}]*)\} from "\./([\w.]+)";', text, re.M):
            for name in {n.strip() for n in names.split(",")} - {"", "$"}:
                if name not in exported(MODULES[source]):
                    wrong.append(f"{module}: {source} has no {name}")
                if len(re.findall(rf"\b{re.escape(name)}\b", text)) < 2:
                    wrong.append(f"{module}: {name} is not used")
    assert wrong == []
