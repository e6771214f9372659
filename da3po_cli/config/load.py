"""From files, environment, `key=value` and flags to one frozen Config, with the source of every key.

Every layer becomes a list of `Setting`; the config is a fold over them, so precedence is their order:
defaults of the algorithm < files (left to right) < DA3PO_SECTION__KEY < key=value < flags.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.keys import ALIASES, FLAGS, RETIRED, convert, key_types, sections, unknown_key
from da3po_cli.config.presets import find_config
from da3po_cli.config.schema import Config
from da3po_cli.errors import ConfigErrors, UsageError

_DIRECTIVES = ("defaults", "overlays")
_RESERVED_ENV = ("DA3PO_CONFIG", "DA3PO_RUNS", "DA3PO_HOME", "DA3PO_BENCH_DIR", "DA3PO_DEBUG")


class _Loader(yaml.SafeLoader):
    """YAML that reads `1e-6` as a number; YAML 1.1 wants `1.0e-6` and makes text of the shorter form."""


_Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass(frozen=True)
class Setting:
    """One value given for one key. `text` is what the user wrote; `algorithm` limits it to one algorithm."""

    key: str
    value: Any
    text: str | None
    where: str
    algorithm: str | None = None


class UnreadFile(UsageError):
    """A config file of which nothing is known; what follows from its absence is no problem of the user's."""


@dataclass(frozen=True)
class Loaded:
    """A config, and for every key the layer that set it. `problems` is empty unless `resolve` was called."""

    config: Config
    sources: dict[str, str]
    problems: tuple[UsageError, ...] = ()


def load_config(
    files: Sequence[str] = (),
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] = os.environ,
) -> Loaded:
    """Resolve all layers.

    Args:
        files: paths or shipped names; later ones win.
        overrides: `key=value` tokens.
        flags: config key -> value of an explicit flag; None means that it was not given.
        env: variables called DA3PO_SECTION__KEY are read.

    Raises:
        ConfigErrors: every problem of every layer at once.
    """
    loaded = resolve(files, overrides, flags, env)
    if loaded.problems:
        raise ConfigErrors(list(loaded.problems))
    return loaded


def resolve(
    files: Sequence[str] = (),
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] = os.environ,
) -> Loaded:
    """As `load_config`, but wrong settings are left out and their problems returned."""
    problems: list[UsageError] = []
    settings: list[Setting] = []
    named = [name.strip() for name in env.get("DA3PO_CONFIG", "").split(",") if name.strip()]
    for name in files:
        settings += _file_settings(name, problems, "DA3PO_CONFIG" if name in named else "--config")
    settings += _env_settings(env, problems)
    settings += _override_settings(overrides, problems)
    for key, value in (flags or {}).items():
        if value is not None:
            settings.append(Setting(key, value, str(value), FLAGS.get(key, f"flag for {key}")))
    return _fold(settings, problems)


# ----------------------------------------------------------------------------------------------------- the layers


