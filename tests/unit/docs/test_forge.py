"""Files for the forge: workflows call scripts that exist, pin what they use, and ask for no more than they need."""

import json
import re
from pathlib import Path

import pytest
import yaml

from shoal import __version__

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_scripts_that_exist_and_pins_every_action(path):
    for job in jobs(path):
        assert job["timeout-minutes"] <= 360
        for step in job["steps"]:
            for script in re.findall(r"\./(scripts/\w+)", step.get("run", "")):
                assert (ROOT / script).stat().st_mode & 0o111, script
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", f"x@{'0' * 40}")), step
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


def test_the_hooks_of_pre_commit_are_steps_of_the_fast_tier():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    programs = {hook["entry"].split()[0] for hook in hooks}
    assert programs == {".venv/bin/ruff", ".venv/bin/python"}


def test_the_files_strangers_look_for_are_there_and_their_links_lead_somewhere():
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_the_image_and_the_manifests_start_a_server_with_options_that_exist():
    from shoal.cli.main import app

    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    program, *words = json.loads(re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)[1])
    assert program == "shoal"
    app.meta.parse_args(words, exit_on_error=False, print_error=False)
    assert "--foreground" in words
    for folder in re.findall(r"\./(\w+)$", text, re.MULTILINE):
        assert (ROOT / folder / "pyproject.toml").exists()
    [service] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    kinds = {
        part["kind"]: part for part in yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8"))
    }
    spec = kinds["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate"), "one server per data directory"
    [container] = spec["template"]["spec"]["containers"]
    assert container["ports"][0]["containerPort"] == kinds["Service"]["spec"]["ports"][0]["targetPort"] == 8080


def test_the_first_screen_of_the_readme_fits_45_lines():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines.index("## Next steps") <= 45


def test_the_version_has_release_notes_of_highlights():
    notes = (ROOT / "docs" / "releases" / f"{__version__}.md").read_text().splitlines()
    assert notes[0] == f"# Shoal {__version__}" and 10 <= len(notes) <= 60, "highlights, not an inventory"
