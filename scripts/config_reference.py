"""Write docs/config.md, the reference of all config keys, from the dataclasses of the config.

    python scripts/config_reference.py [--check]

`--check` writes nothing and exits with 1 where the page is out of step. The text under a field in the schema is its
documentation; where it ends in a range ("At least 1.", "Above 0.", "In (0, 1].", "0 or 1.", "Only 1."), the range goes
to the type.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from da3po_cli.algos.table import ALGORITHMS, AlgoConfig  # noqa: E402
from da3po_cli.config.keys import ALIASES, FLAGS, key_types, sections  # noqa: E402
from da3po_cli.config.presets import preset_names  # noqa: E402

PAGE = ROOT / "docs" / "config.md"
COMMAND = ".venv/bin/python scripts/config_reference.py"
RANGE = re.compile(r"(?:^|(?<=[.:;,)] ))((?:At least|Above|In [(\[]|Only|\d+ or)[^.]*(?:\.\d+[^.]*)?)\.$")
TYPES = {bool: "true, false", int: "int", float: "float", str: "text"}

HEAD = """# Config reference

<!-- Written by scripts/config_reference.py from the dataclasses: change those, not this page. -->

Every key of a config, as `--config FILE`, `key=value`, `DA3PO_SECTION__KEY` and `da3po config show` know it. Later
wins: defaults, config files from left to right, environment, `key=value`, flags. The presets (PRESETS) are files of the
same form in [configs/](../configs). A file may begin with `defaults: PRESET`, and hold settings for one algorithm only
below `overlays.NAME`.

```bash
da3po config show -c qwen3-4b train.lr=5e-7 --sources      # every key with its value and what set it
da3po config diff demo qwen3-4b                            # the keys in which two configs differ
```

`null` among the values means that the key may be left empty. Rules that span several keys are checked before anything
is loaded, and all problems are shown at once."""


def field_docs(kind: type) -> dict[str, str]:
    """Field -> the text under it, as one line; empty where there is none."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    name = None
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            found[name] = ""
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name] = " ".join(str(node.value.value).split())
            name = None
    return found


def split_range(text: str) -> tuple[str, str]:
    """(what a field means, its range); the range is empty where the text states none."""
    found = RANGE.search(text)
    if not found:
        return text, ""
    return text[: found.start(1)].rstrip(), found[1]


def type_text(key: str, limits: str) -> str:
    """The values that a key takes."""
    accepted, nullable = key_types()[key]
    if key == "algo.name":
        accepted = tuple(ALGORITHMS)
    if isinstance(accepted[0], type):
        text = TYPES[accepted[0]]
        if limits:
            text += ", " + limits[0].lower() + limits[1:]
    else:
        text = ", ".join(f"`{one}`" for one in accepted)
    return text + (", or null" if nullable else "")


def value_text(value: Any) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return f"`{({None: 'null', True: 'true', False: 'false'})[value]}`"
    if value == "":
        return "empty"
    if isinstance(value, float):
        shown = repr(value)
        return f"`{shown.replace('e-0', 'e-')}`"
    return f"`{value}`"


def section_lines(name: str, kind: type) -> list[str]:
    """One section as a table."""
    docs, defaults = field_docs(kind), asdict(kind())
    lines = [f"## {name}", "", "| key | values | default | meaning |", "|---|---|---|---|"]
    for field, text in docs.items():
        key = f"{name}.{field}"
        meaning, limits = split_range(text)
        if key in FLAGS:
            meaning += f" Flag `{FLAGS[key]}`."
        other = [alias for alias, target in ALIASES.items() if target == key]
        if other:
            meaning += f" Also written {' or '.join(f'`{alias}`' for alias in other)}."
        cells = (f"`{key}`", type_text(key, limits), value_text(defaults[field]), meaning)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    if name == "algo":
        lines += ["", *algorithm_lines(docs)]
    return [*lines, ""]


def algorithm_lines(fields: dict[str, str]) -> list[str]:
    """The keys of `algo` whose default depends on the algorithm."""
    base = asdict(AlgoConfig())
    rows = {name: asdict(entry.defaults) for name, entry in ALGORITHMS.items()}
    keys = [key for key in fields if key != "name" and any(row[key] != base[key] for row in rows.values())]
    lines = [
        "The defaults of an algorithm come before all config files. They differ from the table above in these keys:",
        "",
        f"| | {' | '.join(f'`{name}`' for name in rows)} |",
        f"|---|{'---|' * len(rows)}",
    ]
    return lines + [f"| `algo.{key}` | {' | '.join(value_text(row[key]) for row in rows.values())} |" for key in keys]


def render() -> str:
    """The page."""
    presets = ", ".join(f"`{name}`" for name in preset_names())
    lines = [HEAD.replace("PRESETS", presets), ""]
    for name, kind in sections().items():
        lines += section_lines(name, kind)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is out of step")
    if parser.parse_args().check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == render()
        print("in step" if same else f"{PAGE} is out of step: run {COMMAND}")
        return 0 if same else 1
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