def _scalar(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _override_settings(tokens: Sequence[str], problems: list[UsageError]) -> Iterator[Setting]:
    for token in tokens:
        key, equals, text = token.partition("=")
        where = f"{token} on the command line"
        if not equals or not key:
            hint = f"write {ALIASES.get(key, key) or 'key'}=value" if not token.startswith("-") else "da3po train -h"
            problems.append(UsageError(f"{token!r} is not key=value", where="command line", hint=hint))
            continue
        yield from _text_setting(key.strip(), text.strip(), where, problems)


def _env_settings(env: Mapping[str, str], problems: list[UsageError]) -> Iterator[Setting]:
    for name in sorted(env):
        if not name.startswith("DA3PO_") or name in _RESERVED_ENV:
            continue
        rest = name.removeprefix("DA3PO_").lower()
        if "__" in rest:
            yield from _text_setting(rest.replace("__", ".", 1), env[name], f"environment {name}", problems)
            continue
        section = next((part for part in sections() if rest.startswith(f"{part}_")), None)
        if near := difflib.get_close_matches(name, _RESERVED_ENV, n=1, cutoff=0.9):
            hint = f"did you mean {near[0]}?"
            problems.append(UsageError(f"{name} sets nothing", where=f"environment {name}", hint=hint))
        elif section is not None:  # else it is another program's
            right = f"DA3PO_{section.upper()}__{rest[len(section) + 1 :].upper()}"
            problems.append(UsageError(f"{name} sets nothing", where=f"environment {name}", hint=f"write {right}"))


def _text_setting(key: str, text: str, where: str, problems: list[UsageError]) -> Iterator[Setting]:
    try:
        value = _scalar(text)
    except yaml.YAMLError:
        problems.append(UsageError(f"cannot read the value {text!r}", where=where, hint=f"quote it: {key}='\"...\"'"))
        return
    if isinstance(value, dict):
        problems.append(UsageError(f"{key} takes one value", where=where, hint=f"write {key}.name=value for each"))
        return
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    yield Setting(ALIASES.get(key, key), value, value if quoted else text, where)


def _file_settings(
    name: str, problems: list[UsageError], where: str, beside: Path | None = None, chain: tuple[Path, ...] = ()
) -> list[Setting]:
    """The settings of one file, after those of the files that its `defaults:` names; `where` names this file."""
    try:
        path = find_config(name, beside=beside)
    except UsageError as error:
        problems.append(UnreadFile(error.message, where=where, hint=error.hint))
        return []
    if path.resolve() in chain:
        problems.append(UnreadFile(f"{path} is its own default", where=f"{path} defaults", hint="break the circle"))
        return []
    try:
        text = path.read_text()
        root = cast("yaml.Node | None", yaml.compose(text, Loader=_Loader))  # pyright: ignore[reportUnknownMemberType]
    except (OSError, UnicodeDecodeError) as error:
        hint = "a YAML file in UTF-8 that you may read"
        problems.append(UnreadFile(f"cannot read {path}: {error}", where=where, hint=hint))
        return []
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        hint = "mend that line: its indentation, colons, quotes"
        problems.append(UnreadFile(f"not YAML: {said}", where=place, hint=hint))
        return []
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        problems.append(UnreadFile("a config file holds `section:` blocks", where=f"{path}:1", hint="see configs/"))
        return []
    reader = _FileReader(path, problems)
    reader.read(root, "", None)
    if _is_of_a_run(path):
        reader.found = [setting for setting in reader.found if setting.key not in RETIRED]
    settings: list[Setting] = []
    for base in reader.defaults:
        settings += _file_settings(base, problems, f"{reader.path} defaults", path.parent, (*chain, path.resolve()))
    # An overlay is the more special part of its file, so it comes after the rest of it.
    return settings + [s for s in reader.found if not s.algorithm] + [s for s in reader.found if s.algorithm]


def _is_of_a_run(path: Path) -> bool:
    """Whether an earlier version of da3po, and no user, may have written the file: config.yaml of a run directory."""
    return path.name == "config.yaml" and any((path.parent / name).exists() for name in ("run.json", "checkpoints"))


def _shown(path: Path) -> Path:
    """As short as a user would write it."""
    absolute = path.absolute()
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path


class _FileReader:
    """Walks the YAML nodes of one file: nodes know their lines, and show duplicate keys before they are merged."""

    def __init__(self, path: Path, problems: list[UsageError]) -> None:
        self.path = _shown(path)
        self.problems = problems
        self.found: list[Setting] = []
        self.defaults: list[str] = []

    def read(self, node: yaml.MappingNode, prefix: str, algorithm: str | None) -> None:
        seen: set[str] = set()
        for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            key = prefix + str(key_node.value)
            line = key_node.start_mark.line + 1
            where = f"{self.path}:{line} {key}"
            if key in seen:
                self.problems.append(UsageError(f"{key} is given twice", where=where, hint="keep one of the two"))
                continue
            seen.add(key)
            if not prefix and algorithm is None and key in _DIRECTIVES:
                self._directive(key, value_node, where)
            elif isinstance(value_node, yaml.MappingNode):
                self.read(value_node, f"{key}.", algorithm)
            else:
                self._leaf(ALIASES.get(key, key), value_node, where, algorithm)

    def _leaf(self, key: str, node: yaml.Node, where: str, algorithm: str | None) -> None:
        loader = _Loader("")
        value: Any = cast(Any, loader).construct_object(node, deep=True)
        if key in sections() and value is None:
            return  # an empty section
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else None
        if algorithm is not None and key == "algo.name":
            self.problems.append(UsageError("an overlay cannot choose the algorithm", where=where, hint="remove it"))
            return
        self.found.append(Setting(key, value, text, where, algorithm))

    def _directive(self, key: str, node: yaml.Node, where: str) -> None:
        if key == "defaults":
            items = node.value if isinstance(node, yaml.SequenceNode) else [node]
            if not all(isinstance(item, yaml.ScalarNode) for item in items):
                hint = "defaults: demo, or defaults: [demo, mine.yaml]"
                self.problems.append(UsageError("defaults is a name or a list of names", where=where, hint=hint))
                return
            self.defaults = [str(item.value) for item in items]
            return
        if not isinstance(node, yaml.MappingNode):
            hint = "overlays: {dapo: {algo.clip_high: 0.3}}"
            self.problems.append(UsageError("overlays maps an algorithm to settings", where=where, hint=hint))
            return
        for name_node, part in node.value:
            name = str(name_node.value)
            if name not in ALGORITHMS:
                self.problems.append(unknown_algorithm(name, f"{where}.{name}"))
            elif isinstance(part, yaml.MappingNode):
                self.read(part, "", name)


# ------------------------------------------------------------------------------------------------------- the fold


def unknown_algorithm(name: object, where: str) -> UsageError:
    """The error for a name that is not in the ALGORITHMS table."""
    near = difflib.get_close_matches(str(name), list(ALGORITHMS), n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    return UsageError(f"unknown algorithm {name!r}", where=where, hint=f"{guess}one of {', '.join(ALGORITHMS)}")


def _algorithm_of(settings: Sequence[Setting], problems: list[UsageError]) -> str:
    """The name that the strongest layer gives; the algorithm's defaults are the base of all layers."""
    for setting in reversed(settings):
        if setting.key == "algo.name":
            if setting.text in ALGORITHMS:
                return str(setting.text)
            problems.append(unknown_algorithm(setting.text, setting.where))
            break
    return Config().algo.name


def _fold(settings: Sequence[Setting], problems: list[UsageError]) -> Loaded:
    algorithm = _algorithm_of(settings, problems)
    base = OmegaConf.structured(replace(Config(), algo=ALGORITHMS[algorithm].defaults))
    for node in (base, *(base[section] for section in sections())):
        OmegaConf.set_readonly(node, False)  # the dataclasses are frozen; the fold builds a new one
    sources = {key: f"default of {algorithm}" if key.startswith("algo.") else "default" for key in key_types()}
    for setting in settings:
        if setting.algorithm not in (None, algorithm) or setting.key == "algo.name":
            continue
        if _apply(base, setting, problems):
            sources[setting.key] = setting.where
    for setting in settings:
        if setting.key == "algo.name" and setting.text == algorithm:
            sources["algo.name"] = setting.where
    _resolve_interpolations(base, sources, problems)
    return Loaded(cast(Config, OmegaConf.to_object(base)), sources, tuple(problems))


def _apply(base: DictConfig, setting: Setting, problems: list[UsageError]) -> bool:
    key = setting.key
    if key not in key_types():
        shown = setting.text if setting.text is not None else setting.value
        problems.append(unknown_key(key, setting.where, shown))
        return False
    try:
        OmegaConf.update(base, key, convert(key, setting.value, setting.text))
    except (ValueError, OmegaConfBaseException) as error:
        shown = setting.text if setting.text is not None else setting.value
        why = str(error).splitlines()[0]
        problems.append(UsageError(f"{key}={shown}: {why}", where=setting.where, hint=_such_as(setting)))
        return False
    return True


def _such_as(setting: Setting) -> str:
    """How the setting could be written: with the default, in the form in which it was given."""
    _, nullable = key_types()[setting.key]
    if nullable and str(setting.text).lower() == "none":
        return f"write {setting.key}=null"
    default = flatten(Config())[setting.key]
    if default in ("", None):
        return f"write {setting.key}=VALUE"
    value = str(default).lower() if isinstance(default, bool) else default
    flag = f"{setting.where} " if setting.where.startswith("--") else f"{setting.key}="
    return f"write a value such as {flag}{value}"


def _resolve_interpolations(base: DictConfig, sources: Mapping[str, str], problems: list[UsageError]) -> None:
    """Replace `${other.key}` by its value; a broken one is reported and gives way to the default."""
    default = flatten(Config())
    for key in key_types():
        section, _, name = key.partition(".")
        if not OmegaConf.is_interpolation(base[section], name):
            continue
        try:
            value = OmegaConf.select(base, key, throw_on_missing=True)
            resolved = convert(key, value, None)
        except (ValueError, OmegaConfBaseException) as error:
            why = str(error).splitlines()[0]
            problems.append(UsageError(f"{key}: {why}", where=sources[key], hint="name another key as ${section.key}"))
            resolved = default[key]
        OmegaConf.update(base, key, resolved)


# ----------------------------------------------------------------------------------------------------- other forms


def flatten(config: Config) -> dict[str, Any]:
    """Dotted key -> value, in the order of the schema."""
    return {
        f"{section}.{name}": value
        for section, part in cast("dict[str, dict[str, Any]]", asdict(config)).items()
        for name, value in part.items()
    }


def dump(config: Config) -> str:
    """The whole config as YAML; `load_config([file])` of it gives the same config."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_dict(data: Mapping[str, Mapping[str, Any]]) -> Config:
    """The inverse of `dataclasses.asdict` on a Config."""
    return Config(**{section: kind(**data[section]) for section, kind in sections().items()})


def diff(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of every key that differs."""
    before, after = flatten(old), flatten(new)
    return [(key, before[key], after[key]) for key in before if before[key] != after[key]]


def config_hash(config: Config) -> str:
    """Twelve hex digits that change with any value but the run's name."""
    anonymous = replace(config, run=replace(config.run, name=None))
    return hashlib.sha256(dump(anonymous).encode()).hexdigest()[:12]
