"""Layers, their order, their traps, and the errors that a user sees."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from da3po_cli import main
from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.config.load import Loaded, config_hash, diff, dump, flatten, from_dict, load_config
from da3po_cli.config.schema import Config
from da3po_cli.errors import ConfigErrors, UsageError
from da3po_cli.runs.directory import RunDir


def load(files: list[str] | None = None, *overrides: str, **layers: dict[str, str]) -> Loaded:
    return load_config(files or [], overrides, layers.get("flags"), layers.get("env", {}))


def problems(*overrides: str, files: list[str] | None = None, env: dict[str, str] | None = None) -> list[UsageError]:
    with pytest.raises(ConfigErrors) as caught:
        load_config(files or [], overrides, None, env or {})
    return caught.value.problems


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_nothing_given_is_the_schema() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert set(loaded.sources) == set(flatten(Config()))
    assert loaded.sources["train.lr"] == "default"
    assert loaded.sources["algo.clip_high"] == "default of da3po"


def test_each_layer_beats_the_one_before(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "train: {lr: 1.0, epochs: 2, weight_decay: 0.5}\nrun: {steps: 1, seed: 1}")
    two = write(tmp_path / "two.yaml", "train: {lr: 2.0, epochs: 3}\nrun: {steps: 2, seed: 2}")
    env = {"DA3PO_TRAIN__LR": "3.0", "DA3PO_RUN__STEPS": "3", "DA3PO_RUN__SEED": "3"}
    loaded = load_config([one, two], ["run.steps=4", "run.seed=4"], {"run.seed": 5, "run.name": None}, env)
    assert loaded.config.train.weight_decay == 0.5
    assert loaded.config.train.epochs == 3
    assert loaded.config.train.lr == 3.0
    assert loaded.config.run.steps == 4
    assert loaded.config.run.seed == 5
    assert loaded.sources["train.weight_decay"].endswith("one.yaml:1 train.weight_decay")
    assert loaded.sources["run.steps"] == "run.steps=4 on the command line"
    assert loaded.sources["train.lr"] == "environment DA3PO_TRAIN__LR"
    assert loaded.sources["run.seed"] == "--seed"


@pytest.mark.parametrize("name", list(ALGORITHMS))
@pytest.mark.parametrize("layer", ["file", "environment", "override", "flag"])
def test_the_algorithm_of_any_layer_is_the_base_of_its_section(name: str, layer: str, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.yaml", "algo.daa_tau: 0.25")]
    overrides: list[str] = []
    flags: dict[str, str] = {}
    env: dict[str, str] = {}
    if layer == "file":
        files.append(write(tmp_path / "b.yaml", f"algo: {{name: {name}}}"))
    elif layer == "environment":
        env["DA3PO_ALGO__NAME"] = name
    elif layer == "override":
        overrides.append(f"algo.name={name}")
    else:
        flags["algo.name"] = name
    # tau was set by a lower layer than the name, and still beats the algorithm's default
    assert load_config(files, overrides, flags, env).config.algo == replace(ALGORITHMS[name].defaults, daa_tau=0.25)


@pytest.mark.parametrize("token", ["lambda=1.5", "algo.lambda=1.5", "algo.daa_lambda=1.5"])
def test_lambda_goes_by_its_names(token: str, tmp_path: Path) -> None:
    assert load(None, token).config.algo.daa_lambda == 1.5
    key = token.partition("=")[0]
    assert load([write(tmp_path / "a.yaml", f"{key}: 1.5")]).config.algo.daa_lambda == 1.5
    assert load(env={"DA3PO_ALGO__LAMBDA": "1.5"}).config.algo.daa_lambda == 1.5


@pytest.mark.parametrize(
    ("token", "key", "value"),
    [
        ("train.lr=1e-6", "train.lr", 1e-6),  # YAML 1.1 reads this as text
        ("train.lr=2", "train.lr", 2.0),
        ("run.name=123", "run.name", "123"),
        ("run.name=1_000", "run.name", "1_000"),  # YAML reads 1000
        ("run.name=2026-01-02", "run.name", "2026-01-02"),
        ("run.name='null'", "run.name", "null"),
        ("run.name=null", "run.name", None),
        ("run.name=a=b", "run.name", "a=b"),
        ("algo.tis=on", "algo.tis", "on"),  # YAML reads True
        ("algo.tis=off", "algo.tis", "off"),
        ("run.tensorboard=no", "run.tensorboard", False),
        ("parallel.data=null", "parallel.data", None),
        ("algo.dual_clip=null", "algo.dual_clip", None),
        ("train.lr=${train.adam_eps}", "train.lr", 1e-8),
    ],
)
def test_values_mean_what_they_look_like(token: str, key: str, value: object) -> None:
    got = flatten(load(None, token).config)[key]
    assert got == value
    assert type(got) is type(value)


def test_yaml_choices_are_text(tmp_path: Path) -> None:
    assert load([write(tmp_path / "a.yaml", "algo:\n  tis: off\n")]).config.algo.tis == "off"


@pytest.mark.parametrize(
    ("token", "message", "hint"),
    [
        ("resume", "'resume' is not key=value", "resume=value"),
        ("--stepz", "'--stepz' is not key=value", "da3po train -h"),
        ("algo=gspo", "algo is a section", "algo.name=gspo"),
        ("model=x/y", "model is a section", "model.path=x/y"),
        ("trian.lr=1", "unknown config key 'trian.lr'", "train.lr"),
        ("train.learning_rate=1", "unknown config key", "keys of train"),
        ("lr=1", "unknown config key 'lr'", "train.lr"),
        ("algo.clip_hihg=1", "unknown config key", "algo.clip_high"),
        ("tau=0.5", "unknown config key 'tau'", "algo.daa_tau"),
        ("quux=1", "unknown config key 'quux'", "sections: run, model"),
        ("parallel.data=None", "write null", "parallel.data"),
        ("run.steps=None", "must be a whole number", "run.steps"),
        ("run.steps=null", "must be a whole number, not null", "run.steps"),
        ("run.steps=1.5", "must be a whole number", "run.steps"),
        ("run.steps=true", "must be a whole number", "run.steps"),
        ("run.steps=1,2", "must be a whole number", "run.steps"),
        ("run.steps=[1,2]", "not a list", "run.steps"),
        ("train.lr=fast", "must be a number", "train.lr"),
        ("train.lr=.nan", "must be a finite number", "train.lr"),
        ("run.tensorboard=1", "must be true or false", "run.tensorboard"),
        ("algo.ratio=tokn", "did you mean token?", "algo.ratio"),
        ("algo.name=gpso", "unknown algorithm 'gpso'", "did you mean gspo?"),
        ("train.lr=${train.nothing}", "train.lr", "name another key"),
        ("run.name={", "cannot read the value", "quote it"),
    ],
)
def test_one_wrong_token_is_one_clear_problem(token: str, message: str, hint: str) -> None:
    (problem,) = problems(token)
    assert message in problem.message
    assert hint in (problem.hint or "")
    assert problem.where
    assert "\n" not in problem.message


def test_all_problems_of_all_layers_come_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "run:\n  stepz: 3\n  seed: x\ntrain:\n  lr: 1\n  lr: 2\n")
    found = problems("foo", "train.epochs=x", files=[file, "no-such"], env={"DA3PO_TRAIN_LR": "1"})
    text = [f"{problem.message} @ {problem.where}" for problem in found]
    assert len(text) == 7
    for part in (
        "unknown config key 'run.stepz' @ ",
        "a.yaml:2 run.stepz",
        "run.seed=x: must be a whole number @ ",
        "train.lr is given twice @ ",
        "a.yaml:6 train.lr",
        "no config called 'no-such'",
        "'foo' is not key=value",
        "train.epochs=x",
        "DA3PO_TRAIN_LR sets nothing",
    ):
        assert any(part in line for line in text), part


def test_environment_of_others_is_left_alone() -> None:
    env = {"DA3PO_RUNS": "x", "DA3PO_HOME": "y", "DA3PO_DEBUG": "1", "DA3PO_SOMETHING": "1", "PATH": "z"}
    assert load(env=env).config == Config()


def test_defaults_chain_and_circle(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", "train: {lr: 1.0, epochs: 2}")
    write(tmp_path / "middle.yaml", "defaults: base\ntrain: {lr: 2.0}")
    top = write(tmp_path / "top.yaml", "defaults: [middle.yaml]\nrun: {steps: 9}")
    config = load([top]).config
    assert (config.train.lr, config.train.epochs, config.run.steps) == (2.0, 2, 9)
    circle = write(tmp_path / "circle.yaml", "defaults: circle")
    (problem,) = problems(files=[circle])
    assert "its own default" in problem.message


def test_an_overlay_holds_for_its_algorithm_only(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.yaml",
        "overlays:\n  gspo:\n    train.epochs: 7\n  grpo: {train: {epochs: 8}}\ntrain: {epochs: 2}\n",
    )
    assert load([file]).config.train.epochs == 2
    assert load([file], "algo.name=gspo").config.train.epochs == 7
    assert load([file], "algo.name=grpo").config.train.epochs == 8
    assert load([file], "algo.name=grpo", "train.epochs=3").config.train.epochs == 3
    later = write(tmp_path / "b.yaml", "train: {epochs: 4}")
    assert load([file, later], "algo.name=gspo").config.train.epochs == 4
    wrong = write(tmp_path / "c.yaml", "overlays: {gpso: {train.epochs: 1}}")
    assert "gspo" in (problems(files=[wrong])[0].hint or "")


@pytest.mark.parametrize("text", ["- a list", "train: [", "a: b: c", "\tx: 1"])
def test_what_is_no_config_is_said_with_its_line(text: str, tmp_path: Path) -> None:
    (problem,) = problems(files=[write(tmp_path / "a.yaml", text)])
    assert "a.yaml:1" in (problem.where or "")


def test_empty_files_and_sections_set_nothing(tmp_path: Path) -> None:
    assert load([write(tmp_path / "a.yaml", ""), write(tmp_path / "b.yaml", "train:\n")]).config == Config()


def test_a_dump_loads_to_the_same_config(tmp_path: Path) -> None:
    config = load(["qwen3-8b"], "algo.name=dr_grpo", "run.name=null", "train.lr=3e-7").config
    assert load([write(tmp_path / "a.yaml", dump(config))]).config == config
    assert from_dict(asdict(config)) == config


def test_diff_and_hash() -> None:
    old, new = Config(), load(None, "train.lr=1.0").config
    assert diff(old, new) == [("train.lr", 1e-6, 1.0)]
    assert diff(old, old) == []
    assert config_hash(old) != config_hash(new)
    assert config_hash(old) == config_hash(load(None, "run.name=other").config)


@pytest.fixture
def retired_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config.yaml of a run of an earlier version, with a key that is no more."""
    monkeypatch.setenv("DA3PO_RUNS", str(tmp_path / "runs"))
    run = RunDir(tmp_path / "runs/old")
    text = dump(load(["demo"], "algo.name=dapo", "parallel.data=1").config)
    assert "  name: dapo\n" in text
    old = text.replace("  name: dapo\n", "  name: dapo\n  advantage: group\n").replace("  overlong_share: 0.2\n", "")
    run.create(old, "hash", ["da3po", "train"])
    (run.checkpoints / "step_1").mkdir(parents=True)
    (run.checkpoints / "step_1/state.json").write_text('{"step": 1}')
    return run.config_file


def test_a_key_that_is_no_more_is_passed_over_in_the_config_of_a_run(retired_run: Path) -> None:
    config = load([str(retired_run)]).config
    assert config == load(["demo"], "algo.name=dapo", "parallel.data=1").config
    (retired_run.parent / "run.json").unlink()  # a checkpoint that was copied without it
    assert load([str(retired_run)]).config == config


def test_a_run_with_a_key_that_is_no_more_goes_on(retired_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.execute(["train", "--name", "old", "--resume=latest", "--dry-run"]) == 0
    assert "advantage" not in capsys.readouterr().err


def test_a_key_that_is_no_more_is_said_to_be_removed(tmp_path: Path) -> None:
    own = write(tmp_path / "config.yaml", "algo:\n  advantage: group\n")
    for found in (
        problems(files=[own]),
        problems("algo.advantage=group"),
        problems(env={"DA3PO_ALGO__ADVANTAGE": "x"}),
    ):
        (problem,) = found
        assert (
            problem.message == "the config key 'algo.advantage' was removed: it had one value, group, and chose nothing"
        )
        assert problem.hint == "leave it out"
        assert problem.where
