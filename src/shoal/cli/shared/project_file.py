"""Options from the project file `shoal.yaml` of the folder that a command runs from.

The file fills options that were not typed; after that, commands build the job as they do without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, Token
from cyclopts.argument import Argument, ArgumentCollection

from shoal.cli.shared.output import out
from shoal.cli.shared.session import session
from shoal.cli.shared.yaml_file import YamlFile, read_yaml
from shoal.core.errors import UsageError
from shoal.core.names import did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError

    from shoal.core.project_file import ProjectFile

FILE_NAME = "shoal.yaml"
"""Copy of `core.project_file.FILE_NAME`, whose module takes too long to import for a command line."""
_OTHER_CODE = ("repository-url", "source-name", "zip", "file", "notebook")
_PAIRS = ("env", "secrets", "labels", "engine_options")
_NOT_OPTIONS = ("name", "run", "args")
_HINT = f"{out.prog} init --help"


def from_project(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill arguments that were not given from the project file of the folder. Called by the parser."""
    by_key = {name.lstrip("-"): argument for argument in arguments for name in argument.names if name[0] == "-"}
    session.numbers_name = False
    profile, path = _typed(by_key.get("profile")), _path(by_key)
    step = _typed(by_key.get("step"))
    if path is None or not path.is_file():
        _refuse_profile(profile, path)
        _make_up_name(arguments, has_script=any(_typed(by_key.get(option)) for option in ("file", "notebook")))
        return
    from shoal.core.project_file import OPTION_OF, overlay

    file = read_project(path)
    check_profile(file, profile, path)
    option_of = {key: OPTION_OF.get(key, key).replace("_", "-") for key in type(file).model_fields}
    typed = {key: value for key, option in option_of.items() if (value := _typed_value(key, by_key.get(option)))}
    options = overlay(file.options(profile, step), typed)
    _fill_words(arguments, by_key, options, path)
    for key, value in options.items():
        argument = by_key.get(option_of[key])
        if argument is not None and key not in _NOT_OPTIONS and (key not in typed or key in _PAIRS):
            _fill(argument, f"--{option_of[key]}", _texts(value, without=typed.get(key)), path)
    if step is None:
        out.dim(f"Using {path}{f', profile {profile}' if profile else ''}.")


def read_project(path: Path) -> ProjectFile:
    """Read and check a project file; raise UsageError with the line and key of the first mistake."""
    from pydantic import ValidationError

    from shoal.core.project_file import ProjectFile

    found = read_yaml(path, hint=_HINT, numbers=False)
    if not isinstance(found.value, dict | None):
        raise UsageError(f"{path} should be a mapping of options, such as `run: train.py`.", hint=_HINT)
    try:
        return ProjectFile.model_validate(found.value or {})
    except ValidationError as error:
        raise UsageError(_first_mistake(path, found, error), hint=_HINT) from None


def check_profile(file: ProjectFile, profile: str | None, path: Path) -> None:
    """Raise UsageError if the file has no such profile."""
    known = file.profiles or {}
    if profile is not None and profile not in known:
        names = f" It has: {', '.join(known)}." if known else " It has no profiles."
        raise UsageError(f"{path} has no profile {profile!r}.{did_you_mean(profile, known) or names}", hint=_HINT)


def _path(by_key: Mapping[str, Argument]) -> Path | None:
    """Return the path at which the project file would be, or None if the code does not come from a folder."""
    if any(_typed(by_key.get(option)) for option in _OTHER_CODE):
        return None
    folder = _typed(by_key.get("dir")) if "zip" in by_key else None  # of `shoal run`, --dir is the folder of results
    return Path(folder) / FILE_NAME if folder else Path(FILE_NAME)


def _make_up_name(arguments: ArgumentCollection, *, has_script: bool) -> None:
    """Fill the name of a job with one that can be said aloud, if no word stands before `--`."""
    name = next((one for one in arguments if one.field_info.name == "name" and not one.keys), None)
    entry = next((one for one in arguments if one.field_info.name == "entry" and not one.keys), None)
    after = session.after_dashes or 0
    if name is None or entry is None or name.names[0][0] == "-" or not (after or has_script):
        return
    words = [token for one in (name, entry) for token in one.tokens]
    if len(words) == after:
        from shoal.client.job_names import speakable_name

        name.tokens[:] = [Token(value=speakable_name(), source="generated")]
        entry.tokens[:] = [token.evolve(index=at) for at, token in enumerate(words)]


def _refuse_profile(profile: str | None, path: Path | None) -> None:
    if profile is not None and path is None:
        raise UsageError(f"--profile needs code from a folder: its {FILE_NAME} has the profiles.")
    if profile is not None:
        raise UsageError(f"--profile {profile} needs {path}, which does not exist.", hint=f"{out.prog} init")


