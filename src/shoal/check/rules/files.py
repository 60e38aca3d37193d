"""Rules that compare the files and datasets that the code opens with those of the job."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator

from shoal.check.arguments import arguments_of
from shoal.check.calls import keyword_of
from shoal.check.job_facts import JobFacts
from shoal.check.module import Module
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.check.rules.paths import is_spare
from shoal.check.texts import Texts
from shoal.core.checks import Severity

_READERS = frozenset(
    "builtins.open io.open torch.load numpy.load numpy.loadtxt numpy.genfromtxt pandas.read_csv pandas.read_json "
    "pandas.read_parquet pandas.read_pickle pandas.read_table pandas.read_excel PIL.Image.open cv2.imread "
    "json.load safetensors.torch.load_file yaml.safe_load".split()
)
_BRINGS_FILES = frozenset(
    "subprocess urllib requests httpx gdown wget zipfile tarfile shutil boto3 huggingface_hub ftplib aiohttp".split()
)
_BRINGS_CALLS = ("system", "chdir", "urlretrieve", "extractall", "unpack_archive", "download")


@rule(
    "missing-dataset",
    Severity.ERROR,
    why="The folder does not exist when the script opens it.",
    fix="Add the dataset to the job: `--dataset NAME` (`shoal dataset list` shows the names).",
)
def missing_dataset(program: Program, asked: JobFacts) -> Iterator[Hit]:
    if asked.datasets is None:
        return
    arguments = arguments_of(program, asked.args)
    for module in program.modules:
        for node in module.all(ast.Constant):
            path = node.value if isinstance(node.value, str) else ""
            name = _missing_dataset(path, asked.datasets)
            if name is not None and not is_spare(module, node, arguments):
                yield _no_dataset(module, node, path, name, asked.datasets)
    for word in asked.args or ():
        path = word[word.find("/input/") :] if "/input/" in word else ""
        name = _missing_dataset(path, asked.datasets)
        if name is not None and program.modules:
            yield _no_dataset(program.modules[0], program.modules[0].tree, path, name, asked.datasets)


@rule(
    "missing-file",
    Severity.ERROR,
    why="The job runs in a copy of the source, which does not contain this file.",
    fix="Add it to the source, or push it as a dataset and read it from /input/NAME.",
)
def missing_file(program: Program, asked: JobFacts) -> Iterator[Hit]:
    for module, statement, path in program.missing:
        message = f"{path} is imported, but .gitignore or .shoalignore excludes it from the source."
        yield Hit(module, statement, message, fix="Remove it from the ignore file.")
    if (
        not program.is_whole
        or program.imports(*_BRINGS_FILES)
        or next(program.methods(*_BRINGS_CALLS), None) is not None
    ):
        return
    arguments = arguments_of(program, asked.args)
    for module in program.modules:
        texts = Texts(module, arguments)
        for call, target in _reads(module):
            text = texts.of(target)
            if (
                text is None
                or not text.whole
                or not _is_relative(text.start)
                or _may_be_there(program, module, call, target, text.start)
            ):
                continue
            left_out = program.source.excludes(text.start)
            also = " It exists here, but .gitignore or .shoalignore excludes it." if left_out else ""
            yield Hit(module, target, f"'{text.start}' is opened, but is not in the source.{also}")


def _no_dataset(module: Module, node: ast.AST, path: str, name: str, datasets: frozenset[str]) -> Hit:
    has = ", ".join(f"'{d}'" for d in sorted(datasets)) or "none"
    message = f"'{path}' is read, but the job has no dataset '{name}' (it has {has})."
    return Hit(module, node, message, fix=f"Add `--dataset {name}`, or correct the path.")


def _missing_dataset(path: str, datasets: frozenset[str]) -> str | None:
    """Return NAME of '/input/NAME/…' if the job does not have that dataset, else None."""
    if not path.startswith("/input/") or any(c in path for c in "\n {*"):
        return None
    name = path.split("/")[2]
    # With a single dataset, its files are also directly below /input, so any name may be one of them.
    return name if name and name not in datasets and len(datasets) != 1 else None


def _reads(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    for call in module.all(ast.Call):
        called = module.called(call)
        if called and called <= _READERS and call.args and _mode(call) == "r":
            yield call, call.args[0]
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("read_text", "read_bytes"):
            yield call, call.func.value


def _mode(call: ast.Call) -> str:
    node = keyword_of(call, "mode") or (call.args[1] if len(call.args) > 1 else None)
    if node is None or not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return "r" if node is None or "open" not in ast.unparse(call.func) else "?"
    return "r" if set(node.value) <= set("rbtU") or "open" not in ast.unparse(call.func) else "w"


def _is_relative(path: str) -> bool:
    return bool(path) and not path.startswith(("/", "~", "..")) and "://" not in path and ":\\" not in path


def _may_be_there(program: Program, module: Module, call: ast.Call, target: ast.expr, path: str) -> bool:
    """Check whether a file may exist: it is in the source, the script may write it or test for it, or errors are caught."""
    beside = posixpath.join(posixpath.dirname(program.entry), path)
    if program.source.holds(path) or program.source.holds(beside) or module.is_tried(call):
        return True
    if any(
        isinstance(above, (ast.If, ast.IfExp)) and "__name__" not in ast.unparse(above.test)
        for above in module.scopes.above(call)
    ):
        return True
    name = posixpath.basename(path)
    places = sum(
        name in node.value for m in program.modules for node in m.all(ast.Constant) if isinstance(node.value, str)
    )
    # A path that other lines also use may be written by one of them.
    named = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    uses = sum(n.id in named and isinstance(n.ctx, ast.Load) for n in module.all(ast.Name))
    return places > 1 or uses > len(named)
