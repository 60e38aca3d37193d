"""Translation of `!commands`: packages become requirements, downloads need a decision, other commands run unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable

from shoal.notebooks.model import Work
from shoal.notebooks.pip import PipRequest, read_pip
from shoal.notebooks.shell import expression, parts, urls_of, uses_names, words_of

_FETCHERS = frozenset({"wget", "curl", "gdown", "axel", "aria2c", "kaggle", "gsutil", "aws", "s3cmd", "rclone"})
_SYSTEM = frozenset({"apt", "apt-get", "aptitude", "yum", "dnf", "apk", "brew", "snap", "dpkg", "add-apt-repository"})
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun"})
_ARCHIVES = re.compile(r"(\.tar)?\.(zip|tar|tgz|gz|bz2|xz|csv|jsonl?|parquet|txt|npz|npy|pt|h5|hdf5)$", re.I)
_DRIVE_ID = re.compile(r"(?:/d/|[?&]id=|^)([\w-]{20,})")


def translate_shell(work: Work, was: str, command: str) -> str:
    """Return one line of Python for a `!command`; '' if nothing of it remains."""
    if command.split()[:1] == ["cd"] and len(parts(command)) == 1:
        work.dropped(was, "`!cd` had no effect in the notebook either: it changed the folder of its own shell only")
        return ""
    left = [part for part in parts(command) if not _is_handled(work, was, part)]
    if not left:
        return ""
    kept = command if len(left) == len(parts(command)) else " && ".join(left)
    if not any(change.line == work.line for change in work.changes):
        work.turned(was, "runs in a shell", _advice(left))
    return f"_nb.sh({expression(kept, work.shared.known)})"


def _is_handled(work: Work, was: str, part: str) -> bool:
    """Check whether this command must not be run; record its replacement or the reason."""
    words = words_of(part)
    while words and words[0] in ("sudo", "-H", "time", "nohup", "yes", "|"):
        words = words[1:]
    if not words:
        return True
    if (asked := read_pip(words)) is not None:
        _packages(work, was, part, asked)
        return True
    name = words[0].rpartition("/")[2]
    judge = next((judge for names, judge in _JUDGES if name in names), None)
    return judge(work, was, words) if judge else False


def _packages(work: Work, was: str, part: str, asked: PipRequest) -> None:
    if asked.verb != "install":
        return work.dropped(
            was, f"`{asked.verb or 'pip'}` changes or shows packages; a job's come from requirements.txt"
        )
    if uses_names(part.replace("{sys.executable}", ""), work.shared.known):
        return work.decide(was, "the packages depend on variables", "Write the package names in the notebook.")
    if asked.local:
        work.decide(
            was,
            f"{', '.join(asked.local)} exists only where the notebook was, not where the job runs",
            "Put its lines into a requirements.txt, and send the folder too: --dir FOLDER",
        )
    for line in asked.lines:
        work.shared.requirements.add(line)
    if asked.lines:
        told = f"requirements.txt: {', '.join(asked.lines)}"
        work.turned(was, told, "These are conda's names; pip may use others." if asked.is_conda else None)
    elif not asked.local:
        work.dropped(was, "it names no package")
    return None


def _fetches_data(work: Work, was: str, words: list[str]) -> bool:
    """Record a decision for a download. Return False: with --as-is, the command runs as in the notebook."""
    url = next(urls_of(words), None)
    drive = next((found[1] for word in words[1:] if (found := _DRIVE_ID.search(word))), None)
    if words[0] == "kaggle" and "download" in words:
        hint = "shoal dataset push NAME --file FOLDER, with what kaggle downloaded on your machine"
    elif words[0] == "gdown" or (url and "drive.google.com" in url):
        source = f"https://drive.google.com/uc?export=download&id={drive}" if drive else "URL"
        hint = f"shoal dataset push NAME --file '{source}'"
    elif url is None or uses_names(url, work.shared.known) or re.match(r"\w+://(localhost|127\.)", url):
        return False
    else:
        hint = f"shoal dataset push {_dataset_name(url)} --file '{url}'"
    why = "every worker of every attempt would download this again: push it once as a dataset and read /input/NAME"
    work.decide(was, why, hint)
    return False


def _installs_system(work: Work, was: str, words: list[str]) -> bool:
    why = "a job cannot install system packages; an admin of the machines can"
    work.decide(was, why, "Ask an admin to install it, or remove the line if the notebook runs without it.")
    return True


def _shows_pages(work: Work, was: str, words: list[str]) -> bool:
    work.dropped(was, "it serves a web page, which a job does not need")
    return True


_JUDGES: list[tuple[frozenset[str], Callable[[Work, str, list[str]], bool]]] = [
    (_FETCHERS, _fetches_data),
    (_SYSTEM, _installs_system),
    (frozenset({"tensorboard", "jupyter", "ngrok"}), _shows_pages),
]


def _advice(left: list[str]) -> str | None:
    first = [part.split()[0] for part in left if part.split()]
    if "git" in first:
        return "Code that is cloned while the job runs is not kept with it: --repository-url does that."
    if _LAUNCHERS & set(first):
        return "A job starts its own workers: --nodes and --accels, with the script itself."
    return None


def _dataset_name(url: str) -> str:
    last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", _ARCHIVES.sub("", last)).strip("-._")[:63] or "NAME"