def _typed(argument: Argument | None) -> str | None:
    return argument.tokens[-1].value if argument is not None and argument.tokens else None


def _typed_value(key: str, argument: Argument | None) -> Any:
    """Return the value that was typed for a key, in the form that the file has; None if none was typed."""
    if argument is None or not argument.tokens or key in _NOT_OPTIONS:
        return None
    if key in _PAIRS:
        return dict(token.value.partition("=")[::2] for token in argument.tokens)
    return argument.tokens[-1].value or "true"


def _fill_words(
    arguments: ArgumentCollection, by_key: Mapping[str, Argument], options: Mapping[str, Any], path: Path
) -> None:
    """Fill the name, and the script with its arguments. Typed words that begin with `--` follow the file's arguments."""
    from shoal.core.project_file import command_words, usable_name

    entry = next(one for one in arguments if one.field_info.name == "entry" and not one.keys)
    name = next((one for one in arguments if one.field_info.name == "name" and not one.keys), None)
    is_first = name is not None and name.names[0][0] != "-"
    words = [token.value for one in (name, entry) if one is entry or is_first for token in one.tokens]  # type: ignore[union-attr]
    after = session.after_dashes or 0
    if name is not None and is_first:
        if len(words) <= after:
            words.insert(0, str(options.get("name") or usable_name(path.absolute().parent.name)))
            session.numbers_name = True
        if len(words) == 1 and words[0].endswith(".py"):
            return  # a script without a name, which the command reports
        name.tokens[:] = [Token(value=words.pop(0), source=str(path))]
    elif name is not None and not name.tokens and "name" in options:
        name.tokens[:] = [Token(keyword="--name", value=options["name"], source=str(path))]
    resumes = "resume" in by_key and by_key["resume"].tokens
    if not resumes and len(words) <= after and (not words or words[0].startswith("--")):
        words = [*command_words(options), *words] if "run" in options else words
        session.after_dashes = len(words) if is_first else session.after_dashes
    entry.tokens[:] = [Token(value=word, source=str(path), index=at) for at, word in enumerate(words)]


def _fill(argument: Argument, option: str, texts: Iterable[str], path: Path) -> None:
    """Put texts of the file before those that were typed, which the command checks as always."""
    tokens = [Token(keyword=option, value=text, source=str(path)) for text in texts]
    argument.tokens[:] = [token.evolve(index=at) for at, token in enumerate([*tokens, *argument.tokens])]


def _texts(value: Any, *, without: Mapping[str, Any] | None) -> Iterable[str]:
    """Return a value of the file as the texts that would be typed; of a mapping, the names that were not typed."""
    if isinstance(value, Mapping):
        return [f"{name}={text}" for name, text in value.items() if name not in (without or ())]
    values = value if isinstance(value, list) else [value]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in values]


def _first_mistake(path: Path, found: YamlFile, error: ValidationError) -> str:
    """Return the message for the first key with a mistake.

    A key that may have values of several types has an error for each type, of which the one deepest in the file is meant.
    """
    errors = [(_keys(found.value, one["loc"]), one) for one in error.errors()]
    top = min(errors, key=lambda one: found.line_of(one[0]))[0][0]
    keys, first = max((one for one in errors if one[0][0] == top), key=lambda one: (_is_unknown(one[1]), len(one[0])))
    place = f"{path}, line {found.line_of(keys)}"
    if _is_unknown(first):
        return f"{place}: unknown key {keys[-1]!r}.{_near_key(str(keys[-1]), within_profile=len(keys) > 1)}"
    if first["type"] == "model_type":
        return f"{place}: {'.'.join(map(str, keys))}: a mapping of options is needed here, such as `nodes: 2`."
    text = str(first["msg"]).removeprefix("Value error, ").removesuffix(".").removeprefix(f"{keys[-1]} ")
    return f"{place}: {'.'.join(map(str, keys))}: {text}{'' if text.endswith('?') else '.'}"


def _is_unknown(mistake: Mapping[str, Any]) -> bool:
    return bool(mistake["type"] == "extra_forbidden")


def _keys(value: Any, loc: Sequence[str | int]) -> list[str | int]:
    """Return the parts of a pydantic location that are keys or indexes in the file, without the names of types."""
    keys = []
    for part in loc:
        is_index = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if is_index or (isinstance(value, Mapping) and part in value):
            value = value[part]
            keys.append(part)
    return keys or list(loc[:1])


def _near_key(key: str, *, within_profile: bool) -> str:
    from shoal.core.project_file import HABITS, ProjectFile, ProjectJob

    known = (ProjectJob if within_profile else ProjectFile).model_fields
    plain = key.lower().replace("-", "_")
    meant = HABITS.get(plain, plain)
    return f" Did you mean {meant!r}?" if meant in known else did_you_mean(plain, known)
